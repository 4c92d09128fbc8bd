"""tick.lua: what is due is found, the longest due first, and no more than this worker has room for."""

from __future__ import annotations

from typing import Any

import pytest

from agentq.core.errors import SchemaError
from agentq.core.records import Delta, RunSpec
from agentq.store import Store
from agentq.store.watch import Due
from tests.support.harness import (
    HELLO,
    LEASE_MS,
    age,
    call,
    check_invariants,
    claim_run,
    due,
    dump,
    open_batch,
    state_of,
    submit_run,
    twice,
    untouched,
)


def entries(store: Store, **scores: int) -> None:
    store.client.zadd(store.keys.watch, dict(scores))


def test_nothing_is_due_in_an_empty_namespace(store: Store):
    assert twice(store, "tick", LEASE_MS, 10, 10, 10, 5000, 300_000) == [[], [], [], [], []]


def test_queued_runs_are_hints_and_all_others_are_to_be_put_right(store: Store):
    for run_id in ("r1", "r2", "r3", "r4", "r5"):
        submit_run(store, run_id)
    claim_run(store, "r2")
    store.runs.commit_wait(claim_run(store, "r3").lease, Delta("{}"), None, [], 1000)
    claim_run(store, "r4")
    store.runs.cancel("r4", "test")
    entries(store, r1=50, r2=40, r3=30, r4=20, gone=10)
    assert due(store) == Due([("r1", 0)], ["gone", "r4", "r3", "r2"])


def test_the_longest_due_come_first_and_what_is_not_due_does_not_come(store: Store):
    for run_id in ("r1", "r2", "r3", "r4"):
        submit_run(store, run_id)
    entries(store, r1=30, r2=10, r3=20)
    assert due(store).hints == [("r2", 0), ("r3", 0), ("r1", 0)]


def test_there_are_no_more_hints_than_room_and_the_rest_is_looked_at_later(store: Store):
    for run_id in ("r1", "r2", "r3"):
        submit_run(store, run_id)
    entries(store, r1=10, r2=20, r3=30)
    assert due(store, room=1).hints == [("r1", 0)]
    assert due(store) == Due([], [])
    assert [dump(store)[f"run:{run}"][0].get("hints") for run in ("r1", "r2", "r3")] == ["1", None, None]
    check_invariants(store, ["r1", "r2", "r3"])


def test_there_are_no_more_rescues_than_asked_for_and_the_rest_stays_due(store: Store):
    for run_id in ("r1", "r2", "r3"):
        submit_run(store, run_id)
        claim_run(store, run_id)
    entries(store, r1=10, r2=20, r3=30)
    assert due(store, rescues=2).runs == ["r1", "r2"]
    assert due(store).runs == ["r1", "r2", "r3"]


def test_a_long_queue_does_not_hide_a_dead_worker(store: Store):
    for run_id in ("r1", "r2"):
        submit_run(store, run_id)
    claim_run(store, "r2")
    entries(store, r1=10, r2=20)
    looks = (LEASE_MS, 1, 0, 10, 5000, 300_000)
    assert call(store, "tick", *looks) == [[], [], [], [], []]
    assert call(store, "tick", *looks) == [[], ["r2"], [], [], []]


def test_a_tick_that_sends_nothing_changes_nothing_but_the_clock(store: Store):
    submit_run(store)
    before = dump(store)
    now = store.watch.server_ms()
    assert due(store) == Due([], [])
    assert dump(store) == before
    assert now <= int(store.client.hget(store.keys.clock, "tick") or 0) <= store.watch.server_ms()


def test_a_tick_whose_reply_was_lost_does_not_send_the_same_hints_at_once_again(store: Store):
    submit_run(store)
    age(store, "r1")
    assert due(store).hints == [("r1", 0)]
    with untouched(store):
        assert due(store).hints == []


# ── held runs ────────────────────────────────────────────────────────────────────────────────────────


def held(store: Store, run_id: str = "r1", **row: Any) -> None:
    submit_run(store, run_id, **row)
    store.client.hset(store.keys.run(run_id), "paused", "ann")
    assert store.runs.claim(run_id, None, LEASE_MS) is None
    assert state_of(store, run_id) == "held"


def test_a_paused_run_is_looked_at_and_stays_where_it_is(store: Store):
    held(store)
    age(store, "r1")
    now = store.watch.server_ms()
    assert due(store) == Due([], [])
    assert state_of(store) == "held"
    assert store.watch.live()["r1"] >= now + 60_000
    check_invariants(store, ["r1"])


def test_a_held_run_that_nobody_pauses_any_more_is_queued_again_and_gets_its_hint(store: Store):
    """Who let its batch go on has not come to this run."""
    held(store)
    store.client.hdel(store.keys.run("r1"), "paused")
    age(store, "r1")
    assert due(store).hints == [("r1", 0)]
    assert state_of(store) == "queued"
    claim_run(store)
    check_invariants(store, ["r1"])


def test_a_held_run_of_a_batch_that_was_cancelled_is_queued_to_be_cancelled(store: Store):
    open_batch(store)
    held(store, batch="b1", custom_id="x")
    store.batches.cancel("b1", "ann")
    age(store, "r1")
    assert due(store).hints == [("r1", 0)]
    assert store.runs.claim("r1", None, LEASE_MS) is None
    assert state_of(store) == "ended"
    check_invariants(store, ["r1"])


def test_a_held_child_of_a_run_that_was_cancelled_is_queued_to_be_cancelled(store: Store):
    submit_run(store, "parent")
    child = RunSpec(agent="a", tenant="acme", ancestors=("parent",))
    store.runs.submit([("r1", child, [HELLO])], heads=["{}"], retention_ms=1)
    assert store.control.pause_many(["r1"], "ann") == ["HELD"]
    store.runs.cancel("parent", "test")  # and nobody lives to come to the child
    age(store, "r1")
    assert due(store).hints == [("r1", 0)]
    assert store.runs.claim("r1", None, LEASE_MS) is None
    assert state_of(store) == "ended"
    check_invariants(store, ["parent", "r1"])


def test_many_held_runs_hide_no_dead_worker_for_long(store: Store):
    for run_id in ("r1", "r2", "r3"):
        held(store, run_id)
    submit_run(store, "r4")
    claim_run(store, "r4")
    entries(store, r1=10, r2=20, r3=30, r4=40)
    looks = (LEASE_MS, 3, 10, 10, 5000, 300_000)
    assert call(store, "tick", *looks) == [[], [], [], [], []]
    assert call(store, "tick", *looks) == [[], ["r4"], [], [], []]


def test_a_tick_of_an_older_release_does_nothing(store: Store):
    submit_run(store)
    age(store, "r1")
    store.client.hset(store.keys.ledger, "schema", 99)
    with untouched(store), pytest.raises(SchemaError, match="99"):
        due(store)
