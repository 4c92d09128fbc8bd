"""The results of a batch, read a chunk at a time: row by row, or as its runs end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice

from agentq.agent.agent import Agent
from agentq.app.result import Result, result_of
from agentq.core.lifecycle import RunState
from agentq.core.records import RunRecord
from agentq.store.connect import Store

_CHUNK = 100
"""Runs that are in memory at once: their answers may be long."""

Outcome = tuple[str, Result | None]
"""A run's id, and its result; None while it has not ended."""


def outcomes(
    store: Store, name: str, agents: Mapping[str, Agent] | None = None, *, start: int = 0
) -> Iterator[Outcome]:
    """Every row of a batch in input order, from the `start`-th on. One that is kept no longer is left out."""
    for record in _records(store, chain.from_iterable(store.batches.runs(name, start))):
        if record is not None:
            yield record.id, result_of(record, agents) if record.state is RunState.ENDED else None


def _records(store: Store, run_ids: Iterable[str]) -> Iterator[RunRecord | None]:
    """These runs as they stand; None for one that is kept no longer."""
    left = iter(run_ids)
    while chunk := list(islice(left, _CHUNK)):
        yield from store.runs.read_many(chunk)


class Endings:
    """The results of a batch as its runs end. It knows how far it has been read.

    A run that is retried meanwhile ends again, and has another result then. None is given twice. What is kept
    in memory is which runs were retried, and nothing of the others.
    """

    def __init__(self, store: Store, name: str, agents: Mapping[str, Agent] | None = None) -> None:
        self._store = store
        self._name = name
        self._agents = agents
        self._next = 0
        self._given: dict[str, int] = {}

    def new(self) -> Iterator[Result]:
        """The results of the runs that have ended since the last call, in the order of their ends."""
        for record in _records(self._store, self._store.batches.done(self._name, self._next)):
            self._next += 1
            # One that is live again comes once more when it has ended.
            if record is None or record.state is not RunState.ENDED:
                continue
            if record.generation:
                if self._given.get(record.id) == record.generation:
                    continue
                self._given[record.id] = record.generation
            yield result_of(record, self._agents)

    def dropped(self) -> Iterator[Result]:
        """The results of the rows that ended without ever being started, as they are now.

        Behind them those of runs that an older release has ended, which kept no order of them.
        """
        dropped = chain.from_iterable(self._store.batches.dropped(self._name))
        for record in _records(self._store, dropped):
            if record is not None and record.is_row and record.state is RunState.ENDED:
                yield result_of(record, self._agents)
        for record in _records(self._store, self._store.batches.unlisted(self._name)):
            if record is not None and record.state is RunState.ENDED:
                yield result_of(record, self._agents)
