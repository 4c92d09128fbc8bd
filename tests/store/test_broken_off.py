"""A load that was broken off is told from one that goes on, and nobody waits for it."""

from __future__ import annotations

import pytest

from agentq.app import Batch
from agentq.cli.tally import Tally
from agentq.store import Store
from tests.support.rows import add_rows, open_for

LOADER = "17@host:abcd"


def begun(store: Store, rows: int) -> Batch:
    """A batch of which somebody has loaded so many rows, and not all."""
    opened = open_for(store, loader=LOADER)
    if rows:
        add_rows(store, opened, list(range(rows)), loader=LOADER)
    return Batch(store, "b1")


def break_off(store: Store) -> None:
    """Nobody has heard of the loader since long ago."""
    store.client.hset(store.keys.batch("b1"), "loader", f"{LOADER} 1 0")


@pytest.mark.parametrize("rows", [0, 2])
def test_a_batch_that_is_being_loaded_is_waited_for(store: Store, rows: int):
    tally = Tally.read(begun(store, rows))
    assert (tally.loader, tally.broken_off, tally.loading, tally.rows) == (LOADER, False, rows, rows)
    assert not tally.is_settled


@pytest.mark.parametrize("rows", [0, 2])
def test_nobody_waits_for_a_load_that_was_broken_off(store: Store, rows: int):
    batch = begun(store, rows)
    break_off(store)
    tally = Tally.read(batch)
    assert (tally.broken_off, tally.is_settled, tally.exit_code()) == (True, True, 5)
    assert tally.as_dict()["broken_off"] is True


def test_rows_of_a_load_before_it_are_waited_for(store: Store):
    opened = open_for(store, loader="me")
    add_rows(store, opened, [0], loader="me")
    store.batches.seal("b1", loader="me")
    again = open_for(store, loader=LOADER)
    add_rows(store, again, [1], loader=LOADER)
    break_off(store)
    tally = Tally.read(Batch(store, "b1"))
    assert tally.loading < tally.total
    assert not tally.is_settled
