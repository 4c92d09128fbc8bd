"""run_resume.lua: a run goes on when neither its own pause nor its batch's holds it."""

from __future__ import annotations

from agentq.store import Store
from tests.support.harness import (
    LEASE_MS,
    check_invariants,
    claim_run,
    due,
    open_batch,
    state_of,
    submit_run,
    twice,
    untouched,
)


def test_a_held_run_is_queued_and_the_next_tick_sends_its_hint(store: Store):
    submit_run(store)
    store.control.pause_many(["r1"], "ann")
    assert twice(store, "run_resume", "r1", 1) == ["RESUMED"]
    assert state_of(store) == "queued"
    assert due(store, room=0).hints == [("r1", 0)], "the first hint is sent whatever the room"
    assert claim_run(store).lease.step == 0
    check_invariants(store, ["r1"])


def test_a_pause_that_did_not_hold_yet_is_taken_back(store: Store):
    submit_run(store)
    lease = claim_run(store).lease
    store.control.pause_many(["r1"], "ann")
    assert twice(store, "run_resume", "r1", 1) == ["RESUMED"]
    store.runs.release(lease, delay_ms=0)
    assert claim_run(store).lease.fence != lease.fence
    check_invariants(store, ["r1"])


def test_a_run_whose_batch_is_paused_stays_held_and_its_own_pause_stays_too(store: Store):
    open_batch(store)
    submit_run(store, batch="b1")
    store.control.pause_many(["r1"], "ann")
    store.batches.pause("b1", "ann")
    with untouched(store):
        assert twice(store, "run_resume", "r1", 1) == ["HELD", "batch"]
    store.batches.resume("b1")
    assert twice(store, "run_resume", "r1", 0) == ["HELD", "run"]
    assert state_of(store) == "held"
    assert twice(store, "run_resume", "r1", 1) == ["RESUMED"]
    assert state_of(store) == "queued"
    check_invariants(store, ["r1"])


def test_resuming_for_the_batch_takes_back_no_pause_of_the_run(store: Store):
    open_batch(store)
    submit_run(store, batch="b1")
    store.control.pause_many(["r1"], "ann")
    with untouched(store):
        assert twice(store, "run_resume", "r1", 0) == ["HELD", "run"]
    check_invariants(store, ["r1"])


def test_what_is_not_paused_has_ended_or_does_not_exist_is_left_alone(store: Store):
    submit_run(store)
    submit_run(store, "r2")
    store.runs.cancel("r2", "test")
    with untouched(store):
        assert store.control.resume_many(["r1", "r2", "r3"], own=True) == ["RESUMED", "ENDED", "MISSING"]
    assert store.runs.claim("r1", None, LEASE_MS) is not None
    check_invariants(store, ["r1", "r2"])
