"""What takes results and keeps each of them once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING

from agentq.cli.resultfile.lineindex import LineIndex
from agentq.cli.resultfile.version import version_of

if TYPE_CHECKING:
    from agentq.app import Result

FLUSH_AT = 500
"""Results that are in memory at most."""


class Sink(AbstractContextManager["Sink"]):
    """Takes results; what it has already is not written again. Use it as a context."""

    def __init__(self) -> None:
        self.index = LineIndex()
        """What is there, and what was taken."""
        self.written = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.index.close()

    def add(self, result: Result) -> None:
        """Take a result, to be written at the next flush at the latest."""
        raise NotImplementedError

    def flush(self) -> None:
        """Write what was taken."""
        raise NotImplementedError


class ResultSink(Sink):
    """Takes each result of a run once."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[Result] = []

    def add(self, result: Result) -> None:
        """See `Sink`."""
        number = version_of(result)
        if self.index.wants(result.run_id, number):
            self.index.note(result.run_id, number, result.custom_id or "")
            self._waiting.append(result)
            if len(self._waiting) >= FLUSH_AT:
                self.flush()

    def flush(self) -> None:
        """See `Sink`."""
        if self._waiting:
            self._write(self._waiting)
            self.written += len(self._waiting)
            self._waiting = []

    def reread(self) -> LineIndex:
        """What has been written, to be closed by the caller; of what cannot be read back, what was taken."""
        return self.index

    def _write(self, results: Sequence[Result]) -> None:
        raise NotImplementedError
