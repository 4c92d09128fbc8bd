"""What is sent, and what must be free before it is sent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentq.agent import Budgets, ScriptedClient, StopReason, Thread
from agentq.agent.budgets import Need
from agentq.agent.request import (
    call_rungs,
    closing_messages,
    closing_request,
    closing_rungs,
    model_request,
    reply_bill,
    reply_cost,
    step_limits,
)
from agentq.provider.pricing import ModelPricing
from agentq.provider.resilient import ResilientClient
from agentq.provider.types import ChatResult, Role, Usage
from tests.unit.agent.helpers import Model, agent, look, reply

CHEAP = ModelPricing("scripted-v1", "1", "2", 1000)
DEAR = ModelPricing("model-1", "10", "20", 1000)


def thread() -> Thread:
    made = Thread()
    made.add(Role.USER, "task")
    return made


def test_the_request_has_the_tools_that_are_allowed_and_the_rows_label() -> None:
    """Sorted, and in the shape that the adapters read."""
    limited = agent(ScriptedClient(["x"]), allowlist=["look"], system="be brief", max_output_tokens=7)
    request = model_request(limited, thread(), {"row": 1})
    assert [tool["name"] for tool in request.tools] == ["look"]
    assert set(request.tools[0]) == {"name", "description", "parameters"}
    assert (request.system, request.max_output_tokens, request.metadata) == ("be brief", 7, {"row": 1})
    assert request.tool_choice is None


def test_the_closing_request_forbids_tools_and_names_the_reason() -> None:
    """The conversation is not changed by asking."""
    talk = thread()
    request = closing_request(agent(ScriptedClient(["x"])), talk, StopReason.TIME_BUDGET, {})
    assert (request.tools, request.tool_choice) == ((), "none")
    assert request.messages[-1:] == closing_messages(StopReason.TIME_BUDGET)
    assert "(time_budget)" in request.messages[-1].content
    assert len(talk.messages) == 1


def test_a_scripted_step_needs_exactly_two_calls() -> None:
    """Its own, and the closing turn that may follow."""
    priced = agent(ScriptedClient(["x"]), pricing={"scripted-v1": CHEAP})
    talk = thread()
    request = model_request(priced, talk, {})
    assert call_rungs(priced, talk, request, {})[0].need == Need(700_000, 600, 700_000, 600)
    closing = closing_request(priced, talk, StopReason.STEP_BUDGET, {})
    assert closing_rungs(priced, talk, closing)[0].need == Need(700_000, 600, 0, 0)


def test_without_a_price_no_money_is_needed() -> None:
    """Tokens still are."""
    unpriced = agent(ScriptedClient(["x"]))
    assert call_rungs(unpriced, thread(), model_request(unpriced, thread(), {}), {})[0].need == Need(
        0, 600, 0, 600
    )


def test_the_dearest_model_of_a_chain_is_reserved() -> None:
    """Any of them may answer; the one that did is charged."""
    chain = ResilientClient(ScriptedClient(["x"]), [Model(lambda _: reply("x"))])
    chained = agent(chain, pricing={"scripted-v1": CHEAP, "model-1": DEAR})
    request = model_request(chained, thread(), {})
    need = call_rungs(chained, thread(), request, {})[0].need
    assert need.usd >= need.tokens * 10_000
    assert reply_cost(chained, ChatResult("x", Usage(10, 1), "p", "scripted-v1")) == 12_000
    assert reply_cost(chained, ChatResult("x", Usage(10, 1), "p", "model-1")) == 120_000


def test_a_name_that_no_model_of_a_chain_has_is_booked_as_the_dearest() -> None:
    """A dated variant may be any of them. Only a model of the chain that has no price itself has no cost."""
    chain = ResilientClient(ScriptedClient(["x"]), [Model(lambda _: reply("x"))])
    chained = agent(chain, pricing={"scripted-v1": CHEAP, "model-1": DEAR})
    assert reply_cost(chained, ChatResult("x", Usage(10, 1), "p", "model-1-2026-01-01")) == 120_000
    half = agent(chain, pricing={"scripted-v1": CHEAP})
    assert reply_cost(half, ChatResult("x", Usage(10, 1), "p", "model-1")) is None
    assert reply_cost(half, ChatResult("x", Usage(10, 1), "p", "model-2")) == 12_000


def test_a_dated_variant_of_the_model_that_was_asked_for_has_its_price() -> None:
    """Without fallbacks it cannot be another one; an unknown price is None, not zero."""
    priced = agent(Model(lambda _: reply()), pricing={"model-1": DEAR})
    dated = ChatResult("x", Usage(10, 1, cached_input_tokens=99), "p", "model-1-2026-01-01")
    assert reply_cost(priced, dated) == 120_000
    assert reply_cost(agent(Model(lambda _: reply())), dated) is None


def test_an_agent_without_tools_needs_little_escrow() -> None:
    """A row that is only classified must not reserve the results of sixteen tools."""
    client = Model(lambda _: reply())
    bare, armed = agent(client, look, allowlist=[]), agent(client, look)
    assert step_limits(bare).calls == 1
    escrow = [
        call_rungs(a, thread(), model_request(a, thread(), {}), {})[0].need.escrow_tokens
        for a in (bare, armed)
    ]
    assert escrow[0] < 10_000 < escrow[1]


def test_a_cap_on_tool_bytes_that_cannot_hold_the_calls_is_refused() -> None:
    """Their envelopes alone would break it."""
    with pytest.raises(ValueError, match="lower max_calls_per_step"):
        agent(ScriptedClient(["x"]), max_tool_bytes_per_step=1000)
    with pytest.raises(ValueError, match="max_tool_errors must be"):
        agent(ScriptedClient(["x"]), max_tool_errors=0)
    assert agent(ScriptedClient(["x"])).budgets == Budgets()


def test_a_reply_that_claims_to_have_used_nothing_is_taken_at_the_worst_case() -> None:
    """An aborted stream is reported so; no call uses nothing."""
    some = agent(
        ScriptedClient(["x"]), pricing={"scripted-v1": ModelPricing("scripted-v1", "1", "10", 128_000)}
    )
    zeros = replace(reply("half a sen"), usage=Usage(0, 0))
    counted, cost = reply_bill(some, zeros, usd=7_000, tokens=900)
    assert (counted.usage.total_tokens, cost) == (900, 7_000)
