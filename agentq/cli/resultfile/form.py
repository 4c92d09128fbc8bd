"""The forms of a file of results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from agentq.cli.console import encode
from agentq.cli.resultfile.lineindex import LineIndex
from agentq.cli.resultfile.version import version
from agentq.cli.resultline import result_line
from agentq.core.errors import UsageError

if TYPE_CHECKING:
    from agentq.app import Result

FORMS = ("jsonl", "csv")
_OURS = '{"id": "run_'
"""How every line begins."""
_REFUSED = {
    ".parquet": "Parquet is not written: -o results.csv, or JSONL, which every tool for Parquet reads",
    ".xlsx": "workbooks are not written: a spreadsheet opens -o results.csv",
    ".gz": "a file that is continued line by line is not compressed: compress it when it is whole",
    ".zst": "a file that is continued line by line is not compressed: compress it when it is whole",
}


class Form(Protocol):
    """How results are written, and read back."""

    left_out: dict[str, int]
    """Fields of outputs that it has no place for, and how many results have them."""

    def read(self, file: BinaryIO, index: LineIndex) -> int:
        """Note the whole lines of a file, from its beginning.

        Returns:
            Where they end: what is behind was left by a crash.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: when anything in it is not ours.
        """

    def encode(self, results: Sequence[Result]) -> bytes:
        """Results as they are put behind what is there."""


class JsonLines:
    """A line is what the OpenAI Batch API writes, with agentq's own fields under "agentq"."""

    def __init__(self) -> None:
        self.left_out: dict[str, int] = {}

    def read(self, file: BinaryIO, index: LineIndex) -> int:
        """See `Form`."""
        end = 0
        for line in file:
            text = line.decode(errors="ignore")  # half a line may end within a letter
            if not text.startswith(_OURS[: len(text)]) and text.strip():
                raise ValueError("not a line of results")
            if not line.endswith(b"\n"):
                break
            if text.strip():
                run = json.loads(line)
                own = run.get("agentq", {})
                number = version(
                    int(own.get("generation", 0)),
                    str(own.get("stop_reason")),
                    has_end=own.get("ended_at", 0) is not None,
                )
                index.note(run["id"], number, run.get("custom_id") or "")
            end += len(line)
        return end

    def encode(self, results: Sequence[Result]) -> bytes:
        """See `Form`."""
        # Half of a character, which UTF-8 has no form for, is written as JSON's escape for it.
        text = "".join(encode(result_line(result)) + "\n" for result in results)
        return text.encode(errors="backslashreplace")


def check_form(name: str, asked: str | None = None) -> str:
    """The form of a file of this name: as it was asked for, else by its ending, else JSONL.

    Raises:
        UsageError: when the name asks for a form that is not written.
    """
    ending = Path(name).suffix.lower()
    if ending in _REFUSED:
        raise UsageError(f"{name}: {_REFUSED[ending]}")
    return asked or ("csv" if ending == ".csv" else "jsonl")


def make_form(name: str) -> Form:
    """One that has written nothing yet: `jsonl` or `csv`."""
    from agentq.cli.resultfile.table import Table

    return Table() if name == "csv" else JsonLines()
