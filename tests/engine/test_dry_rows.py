"""Rows behind a run for which there is no money: when they end with it, and when they have their turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from agentq.agent import Budgets
from agentq.agent.agent import Agent
from agentq.core.lifecycle import RunState
from agentq.engine.closing import DENIALS
from agentq.engine.load import Load
from agentq.engine.patterns import Terms
from agentq.engine.rows import parse_row
from agentq.provider.types import ChatRequest, ChatResult, Usage
from tests.support.harness import CALL_NANO, RETENTION_MS, Moody, Rig, by
from tests.support.rows import window

FREE = Budgets(max_steps=20, max_tokens=None, max_usd=None)
HUGE = "huge"


class Sized(Moody):
    """A model whose call costs far more for one input than for others."""

    def bound(self, req: ChatRequest) -> Usage:
        is_huge = any(message.content == HUGE for message in req.messages)
        return Usage(45_000, 100) if is_huge else Usage(500, 100)

    def complete(self, req: ChatRequest) -> ChatResult:
        self.requests.append(req)
        return ChatResult("done", Usage(500, 100), "scripted", "scripted-v1")


def load(rig: Rig, inputs: Sequence[tuple[str, str]], *, calls: int, on_exhausted: str = "stop") -> None:
    """A batch with money for so many calls; its rows are agents and inputs."""
    terms = Terms(
        batch="b1", tenant="acme", batch_usd=calls * CALL_NANO, budgets=FREE, on_exhausted=on_exhausted
    )

    def agent_of(name: str, _: object) -> Agent:
        return rig.agents[name]

    with Load(terms, agent_of) as rows:
        for number, (agent, text) in enumerate(inputs):
            rows.add(f"row {number}", parse_row({"input": text, "agent": agent, "custom_id": f"c{number}"}))
        rows.check()
        rows.write(
            rig.store, agent="", scopes_of=lambda name, _: (f"agent:{name}",), retention_ms=RETENTION_MS
        )


def work(rig: Rig, *, slots: int = 4) -> Counter[str]:
    """Work until nothing is due any more; how the rows have ended."""
    window(rig.store, slots)
    for _ in range(200):
        rig.rescue()
        if not rig.queue:
            break
        rig.drain()
    record = rig.store.batches.read("b1")
    assert record is not None
    return Counter(record.stop_reasons)


def row_runs(rig: Rig) -> int:
    """How many rows have become runs."""
    record = rig.store.batches.read("b1")
    assert record is not None
    ids = [run_id for chunk in rig.store.batches.runs("b1") for run_id in chunk]
    return sum(found is not None and not found.is_row for found in rig.store.runs.read_many(ids))


def test_when_a_batch_has_no_money_left_its_rows_end_without_their_turn(rig: Rig):
    rig.agent(Sized(), name="a")
    load(rig, [("a", "hello")] * 100, calls=5)
    ended = work(rig)
    assert ended.total() == 100
    assert 3 <= ended["finished"] <= 5
    assert ended["cost_budget"] == 100 - ended["finished"]
    assert row_runs(rig) <= 5 + DENIALS + 4


def test_one_row_that_is_too_large_for_what_is_left_ends_alone(rig: Rig):
    rig.agent(Sized(), name="a")
    load(rig, [("a", "hello")] * 75 + [("a", HUGE)] + [("a", "hello")] * 20, calls=100)
    ended = work(rig)
    assert ended == {"finished": 95, "cost_budget": 1}


def test_rows_of_an_agent_that_has_money_go_on_where_anothers_is_used_up(rig: Rig):
    rig.agent(Sized(), name="a")
    rig.agent(Sized(), name="b")
    rig.store.ledger.set_limit("agent:a", usd=3 * CALL_NANO, actor=by())
    load(rig, [("a", "hello")] * 30 + [("b", "hello")] * 30, calls=1_000)
    ended = work(rig)
    assert 30 < ended["finished"] <= 33
    assert ended.total() == 60


def test_rows_that_may_wait_for_money_do_so_when_a_person_lets_the_first_wait_no_longer(rig: Rig):
    rig.agent(Sized(), name="a")
    load(rig, [("a", "hello")] * 40, calls=5, on_exhausted="park")
    ended = work(rig)
    assert ended["cost_budget"] == 0
    rig.store.ledger.winddown("batch:b1", actor=by())
    ended = work(rig)
    assert 0 < ended["cost_budget"] <= 8
    record = rig.store.batches.read("b1")
    assert record is not None
    assert record.rows > 20
    assert rig.store.batches.live_states("b1")[RunState.PARKED] > 0
    rig.store.ledger.topup("batch:b1", usd=1_000 * CALL_NANO, actor=by())
    assert work(rig)["finished"] == 40 - ended["cost_budget"]
