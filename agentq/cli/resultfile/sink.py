"""What takes results and keeps each of them once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from agentq.cli.resultfile.lineindex import LineIndex
from agentq.cli.resultfile.version import version_of

if TYPE_CHECKING:
    from agentq.app import Result

FLUSH_AT = 500
"""Results that are in memory at most."""
FLUSH_CHARS = 4_000_000
"""So long are their answers at most, with the one that is longer than all of this."""


class Destination(Protocol):
    """Where what was taken is put. Used as a context; what it has is read when it is entered."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def append(self, data: bytes) -> None:
        """Put whole lines behind what is there."""


class Sink(AbstractContextManager["Sink"]):
    """Takes results; what it has already is not written again. Use it as a context."""

    def __init__(self, destination: Destination) -> None:
        self.index = LineIndex()
        """What is there, and what was taken."""
        self.were_there = 0
        """How much of it was there when it was entered."""
        self.written = 0
        self._destination = destination

    def __enter__(self) -> Self:
        self._destination.__enter__()
        self.were_there = len(self.index)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._destination.__exit__(kind, error, trace)
        self.index.close()

    def add(self, result: Result) -> None:
        """Take a result, to be written at the next flush at the latest."""
        raise NotImplementedError

    def flush(self) -> None:
        """Write what was taken."""
        raise NotImplementedError


class ResultSink(Sink):
    """Takes each result of a run once.

    Args:
        destination: where they go.
        encode: results as they are put there.
    """

    def __init__(self, destination: Destination, encode: Callable[[Sequence[Result]], bytes]) -> None:
        super().__init__(destination)
        self._encode = encode
        self._waiting: list[Result] = []
        self._chars = 0

    def add(self, result: Result) -> None:
        """See `Sink`."""
        number = version_of(result)
        if self.index.wants(result.run_id, number):
            self.index.note(result.run_id, number, result.custom_id or "")
            self._waiting.append(result)
            self._chars += len(result.answer)
            if len(self._waiting) >= FLUSH_AT or self._chars >= FLUSH_CHARS:
                self.flush()

    def flush(self) -> None:
        """See `Sink`."""
        if self._waiting:
            self._destination.append(self._encode(self._waiting))
            self.written += len(self._waiting)
            self._waiting, self._chars = [], 0

    def reread(self) -> LineIndex:
        """What has been written, to be closed by the caller; of what cannot be read back, what was taken."""
        return self.index
