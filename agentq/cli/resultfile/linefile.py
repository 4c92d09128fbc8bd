"""A file of results."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from agentq.cli.resultfile.form import make_form
from agentq.cli.resultfile.growingfile import GrowingFile
from agentq.cli.resultfile.lineindex import LineIndex
from agentq.cli.resultfile.sink import ResultSink


class LineFile(ResultSink):
    """A file of results, which is continued."""

    def __init__(self, path: Path, form: str) -> None:
        self.path = path
        self._kind = form
        self._form = make_form(form)
        self._file = GrowingFile(path, self._read, "a file of results")
        super().__init__(self._file, self._form.encode)

    def check(self) -> None:
        """See `GrowingFile.check`."""
        self._file.check()

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

    def _read(self, file: BinaryIO) -> int:
        return self._form.read(file, self.index)
