"""budget_reserve.lua: money is set aside in every scope or in none, and a reservation is one request."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from agentq.core.records import Delta, Denied, Granted, Lease, Settlement
from agentq.store import Store
from tests.support import harness
from tests.support.harness import (
    LEASE_MS,
    age,
    call,
    check_invariants,
    claim_run,
    money,
    open_batch,
    reserve_args,
    steady,
    submit_run,
    twice,
    untouched,
)

SCOPES = ("global", "tenant:acme", "batch:b1", "run:r1")


def reserve(store: Store, lease: Lease, n: int, usd: int, tokens: int = 0, eu: int = 0, et: int = 0):  # noqa: PLR0917
    return harness.reserve(store, lease, n, usd=usd, tokens=tokens, escrow_usd=eu, escrow_tokens=et)


@pytest.fixture
def lease(store: Store) -> Lease:
    """A claimed run in a batch of its own, without limits."""
    open_batch(store)
    submit_run(store, batch="b1")
    return claim_run(store).lease


def test_a_reservation_stands_in_every_scope_of_the_run(store: Store, lease: Lease):
    assert twice(store, "budget_reserve", *reserve_args(lease, 1, (64, 70, 7, 30, 3))) == [
        "OK",
        f"{lease.fence}:1",
        1,
        "1",
        "0",
    ]
    for scope in SCOPES:
        assert money(store, scope) == {"ur": 70, "tr": 7, "ue": 30, "te": 3}
    assert store.ledger.open_reservations("r1") == {f"{lease.fence}:1": (70, 7), "escrow": (30, 3)}
    check_invariants(store, ["r1"])


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("unit", ["usd", "tokens"])
def test_what_is_left_may_be_taken_whole_and_not_one_more(store: Store, lease: Lease, scope: str, unit: str):
    limits: dict[str, Any] = {"usd": None, "tokens": None} | {unit: 100}
    store.ledger.set_limit(scope, **limits)
    with untouched(store):
        assert reserve(store, lease, 1, 70, 70, 31, 31) == Denied(scope, unit, "never")
    assert reserve(store, lease, 1, 70, 70, 30, 30) == Granted(f"{lease.fence}:1", 70, 70)
    check_invariants(store, ["r1"])


def test_a_denial_by_the_last_scope_leaves_the_others_as_they_were(store: Store, lease: Lease):
    assert isinstance(reserve(store, lease, 1, 10, 10, 5, 5), Granted)
    store.runs.release(lease, delay_ms=0, settlement=Settlement(f"{lease.fence}:1", "settle", 10, 10))
    lease = claim_run(store).lease
    store.ledger.set_limit("run:r1", usd=10, tokens=None)
    with untouched(store):
        assert reserve(store, lease, 1, 1, 1, 0, 0) == Denied("run:r1", "usd", "exhausted", admitted=True)
    assert store.ledger.open_reservations("r1") == {"escrow": (5, 5)}


def test_the_widest_scope_that_does_not_fit_is_named(store: Store, lease: Lease):
    for scope in SCOPES:
        store.ledger.set_limit(scope, usd=5, tokens=None)
    assert reserve(store, lease, 1, 6) == Denied("global", "usd", "never")
    store.ledger.set_limit("global", usd=None, tokens=None)
    assert reserve(store, lease, 1, 6) == Denied("tenant:acme", "usd", "never")


def test_tokens_are_named_before_money_as_in_one_process(store: Store, lease: Lease):
    store.ledger.set_limit("run:r1", usd=5, tokens=5)
    assert reserve(store, lease, 1, 6, 6) == Denied("run:r1", "tokens", "never")


def two_runs(store: Store, limit: int) -> tuple[Lease, Lease]:
    open_batch(store, usd=limit)
    for run_id in ("r1", "r2"):
        submit_run(store, run_id, batch="b1")
    return claim_run(store, "r1").lease, claim_run(store, "r2").lease


def test_what_a_call_in_flight_may_give_back_is_worth_waiting_for(store: Store):
    first, second = two_runs(store, 100)
    reserve(store, first, 1, 60)
    with untouched(store):
        assert reserve(store, second, 1, 41) == Denied("batch:b1", "usd", "wait")
    assert isinstance(reserve(store, second, 1, 40), Granted)
    check_invariants(store, ["r1", "r2"])


def test_what_is_spent_does_not_come_back(store: Store):
    first, second = two_runs(store, 100)
    reserve(store, first, 1, 60)
    store.runs.commit_tools(first, Delta("{}"), Settlement(f"{first.fence}:1", "settle", 60, 0))
    with untouched(store):
        assert reserve(store, second, 1, 41) == Denied("batch:b1", "usd", "exhausted")
        assert reserve(store, second, 1, 101) == Denied("batch:b1", "usd", "never")


def test_only_escrows_in_the_way_is_winddown(store: Store):
    first, second = two_runs(store, 100)
    reserve(store, first, 1, 10, eu=60)
    store.runs.commit_tools(first, Delta("{}"), Settlement(f"{first.fence}:1", "release"))
    with untouched(store):
        # Who holds it is at work: it will end, or be parked.
        assert reserve(store, second, 1, 41) == Denied("batch:b1", "usd", "wait")
    store.runs.commit_wait(first, Delta("{}"), None, [], 60_000)
    with untouched(store):
        assert reserve(store, second, 1, 41) == Denied("batch:b1", "usd", "winddown")
    assert isinstance(reserve(store, second, 1, 40), Granted)
    check_invariants(store, ["r1", "r2"])


def test_the_escrow_is_set_and_not_added(store: Store, lease: Lease):
    for n, escrow in enumerate((30, 50, 20, 0), start=1):
        granted = reserve(store, lease, n, 1, 1, escrow, escrow)
        assert isinstance(granted, Granted)
        assert store.ledger.open_reservations("r1")["escrow"] == (escrow, escrow)
        assert store.ledger.account("global").escrowed_nano == escrow
        check_invariants(store, ["r1"])


def test_the_own_escrow_is_no_obstacle_to_the_next_reservation(store: Store, lease: Lease):
    store.ledger.set_limit("run:r1", usd=100, tokens=None)
    assert isinstance(reserve(store, lease, 1, 10, eu=90), Granted)
    store.runs.commit_continue(lease, Delta("{}"), Settlement(f"{lease.fence}:1", "settle", 10))
    lease = claim_run(store).lease
    with untouched(store):
        assert reserve(store, lease, 1, 45, eu=46) == Denied("run:r1", "usd", "exhausted", admitted=True)
    assert isinstance(reserve(store, lease, 1, 45, eu=45), Granted)
    check_invariants(store, ["r1"])


def test_a_stale_fence_reserves_nothing(store: Store, lease: Lease):
    steady(store)
    age(store, "r1")
    store.watch.rescue("r1", LEASE_MS)
    with untouched(store):
        assert reserve(store, lease, 1, 1) == "STALE"
    claim_run(store)
    with untouched(store):
        assert reserve(store, lease, 1, 1) == "STALE"


def test_a_run_that_is_not_running_reserves_nothing(store: Store, lease: Lease):
    store.runs.cancel("r1", "test")
    with untouched(store):
        assert reserve(store, lease, 1, 1) == "STALE"
        assert reserve(store, Lease("r9", "1-x", 0), 1, 1) == "STALE"


def test_a_replay_after_the_settlement_is_closed(store: Store, lease: Lease):
    granted = reserve(store, lease, 1, 10, 1, 5, 1)
    assert isinstance(granted, Granted)
    store.runs.commit_tools(lease, Delta("{}"), Settlement(granted.reservation, "settle", 8, 1))
    with untouched(store):
        assert reserve(store, lease, 1, 10, 1, 5, 1) == "CLOSED"
    assert reserve(store, lease, 2, 10, 1, 5, 1) == Granted(f"{lease.fence}:2", 10, 1)
    with untouched(store):
        assert reserve(store, lease, 1, 10, 1, 5, 1) == "CLOSED"


def test_a_denied_request_may_be_asked_again_and_granted(store: Store, lease: Lease):
    store.ledger.set_limit("global", usd=5, tokens=None)
    assert isinstance(reserve(store, lease, 1, 6), Denied)
    store.ledger.set_limit("global", usd=6, tokens=None)
    assert isinstance(reserve(store, lease, 1, 6), Granted)


@pytest.mark.parametrize("bad", ["-1", "01", "1e3", "12345678901234567", str(2**53), "-0", "", "1.0", "nan"])
@pytest.mark.parametrize("place", range(4))
def test_an_amount_that_is_none_is_refused_before_anything_is_written(
    store: Store, lease: Lease, place: int, bad: str
):
    amounts: list[Any] = ["1", "1", "1", "1"]
    amounts[place] = bad
    with untouched(store), pytest.raises(redis.exceptions.ResponseError, match="not an amount"):
        call(store, "budget_reserve", *reserve_args(lease, 1, (0, *amounts)))


def test_the_boundary_is_exact_near_the_largest_amount(store: Store, lease: Lease):
    largest = 2**53 - 1
    store.ledger.set_limit("global", usd=largest, tokens=largest)
    assert isinstance(reserve(store, lease, 1, largest - 2, largest - 2, 1, 1), Granted)
    assert money(store, "global") == {"ur": largest - 2, "tr": largest - 2, "ue": 1, "te": 1}
    store.runs.commit_tools(lease, Delta("{}"), Settlement(f"{lease.fence}:1", "settle", largest - 2, 0))
    with untouched(store):
        assert reserve(store, lease, 2, 3) == Denied("global", "usd", "exhausted", admitted=True)
    assert isinstance(reserve(store, lease, 2, 1, 0, 1, 0), Granted)
    assert store.ledger.account("global").left_nano == 0
    check_invariants(store, ["r1"])


def test_a_need_beyond_the_largest_amount_is_denied_and_not_rounded(store: Store, lease: Lease):
    largest = 2**53 - 1
    store.ledger.set_limit("global", usd=largest, tokens=None)
    with untouched(store):
        assert reserve(store, lease, 1, largest, eu=1) == Denied("global", "usd", "never")
        assert reserve(store, lease, 1, largest, eu=largest) == Denied("global", "usd", "never")
    assert isinstance(reserve(store, lease, 1, largest), Granted)


def test_a_scope_without_a_limit_is_counted_all_the_same(store: Store, lease: Lease):
    assert isinstance(reserve(store, lease, 1, 10**12, 10**9), Granted)
    account = store.ledger.account("tenant:acme")
    assert (account.reserved_nano, account.tokens_reserved, account.left_nano) == (10**12, 10**9, None)


def test_a_scope_that_was_never_used_is_all_zeros(store: Store):
    account = store.ledger.account("tenant:nobody")
    assert (account.limit_nano, account.spent_nano, account.tokens_spent) == (None, 0, 0)
