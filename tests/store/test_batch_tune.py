"""batch_tune.lua: how a batch is fed is changed at once, whatever its size."""

from __future__ import annotations

from typing import Any

import pytest

from agentq.store import Store
from tests.support import feeding
from tests.support.harness import call, check_runs, due, dump, twice, untouched
from tests.support.rows import finish, in_flight, load_rows, open_for, waiting, window


def check(store: Store) -> None:
    feeding.check(dump(store, without=()), store.watch.server_ms())
    check_runs(store)


def test_options_are_set_and_taken_away(store: Store):
    open_for(store)
    options = ("max_in_flight", 3, "max_open", 9, "priority", 4, "at", 7)
    assert twice(store, "batch_tune", "b1", 8, *options) == ["OK"]
    record = store.batches.read("b1")
    assert record is not None
    assert (record.max_in_flight, record.max_open, record.priority, record.at_ms) == (3, 9, 4, 7)
    taken = ("max_in_flight", "", "max_open", "", "priority", "", "at", "")
    assert twice(store, "batch_tune", "b1", 8, *taken) == ["OK"]
    record = store.batches.read("b1")
    assert record is not None
    assert (record.max_in_flight, record.max_open, record.priority, record.at_ms) == (None, None, 0, None)


def test_nothing_is_changed_without_an_option_nor_where_there_is_no_batch(store: Store):
    with untouched(store):
        assert call(store, "batch_tune", "b1", 2, "priority", 4) == ["MISSING"]
        store.batches.tune("b1", {"priority": 4})
    load_rows(store, 2)
    assert twice(store, "batch_tune", "b1", 0) == ["OK"]


@pytest.mark.parametrize("field", ["max_in_flight", "max_open"])
def test_a_higher_cap_admits_rows_at_once_and_a_lower_one_none(store: Store, field: str):
    window(store, 10)
    cap: dict[str, Any] = {field: 1}
    load_rows(store, 9, **cap)
    assert len(in_flight(store)) == 1
    store.batches.tune("b1", {field: 4})
    assert len(in_flight(store)) == 4
    check(store)
    store.batches.tune("b1", {field: 2})
    for left in (3, 2, 2):
        finish(store, min(in_flight(store)))
        assert len(in_flight(store)) == left
    store.batches.tune("b1", {field: None})
    due(store)
    assert waiting(store) == []
    check(store)


def test_another_priority_counts_from_the_next_turn_on_and_as_if_it_had_always_been(store: Store):
    for name in ("b1", "b2", "b3"):
        load_rows(store, 10, name, priority=3 if name == "b1" else 0)
    window(store, 1)
    store.batches.tune("b3", {"priority": 9})
    (run_id,) = in_flight(store)
    finish(store, run_id)
    assert len(in_flight(store, "b", "b3")) == 1
    store.batches.tune("b3", {"priority": None})
    store.batches.tune("b1", {"priority": 0})
    turns = dump(store)["turns:acme"][0]
    assert all(0 <= time < 10**6 for _, time in turns), turns
    window(store, 9)
    due(store)
    left = {name: len(waiting(store, name)) for name in ("b1", "b2", "b3")}
    assert max(left.values()) - min(left.values()) <= 1, left
    check(store)


def test_a_new_batch_begins_beside_the_others_whatever_their_priority(store: Store):
    load_rows(store, 10, "b1", priority=9)
    load_rows(store, 10, "b2", priority=0)
    load_rows(store, 10, "b3", priority=9)
    turns = dict(dump(store)["turns:acme"][0])
    assert turns["b2"] - turns["b3"] == pytest.approx(9e13, rel=1e-9)


def test_a_later_start_stops_a_batch_and_one_that_is_past_lets_it_go_on(store: Store):
    window(store, 2)
    load_rows(store, 6)
    store.batches.tune("b1", {"at": store.watch.server_ms() + 60_000})
    for run_id in sorted(in_flight(store)):
        finish(store, run_id)
    due(store)
    assert (in_flight(store), len(waiting(store))) == (set(), 4)
    assert [name for name, _ in dump(store)["starts"][0]] == ["b1"]
    check(store)
    store.batches.tune("b1", {"at": 1})
    assert len(in_flight(store)) == 2
    assert "starts" not in dump(store)
    check(store)


def test_a_batch_that_is_paused_or_over_is_changed_and_not_fed(store: Store):
    window(store, 5)
    load_rows(store, 5, max_in_flight=1)
    store.batches.pause("b1", "ann")
    store.batches.tune("b1", {"max_in_flight": 3})
    assert len(in_flight(store)) == 1
    store.batches.cancel("b1", "ann")
    store.batches.tune("b1", {"max_in_flight": None})
    assert len(in_flight(store)) == 1
    check(store)
