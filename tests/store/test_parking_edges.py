"""Who waits for money beside others that wait too: for calls in flight, for a top-up, or inside one run."""

from __future__ import annotations

import pytest

from agentq.core.lifecycle import StopReason
from agentq.core.records import Delta, Denied, Granted, Lease, Parked, Settlement
from agentq.store import Store
from tests.support.harness import (
    by,
    call,
    check_invariants,
    claim_run,
    due,
    open_batch,
    reserve,
    state_of,
    submit_run,
    unswept,
)

EMPTY = Delta("{}")
BATCH = "batch:b1"


def make_old(store: Store, run_id: str, ms: int = 61_000) -> None:
    """Let a parked run have waited for so long."""
    since = store.watch.server_ms() - ms
    scope = str(store.client.hget(store.keys.run(run_id), "park_scope"))
    store.client.hset(store.keys.run(run_id), "parked", since)
    store.client.zadd(store.keys.parked(scope), {run_id: since})


def admit(store: Store, run_id: str, *, batch: str | None = None, escrow: int = 0, scope: str = "") -> Lease:
    """A run at work that has spent 1 and holds an escrow."""
    submit_run(store, run_id, batch=batch, scopes=(scope,) if scope else ())
    lease = claim_run(store, run_id).lease
    assert isinstance(reserve(store, lease, 1, usd=1, tokens=1, escrow_usd=escrow), Granted)
    store.runs.commit_tools(lease, EMPTY, Settlement(f"{lease.fence}:1", "settle", 1, 1))
    return lease


# ── inside one run ───────────────────────────────────────────────────────────────────────────────────


def test_a_parent_that_has_waited_for_a_minute_does_not_stop_the_child_that_it_waits_for(store: Store):
    parent = admit(store, "r1", escrow=3)
    store.ledger.set_limit("run:r1", usd=20, actor=by())
    child = admit(store, "c1", escrow=8, scope="run:r1")
    assert reserve(store, parent, 2, usd=9, tokens=1, escrow_usd=3, policy="stop") == Parked(
        "run:r1", "usd", "wait"
    )
    make_old(store, "r1")
    # A child that is parked holds its escrow idle: the parent would have to close, since nobody makes room.
    assert isinstance(reserve(store, child, 2, usd=1, tokens=1, escrow_usd=8, policy="stop"), Granted)
    unswept(store)
    store.ledger.sweep("run:r1")
    assert state_of(store) == "parked"
    store.runs.commit_end(child, EMPTY, Settlement(f"{child.fence}:2", "settle", 1, 1), StopReason.FINISHED)
    parent = claim_run(store).lease
    assert isinstance(reserve(store, parent, 1, usd=9, tokens=1, escrow_usd=3, policy="stop"), Granted)
    check_invariants(store, ["r1", "c1"])


def test_a_child_that_is_parked_behind_its_parent_goes_on_when_it_fits(store: Store):
    parent = admit(store, "r1", escrow=3)
    store.ledger.set_limit("run:r1", usd=20, actor=by())
    first = admit(store, "c1", escrow=4, scope="run:r1")
    second = admit(store, "c2", escrow=2, scope="run:r1")
    assert isinstance(reserve(store, first, 2, usd=6, tokens=1, escrow_usd=4), Granted)
    waits = Parked("run:r1", "usd", "wait")
    assert reserve(store, parent, 2, usd=9, tokens=1, escrow_usd=3, policy="stop") == waits
    assert reserve(store, second, 2, usd=3, tokens=1, escrow_usd=2, policy="stop") == waits
    make_old(store, "r1")
    store.runs.release(first, delay_ms=60_000, settlement=Settlement(f"{first.fence}:2", "release"))
    assert (state_of(store), state_of(store, "c2")) == ("parked", "queued")
    check_invariants(store, ["r1", "c1", "c2"])


# ── who has waited for long, and runs at work ────────────────────────────────────────────────────────


@pytest.mark.parametrize("policy", ["park", "winddown", "stop"])
def test_runs_whose_escrows_are_in_the_way_are_not_stopped_by_who_waits_for_them_to_end(
    store: Store, policy: str
):
    store.ledger.set_limit("tenant:acme", usd=100, actor=by())
    large = admit(store, "large", escrow=10)
    at_work = {run_id: admit(store, run_id, escrow=20) for run_id in ("a", "b")}
    waits = Parked("tenant:acme", "usd", "wait")
    assert reserve(store, large, 2, usd=60, tokens=1, escrow_usd=10, policy=policy) == waits
    make_old(store, "large")
    for n in (2, 3):
        for lease in at_work.values():
            answer = reserve(store, lease, n, usd=2, tokens=1, escrow_usd=20, policy=policy)
            assert isinstance(answer, Granted)
        unswept(store)
        store.ledger.sweep("tenant:acme")
        assert state_of(store, "large") == "parked"
    for lease in at_work.values():
        store.runs.commit_end(lease, EMPTY, None, StopReason.FINISHED)
    assert state_of(store, "large") == "queued"
    check_invariants(store, ["large", "a", "b"])


# ── behind one whom only a top-up helps ──────────────────────────────────────────────────────────────


