"""lease_renew.lua: only who holds a lease can extend it."""

from __future__ import annotations

from agentq.core.records import Lease
from agentq.store import Store
from tests.support.harness import (
    LEASE_MS,
    age,
    call,
    claim_run,
    dump,
    steady,
    submit_run,
    untouched,
)


def test_a_renewal_moves_the_end_of_the_lease_and_nothing_else(store: Store):
    submit_run(store)
    lease = claim_run(store).lease
    age(store, "r1")
    before = dump(store, without=("watch",))
    now = store.watch.server_ms()
    for _ in range(2):
        assert call(store, "lease_renew", "r1", lease.fence, LEASE_MS) == ["OK"]
    assert dump(store, without=("watch",)) == before
    assert now + LEASE_MS <= store.watch.live()["r1"] <= store.watch.server_ms() + LEASE_MS


def test_a_renewal_says_that_the_run_is_being_cancelled_and_extends_nothing(store: Store):
    submit_run(store)
    lease = claim_run(store).lease
    store.runs.cancel("r1", "test")
    with untouched(store):
        for _ in range(2):
            assert call(store, "lease_renew", "r1", lease.fence, LEASE_MS) == ["CANCELLING"]


def test_a_lease_of_an_attempt_before_is_lost_even_while_the_run_is_cancelled(store: Store):
    submit_run(store)
    old = claim_run(store).lease
    steady(store)
    age(store, "r1")
    store.watch.rescue("r1", LEASE_MS)
    with untouched(store):
        assert store.watch.renew([old], LEASE_MS) == ["LOST"]
    claim_run(store)
    with untouched(store):
        assert store.watch.renew([old], LEASE_MS) == ["LOST"]
    store.runs.cancel("r1", "test")
    with untouched(store):
        assert store.watch.renew([old], LEASE_MS) == ["LOST"]


def test_the_same_number_with_another_nonce_is_lost(store: Store):
    submit_run(store)
    lease = claim_run(store).lease
    forged = Lease("r1", lease.fence[:-1] + ("0" if lease.fence[-1] != "0" else "1"), 0)
    with untouched(store):
        assert store.watch.renew([forged], LEASE_MS) == ["LOST"]


def test_many_leases_are_renewed_at_once_with_an_answer_each(store: Store):
    leases = []
    for run_id in ("r1", "r2", "r3"):
        submit_run(store, run_id)
        leases.append(claim_run(store, run_id).lease)
    store.runs.release(leases[1], delay_ms=0)
    store.runs.cancel("r3", "test")
    assert store.watch.renew([*leases, Lease("r9", "1-x", 0)], LEASE_MS) == [
        "OK",
        "LOST",
        "CANCELLING",
        "LOST",
    ]
    assert store.watch.renew([], LEASE_MS) == []


def test_a_server_that_forgot_its_scripts_is_told_them_again(store: Store):
    submit_run(store)
    lease = claim_run(store).lease
    store.client.script_flush()
    assert store.watch.renew([lease], LEASE_MS) == ["OK"]
    store.client.script_flush()
    assert call(store, "lease_renew", "r1", lease.fence, LEASE_MS) == ["OK"]


def test_only_the_fence_that_was_raised_by_the_cancelling_is_told_of_it(store: Store):
    submit_run(store)
    lease = claim_run(store).lease
    store.runs.cancel("r1", "test")
    forged = Lease("r1", "7-" + lease.fence.partition("-")[2], 0)
    with untouched(store):
        assert store.watch.renew([forged, lease], LEASE_MS) == ["LOST", "CANCELLING"]
