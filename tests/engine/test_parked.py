"""Runs that wait for money: no worker is held, and they go on exactly where they stopped."""

from __future__ import annotations

from typing import Any

import pytest

from agentq.agent import Budgets
from agentq.core.records import Parked
from agentq.provider.errors import RateLimited
from agentq.provider.types import ChatRequest, ChatResult, Usage
from agentq.tools import tool
from tests.support.harness import (
    CALL_NANO,
    LEASE_MS,
    Moody,
    Rig,
    age,
    by,
    finish_or_fail,
    money,
    nano,
    open_batch,
    state_of,
    unswept,
)

FREE = Budgets(max_steps=20, max_tokens=None, max_usd=None)
LOOKS = [[("look", f'{{"id": "{n}"}}')] for n in range(6)]


@tool
def look(id: str) -> str:
    """Look something up."""
    return f"thing {id}"


def dry(rig: Rig, *script: Any, calls: int = 3, on_exhausted: str | None = None) -> tuple[Moody, str]:
    """A run in a batch that has money for so many calls, at the point at which that is used up."""
    client = Moody([*script])
    rig.agent(client, look, budgets=FREE, on_exhausted=on_exhausted)
    open_batch(rig.store, usd=calls * CALL_NANO)
    run = rig.submit(batch="b1")
    rig.drain()
    return client, run


def test_a_parked_run_takes_no_worker_and_goes_on_where_it_stopped(rig: Rig):
    client, run = dry(rig, *LOOKS[:3], "done")
    record = rig.record(run)
    assert (record.state, record.step) == ("parked", 2)
    assert record.parked == Parked("batch:b1", "usd", "exhausted")
    assert rig.queue == []
    assert rig.store.runs.claim(run, None, LEASE_MS) is None
    escrow = {"ue": CALL_NANO, "ui": CALL_NANO, "te": 600, "ti": 600}
    assert money(rig.store, "batch:b1") == {"us": 2 * CALL_NANO, "ts": 1200} | escrow
    before = rig.thread(run).messages
    rig.check()
    for _ in range(3):
        unswept(rig.store)
        assert rig.rescue() == []
    assert (rig.queue, rig.record(run).attempts) == ([], 1)

    rig.store.ledger.topup("batch:b1", usd=3 * CALL_NANO, actor=by())
    assert rig.thread(run).messages == before
    record = finish_or_fail(rig, run)
    assert (record.stop_reason, record.answer, record.steps) == ("finished", "done", 4)
    # No settled step was bought again: the provider's bill has each request once.
    assert client.call_count == 4
    assert client.bill_nano == record.usd_nano == 4 * CALL_NANO
    lengths = [len(request.messages) for request in client.requests]
    assert lengths == sorted(set(lengths))
    rig.check()


def test_many_runs_on_a_budget_for_a_few_spend_no_more_and_all_end_after_a_top_up(rig: Rig):
    client = Moody([LOOKS[0], "done"])
    rig.agent(client, look, budgets=FREE)
    open_batch(rig.store, usd=7 * CALL_NANO)
    runs = [rig.submit(f"task {n}", batch="b1") for n in range(12)]
    for _ in range(4):
        rig.drain()
        rig.check()
        unswept(rig.store)
        rig.rescue()
    states = [state_of(rig.store, run) for run in runs]
    assert set(states) == {"ended", "parked"}
    ended = [run for run in runs if state_of(rig.store, run) == "ended"]
    assert {rig.record(run).stop_reason for run in ended} == {"finished"}
    account = rig.store.ledger.account("batch:b1")
    assert account.spent_nano == client.bill_nano <= 7 * CALL_NANO
    assert account.spent_nano >= 5 * CALL_NANO
    rig.store.ledger.topup("batch:b1", usd=100 * CALL_NANO, actor=by())
    assert {finish_or_fail(rig, run).stop_reason for run in runs} == {"finished"}
    assert client.call_count == 2 * len(runs)
    assert client.bill_nano == rig.store.ledger.account("batch:b1").spent_nano
    rig.check()


@pytest.mark.parametrize("way", ["too long", "a person"])
def test_a_run_that_waits_no_longer_makes_its_closing_turn(rig: Rig, way: str):
    rig.park_ms = 0 if way == "too long" else 10**9
    client, run = dry(rig, *LOOKS[:2], "closing words")
    assert state_of(rig.store, run) == "parked"
    if way == "a person":
        assert rig.store.ledger.winddown("batch:b1", actor=by("it is over")) == (1, 0)
        age(rig.store, run)
    rig.rescue()
    rig.drain()
    record = rig.record(run)
    assert (record.stop_reason, record.answer, record.stop_scope) == (
        "cost_budget",
        "closing words",
        "batch:b1",
    )
    assert (client.requests[-1].tool_choice, client.call_count) == ("none", 3)
    assert rig.store.ledger.account("batch:b1").spent_nano == 3 * CALL_NANO
    rig.check()


