"""budget_wake.lua, and every close that returns money: who goes on, in which order, and how many at once."""

from __future__ import annotations

import pytest

from agentq.core.lifecycle import StopReason
from agentq.core.records import Delta, Granted, Lease, Parked, Settlement
from agentq.store import Store
from tests.support.harness import (
    by,
    call,
    check_invariants,
    claim_run,
    dump,
    open_batch,
    reserve,
    state_of,
    steady,
    submit_run,
    unswept,
    untouched,
)

EMPTY = Delta("{}")
BATCH = "batch:b1"


def park(
    store: Store, run_id: str, usd: int, *, escrow: int = 0, since: int | None = None, **of: object
) -> None:
    """A run that waits for so much; `since` is when it began to (ms)."""
    submit_run(store, run_id, batch="b1")
    lease = claim_run(store, run_id).lease
    answer = reserve(store, lease, 1, usd=usd, tokens=1, policy="park")
    assert isinstance(answer, Parked), answer
    if since is not None:
        store.client.hset(store.keys.run(run_id), "parked", since)
        store.client.zadd(store.keys.parked(answer.scope), {run_id: since})


def spender(store: Store, usd: int, *, limit: int = 100) -> Lease:
    """The batch has so much; `s` has a call in flight that may cost this."""
    open_batch(store, usd=limit)
    submit_run(store, "s", batch="b1")
    lease = claim_run(store, "s").lease
    assert isinstance(reserve(store, lease, usd=usd, tokens=1), Granted)
    return lease


def dry(store: Store, limit: int = 100) -> None:
    """A batch that has spent all it had."""
    open_batch(store, usd=limit)
    store.ledger.book(BATCH, "charge", usd=limit, actor=by())


def queued(store: Store, *run_ids: str) -> list[str]:
    return [run_id for run_id in run_ids if state_of(store, run_id) == "queued"]


def sweep(store: Store, count: int, scope: str = BATCH) -> list[object]:
    return call(store, "budget_wake", scope, count)


# ── what wakes ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["commit", "release", "end", "cancel", "late"])
def test_whatever_gives_money_back_lets_the_run_go_on_for_which_it_is_enough(store: Store, how: str):
    lease = spender(store, 70)
    park(store, "r1", 50, since=1000)
    settlement = Settlement(f"{lease.fence}:1", "settle", 50, 1)
    match how:
        case "commit":
            store.runs.commit_tools(lease, EMPTY, settlement)
        case "release":
            store.runs.release(lease, delay_ms=0, settlement=settlement)
        case "end":
            store.runs.commit_end(lease, EMPTY, settlement, StopReason.FINISHED)
        case "cancel":
            store.runs.cancel("s", "test")
            store.runs.commit_continue(lease, EMPTY, settlement)
        case "late":
            steady(store)
            store.client.zadd(store.keys.watch, {"s": 1})
            store.watch.rescue("s", 15_000)
            assert queued(store, "r1") == []
            store.runs.commit_continue(lease, EMPTY, settlement)
    assert queued(store, "r1") == ["r1"]
    run = dump(store)["run:r1"][0]
    assert run["parked"] == "1000", "it keeps its place, in case that it is denied again"
    assert not {name for name in run if name.startswith("park_")}
    check_invariants(store, ["s", "r1"])


def test_one_too_little_wakes_nobody(store: Store):
    lease = spender(store, 70)
    park(store, "r1", 50)
    store.runs.commit_tools(lease, EMPTY, Settlement(f"{lease.fence}:1", "settle", 51, 1))
    assert queued(store, "r1") == []
    assert store.runs.read("r1").parked == Parked(BATCH, "usd", "exhausted")  # type: ignore[union-attr]


