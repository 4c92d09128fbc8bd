"""budget_convert.lua: the escrow becomes the closing turn's reservation, whatever the budgets say."""

from __future__ import annotations

import pytest

from agentq.core.records import Delta, Granted, Lease, Settlement
from agentq.store import Store
from tests.support.harness import (
    LEASE_MS,
    age,
    check_invariants,
    claim_run,
    money,
    reserve,
    steady,
    submit_run,
    twice,
    untouched,
)


@pytest.fixture
def lease(store: Store) -> Lease:
    """The second claim of a run that has an escrow of 30 nano-USD and 3 tokens, and spent 70 and 7."""
    submit_run(store, usd=100, tokens=10)
    lease = claim_run(store).lease
    reserve(store, lease, 1, usd=70, tokens=7, escrow_usd=30, escrow_tokens=3)
    store.runs.commit_continue(lease, Delta("{}"), Settlement(f"{lease.fence}:1", "settle", 70, 7))
    return claim_run(store).lease


def test_the_whole_escrow_becomes_a_reservation(store: Store, lease: Lease):
    reply = twice(store, "budget_convert", "r1", lease.fence, 1, "me", 0, 60_000, 0)
    assert reply == ["OK", f"{lease.fence}:1", "30", "3", "0", "1", "0"]
    assert money(store, "run:r1") == {"us": 70, "ts": 7, "ur": 30, "tr": 3}
    assert store.ledger.open_reservations("r1") == {f"{lease.fence}:1": (30, 3)}
    check_invariants(store, ["r1"])


def test_it_is_not_refused_when_a_scope_is_over_its_limit(store: Store, lease: Lease):
    store.ledger.set_limit("global", usd=1, tokens=1)
    assert store.ledger.convert(lease, 1) == Granted(f"{lease.fence}:1", 30, 3)
    check_invariants(store, ["r1"], capped=False)


def test_without_an_escrow_there_is_none_and_nothing_is_written(store: Store):
    submit_run(store)
    lease = claim_run(store).lease
    with untouched(store):
        assert store.ledger.convert(lease, 1) is None


def test_a_second_closing_turn_has_no_escrow(store: Store, lease: Lease):
    assert isinstance(store.ledger.convert(lease, 1), Granted)
    with untouched(store):
        assert store.ledger.convert(lease, 2) is None


def test_a_replay_after_the_settlement_is_closed(store: Store, lease: Lease):
    store.ledger.convert(lease, 1)
    store.runs.commit_tools(lease, Delta("{}"), Settlement(f"{lease.fence}:1", "settle", 20, 2))
    with untouched(store):
        assert store.ledger.convert(lease, 1) == "CLOSED"


def test_a_stale_fence_converts_nothing(store: Store, lease: Lease):
    steady(store)
    age(store, "r1")
    store.watch.rescue("r1", LEASE_MS)
    with untouched(store):
        assert store.ledger.convert(lease, 1) == "STALE"
    claim_run(store)
    with untouched(store):
        assert store.ledger.convert(lease, 1) == "STALE"


def test_an_escrow_survives_the_death_of_its_worker_and_not_the_reservation(store: Store, lease: Lease):
    reserve(store, lease, 1, usd=0, tokens=0, escrow_usd=30, escrow_tokens=3)
    steady(store)
    age(store, "r1")
    store.watch.rescue("r1", LEASE_MS)
    assert store.ledger.open_reservations("r1") == {"escrow": (30, 3)}
    assert store.ledger.convert(claim_run(store).lease, 1) is not None
    check_invariants(store, ["r1"])