def behind_exhausted(store: Store) -> Lease:
    """Of 100, 20 are spent and 50 in flight: `dear` needs 90, `waits` 60, and has waited for a minute."""
    open_batch(store, usd=100)
    submit_run(store, "s", batch="b1")
    lease = claim_run(store, "s").lease
    assert isinstance(reserve(store, lease, 1, usd=20, tokens=1), Granted)
    store.runs.commit_tools(lease, EMPTY, Settlement(f"{lease.fence}:1", "settle", 20, 1))
    assert isinstance(reserve(store, lease, 2, usd=50, tokens=1), Granted)
    for run_id, usd, kind, ms in (("dear", 90, "exhausted", 70_000), ("waits", 60, "wait", 61_000)):
        submit_run(store, run_id, batch="b1")
        answer = reserve(store, claim_run(store, run_id).lease, 1, usd=usd, tokens=1, policy="park")
        assert answer == Parked(BATCH, "usd", kind)
        make_old(store, run_id, ms)
    return lease


def test_nobody_new_goes_past_who_waits_behind_one_whom_only_a_topup_helps(store: Store):
    holder = behind_exhausted(store)
    submit_run(store, "new", batch="b1")
    answer = reserve(store, claim_run(store, "new").lease, 1, usd=5, tokens=1, policy="park")
    assert answer == Parked(BATCH, "usd", "wait")
    store.runs.commit_continue(holder, EMPTY, Settlement(f"{holder.fence}:2", "settle", 10, 1))
    assert [state_of(store, run) for run in ("dear", "waits", "new")] == ["parked", "queued", "queued"]
    check_invariants(store, ["s", "dear", "waits", "new"])


def test_where_only_a_topup_helps_all_who_are_first_new_runs_go_past(store: Store):
    holder = behind_exhausted(store)
    store.runs.cancel("waits", "ann")
    submit_run(store, "new", batch="b1")
    assert isinstance(reserve(store, claim_run(store, "new").lease, 1, usd=5, tokens=1), Granted)
    store.runs.commit_continue(holder, EMPTY, Settlement(f"{holder.fence}:2", "settle", 10, 1))
    assert state_of(store, "dear") == "parked"
    check_invariants(store, ["s", "dear", "waits", "new"])


def test_a_sweep_that_goes_on_admits_nobody_past_who_waits_in_its_first_part(store: Store):
    behind_exhausted(store)
    submit_run(store, "new", batch="b1")
    answer = reserve(store, claim_run(store, "new").lease, 1, usd=5, tokens=1, policy="park")
    assert answer == Parked(BATCH, "usd", "wait")
    make_old(store, "waits", 50_000)
    unswept(store)
    assert call(store, "budget_wake", BATCH, 2) == ["OK", "0", 0]
    assert call(store, "budget_wake", BATCH, 2) == ["OK", "0", 1]
    assert state_of(store, "new") == "parked"
    check_invariants(store, ["s", "dear", "waits", "new"])


def test_who_comes_in_the_same_millisecond_comes_later(store: Store):
    behind_exhausted(store)
    make_old(store, "waits", -60_000)  # it has not waited for longer than anybody
    submit_run(store, "new", batch="b1")
    answer = reserve(store, claim_run(store, "new").lease, 1, usd=5, tokens=1, policy="park")
    assert answer == Parked(BATCH, "usd", "wait")


# ── what is frozen, and what else is in the way ──────────────────────────────────────────────────────


def test_a_run_that_is_to_close_waits_in_a_frozen_scope_also_when_a_wider_one_is_overdrawn(store: Store):
    store.ledger.set_limit("global", usd=100, actor=by())
    submit_run(store, "r1")
    lease = claim_run(store).lease
    assert isinstance(reserve(store, lease, 1, usd=50, tokens=1, escrow_usd=10), Granted)
    store.runs.commit_tools(lease, EMPTY, Settlement(f"{lease.fence}:1", "settle", 50, 1))
    store.ledger.freeze("tenant:acme", actor=by())
    store.ledger.set_limit("global", usd=20, actor=by())
    frozen = Parked("tenant:acme", "usd", "frozen")
    assert store.ledger.convert(lease, 2) == frozen
    unswept(store)
    # Let go on, it would be parked again, in each sweep.
    assert store.ledger.sweep("tenant:acme") == (0, True)
    assert state_of(store) == "parked"
    store.ledger.freeze("tenant:acme", actor=by(), frozen=False)
    assert isinstance(store.ledger.convert(claim_run(store).lease, 1), Granted)
    check_invariants(store, ["r1"], capped=False)


# ── many lists ───────────────────────────────────────────────────────────────────────────────────────


def test_a_tick_sweeps_some_lists_of_many_and_in_time_all(store: Store):
    for n in range(105):
        submit_run(store, f"r{n}")
        store.ledger.freeze(f"run:r{n}", actor=by())
        assert isinstance(reserve(store, claim_run(store, f"r{n}").lease, usd=0, tokens=0), Parked)
    seen: set[str] = set()
    for _ in range(40):
        lists = due(store).parked
        assert len(set(lists)) == len(lists) == 100
        seen |= set(lists)
    assert seen == {f"run:r{n}" for n in range(105)}


def test_a_closing_turn_that_is_reserved_afresh_waits_for_calls_in_flight_and_for_nothing_else(store: Store):
    """Also where the scope says that its runs are parked: it holds no escrow, and has nothing to wait for."""
    store.ledger.set_limit("tenant:acme", usd=100, on_exhausted="park", actor=by())
    for run_id in ("r1", "r2", "r3"):
        submit_run(store, run_id)
    reserve(store, claim_run(store, "r1").lease, usd=60, tokens=0)
    waits = reserve(store, claim_run(store, "r2").lease, usd=50, tokens=0, policy="close")
    assert isinstance(waits, Parked)
    store.ledger.book("tenant:acme", "charge", usd=30, actor=by())
    denied = reserve(store, claim_run(store, "r3").lease, usd=80, tokens=0, policy="close")
    assert denied == Denied("tenant:acme", "usd", "exhausted")
