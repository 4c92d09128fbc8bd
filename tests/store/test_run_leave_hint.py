"""run_leave_hint.lua: a parked run keeps the hint of its step, which whoever wakes it sends."""

from __future__ import annotations

from agentq.core.records import Actor, Parked
from agentq.store import Store
from tests.support.harness import (
    SECOND,
    age,
    call,
    check_invariants,
    claim_run,
    due,
    hints_in,
    reserve,
    submit_run,
    twice,
    untouched,
)


def parked(store: Store, run_id: str = "r1") -> str:
    """A run that waits for money of its tenant; the fence under which it was parked."""
    store.ledger.set_limit("tenant:acme", usd=10)
    submit_run(store, run_id)
    store.ledger.book("tenant:acme", "charge", actor=Actor(f"spent-{run_id}", "me"), usd=5)
    lease = claim_run(store, run_id).lease
    assert isinstance(reserve(store, lease, 1, usd=6, tokens=1, policy="park"), Parked)
    return lease.fence


def test_the_hint_is_sent_by_the_script_that_wakes_the_run(store: Store):
    fence, queue = parked(store), f"{store.keys.prefix}queue"
    assert twice(store, "run_leave_hint", "r1", fence, 5000, queue, "hello there") == ["OK"]
    store.ledger.topup("tenant:acme", actor=Actor("t1", "me"), usd=10)
    assert hints_in(store, queue) == ["hello there"]
    assert store.client.hget(store.keys.run("r1"), "wake_hint") is None
    store.client.delete(queue + SECOND)
    check_invariants(store, ["r1"])


def test_the_hint_of_a_run_that_was_let_go_on_meanwhile_is_sent_once(store: Store):
    fence, queue = parked(store), f"{store.keys.prefix}queue"
    store.ledger.topup("tenant:acme", actor=Actor("t1", "me"), usd=10)
    assert call(store, "run_leave_hint", "r1", fence, 5000, queue, "hello there") == ["SENT"]
    with untouched(store):
        assert call(store, "run_leave_hint", "r1", fence, 5000, queue, "hello there") == ["STALE"]
    assert hints_in(store, queue) == ["hello there"]
    assert due(store).hints == []
    age(store, "r1")
    assert due(store).hints == [("r1", 0)]
    store.client.delete(queue + SECOND)
    check_invariants(store, ["r1"])


def test_a_run_whose_hint_the_tick_has_sent_or_that_is_claimed_needs_none(store: Store):
    fence = parked(store)
    store.ledger.topup("tenant:acme", actor=Actor("t1", "me"), usd=10)
    assert due(store).hints == [("r1", 0)]
    with untouched(store):
        assert call(store, "run_leave_hint", "r1", fence, 5000, "queue", "late") == ["STALE"]
    claim_run(store)
    with untouched(store):
        assert call(store, "run_leave_hint", "r1", fence, 5000, "queue", "late") == ["STALE"]


def test_a_run_that_was_parked_again_is_left_alone(store: Store):
    first = parked(store)
    store.ledger.topup("tenant:acme", actor=Actor("t1", "me"), usd=3)
    second = claim_run(store).lease
    assert isinstance(reserve(store, second, 1, usd=9, tokens=1, policy="park"), Parked)
    with untouched(store):
        assert call(store, "run_leave_hint", "r1", first, 5000, "queue", "old") == ["STALE"]
    assert call(store, "run_leave_hint", "r1", second.fence, 5000, "queue", "new") == ["OK"]


def test_who_has_waited_for_a_minute_goes_to_the_front_of_the_queue(store: Store):
    """Or those before it in the queue take its money again and again."""
    fence, queue = parked(store), f"{store.keys.prefix}queue"
    store.client.hset(store.keys.run("r1"), "parked", store.watch.server_ms() - 61_000)
    call(store, "run_leave_hint", "r1", fence, 5000, queue, "mine")
    store.client.lpush(queue + SECOND, "another's")
    store.ledger.topup("tenant:acme", actor=Actor("t1", "me"), usd=10)
    assert hints_in(store, queue) == ["mine", "another's"]
    store.client.delete(queue + SECOND)
