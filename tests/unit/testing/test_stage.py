"""The user's app in a case: all of it that decides what happens is the user's, and it is not changed."""

from __future__ import annotations

import asyncio
from decimal import Decimal

import pytest

from agentq import AgentQ, Budgets, CallContext, tool
from agentq.provider.types import ChatRequest, Message, Role
from agentq.testing.acts import acts
from agentq.testing.files import read
from agentq.testing.model import BilledModel
from agentq.testing.stage import ACTS, BILL, RUN_USD, Ground, Scene, staged


@tool
def look(order_id: int) -> int:
    """Look."""
    return order_id


@tool(side_effect=True)
def note(order_id: int, user_id: str) -> str:
    """Note."""
    return f"{order_id} by {user_id}"


@tool(side_effect=True)
async def ring(ctx: CallContext) -> str:
    """Ring."""
    await asyncio.sleep(0)
    return ctx.run_id


@pytest.fixture
def user():
    app = AgentQ("mine", redis_url="redis://elsewhere/0", tenant_max_usd="0.01", on_exhausted="stop")
    budgets = Budgets(max_steps=3, max_usd="0.02", max_tokens=9_000)
    app.agent("desk", model="scripted", system="Be brief.", tools=[look, note, ring], budgets=budgets)
    return app


@pytest.fixture
def app(user, tmp_path):
    ground = Ground("mine:app", "unix:///nowhere?db=0", "redis+socket:///nowhere", str(tmp_path))
    return staged(user, ground, Scene("case-1", str(tmp_path)))


def test_the_app_of_a_case_is_the_user_s_on_another_server_and_without_limits_in_money(user, app):
    assert (app.settings.namespace, app.settings.redis_url) == ("case-1", "unix:///nowhere?db=0")
    assert (app.settings.on_exhausted, app.settings.tenant_max_usd) == ("stop", None)
    desk = app.agents["desk"]
    assert (desk.system, desk.budgets.max_steps) == ("Be brief.", 3)
    assert (desk.budgets.max_usd, desk.budgets.max_tokens) == (Decimal(RUN_USD), None)
    assert isinstance(desk.client, BilledModel)


def test_the_user_s_own_app_is_not_changed(user, app):
    assert user.settings.redis_url == "redis://elsewhere/0"
    desk = user.agents["desk"]
    assert desk.budgets.max_usd == Decimal("0.02")
    assert not isinstance(desk.client, BilledModel)
    assert desk.executor.registry.get("note").fn is note


def test_what_acts_is_written_down_with_its_run_and_key_and_acts_as_before(app, tmp_path):
    executor = app.agents["desk"].executor
    ctx = CallContext(user_id="mira", run_id="r1")
    results = executor.call_many(
        [("look", '{"order_id": 1}'), ("note", '{"order_id": 1}'), ("ring", "")], ctx
    )
    assert [result.content for result in results] == ["1", "1 by mira", "r1"]
    found = acts(tmp_path / ACTS)
    assert [(act.run, act.tool) for act in found] == [("r1", "note"), ("r1", "ring")]
    assert [act.key.startswith(f"r1:{act.tool}:") for act in found] == [True, True]


def test_each_call_of_the_model_is_billed_before_it_answers(app, tmp_path):
    request = ChatRequest([Message(Role.USER, "go on")], metadata={"script": ["Hello."]})
    assert app.agents["desk"].client.complete(request).text == "Hello."
    assert read(tmp_path / BILL) == [1_500_000]


def test_a_run_that_nobody_wrote_a_script_for_answers_at_once(app):
    request = ChatRequest([Message(Role.USER, "go on")])
    assert app.agents["desk"].client.complete(request).text == "Done."
