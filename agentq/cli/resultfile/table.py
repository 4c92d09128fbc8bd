"""Results as CSV, for spreadsheets: one record a result.

Of an output that is an object each field has a column of its own. Which these are is decided by the results
that are written first: a column cannot be added to a file that is there.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, BinaryIO

from agentq.cli.resultfile.lineindex import LineIndex
from agentq.cli.resultfile.version import version
from agentq.cli.resultline import as_json

if TYPE_CHECKING:
    from agentq.app import Result

COLUMNS = (
    "id",
    "custom_id",
    "state",
    "stop_reason",
    "answer",
    "error",
    "steps",
    "input_tokens",
    "output_tokens",
    "usd",
    "started_at",
    "ended_at",
    "generation",
)
FIELDS_MAX = 200
"""Columns for the fields of outputs, at most."""
_OUTPUT = "output."
_LONGEST = 2**31 - 1
"""A cell may be as long as an answer."""
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


class Table:
    """A table with a header. See `agentq.cli.resultfile.form.Form`."""

    def __init__(self) -> None:
        self._fields: list[str] | None = None
        self.left_out: dict[str, int] = {}
        """Fields of outputs that have no column, and how many results have them."""

    def read(self, file: BinaryIO, index: LineIndex) -> int:
        """See `Form`."""
        csv.field_size_limit(_LONGEST)
        lines = _Lines(file)
        head = next(lines, "")
        if not lines.is_whole:
            if not _line(COLUMNS).strip().startswith(head[: len(_line(COLUMNS).strip())]):
                raise ValueError("not our header")
            return 0
        columns = next(csv.reader([head], strict=True))
        if tuple(columns[: len(COLUMNS)]) != COLUMNS:
            raise ValueError("not our header")
        self._fields = [name.removeprefix(_OUTPUT) for name in columns[len(COLUMNS) :]]
        end = lines.end
        records = csv.reader(lines, strict=True)
        while True:
            try:
                record = next(records, None)
            except csv.Error:
                record = None
                if not lines.is_over:
                    raise ValueError("not a record of ours") from None
            if record is None or not lines.is_whole:
                return end
            if record:
                self._note(dict(zip(columns, record, strict=True)), index)
            end = lines.end

    @staticmethod
    def _note(cells: Mapping[str, str], index: LineIndex) -> None:
        if not cells["id"].startswith("run_"):
            raise ValueError("not a record of ours")
        number = version(int(cells["generation"]), cells["stop_reason"], has_end=bool(cells["ended_at"]))
        custom_id = cells["custom_id"]
        bare = custom_id[1:]
        index.note(cells["id"], number, bare if custom_id[:1] == "'" and _is_formula(bare) else custom_id)

    def encode(self, results: Sequence[Result]) -> bytes:
        """See `Form`."""
        if not results:
            return b""
        outputs = [as_json(result.output) for result in results]
        text = ""
        if self._fields is None:
            found = dict.fromkeys(name for output in outputs if isinstance(output, dict) for name in output)
            self._fields = list(found)[:FIELDS_MAX]
            text = _line([*COLUMNS, *(_OUTPUT + name for name in self._fields)])
        for result, output in zip(results, outputs, strict=True):
            fields = output if isinstance(output, dict) else {}
            for name in fields.keys() - set(self._fields):
                self.left_out[name] = self.left_out.get(name, 0) + 1
            text += _line([*_cells(result), *(_cell(fields.get(name)) for name in self._fields)])
        return text.encode(errors="backslashreplace")


class _Lines(Iterator[str]):
    """The lines of a file as a reader of CSV wants them, and where the last one ends."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.end = 0
        self.is_whole = False
        """Whether the last line has its end."""
        self.is_over = False

    def __next__(self) -> str:
        line = self._file.readline()
        if not line:
            self.is_over = True
            raise StopIteration
        self.is_whole = line.endswith(b"\n")
        self.is_over = not self.is_whole
        self.end += len(line)
        return line.decode(errors="replace")


def _cells(result: Result) -> list[str]:
    error = result.error
    return [
        result.run_id,
        _text(result.custom_id or ""),
        result.state,
        result.stop_reason.value,
        _text(result.answer),
        "" if error is None else _text(f"{error['code']}: {error['message']}"),
        str(result.steps),
        str(result.usage.input_tokens),
        str(result.usage.output_tokens),
        f"{result.usd:f}",
        _time(result.started_ms),
        _time(result.ended_ms),
        str(result.generation),
    ]


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case str():
            return _text(value)
        case _:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _text(text: str) -> str:
    """A text that no spreadsheet takes for a formula: somebody else may have written it.

    One that begins with quotes and then like a formula gets one more, so that it is read back as it was.
    """
    return f"'{text}" if _is_formula(text) else text


def _is_formula(text: str) -> bool:
    return bool(_FORMULA.match(text)) and not _NUMBER.fullmatch(text)


def _time(at_ms: int | None) -> str:
    """ISO 8601 in UTC, to the millisecond."""
    if at_ms is None:
        return ""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _line(cells: Sequence[str]) -> str:
    out = io.StringIO()
    # A carriage return that stands alone would end the record where it is read back.
    plain = (cell.replace("\r\n", "\n").replace("\r", "\n") for cell in cells)
    csv.writer(out, lineterminator="\n").writerow(plain)
    return out.getvalue()
