"""batch_seal.lua: a batch is over when it is sealed and all its runs have ended."""

from __future__ import annotations

from agentq.core.records import Actor
from agentq.store import Store
from agentq.store.batches import SOMEBODY
from tests.support.harness import call, check_invariants, dump, open_batch, submit_run, twice, untouched


def ends(store: Store) -> dict[str, bool]:
    """Each key of the batch, and whether it has an end; `open` and the like go with their last member."""
    return {name: end for name, (_, end) in dump(store).items() if "batch:b1" in name}


def test_sealing_a_batch_that_does_not_exist_does_nothing(store: Store):
    with untouched(store):
        assert call(store, "batch_seal", "b1", SOMEBODY, 1000) == ["MISSING"]


def test_a_sealed_batch_with_a_live_run_has_no_end_yet(store: Store):
    open_batch(store, usd=10)
    submit_run(store, batch="b1", custom_id="x")
    assert twice(store, "batch_seal", "b1", SOMEBODY, 1000) == ["SEALED", "1"]
    assert not any(ends(store).values())
    record = store.batches.read("b1")
    assert record is not None
    assert record.sealed
    check_invariants(store, ["r1"])


def test_a_batch_sealed_after_its_last_run_ended_gets_an_end(store: Store):
    open_batch(store, usd=10)
    submit_run(store, batch="b1", custom_id="x")
    store.runs.cancel("r1", "test")
    assert not any(ends(store).values())
    assert twice(store, "batch_seal", "b1", SOMEBODY, 1000) == ["SEALED", "1"]
    assert all(ends(store).values())
    check_invariants(store, ["r1"])


def test_the_last_run_of_a_sealed_batch_gives_it_its_end(store: Store):
    open_batch(store, usd=10)
    for run_id in ("r1", "r2"):
        submit_run(store, run_id, batch="b1", custom_id=run_id)
    store.batches.seal("b1")
    store.runs.cancel("r1", "test")
    assert not any(ends(store).values())
    store.runs.cancel("r2", "test")
    assert all(ends(store).values())
    record = store.batches.read("b1")
    assert record is not None
    assert (record.ended, record.stop_reasons) == (2, {"cancelled": 2})
    assert store.batches.live("b1") == []
    check_invariants(store, ["r1", "r2"])


def test_an_empty_batch_is_over_when_it_is_sealed(store: Store):
    open_batch(store)
    assert twice(store, "batch_seal", "b1", SOMEBODY, 1000) == ["SEALED", "0"]
    # A late bill of a batch that had this name before finds an end.
    assert ends(store) == {"batch:b1": True, "scope:batch:b1": True}


def test_the_limits_of_its_windows_end_with_a_batch_and_stay_when_it_goes_on(store: Store):
    open_batch(store)
    store.ledger.set_limit("batch:b1@day", usd=7, actor=Actor("op", "me"))
    store.batches.seal("b1")
    assert store.client.ttl(store.keys.scope("batch:b1@day")) > 0
    open_batch(store)
    assert store.client.ttl(store.keys.scope("batch:b1@day")) == -1
