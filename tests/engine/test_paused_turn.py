"""A turn that its provider pauses, on the real server: the next step goes on with it, whoever makes that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agentq.agent import Budgets, Thread
from agentq.agent.loop import PAUSES_MAX
from agentq.core.lifecycle import StopReason
from agentq.provider.types import ChatRequest, ChatResult, Role, Turn
from agentq.tools import tool
from tests.support.harness import CALL_NANO, Moody, Rig, finish_or_fail, make_agent

BLOCKS = [{"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "\ud83c"}}]
ONE = [("look", '{"id": "1"}')]


@tool
def look(id: str) -> str:
    """Look something up."""
    return f"thing {id}"


class Pausing(Moody):
    """Pauses each turn that is a text with dots at its end."""

    def _play(self, req: ChatRequest) -> ChatResult:
        result = super()._play(req)
        if not result.text.endswith("…"):
            return result
        return replace(result, finish_reason="pause_turn", turn=Turn("anthropic:scripted-v1", BLOCKS))


SCRIPT: list[Any] = ["Let me search…", "Still searching…", ONE, "done"]


def test_the_same_script_is_the_same_run_in_one_process_and_distributed(rig: Rig) -> None:
    inside = make_agent(Pausing(SCRIPT), look).run(Thread(), "do it")
    rig.agent(Pausing(SCRIPT), look)
    run = rig.submit("do it")
    rig.drain()
    record, thread = rig.record(run), rig.thread(run)
    assert (record.stop_reason, record.answer) == (inside.stop_reason, inside.answer) == ("finished", "done")
    assert [m.as_dict() for m in thread.messages] == [m.as_dict() for m in inside.thread.messages]
    assert record.steps == 4
    rig.check()


def test_what_is_sent_again_is_what_came(rig: Rig) -> None:
    client = rig.agent(Pausing(SCRIPT), look).client
    rig.submit()
    rig.drain()
    assert isinstance(client, Pausing)
    last = [message for message in client.requests[1].messages if message.role is Role.ASSISTANT]
    assert [message.turn for message in last] == [Turn("anthropic:scripted-v1", BLOCKS)]


@pytest.mark.parametrize("point", ["step.after_model", "step.after_commit"])
def test_a_worker_that_dies_after_a_pause_loses_no_run_and_pays_nothing_twice(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    client = rig.agent(Pausing(SCRIPT), look).client
    run = rig.submit()
    rig.die(monkeypatch, point)
    rig.revive(run)
    record = finish_or_fail(rig, run)
    assert (record.stop_reason, record.answer) == ("finished", "done")
    assert isinstance(client, Pausing)
    assert record.usd_nano == (4 + (point == "step.after_model")) * CALL_NANO == client.bill_nano
    rig.check()


def test_a_run_whose_turn_is_paused_for_ever_ends_and_says_so(rig: Rig) -> None:
    rig.agent(Pausing(["Let me search…"]), look, budgets=Budgets(max_steps=50, max_tokens=None))
    run = rig.submit()
    rig.drain()
    record = rig.record(run)
    assert (record.stop_reason, record.steps) == (StopReason.MODEL_ERROR, PAUSES_MAX)
    assert record.stop_detail == f"the provider paused its turn {PAUSES_MAX} times and did not end it"
    rig.check()


def test_the_steps_of_a_run_bound_its_pauses_too(rig: Rig) -> None:
    rig.agent(Pausing(["Let me search…", "Still…", "what I have"]), look)
    run = rig.submit(budgets=Budgets(max_steps=2))
    rig.drain()
    record = rig.record(run)
    assert (record.stop_reason, record.answer) == (StopReason.STEP_BUDGET, "what I have")
    rig.check()
