"""batch_pause.lua: a flag that counts at once for all runs of a batch, also for those still to come."""

from __future__ import annotations

from agentq.store import Store
from tests.support.harness import (
    LEASE_MS,
    age,
    call,
    check_invariants,
    claim_run,
    due,
    open_batch,
    state_of,
    submit_run,
    twice,
)


def test_no_run_of_a_paused_batch_is_claimed_also_none_that_comes_later(store: Store):
    open_batch(store)
    submit_run(store, "r1", batch="b1")
    assert twice(store, "batch_pause", "b1", "ann") == ["OK"]
    open_batch(store)
    submit_run(store, "r2", batch="b1")
    submit_run(store, "r3")
    assert [store.runs.claim(name, None, LEASE_MS) for name in ("r1", "r2")] == [None, None]
    assert [state_of(store, name) for name in ("r1", "r2")] == ["held", "held"]
    assert store.batches.live_states("b1") == {"held": 2}
    assert claim_run(store, "r3").lease.run_id == "r3"
    check_invariants(store, ["r1", "r2", "r3"])


def test_who_paused_it_first_is_named_until_it_is_resumed(store: Store):
    open_batch(store)
    for who in ("ann", "bob"):
        store.batches.pause("b1", who)
    batch = store.batches.read("b1")
    assert batch is not None
    assert batch.paused == "ann"
    assert twice(store, "batch_pause", "b1", "") == ["OK"]
    batch = store.batches.read("b1")
    assert batch is not None
    assert batch.paused is None


def test_the_tick_lets_go_what_a_resume_has_left_behind(store: Store):
    open_batch(store)
    submit_run(store, batch="b1")
    store.batches.pause("b1", "ann")
    store.runs.claim("r1", None, LEASE_MS)
    store.batches.resume("b1")
    age(store, "r1")
    assert due(store).hints == [("r1", 0)]
    assert claim_run(store).lease.run_id == "r1"
    check_invariants(store, ["r1"])


def test_a_run_that_a_paused_and_cancelled_batch_holds_is_not_forgotten(store: Store):
    open_batch(store)
    submit_run(store, batch="b1")
    store.batches.pause("b1", "ann")
    store.runs.claim("r1", None, LEASE_MS)
    store.batches.cancel("b1", "ann")  # and whoever did that died here
    age(store, "r1")
    assert due(store).hints == [("r1", 0)]
    assert store.runs.claim("r1", None, LEASE_MS) is None
    assert state_of(store) == "ended"
    check_invariants(store, ["r1"])


def test_a_batch_that_does_not_exist_is_missing(store: Store):
    assert call(store, "batch_pause", "b1", "ann") == ["MISSING"]
    store.batches.pause("b1", "ann")
    assert store.batches.read("b1") is None