def test_the_end_of_a_run_gives_its_escrow_to_who_waits(store: Store):
    open_batch(store, usd=100)
    submit_run(store, "s", batch="b1")
    lease = claim_run(store, "s").lease
    reserve(store, lease, usd=10, tokens=1, escrow_usd=60)
    store.runs.commit_continue(lease, EMPTY, Settlement(f"{lease.fence}:1", "settle", 10, 1))
    park(store, "r1", 90)
    assert queued(store, "r1") == []
    store.runs.cancel("s", "test")
    assert queued(store, "r1") == ["r1"]


# ── in which order ───────────────────────────────────────────────────────────────────────────────────


def test_the_longest_waiting_goes_first_and_its_need_is_taken_off_what_is_left(store: Store):
    dry(store)
    for run_id, usd, since in (("r1", 30, 3000), ("r2", 30, 1000), ("r3", 20, 2000), ("r4", 20, 4000)):
        park(store, run_id, usd, since=since)
    assert store.ledger.parked(BATCH) == ["r2", "r3", "r1", "r4"]
    store.ledger.topup(BATCH, usd=70, actor=by())
    # 30 for r2 and 20 for r3. r1 does not fit into the other 20, and r4 is not admitted past it.
    assert queued(store, "r1", "r2", "r3", "r4") == ["r2", "r3"]
    assert store.runs.read("r1").parked == Parked(BATCH, "usd", "wait")  # type: ignore[union-attr]
    check_invariants(store, ["r1", "r2", "r3", "r4"])


def test_what_is_promised_in_one_list_is_not_there_for_another(store: Store):
    """The same money is the tenant's and the batch's."""
    dry(store)
    store.ledger.set_limit("tenant:acme", usd=100, actor=by())
    park(store, "t1", 50)
    park(store, "b1r", 50, since=1)
    assert store.ledger.parked("tenant:acme") == ["b1r", "t1"]
    store.ledger.set_limit("tenant:acme", usd=1000, actor=by())
    assert store.ledger.parked(BATCH) == ["b1r", "t1"]
    store.ledger.set_limit("tenant:acme", usd=150, actor=by())
    submit_run(store, "r3")
    lease = claim_run(store, "r3").lease
    assert reserve(store, lease, usd=51, tokens=1, policy="park") == Parked("tenant:acme", "usd", "exhausted")
    store.client.hset(store.keys.scope("tenant:acme"), "ul", 160)
    store.client.hset(store.keys.scope(BATCH), "ul", 1000)
    # One script looks into both lists: 60 are there, and whoever is first in the tenant's gets 51 of them.
    store.ledger.book("tenant:acme", "adjust", usd=-1, actor=by())
    assert queued(store, "t1", "b1r", "r3") == ["r3"]
    unswept(store)
    sweep(store, 10)
    assert queued(store, "t1", "b1r", "r3") == ["b1r", "r3"], "another script does not know what was promised"


def test_who_does_not_fit_elsewhere_moves_to_the_list_of_what_blocks_it_and_keeps_its_place(store: Store):
    dry(store)
    store.ledger.set_limit("run:r1", usd=1000, actor=by())
    park(store, "r1", 50, since=1000)
    store.ledger.set_limit("tenant:acme", usd=120, actor=by())
    store.ledger.topup(BATCH, usd=100, actor=by())
    assert queued(store, "r1") == []
    assert (store.ledger.parked(BATCH), store.ledger.parked("tenant:acme")) == ([], ["r1"])
    assert store.runs.read("r1").parked == Parked("tenant:acme", "usd", "exhausted")  # type: ignore[union-attr]
    assert store.client.zscore(store.keys.parked("tenant:acme"), "r1") == 1000
    store.ledger.topup("tenant:acme", usd=30, actor=by())
    assert queued(store, "r1") == ["r1"]
    check_invariants(store, ["r1"])


