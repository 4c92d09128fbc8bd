"""run_pause.lua: nothing of a run is started any more; what it is at is finished first."""

from __future__ import annotations

from agentq.core.records import Delta, Settlement
from agentq.store import Store
from tests.support.harness import (
    LEASE_MS,
    age,
    call,
    check_invariants,
    claim_run,
    due,
    money,
    reserve,
    state_of,
    submit_run,
    twice,
    untouched,
)


def test_a_queued_run_is_held_and_nobody_looks_at_it_for_minutes(store: Store):
    submit_run(store)
    assert twice(store, "run_pause", "r1", "ann") == ["HELD"]
    assert state_of(store) == "held"
    assert store.watch.live()["r1"] > store.watch.server_ms() + 240_000
    assert store.runs.claim("r1", None, LEASE_MS) is None
    check_invariants(store, ["r1"])


def test_a_running_run_is_held_where_it_would_be_claimed_the_next_time(store: Store):
    submit_run(store)
    lease = claim_run(store).lease
    assert twice(store, "run_pause", "r1", "ann") == ["PAUSING", "running"]
    assert state_of(store) == "running"
    assert store.runs.commit_continue(lease, Delta("{}"), None) == "OK"
    assert store.runs.claim("r1", None, LEASE_MS) is None
    assert state_of(store) == "held"
    check_invariants(store, ["r1"])


def test_a_held_run_s_escrow_counts_as_idle_and_stays_its_own(store: Store):
    submit_run(store)
    lease = claim_run(store).lease
    reserve(store, lease, usd=5, tokens=5, escrow_usd=3, escrow_tokens=3)
    store.runs.commit_continue(lease, Delta("{}"), Settlement(f"{lease.fence}:1", "settle", 5, 5))
    store.control.pause_many(["r1"], "ann")
    assert money(store, "global") == {"us": 5, "ts": 5, "ue": 3, "te": 3, "ui": 3, "ti": 3}
    store.control.resume_many(["r1"], own=True)
    assert money(store, "global") == {"us": 5, "ts": 5, "ue": 3, "te": 3}
    check_invariants(store, ["r1"])


def test_a_run_with_a_delay_is_held_and_has_its_delay_afterwards(store: Store):
    submit_run(store)
    store.runs.release(claim_run(store).lease, delay_ms=60_000)
    store.control.pause_many(["r1"], "ann")
    store.control.resume_many(["r1"], own=True)
    assert store.runs.claim("r1", None, LEASE_MS) is None
    assert store.watch.live()["r1"] > store.watch.server_ms() + 30_000
    check_invariants(store, ["r1"])


def test_who_paused_first_is_named(store: Store):
    submit_run(store)
    assert store.control.pause_many(["r1", "r1"], "ann") == ["HELD", "HELD"]
    call(store, "run_pause", "r1", "bob")
    record = store.runs.read("r1")
    assert record is not None
    assert record.paused == "ann"


def test_what_has_ended_is_being_cancelled_or_does_not_exist_is_left_alone(store: Store):
    submit_run(store)
    submit_run(store, "r2")
    claim_run(store, "r2")
    store.control.pause_many(["r2"], "ann")
    store.runs.cancel("r2", "test")
    store.runs.cancel("r1", "test")
    with untouched(store):
        assert store.control.pause_many(["r1", "r2", "r3"], "ann") == ["ENDED", "CANCELLING", "MISSING"]
    check_invariants(store, ["r1", "r2"])


def test_the_tick_looks_at_what_is_held_and_leaves_it_to_who_paused_it(store: Store):
    submit_run(store)
    store.control.pause_many(["r1"], "ann")
    age(store, "r1")
    found = due(store)
    assert (found.hints, found.runs, state_of(store)) == ([], [], "held")
    assert store.watch.live()["r1"] > store.watch.server_ms() + 240_000
    check_invariants(store, ["r1"])