def test_a_run_without_an_escrow_that_waits_no_longer_ends_without_a_call(rig: Rig):
    client, first = dry(rig, "done", calls=2)
    assert rig.record(first).stop_reason == "finished"
    rig.store.ledger.book("batch:b1", "charge", usd=CALL_NANO, actor=by())
    run = rig.submit("another", batch="b1")
    rig.drain()
    assert rig.record(run).parked == Parked("batch:b1", "usd", "exhausted")
    rig.store.ledger.winddown("batch:b1", actor=by())
    record = finish_or_fail(rig, run)
    assert (record.stop_reason, record.answer, record.stop_detail) == ("cost_budget", None, "not_admitted")
    assert (record.stop_scope, client.call_count) == ("batch:b1", 1)
    rig.check()


@pytest.mark.parametrize("failing", [False, True])
def test_a_frozen_scope_stops_a_run_before_its_next_call_and_its_closing_turn(rig: Rig, *, failing: bool):
    client = Moody([LOOKS[0], "closing words"], moods=[None, *([RateLimited("slow")] if failing else [])])
    rig.agent(client, look, budgets=Budgets(max_steps=1, max_tokens=None, max_usd=None))
    open_batch(rig.store)
    run = rig.submit(batch="b1")
    rig.store.ledger.freeze("batch:b1", actor=by())
    rig.drain()
    assert (rig.record(run).parked, client.call_count) == (Parked("batch:b1", "usd", "frozen"), 0)
    rig.store.ledger.freeze("batch:b1", actor=by(), frozen=False)
    rig.rescue()
    rig.step()
    rig.store.ledger.freeze("batch:b1", actor=by())
    rig.drain()
    assert (rig.record(run).parked, client.call_count) == (Parked("batch:b1", "usd", "frozen"), 1)
    rig.check()
    rig.store.ledger.freeze("batch:b1", actor=by(), frozen=False)
    record = finish_or_fail(rig, run)
    assert (record.stop_reason, record.answer) == ("step_budget", "closing words")
    assert record.usd_nano == client.bill_nano
    rig.check()


# ── smaller calls ────────────────────────────────────────────────────────────────────────────────────


class Capped(Moody):
    """A client whose calls cost what their output cap allows, at most."""

    def bound(self, req: ChatRequest) -> Usage:
        return Usage(500, req.max_output_tokens)


def test_a_smaller_cap_is_what_is_sent_and_the_closing_turn_has_that_of_its_escrow(rig: Rig):
    client = Capped([*LOOKS[:3], "closing words"])
    budgets = Budgets(max_steps=20, max_tokens=None, max_usd=nano(6_000_000))
    rig.agent(client, look, budgets=budgets, max_output_tokens=400, min_output_tokens=50)
    run = rig.submit()
    while rig.queue:
        rig.step()
        rig.check()
    record = rig.record(run)
    # A call and its escrow are 9, 5, 3 or 2 million at 400, 200, 100 or 50 tokens; each call costs 1.5.
    assert [request.max_output_tokens for request in client.requests] == [200, 100, 100, 100]
    assert (record.stop_reason, record.answer, record.steps) == ("cost_budget", "closing words", 3)
    assert record.usd_nano == client.bill_nano == 6_000_000
    assert rig.store.ledger.account(f"run:{run}").overage_nano == 0


def test_a_call_is_not_made_smaller_for_want_of_what_a_call_in_flight_may_give_back(rig: Rig):
    client = Capped(["done"])
    rig.agent(client, look, budgets=FREE, max_output_tokens=400, min_output_tokens=50)
    open_batch(rig.store, usd=12_000_000)
    rig.submit("one", batch="b1")
    second = rig.submit("two", batch="b1")

    def meanwhile(request: ChatRequest) -> ChatResult | None:
        rig.step()
        assert rig.record(second).parked == Parked("batch:b1", "usd", "wait")
        return None

    client.moods = [meanwhile]
    rig.step()
    assert finish_or_fail(rig, second).stop_reason == "finished"
    assert [request.max_output_tokens for request in client.requests] == [400, 400]
    rig.check()