def test_an_aged_run_that_waits_for_calls_in_flight_is_not_overtaken(store: Store):
    lease = spender(store, 90)
    park(store, "big", 100, since=1000)
    for run_id in ("r1", "r2"):
        submit_run(store, run_id, batch="b1")
    small = claim_run(store, "r1").lease
    assert reserve(store, small, usd=10, tokens=1, policy="park") == Parked(BATCH, "usd", "wait")
    store.runs.commit_tools(lease, EMPTY, Settlement(f"{lease.fence}:1", "release"))
    assert queued(store, "big", "r1") == ["big"]
    check_invariants(store, ["s", "big", "r1", "r2"])


def test_an_aged_run_that_waits_lets_nobody_pass_who_is_parked_behind_it(store: Store):
    open_batch(store, usd=100)
    for run_id in ("s", "t", "r1"):
        submit_run(store, run_id, batch="b1")
    lease = claim_run(store, "s").lease
    assert isinstance(reserve(store, lease, usd=70, tokens=1, escrow_usd=10), Granted)
    assert isinstance(reserve(store, claim_run(store, "t").lease, usd=10, tokens=1), Granted)
    admitted = claim_run(store, "r1").lease
    assert isinstance(reserve(store, admitted, usd=1, tokens=1, escrow_usd=5), Granted)
    answer = reserve(store, admitted, 2, usd=15, tokens=1, escrow_usd=5, policy="park")
    assert answer == Parked(BATCH, "usd", "wait")
    now = store.watch.server_ms()
    park(store, "big", 80, since=now - 61_000)
    store.runs.commit_tools(lease, EMPTY, Settlement(f"{lease.fence}:1", "release"))
    # `big` waits for the call of `t`. `r1` would fit.
    assert store.ledger.parked(BATCH)[0] == "big"
    assert (state_of(store, "big"), state_of(store, "r1")) == ("parked", "parked")
    check_invariants(store, ["s", "t", "r1", "big"])


# ── how many ─────────────────────────────────────────────────────────────────────────────────────────


def test_one_script_looks_at_eight_and_the_sweep_at_the_others(store: Store):
    dry(store)
    runs = [f"r{n:02}" for n in range(12)]
    for place, run_id in enumerate(runs):
        park(store, run_id, 10, since=1000 + place)
    store.ledger.topup(BATCH, usd=1000, actor=by())
    assert queued(store, *runs) == runs[:8]
    assert sweep(store, 100) == ["OK", "4", 1]
    assert queued(store, *runs) == runs
    assert dump(store).get("parked") is None
    check_invariants(store, runs)


def test_a_sweep_goes_over_a_long_list_in_several_calls_and_then_rests(store: Store):
    dry(store)
    runs = [f"r{n}" for n in range(5)]
    for place, run_id in enumerate(runs):
        park(store, run_id, 10 if run_id == "r3" else 90, since=1000 + place)
    store.client.hset(store.keys.scope(BATCH), "ul", 110)
    assert [sweep(store, 2) for _ in range(2)] == [["OK", "0", 0], ["OK", "1", 0]]
    assert queued(store, *runs) == ["r3"]
    assert sweep(store, 2) == ["OK", "0", 1]
    with untouched(store):
        assert sweep(store, 2) == ["EARLY"]
    assert store.ledger.sweep(BATCH) == (0, True)
    unswept(store)
    assert sweep(store, 2) == ["OK", "0", 0]
    check_invariants(store, runs)


def test_a_sweep_whose_answer_was_lost_does_no_harm(store: Store):
    dry(store)
    park(store, "r1", 10)
    store.client.hset(store.keys.scope(BATCH), "ul", 1000)
    assert sweep(store, 10) == ["OK", "1", 1]
    with untouched(store):
        assert sweep(store, 10) == ["OK", "0", 1]


def test_the_tick_says_which_lists_have_somebody(store: Store):
    dry(store)
    assert call(store, "tick", 15_000, 10, 10, 10, 5000, 300_000)[2] == []
    park(store, "r1", 10)
    assert call(store, "tick", 15_000, 10, 10, 10, 5000, 300_000)[2] == [BATCH]
