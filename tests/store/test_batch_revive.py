"""batch_revive.lua: rows that ended as no runs wait for their turn again."""

from __future__ import annotations

import pytest

from agentq.core.lifecycle import RunState, StopReason
from agentq.store import Store
from tests.support import feeding
from tests.support.harness import call, check_runs, dump, untouched
from tests.support.rows import add_rows, finish, in_flight, load_rows, open_for, waiting, window


def check(store: Store) -> None:
    feeding.check(dump(store, without=()), store.watch.server_ms())
    check_runs(store)


@pytest.mark.parametrize("reason", ["cancelled", "cost_budget", "token_budget"])
def test_they_are_queued_in_their_order_as_if_nothing_had_been(store: Store, reason: str):
    ids = load_rows(store, 4, priorities=[0, 5], at=10**15)
    before = dump(store)
    if reason == "cancelled":
        store.batches.cancel("b1", "ann")
    else:
        store.batches.drop("b1", StopReason(reason))
    assert call(store, "batch_revive", "b1") == ["OK", "4"]
    after = dump(store)
    assert after["batch:b1:feed"] == before["batch:b1:feed"], "also without an end"
    assert after["batch:b1"] == before["batch:b1"]
    assert waiting(store) == [ids[n] for n in (1, 3, 0, 2)]
    record = store.runs.read(ids[0])
    assert record is not None
    assert (record.state, record.stop_reason) == (RunState.QUEUED, None)
    check(store)


def test_they_are_admitted_at_once_where_there_is_room_and_the_batch_ends_a_second_time(store: Store):
    load_rows(store, 3, at=10**15)
    store.batches.drop("b1", StopReason.COST_BUDGET)
    store.batches.tune("b1", {"at": None})
    window(store, 5)
    assert store.batches.revive("b1") == 3
    assert len(in_flight(store)) == 3
    check(store)
    for run_id in sorted(in_flight(store)):
        finish(store, run_id)
    record = store.batches.read("b1")
    assert record is not None
    assert (record.ended, record.stop_reasons) == (3, {"finished": 3})
    assert dump(store)["batch:b1"][1]
    check(store)


def test_a_second_call_finds_none_and_changes_nothing(store: Store):
    load_rows(store, 3, at=10**15)
    store.batches.cancel("b1", "ann")
    assert call(store, "batch_revive", "b1") == ["OK", "3"]
    with untouched(store):
        assert call(store, "batch_revive", "b1") == ["OK", "0"]


def test_rows_of_several_reasons_and_rows_that_wait_come_together(store: Store):
    ids = load_rows(store, 2, at=10**15)
    store.batches.drop("b1", StopReason.COST_BUDGET)
    for numbers, reason in (([2, 3], StopReason.TOKEN_BUDGET), ([4], None)):
        ids += add_rows(store, open_for(store), numbers)
        store.batches.seal("b1")
        if reason:
            store.batches.drop("b1", reason)
    assert store.batches.revive("b1") == 4
    assert waiting(store) == ids
    check(store)


def test_while_a_cancel_has_not_come_to_all_runs_none_is_revived(store: Store):
    """With the batch's flag gone, those would go on."""
    (first, *_) = load_rows(store, 3)
    store.batches.cancel("b1", "ann")
    with untouched(store):
        assert call(store, "batch_revive", "b1") == ["CANCELLING"]
        assert store.batches.revive("b1") is None
    store.runs.cancel(first, "ann")
    assert store.batches.revive("b1") == 2
    assert len(in_flight(store)) == 1
    check(store)


def test_rows_of_a_paused_batch_wait_for_its_resume(store: Store):
    load_rows(store, 3, at=10**15)
    store.batches.tune("b1", {"at": None})
    store.batches.pause("b1", "ann")
    store.batches.drop("b1", StopReason.COST_BUDGET)
    window(store, 5)
    store.batches.revive("b1")
    assert len(in_flight(store)) <= 1
    check(store)
    store.batches.resume("b1")
    check(store)


def test_a_batch_that_does_not_exist_is_missing(store: Store):
    with untouched(store):
        assert call(store, "batch_revive", "b1") == ["MISSING"]
        assert store.batches.revive("b1") == 0
