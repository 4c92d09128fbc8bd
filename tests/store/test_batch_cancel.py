"""batch_cancel.lua: a batch is cancelled all at once; what its runs give back lets none of them go on."""

from __future__ import annotations

from agentq.core.records import Delta, Parked, Settlement
from agentq.engine.cancel import cancel_batch
from agentq.store import Store
from tests.support.harness import (
    LEASE_MS,
    call,
    check_invariants,
    claim_run,
    open_batch,
    reserve,
    state_of,
    submit_run,
    twice,
)


def test_a_cancelled_batch_has_no_run_to_claim_until_rows_are_added(store: Store):
    open_batch(store)
    for name in ("r1", "r2"):
        submit_run(store, name, batch="b1", custom_id=name)
    assert twice(store, "batch_cancel", "b1", "me") == ["OK", "0"]
    assert store.runs.claim("r1", None, LEASE_MS) is None
    assert state_of(store) == "ended"
    open_batch(store)
    store.batches.seal("b1")
    assert claim_run(store, "r2").lease.run_id == "r2"
    check_invariants(store, ["r1", "r2"])


def test_a_batch_that_does_not_exist_is_missing(store: Store):
    assert call(store, "batch_cancel", "b1", "me") == ["MISSING"]


def test_what_a_cancelled_run_gives_back_wakes_none_of_its_batch(store: Store):
    """Four admitted runs wait; each escrow that comes back is enough for another call."""
    names = [f"r{n}" for n in range(4)]
    open_batch(store, usd=70)
    for name in names:
        submit_run(store, name, batch="b1", custom_id=name)
        lease = claim_run(store, name).lease
        reserve(store, lease, usd=5, tokens=0, escrow_usd=10)
        closing = Settlement(f"{lease.fence}:1", "settle", 5)
        assert store.runs.commit_continue(lease, Delta("{}"), closing) == "OK"
    for name in names:
        assert isinstance(
            reserve(store, claim_run(store, name).lease, usd=15, tokens=0, escrow_usd=10, policy="park"),
            Parked,
        )
    spent = store.ledger.account("batch:b1").spent_nano
    assert cancel_batch(store, "b1", by="me").live == 4
    for name in names:
        assert store.runs.claim(name, None, LEASE_MS) is None
    assert [state_of(store, name) for name in names] == ["ended"] * 4
    assert store.ledger.account("batch:b1").spent_nano == spent
    check_invariants(store, names)
