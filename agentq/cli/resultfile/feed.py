"""The order in which results come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from agentq.app import Batch, Result


class Feed(Protocol):
    """Gives results. One may come more than once: who takes them keeps each once."""

    held_up_by: str | None
    """The run that has not ended, and whose turn it is."""

    def new(self) -> Iterator[Result]:
        """What has come since the last call."""

    def rest(self) -> Iterator[Result]:
        """What comes only when nothing in the batch moves any more."""


class AllEnded:
    """Whatever has ended, in input order."""

    held_up_by: str | None = None

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def new(self) -> Iterator[Result]:
        """See `Feed`."""
        return self._batch.results()

    def rest(self) -> Iterator[Result]:
        """See `Feed`."""
        return iter(())


class AsEnded:
    """In the order of the ends, rows that were never started last."""

    held_up_by: str | None = None

    def __init__(self, batch: Batch) -> None:
        self._endings = batch.endings()

    def new(self) -> Iterator[Result]:
        """See `Feed`."""
        return self._endings.new()

    def rest(self) -> Iterator[Result]:
        """See `Feed`."""
        return self._endings.dropped()


class InInputOrder:
    """In input order without a gap: up to the first run that has not ended.

    Args:
        batch: whose results.
        has: whether there is a line of a run already. One that was retried since holds nothing up.
    """

    def __init__(self, batch: Batch, has: Callable[[str], bool]) -> None:
        self._batch = batch
        self._has = has
        self._next = 0
        self._reads = 0
        self.held_up_by: str | None = None

    def new(self) -> Iterator[Result]:
        """See `Feed`."""
        self._reads += 1
        self.held_up_by = None
        for run_id, result in self._batch.outcomes(self._next):
            if result is not None:
                yield result
            elif not self._has(run_id):
                self.held_up_by = run_id
                return
            self._next += 1

    def rest(self) -> Iterator[Result]:
        """Those that were retried behind our back."""
        if self._reads > 1:
            for _, result in islice(self._batch.outcomes(), self._next):
                if result is not None:
                    yield result
