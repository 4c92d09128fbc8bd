"""A file of results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from agentq.cli.resultfile.form import make_form
from agentq.cli.resultfile.growingfile import GrowingFile
from agentq.cli.resultfile.lineindex import LineIndex
from agentq.cli.resultfile.sink import ResultSink

if TYPE_CHECKING:
    from agentq.app import Result


class LineFile(ResultSink):
    """A file of results, which is continued."""

    def __init__(self, path: Path, form: str) -> None:
        super().__init__()
        self.path = path
        self.were_there = 0
        """How many runs it had when it was opened."""
        self._kind = form
        self._form = make_form(form)
        self._file = GrowingFile(path, lambda file: self._form.read(file, self.index), "a file of results")

    def check(self) -> None:
        """See `GrowingFile.check`."""
        self._file.check()

    def __enter__(self) -> Self:
        self._file.__enter__()
        self.were_there = len(self.index)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.__exit__(kind, error, trace)
        super().__exit__(kind, error, trace)

    @property
    def left_out(self) -> dict[str, int]:
        """Fields of outputs that have no column, and how many results have them."""
        return self._form.left_out

    def reread(self) -> LineIndex:
        """See `ResultSink`."""
        if not self.path.is_file():
            return self.index
        found = LineIndex()
        with self.path.open("rb") as file:
            make_form(self._kind).read(file, found)
        return found

    def _write(self, results: Sequence[Result]) -> None:
        self._file.append(self._form.encode(results))
