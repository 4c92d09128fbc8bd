"""batch_abort.lua: a load that fails takes back exactly what it has added."""

from __future__ import annotations

import pytest

from agentq.core.lifecycle import StopReason
from agentq.store import Store
from agentq.store.batches import SOMEBODY
from tests.support import feeding
from tests.support.harness import call, check_runs, dump, money, open_batch, untouched
from tests.support.leaks import assert_no_leaks
from tests.support.rows import add_rows, load_rows, open_for, waiting, window

PERMANENT = ("ledger", "log", "feeder", "batches", "watch", "clock", "starts")


def check(store: Store) -> None:
    feeding.check(dump(store, without=()), store.watch.server_ms())
    check_runs(store)


def settled(store: Store) -> dict[str, object]:
    """The state without the number of batches, and the log."""
    return {name: held for name, held in dump(store).items() if name not in {"log", "ledger", "feeder"}}


def test_a_batch_that_had_nothing_before_is_gone(store: Store):
    opened = open_for(store, usd=1000)
    add_rows(store, opened, range(5))
    assert call(store, "batch_abort", "b1", SOMEBODY, 0, 100) == ["DONE"]
    store.client.pexpire(store.keys.scope("batch:b1"), 60_000)  # it goes in a moment; who says so may be slow
    assert_no_leaks(store.client, store.keys.prefix, PERMANENT)
    assert [name for name in dump(store) if name.startswith(("batch:", "serial:"))] == []
    assert store.batches.names() == []
    with untouched(store):
        assert call(store, "batch_abort", "b1", SOMEBODY, 0, 100) == ["MISSING"]


def test_its_name_is_free_and_has_nothing_of_it(store: Store):
    opened = open_for(store, usd=1000, max_in_flight=3, pilot=2)
    add_rows(store, opened, range(5))
    store.batches.abort("b1", 0)
    again = open_for(store, tenant="other")
    assert (again.total, again.serial) == (0, "2"), "ids of rows are never those of others"
    assert money(store, "batch:b1") == {}
    assert "pilots" not in dump(store)
    record = store.batches.read("b1")
    assert record is not None
    assert (record.tenant, record.max_in_flight) == ("other", None)
    assert store.ledger.account("batch:b1").limit_nano is None


@pytest.mark.parametrize("began", [0, 2, 3])
def test_a_batch_that_had_rows_is_as_it_was(store: Store, began: int):
    window(store, began)
    load_rows(store, 3)
    before = settled(store)
    opened = open_for(store)
    add_rows(store, opened, [0, 1, 7, 8], priority=9)
    store.batches.abort("b1", opened.total)
    assert settled(store) == before
    check(store)


def test_a_batch_that_was_over_is_over_again(store: Store):
    load_rows(store, 2)
    store.batches.cancel("b1", "ann")
    for run_id in store.batches.live("b1"):
        store.runs.cancel(run_id, "ann")
    before = settled(store)
    opened = open_for(store)
    add_rows(store, opened, [7])
    store.batches.abort("b1", opened.total)
    assert settled(store) == before, "cancelled, sealed, and with an end"
    check(store)


def test_what_was_not_sealed_before_stays_so(store: Store):
    """Of a loader that was killed: that load is resumed, or cancelled."""
    add_rows(store, open_for(store, loader="killed"), [0, 1], loader="killed")
    opened = open_for(store, loader="me", dead="killed")
    add_rows(store, opened, [1, 2], loader="me")
    store.batches.abort("b1", opened.total, loader="me")
    record = store.batches.read("b1")
    assert record is not None
    assert (record.total, record.sealed, record.loader, record.rows) == (2, False, None, 2)
    check(store)


def test_many_rows_are_taken_back_some_at_a_time(store: Store):
    load_rows(store, 2)
    opened = open_for(store)
    add_rows(store, opened, range(10, 17))
    assert call(store, "batch_abort", "b1", SOMEBODY, 2, 3) == ["MORE"]
    assert dump(store)["batch:b1"][0]["total"] == "6"
    assert call(store, "batch_abort", "b1", SOMEBODY, 2, 3) == ["MORE"]
    assert call(store, "batch_abort", "b1", SOMEBODY, 2, 3) == ["DONE"]
    with untouched(store):
        assert call(store, "batch_abort", "b1", SOMEBODY, 2, 3) == ["LOST"], "it is nobody's load any more"
    assert dump(store)["batch:b1"][0]["total"] == "2"
    check(store)


@pytest.mark.parametrize("how", ["another loads", "cancelled"])
def test_who_does_not_load_the_batch_takes_nothing_back(store: Store, how: str):
    add_rows(store, open_for(store, loader="me"), [0, 1], loader="me")
    if how == "cancelled":
        store.batches.cancel("b1", "ann")
    else:
        open_for(store, loader="you", dead="me")
    with untouched(store):
        assert call(store, "batch_abort", "b1", "me", 0, 100) == ["LOST"]
        store.batches.abort("b1", 0, loader="me")
    check(store)


def test_rows_of_a_load_are_not_dropped_for_want_of_money_and_can_be_taken_back(store: Store):
    """The batch's rows before them may be, at any time."""
    load_rows(store, 3, at=10**15)
    opened = open_for(store)
    add_rows(store, opened, [7, 8])
    store.batches.drop("b1", StopReason.COST_BUDGET)
    check(store)
    store.batches.abort("b1", opened.total)
    record = store.batches.read("b1")
    assert record is not None
    assert (record.total, record.ended, record.stop_reasons) == (3, 3, {"cost_budget": 3})
    assert waiting(store) == []
    check(store)


def test_an_empty_load_of_a_new_batch_leaves_nothing(store: Store):
    open_batch(store)
    store.batches.abort("b1", 0)
    assert store.batches.read("b1") is None
