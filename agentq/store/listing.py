"""Lists of runs, in chunks: the newest first, or the rows that wait to become some."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge

from agentq.core.records import RunRecord
from agentq.store.connect import Store

FIRST = 20
"""So many runs of each batch are read at first: most lists are short."""
CHUNK = 500


def newest(store: Store, batches: list[str], *, alone: bool = True) -> Iterator[RunRecord]:
    """Runs by when they were submitted, the newest first; read as they are asked for.

    Args:
        store: where they are.
        batches: whose rows, ended or not, and whose live children.
        alone: also the live runs that are in no batch. Of these, and of children, that have ended there is
            no list.
    """
    sources = [_rows(store, batch) for batch in batches]
    sources.append(_no_rows(store, set(batches), alone=alone))
    yield from merge(*sources, key=lambda record: -record.created_ms)


def row_of(store: Store, batch: str, custom_id: str) -> list[RunRecord]:
    """The row of a batch with this name, in no time however large the batch is; none when it has none."""
    ids = [run_id for _, run_id in store.batches.known(batch, [custom_id]).values()]
    return [record for record in store.runs.read_many(ids) if record is not None]


def waiting_rows(store: Store, batches: list[str]) -> Iterator[list[str]]:
    """The rows of these batches that are no runs yet, by id, in chunks."""
    for batch in batches:
        for part in ("feed", "loading"):
            key, start = store.keys.batch(batch, part), 0
            while chunk := [str(row) for row in store.client.zrange(key, start, start + CHUNK - 1)]:
                yield chunk
                start += len(chunk)


def _rows(store: Store, batch: str) -> Iterator[RunRecord]:
    """The rows of a batch from its end: about the newest first."""
    key, end, size = store.keys.batch(batch, "runs"), -1, FIRST
    while found := [str(run) for run in store.client.lrange(key, end - size + 1, end)]:
        yield from filter(None, reversed(store.runs.read_many(found)))
        end, size = end - len(found), CHUNK


def _no_rows(store: Store, batches: set[str], *, alone: bool) -> Iterator[RunRecord]:
    """The live children of these batches and, if `alone`, the live runs that are in no batch."""
    live, found = list(store.watch.live()), []
    for start in range(0, len(live), CHUNK):
        for record in store.runs.read_many(live[start : start + CHUNK]):
            if record is None:
                continue
            spec = record.spec
            is_child = bool(spec.ancestors) and spec.batch in batches
            if is_child or (alone and spec.batch is None):
                found.append(record)
    yield from sorted(found, key=lambda record: -record.created_ms)
