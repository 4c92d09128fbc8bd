"""When money is short a call gets smaller, and never a token more than there is is spent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentq.agent import Agent, Budgets, ScriptedClient, StopReason, Thread
from agentq.agent.budgets import Need, Rung
from agentq.agent.request import call_rungs, capped, closing_request, closing_rungs, model_request
from agentq.core.money import to_usd
from agentq.provider.bounds import Anchor, input_bound
from agentq.provider.pricing import ModelPricing, Pricing
from agentq.provider.types import ChatRequest, ChatResult, Message, Role, ToolCall, Usage
from agentq.tools import tool
from tests.unit.agent.helpers import Model, agent, reply

PRICES = {"model-1": ModelPricing("model-1", "1", "5", 100_000)}


class Known(Model):
    """Its input is always 500 tokens, its output at most the cap."""

    def bound(self, req: ChatRequest) -> Usage:
        return Usage(500, req.max_output_tokens)


def a_thread(anchor: Anchor | None = None) -> Thread:
    made = Thread(anchor=anchor)
    made.add(Role.USER, "task")
    return made


def rungs_of(client: Any, thread: Thread | None = None, **options: Any) -> tuple[Rung, ...]:
    made, talk = agent(client, pricing=PRICES, **options), thread or a_thread()
    return call_rungs(made, talk, model_request(made, talk, {}), {})


def caps_of(rungs: tuple[Rung, ...]) -> list[int]:
    return [rung.output_tokens for rung in rungs]


@pytest.mark.parametrize(
    "most, least, caps",
    [
        (4096, None, [4096, 2048, 1024, 512]),
        (2048, None, [2048, 1024, 512, 256]),
        (1000, None, [1000, 500, 256]),
        (256, None, [256]),
        (7, None, [7]),
        (2048, 300, [2048, 1024, 512, 300]),
        (2048, 1, [2048, 1024, 512, 256]),
        (2048, 2047, [2048, 2047]),
        (2048, 2048, [2048]),
        (3, 1, [3, 1]),
    ],
)
@pytest.mark.parametrize("client", [Known(lambda _: reply()), Model(lambda _: reply())])
def test_each_rung_is_half_of_the_one_before_down_to_the_least(
    client: Model, most: int, least: int | None, caps: list[int]
) -> None:
    """At most four; the closing turn has the same ladder."""
    made, talk = agent(client, max_output_tokens=most, min_output_tokens=least), a_thread()
    assert caps_of(call_rungs(made, talk, model_request(made, talk, {}), {})) == caps
    closing = closing_request(made, talk, StopReason.COST_BUDGET, {})
    assert caps_of(closing_rungs(made, talk, closing)) == caps


@pytest.mark.parametrize("anchor", [None, Anchor(1, 900)])
@pytest.mark.parametrize("client", [Known(lambda _: reply()), Model(lambda _: reply())])
def test_a_rung_needs_what_it_would_need_if_its_cap_were_the_agents(
    client: Model, anchor: Anchor | None
) -> None:
    """The step's output and the closing turn's own are both at that cap."""
    rungs = rungs_of(client, a_thread(anchor))
    assert len(rungs) == 4
    for rung in rungs:
        assert rungs_of(client, a_thread(anchor), max_output_tokens=rung.output_tokens)[0] == rung
    for larger, smaller in pairwise(rungs):
        saved = larger.output_tokens - smaller.output_tokens
        assert larger.need.tokens - smaller.need.tokens == saved
        assert larger.need.usd - smaller.need.usd == saved * 5_000
        assert larger.need.escrow_usd - smaller.need.escrow_usd >= saved * 5_000


def test_without_a_bound_of_its_own_the_step_is_read_again_by_the_closing_turn() -> None:
    """A token less in the step is one less there too, beside the one that the closing turn writes less."""
    first, second, *_ = rungs_of(Model(lambda _: reply()))
    saved = first.output_tokens - second.output_tokens
    assert first.need.escrow_tokens - second.need.escrow_tokens == 2 * saved
    assert first.need.escrow_usd - second.need.escrow_usd == saved * (1_000 + 5_000)


def test_a_rung_that_needs_no_less_is_left_out() -> None:
    """A scripted call uses the same whatever its cap."""
    scripted = agent(ScriptedClient(["x"]))
    request = model_request(scripted, a_thread(), {})
    assert call_rungs(scripted, a_thread(), request, {}) == (Rung(2048, Need(0, 600, 0, 600)),)

    class Brief(Model):
        def bound(self, req: ChatRequest) -> Usage:
            return Usage(500, min(req.max_output_tokens, 600))

    assert caps_of(rungs_of(Brief(lambda _: reply()))) == [2048, 512, 256]


def test_the_closing_turn_as_it_is_sent_now_has_no_escrow() -> None:
    """Nothing follows it."""
    made, talk = agent(Known(lambda _: reply()), pricing=PRICES, max_output_tokens=512), a_thread()
    closing = closing_request(made, talk, StopReason.COST_BUDGET, {})
    assert closing_rungs(made, talk, closing) == (
        Rung(512, Need(3_060_000, 1012, 0, 0)),
        Rung(256, Need(1_780_000, 756, 0, 0)),
    )


def test_capping_changes_nothing_but_the_cap() -> None:
    """And nothing at all when it is the cap already."""
    request = ChatRequest([Message(Role.USER, "x")], system="s", max_output_tokens=100)
    assert capped(request, 100) is request
    assert capped(request, 50) == replace(request, max_output_tokens=50)


@pytest.mark.parametrize("least", [0, -1, 2049, 0.5, True, "256"])
def test_a_least_output_that_cannot_be_is_refused_in_words(least: Any) -> None:
    """It is part of the most."""
    with pytest.raises(ValueError, match=r"min_output_tokens=.* from 1 to max_output_tokens=2048"):
        agent(ScriptedClient(["x"]), min_output_tokens=least)


def looking(used: int | None) -> Known:
    """Looks things up until it must not; writes 100 tokens, or all that it may."""

    def answer(req: ChatRequest) -> ChatResult:
        usage = Usage(500, used or req.max_output_tokens)
        if req.tool_choice == "none":
            return reply("what I have", usage=usage)
        return reply("", ToolCall("", "look", f'{{"key":"{len(req.messages)}"}}'), usage=usage)

    return Known(answer)


@pytest.mark.parametrize(
    "used, caps, spent",
    [
        # 500 input and 256 output tokens cost 1,780,000 nano-USD: three such calls are the whole budget.
        (None, [256, 256, 256], 5_340_000),
        # Two steps of 100 tokens leave 3,340,000: too little for a step and the turn after it, and enough
        # for a closing turn of 512 tokens (3,060,000).
        (100, [256, 256, 512], 3_000_000),
    ],
)
def test_a_budget_of_two_steps_and_the_closing_turn(used: int | None, caps: list[int], spent: int) -> None:
    """Two steps are made, then it answers, and nothing is spent beyond the budget."""
    client = looking(used)
    tight = agent(client, pricing=PRICES, max_output_tokens=1024, budgets=Budgets(max_usd="0.00534"))
    run = tight.run(Thread(), "go")
    assert (run.stop_reason, run.answer, run.thread.spend.steps) == (StopReason.COST_BUDGET, "what I have", 2)
    assert [request.max_output_tokens for request in client.requests] == caps
    assert run.thread.spend.usd == to_usd(spent) <= Decimal("0.00534")


def test_an_agent_that_must_not_be_cut_makes_no_call_that_does_not_fit() -> None:
    """The same budget holds less than one call of the full size."""
    client = looking(None)
    rigid = agent(
        client,
        pricing=PRICES,
        max_output_tokens=1024,
        min_output_tokens=1024,
        budgets=Budgets(max_usd="0.00534"),
    )
    run = rigid.run(Thread(), "go")
    assert (run.stop_reason, run.answer, client.requests) == (StopReason.COST_BUDGET, "", [])


def test_with_money_enough_no_call_is_cut() -> None:
    """The ladder is for the end of a budget."""
    client = looking(100)
    rich = agent(client, pricing=PRICES, budgets=Budgets(max_usd=1, max_steps=3))
    assert rich.run(Thread(), "go").answer == "what I have"
    assert {request.max_output_tokens for request in client.requests} == {2048}


# ── whatever a model does within its bounds ──────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Turn:
    """What the model does at one turn: the share (in 16ths) of its cap that it writes, and its calls."""

    share: int = 16
    calls: int = 5
    bytes: int = 4000


class Worst(Model):
    """A provider that counts as much input as the general bound allows, and writes what `turns` say."""

    def __init__(self, turns: Sequence[Turn], id_bytes: int = 8) -> None:
        super().__init__(self.play)
        self.turns = turns
        self.id_bytes = id_bytes
        self.anchor: Anchor | None = None

    def play(self, req: ChatRequest) -> ChatResult:
        at = len(self.requests) - 1
        turn = self.turns[min(at, len(self.turns) - 1)]
        usage = Usage(self.count(req), max(1, req.max_output_tokens * turn.share // 16))
        self.anchor = Anchor(len(req.messages) + 1, usage.total_tokens)
        if req.tool_choice == "none" or not turn.calls:
            return reply("answer", usage=usage)
        arguments = f'{{"n":{at},"size":{turn.bytes}}}'
        ids = [f"{at}-{i}".ljust(self.id_bytes, "x") for i in range(turn.calls)]
        return reply("", *[ToolCall(name, "fetch", arguments) for name in ids], usage=usage)

    def count(self, req: ChatRequest) -> int:
        return input_bound(req, self.anchor)


class Bounded(Worst):
    """The same with a bound of its own: a token for each byte, and so many for what else is in a message."""

    def count(self, req: ChatRequest) -> int:
        return self.bound(req).input_tokens

    def bound(self, req: ChatRequest) -> Usage:
        size = sum(64 + len(message.content.encode()) for message in req.messages)
        return Usage(size, req.max_output_tokens)


@tool
def fetch(n: int, size: int) -> str:
    """Fetch so many bytes."""
    return "x" * size


def fetching(client: Worst, **options: Any) -> Agent:
    room: dict[str, Any] = {"max_calls_per_step": 2, "max_tool_bytes_per_step": 1600, "max_tool_errors": 99}
    return agent(client, fetch, **room | options)


PRICE = st.builds(
    lambda i, o: {"model-1": ModelPricing("model-1", i, o, 10**9)}, st.integers(1, 30), st.integers(0, 60)
)


@pytest.mark.parametrize("unit", ["tokens", "usd"])
@pytest.mark.parametrize("client_type", [Worst, Bounded])
@given(most=st.integers(1, 3000), price=PRICE, rung=st.integers(0, 3), id_bytes=st.integers(4, 70))
def test_what_a_rung_needs_pays_for_the_step_and_for_the_closing_turn(
    *, client_type: type[Worst], unit: str, most: int, price: Pricing, rung: int, id_bytes: int
) -> None:
    """To the token: the step is made at this cap, uses all that it can, and the run still answers."""
    client = client_type([Turn()], id_bytes)
    made = fetching(client, pricing=price, max_output_tokens=most)
    talk = a_thread()
    rungs = call_rungs(made, talk, model_request(made, talk, {}), {})
    chosen = rungs[min(rung, len(rungs) - 1)]
    tokens, usd = (
        chosen.need.tokens + chosen.need.escrow_tokens,
        to_usd(chosen.need.usd + chosen.need.escrow_usd),
    )
    made.budgets = Budgets(max_tokens=tokens) if unit == "tokens" else Budgets(max_usd=usd, max_tokens=None)
    run = made.run(Thread(), "task")
    assert client.requests[0].max_output_tokens == chosen.output_tokens
    assert (client.requests[-1].tool_choice, run.answer) == ("none", "answer")
    assert run.thread.spend.tokens <= tokens if unit == "tokens" else run.thread.spend.usd <= usd


@pytest.mark.parametrize("client_type", [Worst, Bounded])
@given(
    turns=st.lists(
        st.builds(Turn, share=st.integers(0, 16), calls=st.integers(0, 5), bytes=st.integers(0, 4000)),
        min_size=1,
        max_size=6,
    ),
    most=st.integers(1, 3000),
    least=st.none() | st.integers(1, 3000),
    tokens=st.none() | st.integers(1, 60_000),
    nano=st.none() | st.integers(1, 100_000_000),
    price=PRICE,
)
def test_no_run_spends_more_than_its_budgets(
    *,
    client_type: type[Worst],
    turns: list[Turn],
    most: int,
    least: int | None,
    tokens: int | None,
    nano: int | None,
    price: Pricing,
) -> None:
    """With the closing turn; and a run that made a call always has its closing turn."""
    client = client_type(turns)
    usd = None if nano is None else to_usd(nano)
    run = fetching(
        client,
        pricing=price,
        budgets=Budgets(max_tokens=tokens, max_usd=usd, max_steps=6),
        max_output_tokens=most,
        min_output_tokens=None if least is None else min(least, most),
    ).run(Thread(detector=None), "go")
    assert tokens is None or run.thread.spend.tokens <= tokens
    assert usd is None or run.thread.spend.usd <= usd
    if client.requests and not run.ok:
        assert (client.requests[-1].tool_choice, run.answer) == ("none", "answer")
