"""The ledger's log in a file that only grows by what is new, or on standard output."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from agentq.cli.console import encode
from agentq.cli.writable import check_writable, lock, unwritable
from agentq.core.errors import UsageError
from agentq.core.money import to_usd

if TYPE_CHECKING:
    from agentq.store.journal import Entry

AMOUNTS = {"spent": "s", "reserved": "r", "escrowed": "e", "forfeited": "f", "overage": "o"}
_LIMIT = re.compile(r"\b(ul|tl) (\d+|-) (\d+|-)")
COLUMNS = (
    "seq",
    "time",
    "operation",
    "run",
    "reservation",
    "subject",
    "scopes",
    *(f"{name}_usd" for name in AMOUNTS),
    *(f"{name}_tokens" for name in ("spent", "reserved", "escrowed")),
    "catalogue",
    "estimated",
    "actor",
    "reason",
    "words",
)


def entry_fields(entry: Entry) -> dict[str, Any]:
    """One entry for JSON: money as exact decimal text, only what has changed."""
    return {
        "seq": entry.seq,
        "time": _time(entry.at_ms),
        "operation": entry.operation,
        "run": entry.run or None,
        "reservation": entry.reservation or None,
        "subject": None if entry.run else entry.subject,
        "scopes": list(entry.scopes),
        "usd": {
            name: f"{to_usd(entry.deltas[f'u{short}']):f}"
            for name, short in AMOUNTS.items()
            if f"u{short}" in entry.deltas
        },
        "tokens": {
            name: entry.deltas[f"t{short}"] for name, short in AMOUNTS.items() if f"t{short}" in entry.deltas
        },
        "catalogue": entry.catalogue or None,
        "estimated": entry.estimated,
        "actor": entry.actor or None,
        "reason": entry.reason or None,
        "words": _LIMIT.sub(_limit, entry.words) or None,
    }


def as_jsonl(entry: Entry) -> str:
    """One entry as a line of JSON."""
    return encode(entry_fields(entry)) + "\n"


def as_csv(entry: Entry) -> str:
    """One entry as one line of CSV, in the order of `COLUMNS`; its scopes with spaces between."""
    fields = entry_fields(entry)
    row = {name: "" if fields.get(name) is None else fields[name] for name in COLUMNS}
    row |= {f"{name}_usd": amount for name, amount in fields["usd"].items()}
    row |= {f"{name}_tokens": amount for name, amount in fields["tokens"].items()}
    row |= {"scopes": " ".join(entry.scopes), "estimated": int(entry.estimated)}
    # A reason may have lines; the file is continued behind its last one.
    return _csv_line(" ".join(str(row[name]).splitlines()) for name in COLUMNS)


class ExportFile:
    """A file of entries: where it ends, and how more of them are put behind.

    Raises:
        UsageError: when it holds something else, or cannot be read; it is as it was.
    """

    def __init__(self, path: Path, kind: str) -> None:
        self.path = path
        self.line = as_csv if kind == "csv" else as_jsonl
        self._head = _csv_line(COLUMNS) if kind == "csv" else ""
        self.last: int | None = None
        """The number of its last entry; None while there is none."""
        self.last_line = ""
        self._end = 0
        self._size = 0
        check_writable(path)
        if path.is_file():
            self._read()

    def _read(self) -> None:
        try:
            with self.path.open("rb") as file:
                size = self._size = file.seek(0, os.SEEK_END)
                file.seek(0)
                first = file.readline().decode()
                if size and not self._is_ours(first):
                    raise ValueError
                whole = _whole_lines(file, size)
                self._end = size - whole.cut
        except OSError as error:
            raise UsageError(f"{self.path} cannot be read: {error.strerror}") from None
        except ValueError:
            raise self._foreign() from None
        if whole.last in {"", self._head}:
            return
        try:
            self.last, self.last_line = self._number(whole.last), whole.last
        except (ValueError, KeyError, TypeError, IndexError):
            raise self._foreign() from None

    def _is_ours(self, first: str) -> bool:
        begin = self._head or '{"seq": '
        return first.startswith(begin[: len(first)])

    def _number(self, line: str) -> int:
        return int(line.split(",", 1)[0]) if self._head else int(json.loads(line)["seq"])

    def _foreign(self) -> UsageError:
        return UsageError(
            f"{self.path} is not an export of the ledger in this format",
            hint="choose another file, or the --format that it has",
        )

    @contextmanager
    def appending(self) -> Iterator[TextIO]:
        """The file behind its last whole line. What was written is on the disk when the block is left.

        Raises:
            AgentQError: when it cannot be written, or somebody else has written it meanwhile.
        """
        try:
            with self.path.open("a", encoding="utf-8", newline="") as file:
                if file.seekable() and self.path.is_file():
                    lock(file, self.path)
                    self._check_size(file)
                    file.truncate(self._end)
                if not self._end:
                    file.write(self._head)
                yield file
                file.flush()
                if self.path.is_file():
                    os.fsync(file.fileno())
        except OSError as error:
            raise unwritable(self.path, error) from None

    def _check_size(self, file: TextIO) -> None:
        if file.seek(0, os.SEEK_END) != self._size:
            raise UsageError(
                f"{self.path} was written by another agentq meanwhile", hint="type the same again"
            )


class _Whole:
    """The last whole line of a file, and how many bytes behind it a crash has left."""

    def __init__(self, last: str, cut: int) -> None:
        self.last = last
        self.cut = cut


def _whole_lines(file: Any, size: int) -> _Whole:
    """Read the end of a file, as much of it as is needed for one whole line."""
    reach = 4_096
    while True:
        start = max(0, size - reach)
        file.seek(start)
        tail = file.read(size - start)
        end = tail.rfind(b"\n") + 1
        begin = tail.rfind(b"\n", 0, max(0, end - 1)) + 1
        if begin or not start:
            return _Whole(tail[begin:end].decode(), len(tail) - end)
        reach *= 4


def _limit(found: re.Match[str]) -> str:
    """`ul 5000 -` as `usd limit 0.000005 to none`."""
    unit, old, new = found.groups()
    texts = ["none" if n == "-" else f"{to_usd(int(n)):f}" if unit == "ul" else n for n in (old, new)]
    return f"{'usd' if unit == 'ul' else 'tokens'} limit {texts[0]} to {texts[1]}"


def _csv_line(cells: Iterable[Any]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells)
    return out.getvalue()


def _time(at_ms: int) -> str:
    """The server's milliseconds as ISO 8601 in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
