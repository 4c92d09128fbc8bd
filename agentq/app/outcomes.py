"""The results of a batch, read a chunk at a time: row by row, or as its runs end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from agentq.agent.agent import Agent
from agentq.app.result import Result, result_of
from agentq.core.lifecycle import RunState
from agentq.store.connect import Store

_CHUNK = 500

Outcome = tuple[str, Result | None]
"""A run's id, and its result; None while it has not ended."""


def outcomes(
    store: Store, name: str, agents: Mapping[str, Agent] | None = None, *, start: int = 0
) -> Iterator[Outcome]:
    """Every row of a batch in input order, from the `start`-th on. One that is kept no longer is left out."""
    for run_ids in store.batches.runs(name, start):
        for record in store.runs.read_many(run_ids):
            if record is not None:
                ended = record.state is RunState.ENDED
                yield record.id, result_of(record, agents) if ended else None


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
        run_ids = self._store.batches.done(self._name, self._next)
        while chunk := list(islice(run_ids, _CHUNK)):
            for record in self._store.runs.read_many(chunk):
                self._next += 1
                # One that is live again comes once more when it has ended.
                if record is not None and record.state is RunState.ENDED:
                    if record.generation and self._given.get(record.id, 0) == record.generation:
                        continue
                    if record.generation:
                        self._given[record.id] = record.generation
                    yield result_of(record, self._agents)

    def dropped(self) -> Iterator[Result]:
        """The results of the rows that ended without ever being started, as they are now.

        Behind them those of runs that an older release has ended, which kept no order of them.
        """
        for chunk in self._store.batches.dropped(self._name):
            for record in self._store.runs.read_many(chunk):
                if record is not None and record.is_row and record.state is RunState.ENDED:
                    yield result_of(record, self._agents)
        older = self._store.batches.unlisted(self._name)
        while run_ids := list(islice(older, _CHUNK)):
            for record in self._store.runs.read_many(run_ids):
                if record is not None and record.state is RunState.ENDED:
                    yield result_of(record, self._agents)
