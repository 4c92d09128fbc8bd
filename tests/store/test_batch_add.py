"""batch_add.lua: rows are added all or none, by their loader alone, each once."""

from __future__ import annotations

import pytest

from agentq.core.records import RowEntry
from agentq.store import Store
from agentq.store.batches import SOMEBODY, LoadingError, RowConflictError
from tests.support import feeding
from tests.support.harness import call, check_runs, dump, untouched
from tests.support.rows import add_rows, load_rows, open_for, row_entry, row_id, template, window


def arguments(*rows: RowEntry, loader: str = SOMEBODY, templates: tuple[str, ...] = ()) -> list[str | int]:
    flat = [
        part
        for row in rows
        for part in (row.run_id, row.custom_id, row.content_hash, row.priority, row.payload)
    ]
    return ["b1", loader, 15_000, len(templates), *templates, len(flat), *flat]


def without_the_time(store: Store) -> dict[str, object]:
    """The state without until when the loader need not be heard of."""
    state = dump(store)
    state["batch:b1"][0].pop("loader")
    return state


def test_rows_wait_in_their_order_with_their_content(store: Store):
    opened = open_for(store)
    rows = [row_entry(n, opened.serial, priority=p) for n, p in ((0, 0), (1, 9), (2, 0))]
    assert call(store, "batch_add", *arguments(*rows, templates=("t", template()))) == ["ADDED", 3]
    state = dump(store)
    assert [row for row, _ in state["batch:b1:loading"][0]] == [rows[n].run_id for n in (1, 0, 2)]
    assert state["batch:b1:runs"][0] == [row.run_id for row in rows]
    assert state["batch:b1:rows"][0] == {row.run_id: row.payload for row in rows}
    assert state["batch:b1:ids"][0] == {row.custom_id: f"h {row.run_id}" for row in rows}
    assert state["batch:b1:templates"][0] == {"t": template()}
    assert state["batch:b1"][0]["total"] == "3"
    feeding.check(state, store.watch.server_ms())
    check_runs(store)


def test_a_reply_that_was_lost_is_given_again_and_nothing_is_added_twice(store: Store):
    opened = open_for(store)
    rows = [row_entry(n, opened.serial) for n in range(3)]
    first = call(store, "batch_add", *arguments(*rows, templates=("t", template())))
    before = without_the_time(store)
    assert call(store, "batch_add", *arguments(*rows, templates=("t", template()))) == first == ["ADDED", 3]
    assert without_the_time(store) == before


def test_rows_that_are_there_are_left_alone_and_named(store: Store):
    opened = open_for(store)
    add_rows(store, opened, [0, 2])
    again = [
        RowEntry(f"run_{9 - n}_1", entry.custom_id, entry.content_hash, 0, entry.payload)
        for n, entry in enumerate(row_entry(n, opened.serial) for n in range(4))
    ]
    assert call(store, "batch_add", *arguments(*again)) == ["ADDED", 2, "1", "3"]
    assert dump(store)["batch:b1"][0]["total"] == "4"
    assert store.batches.known("b1", ["c0"]) == {"c0": ("h", row_id(0, opened.serial))}
    assert store.batches.add("b1", again, {}) == [False, True, False, True]


def test_rows_that_became_runs_are_there_too(store: Store):
    window(store, 2)
    load_rows(store, 3)
    opened = open_for(store)
    assert store.batches.add("b1", [row_entry(n, opened.serial) for n in range(4)], {}) == [
        *(True,) * 3,  # under the same ids: as if this loader had added them, and its reply was lost
        True,
    ]
    assert dump(store)["batch:b1"][0]["total"] == "4"


@pytest.mark.parametrize("place", [0, 1, 499])
def test_with_one_conflict_none_is_added(store: Store, place: int):
    opened = open_for(store)
    add_rows(store, opened, [place])
    rows = [row_entry(n, opened.serial, text="other" if n == place else "") for n in range(500)]
    with untouched(store):
        assert call(store, "batch_add", *arguments(*rows)) == [
            "CONFLICT",
            str(place + 1),
            row_id(place, opened.serial),
        ]
        with pytest.raises(RowConflictError) as refused:
            store.batches.add("b1", rows, {})
    assert (refused.value.place, refused.value.run_id) == (place, row_id(place, opened.serial))


def test_a_load_without_rows_adds_none(store: Store):
    open_for(store)
    assert call(store, "batch_add", *arguments()) == ["ADDED", 0]
    assert store.batches.add("b1", [], {}) == []


def test_a_thousand_rows_are_added_at_once(store: Store):
    opened = open_for(store)
    assert all(store.batches.add("b1", [row_entry(n, opened.serial) for n in range(1000)], {}))
    assert dump(store)["batch:b1"][0]["total"] == "1000"


@pytest.mark.parametrize("how", ["another loads", "cancelled", "sealed", "never there"])
def test_who_does_not_load_the_batch_adds_nothing(store: Store, how: str):
    if how != "never there":
        opened = open_for(store, loader="me")
        add_rows(store, opened, [0], loader="me")
    match how:
        case "another loads":
            open_for(store, loader="you", dead="me")
        case "cancelled":
            store.batches.cancel("b1", "ann")
        case "sealed":
            store.batches.seal("b1", loader="me")
    word = ["MISSING"] if how == "never there" else ["LOST"]
    with untouched(store):
        assert call(store, "batch_add", *arguments(row_entry(1, "1"), loader="me")) == word
        with pytest.raises(LoadingError, match="cancelled, or taken over"):
            store.batches.add("b1", [row_entry(1, "1")], {}, loader="me")


def test_a_template_is_written_once_and_stays(store: Store):
    opened = open_for(store)
    for text in ("first", "second"):
        call(store, "batch_add", *arguments(row_entry(0, opened.serial), templates=("t", text)))
    assert dump(store)["batch:b1:templates"][0] == {"t": "first"}


def test_each_row_is_a_sign_of_life(store: Store):
    opened = open_for(store)
    key = store.keys.batch("b1")
    store.client.hset(key, "loader", f"{SOMEBODY} 1 0")
    before = store.watch.server_ms()
    add_rows(store, opened, [0])
    who, until, was = str(store.client.hget(key, "loader")).split()
    assert (who, was) == (SOMEBODY, "0")
    assert int(until) >= before + 15_000


@pytest.mark.parametrize("odd", ["with space", "ünï", "a:b", "{aq}", "x" * 256, "%s%1"])
def test_odd_custom_ids_are_kept_as_they_are(store: Store, odd: str):
    opened = open_for(store)
    store.batches.add("b1", [row_entry(0, opened.serial, custom_id=odd)], {"t": template()})
    assert store.batches.known("b1", [odd]) == {odd: ("h", row_id(0, opened.serial))}
    store.batches.seal("b1")
    record = store.runs.read(row_id(0, opened.serial))
    assert record is not None
    assert (record.spec.custom_id, record.is_row) == (odd, False)
    assert store.client.hget(store.keys.run(record.id), "custom_id") == odd
