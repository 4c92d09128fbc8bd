"""A file of input lines: those of the failures that may end otherwise when they are submitted again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from agentq.cli.console import encode
from agentq.cli.resultfile.growingfile import GrowingFile
from agentq.cli.resultfile.sink import FLUSH_AT, FLUSH_CHARS, Sink

if TYPE_CHECKING:
    from agentq.app import Result

_STALE = 1
"""The version of a line that was counted as such."""

LinesOf = Callable[[Sequence[str]], Iterable[Mapping[str, Any]]]
"""The input lines of these runs."""


class RetryFile(Sink):
    """Takes all results and keeps the lines of failures, each custom id once."""

    def __init__(self, path: Path, lines_of: LinesOf) -> None:
        file = GrowingFile(path, self._read, "a file of input lines, each with its custom_id")
        super().__init__(file)
        self.path = path
        self.stale = 0
        """Of the lines that were there, how many are of rows that are no failures now."""
        self.gone = 0
        """How many failures have no line, since nothing is kept of what they began with."""
        self._lines_of = lines_of
        self._failed: list[tuple[str, str]] = []
        self._open_end = False

    def add(self, result: Result) -> None:
        """See `Sink`."""
        name = result.custom_id or result.run_id
        there = self.index.find(name)
        if result.error is None or not result.error.get("retryable"):
            if there is not None and there.version != _STALE:
                self.index.note(name, _STALE)
                self.stale += 1
        elif there is None:
            self.index.note(name)
            self._failed.append((result.run_id, name))
            if len(self._failed) >= FLUSH_AT:
                self.flush()

    def flush(self) -> None:
        """See `Sink`."""
        lines: list[str] = []
        before = self.written
        for line in self._lines_of([run_id for run_id, _ in self._failed]):
            lines.append(encode(line))
            if sum(map(len, lines)) >= FLUSH_CHARS:
                self._append(lines)
                lines = []
        self._append(lines)
        self.gone += len(self._failed) - (self.written - before)
        self._failed = []

    def _append(self, lines: Sequence[str]) -> None:
        if not lines:
            return
        text = ("\n" if self._open_end else "") + "".join(f"{line}\n" for line in lines)
        self._destination.append(text.encode(errors="backslashreplace"))
        self._open_end = False
        self.written += len(lines)

    def _read(self, file: BinaryIO) -> int:
        end = 0
        for line in file:
            try:
                named = json.loads(line)["custom_id"] if line.strip() else None
            except ValueError:
                if line.endswith(b"\n") or not line.startswith(b"{"):
                    raise
                break  # a crash has left half of it
            if named is not None:
                self.index.note(str(named))
            self._open_end = not line.endswith(b"\n")
            end += len(line)
        return end
