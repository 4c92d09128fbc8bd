"""A parked run waits for the large size of its call only as long as that can still come."""

from __future__ import annotations

import pytest

from agentq.core.records import Actor, Delta, Granted, Lease, Parked, Settlement, Size
from agentq.store import Store
from tests.support.harness import check_invariants, claim_run, open_batch, reserve, state_of, submit_run

SIZES = [Size(400, 60, 0), Size(200, 45, 0), Size(100, 20, 0, escrow_usd=10)]


@pytest.fixture
def holder(store: Store) -> Lease:
    """A run that holds 80 of 100; `r2` waits behind it for room for its largest size."""
    open_batch(store, usd=100)
    for run_id in ("r1", "r2"):
        submit_run(store, run_id, batch="b1")
    lease = claim_run(store, "r1").lease
    assert isinstance(reserve(store, lease, usd=80, tokens=0), Granted)
    assert store.ledger.reserve(claim_run(store, "r2").lease, 1, SIZES) == Parked("batch:b1", "usd", "wait")
    return lease


def release(store: Store, lease: Lease, cost: int) -> None:
    store.runs.release(lease, delay_ms=60_000, settlement=Settlement(f"{lease.fence}:1", "settle", cost, 0))


@pytest.mark.parametrize(
    "cost, size", [(40, SIZES[0]), (41, SIZES[1]), (55, SIZES[1]), (56, SIZES[2]), (70, SIZES[2])]
)
def test_a_run_that_waited_for_a_large_size_goes_on_with_one_that_fits(store, holder, cost, size):
    release(store, holder, cost)
    assert state_of(store, "r2") == "queued"
    answer = store.ledger.reserve(claim_run(store, "r2").lease, 1, SIZES)
    assert isinstance(answer, Granted)
    assert (answer.usd, answer.output_tokens) == (size.usd, size.output_tokens)
    check_invariants(store, ["r1", "r2"])


def test_a_run_whose_smallest_size_does_not_fit_stays(store, holder):
    release(store, holder, 71)
    store.ledger.sweep("batch:b1")
    assert state_of(store, "r2") == "parked"
    assert store.runs.read("r2").parked == Parked("batch:b1", "usd", "exhausted")
    store.ledger.set_limit("batch:b1", usd=101, actor=Actor("101", "ann"))
    assert state_of(store, "r2") == "queued"


def test_while_the_large_size_may_come_nobody_is_woken_for_a_small_one(store, holder):
    store.ledger.set_limit("batch:b1", usd=139, actor=Actor("139", "ann"))
    assert state_of(store, "r2") == "parked"
    store.ledger.set_limit("batch:b1", usd=140, actor=Actor("140", "ann"))
    assert state_of(store, "r2") == "queued"


@pytest.mark.parametrize("idle, size", [(40, SIZES[1]), (55, SIZES[2])])
def test_for_escrows_that_lie_idle_nobody_waits_who_can_do_with_less(store, idle, size):
    """They may lie there until somebody tops up."""
    open_batch(store, usd=100)
    for run_id in ("r1", "r2"):
        submit_run(store, run_id, batch="b1")
    lease = claim_run(store, "r1").lease
    assert isinstance(reserve(store, lease, usd=10, tokens=0, escrow_usd=idle), Granted)
    settled = Settlement(f"{lease.fence}:1", "settle", 10, 0)
    assert store.runs.commit_wait(lease, Delta(head="{}"), settled, [], 60_000) == "OK"
    answer = store.ledger.reserve(claim_run(store, "r2").lease, 1, SIZES)
    assert isinstance(answer, Granted)
    assert answer.usd == size.usd
    check_invariants(store, ["r1", "r2"])


def test_a_parked_run_goes_on_with_less_when_what_it_waits_for_lies_idle(store, holder):
    """Who held the money has put an escrow aside and is gone; the smallest size fits beside it."""
    assert isinstance(reserve(store, holder, 2, usd=0, tokens=0, escrow_usd=20), Granted)
    settled = Settlement(f"{holder.fence}:1", "settle", 30, 0)
    assert store.runs.commit_wait(holder, Delta(head="{}"), settled, [], 60_000) == "OK"
    assert state_of(store, "r2") == "parked"  # what it held was still an escrow of somebody at work
    store.ledger.sweep("batch:b1")
    assert state_of(store, "r2") == "queued"
