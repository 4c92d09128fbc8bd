"""batch_drop.lua, and rows in batch_cancel.lua: rows end without becoming runs, and say why."""

from __future__ import annotations

from functools import partial

import pytest

from agentq.core.lifecycle import RunState, StopReason
from agentq.store import Store
from tests.support import feeding
from tests.support.harness import call, check_runs, dump, untouched
from tests.support.rows import add_rows, finish, in_flight, load_rows, open_for, waiting, window

REASONS = [StopReason.COST_BUDGET, StopReason.TOKEN_BUDGET, StopReason.CANCELLED]


def check(store: Store) -> None:
    feeding.check(dump(store, without=()), store.watch.server_ms())
    check_runs(store)


def end_rows(store: Store, reason: StopReason) -> int:
    if reason is StopReason.CANCELLED:
        return store.batches.cancel("b1", "ann")
    return store.batches.drop("b1", reason)


@pytest.mark.parametrize("reason", REASONS)
def test_rows_end_with_the_reason_and_runs_go_on(store: Store, reason: StopReason):
    window(store, 2)
    ids = load_rows(store, 5)
    assert end_rows(store, reason) == 3
    record = store.batches.read("b1")
    assert record is not None
    assert (record.total, record.ended, record.rows, record.open) == (5, 3, 0, 2)
    assert record.stop_reasons == {reason.value: 3}
    assert waiting(store) == []
    read = store.runs.read(ids[4])
    assert read is not None
    assert (read.state, read.stop_reason, read.is_row) == (RunState.ENDED, reason, True)
    check(store)


@pytest.mark.parametrize("reason", REASONS)
def test_a_batch_whose_rows_have_all_ended_is_over(store: Store, reason: StopReason):
    load_rows(store, 3, at=10**15)
    assert end_rows(store, reason) == 3
    assert end_rows(store, reason) == 0, "once"
    assert all(has_end for name, (_, has_end) in dump(store).items() if name.startswith("batch:b1"))
    check(store)


def test_a_batch_is_over_when_its_last_run_is_after_its_rows(store: Store):
    (first, *_) = load_rows(store, 3)
    store.batches.drop("b1", StopReason.COST_BUDGET)
    finish(store, first)
    record = store.batches.read("b1")
    assert record is not None
    assert record.stop_reasons == {"cost_budget": 2, "finished": 1}
    assert dump(store)["batch:b1"][1]
    check(store)


def test_a_batch_without_rows_drops_none(store: Store):
    open_for(store)
    assert call(store, "batch_drop", "b1", "cost_budget", 1) == ["OK", "0"]
    assert call(store, "batch_drop", "b1", "cost_budget", 1) == ["OK", "0"]


def test_rows_end_after_so_many_denials_without_anything_spent_in_between(store: Store):
    window(store, 1)
    (first, *_) = load_rows(store, 6)
    drop = partial(store.batches.drop, "b1", StopReason.COST_BUDGET, denials=3)
    assert [drop(), drop()] == [0, 0]
    finish(store, first, tokens=5)
    assert [drop(), drop(), drop(), drop()] == [0, 0, 4, 0]
    assert store.batches.revive("b1") == 4
    assert drop() == 0, "it is counted anew"
    check(store)


def test_a_batch_that_does_not_exist_is_missing(store: Store):
    with untouched(store):
        assert call(store, "batch_drop", "b1", "cost_budget", 1) == ["MISSING"]
        assert store.batches.drop("b1", StopReason.COST_BUDGET) == 0
        assert store.batches.cancel("b1", "ann") == 0


def test_a_second_drop_adds_to_the_first(store: Store):
    load_rows(store, 2, at=10**15)
    store.batches.drop("b1", StopReason.COST_BUDGET)
    add_rows(store, open_for(store), [7, 8, 9])
    store.batches.seal("b1")
    assert store.batches.drop("b1", StopReason.COST_BUDGET) == 3
    record = store.batches.read("b1")
    assert record is not None
    assert record.stop_reasons == {"cost_budget": 5}
    check(store)


def test_others_go_on_taking_turns(store: Store):
    load_rows(store, 5, "b1")
    load_rows(store, 5, "b2")
    store.batches.drop("b1", StopReason.COST_BUDGET)
    window(store, 3)
    store.batches.resume("b2")
    assert len(in_flight(store, "b", "b2")) >= 2
    check(store)


def test_the_rows_of_a_load_end_with_a_cancel_and_the_loader_hears_it(store: Store):
    opened = open_for(store)
    add_rows(store, opened, range(3))
    assert call(store, "batch_cancel", "b1", "ann") == ["OK", "3"]
    assert call(store, "batch_seal", "b1", "somebody", 10) == ["LOST"]
    check(store)
