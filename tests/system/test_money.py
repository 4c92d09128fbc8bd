"""Budgets that do not fit everything, with real workers: what is spent, who waits, and what a top-up buys."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from textwrap import dedent

import pytest

from agentq import Budgets
from agentq.core.lifecycle import RunState, StopReason
from agentq.core.money import NANO, to_nano
from agentq.core.records import Account, Actor, RunRecord
from agentq.store import Store

pytestmark = pytest.mark.system

pytest_plugins = ["tests.support.fleet"]

ROOT = Path(__file__).parents[2]
TENANT = "tenant:default"
EXACT = dedent(
    '''
    """An agent whose calls and closing turns each cost at most 0.003 USD, and really 0.002."""
    import json, os, time
    from agentq import AgentQ, tool
    from agentq.provider.pricing import ModelPricing
    from agentq.provider.types import ChatResult, Role, ToolCall, Usage

    PRICE = ModelPricing("exact-1", "1", "10", 128_000)
    BILL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bill")

    class ExactClient:
        provider, model = "test", "exact-1"

        def bound(self, req):
            return Usage(1000, 200)

        def complete(self, req):
            turn, usage = sum(m.role is Role.ASSISTANT for m in req.messages), Usage(1000, 100)
            with open(BILL, "a") as bill:
                bill.write(f"{req.metadata['row']} {turn} {PRICE.cost_nano(usage)}\\n")
            time.sleep(req.metadata.get("seconds", 0.05))
            if req.tool_choice == "none" or turn == req.metadata["steps"] - 1:
                return ChatResult("what I have", usage, "test", "exact-1")
            calls = (ToolCall("", "look", json.dumps({"turn": turn})),)
            return ChatResult("", usage, "test", "exact-1", tool_calls=calls)

    @tool
    def look(turn: int) -> str:
        """Look."""
        return f"seen {turn}"

    app = AgentQ("fleet", pricing={"exact-1": PRICE})
    celery = app.celery
    app.agent("worker", model=ExactClient(), tools=[look])
    '''
)
COST, WORST = 2_000_000, 3_000_000


def budgets(usd: int) -> Budgets:
    """No limit but this one, in nano-USD."""
    return Budgets(max_steps=None, max_tokens=None, max_usd=Decimal(usd) / NANO, max_seconds=None)


def used(account: Account) -> int:
    """What of a limit is gone."""
    return account.spent_nano + account.reserved_nano + account.escrowed_nano


def watched(store: Store, scopes: list[str], done: Callable[[], bool], timeout: float) -> int:
    """Until `done`, look at these accounts at one instant, again and again; answers how often.

    No limit is ever exceeded, and the accounts always agree: all the work is in each of these scopes.
    """
    deadline, looks = time.monotonic() + timeout, 0
    next_question = 0.0
    while True:
        accounts = store.ledger.accounts(scopes)
        looks += 1
        for account in accounts:
            assert account.limit_nano is None or used(account) <= account.limit_nano, account
        assert len({(a.spent_nano, a.reserved_nano, a.escrowed_nano) for a in accounts}) == 1, accounts
        assert accounts[0].overage_nano == 0
        if time.monotonic() > next_question:
            if done():
                return looks
            next_question = time.monotonic() + 0.2
        assert time.monotonic() < deadline, accounts
        time.sleep(0.005)


def has_room(store: Store, run_id: str) -> bool:
    """Whether what a parked run needs at least would fit into all its scopes; true also when it goes on."""
    need, scopes = store.client.hmget(store.keys.run(run_id), ["park_need", "scopes"])
    if need is None:
        return True
    usd, tokens = map(int, str(need).split()[-2:])
    own_usd, own_tokens = store.ledger.open_reservations(run_id).get("escrow", (0, 0))
    accounts = store.ledger.accounts(str(scopes).split())
    return all(a.left_nano is None or usd - own_usd <= a.left_nano for a in accounts) and all(
        a.tokens_left is None or tokens - own_tokens <= a.tokens_left for a in accounts
    )


@pytest.mark.timeout(180)
def test_a_thousand_runs_over_a_budget_for_three_hundred_and_the_rest_after_a_topup(make_fleet):
    """Never a nano-dollar too much, nobody is lost or woken without end, and nothing is bought twice."""
    fleet = make_fleet()
    store = fleet.app.store
    store.ledger.set_limit(TENANT, usd=to_nano("0.9"), actor=Actor("first", "test"))
    workers = [fleet.start_worker(concurrency=8) for _ in range(2)]
    batch = fleet.submit(1000, 2)
    scopes = ["global", TENANT, "batch:b"]

    ended: list[RunRecord] = []
    parked: list[RunRecord] = []
    rows: list[RunRecord] = []

    def at_rest() -> bool:
        counts = batch.counts()
        if counts["parked"] + counts["ended"] + counts["rows"] < 1000 or not counts["parked"]:
            return False
        records = fleet.records()
        ended[:] = [record for record in records if record.state is RunState.ENDED]
        parked[:] = [record for record in records if record.state is RunState.PARKED]
        rows[:] = [record for record in records if record.is_row]
        at_ease = len(ended) + len(parked) + len(rows) == 1000
        return at_ease and not any(has_room(store, run.id) for run in parked)

    assert watched(store, scopes, at_rest, 90) > 100
    assert 250 <= len(ended) <= 350
    assert all(r.stop_reason is StopReason.FINISHED and r.answer == "done" for r in ended)
    assert all(r.parked is not None and r.parked.scope == TENANT for r in parked)
    # The first that finds no money stops the batch: what was admitted by then waits beside it.
    assert len(parked) <= 3 * 16 + 1, len(parked)
    assert len(rows) >= 600
    dry = store.ledger.account(TENANT)
    assert dry.reserved_nano == 0
    assert dry.spent_nano == fleet.billed_nano()

    fleet.type("budget", "topup", TENANT, "--usd", "20", "--reason", "the rest")
    watched(store, scopes, batch.done, 60)
    fleet.check("b", steps=2)
    assert set(Counter((row, turn) for row, turn, _ in fleet.lines("bill")).values()) == {1}
    assert len(fleet.lines("bill")) == 2000
    after = store.ledger.account(TENANT)
    assert after.spent_nano == fleet.billed_nano()
    assert after.limit_nano == to_nano("20.9")
    # Rows wait for money without ever being parked.
    parkings = sum(worker.output.count("run_parked") for worker in workers)
    assert len(parked) <= parkings <= 2000, parkings


def test_who_has_waited_for_money_goes_on_without_waiting_for_a_tick(make_fleet):
    """The script that sets the money free sends the hint: ticks come once a minute here, and one has been."""
    fleet = make_fleet(app=EXACT, tick_seconds=60)
    store = fleet.app.store
    # Seven fit at first, at last only one: each goes on when another has come back with what it did not use.
    store.ledger.set_limit(TENANT, usd=19 * COST + 2 * WORST, actor=Actor("first", "test"))
    worker = fleet.start_worker(concurrency=8)
    batch = fleet.submit(20, 1, seconds=0.5)
    batch.wait(40)
    fleet.check("b", steps=1)
    assert worker.output.count("run_parked") >= 5, "the others come while the first are at work"
    assert store.ledger.account(TENANT).spent_nano == 20 * COST


def test_a_budget_for_two_steps_and_the_closing_turn_is_two_steps_and_an_answer(make_fleet):
    """A third step would fit, but not the closing turn after it."""
    fleet = make_fleet(app=EXACT)
    fleet.start_worker(concurrency=2)
    least, most = 2 * COST + 2 * WORST - COST, 3 * COST + 2 * WORST - COST - 1
    for name, limit in (("least", least), ("most", most)):
        batch = fleet.submit(1, 9, batch=name, budgets=budgets(limit))
        batch.wait(30)
        (record,) = fleet.records(name)
        assert (record.stop_reason, record.steps) == (StopReason.COST_BUDGET, 2)
        assert record.answer == "what I have"
        assert record.usd_nano == 3 * COST <= limit
        assert store_is_empty(fleet.app.store, record)
    assert len(fleet.lines("bill")) == 6


def store_is_empty(store: Store, record: RunRecord) -> bool:
    """Whether an ended run holds nothing any more."""
    account = store.ledger.account(f"run:{record.id}")
    return not account.reserved_nano and not account.escrowed_nano


@pytest.mark.parametrize("source", ["the general bound", "a bound of its own"])
def test_a_budget_below_one_closing_turn_is_refused_with_the_least_that_would_do(make_fleet, source):
    """Exit code 2, nothing submitted; and the amount that is named gets an answer."""
    fleet = make_fleet(**({"app": EXACT} if source == "a bound of its own" else {}))
    row = {"input": "say what you know", "metadata": {"row": 0, "steps": 3}}
    (fleet.home / "rows.jsonl").write_text(json.dumps(row))
    submit = ("submit", "rows.jsonl", "--per-run-usd")

    refused = fleet.type(*submit, "0.000001", code=2)
    named = re.search(r"the least that would do here is ([0-9.]+) USD", refused.stderr)
    assert named, refused.stderr
    least = to_nano(named[1])
    assert fleet.app.batches() == []
    fleet.type(*submit, f"{Decimal(least - 1000) / NANO:f}", code=2)
    assert fleet.app.batches() == []

    fleet.start_worker(concurrency=1)
    fleet.type(*submit, named[1])
    fleet.app.batch("rows").wait(30)
    (record,) = fleet.records("rows")
    assert record.stop_reason is StopReason.COST_BUDGET
    assert record.answer
    assert 0 < record.usd_nano <= least


@pytest.mark.timeout(240)
def test_processes_that_are_killed_all_the_time_spend_no_more_than_there_is():
    """A short run of the hammer; it ends with 0 only when nothing at all was wrong."""
    argv = [sys.executable, "benchmarks/hammer.py", "--seconds", "8", "--workers", "3"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "violations = 0"
