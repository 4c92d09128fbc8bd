"""CSV and TSV: a header, then a row in each record, which may go over many lines."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from decimal import Decimal

from agentq.core.errors import InputError
from agentq.engine.input.eachline import decode
from agentq.engine.input.lines import LINE_BYTES_MAX, Lines
from agentq.engine.input.rowmap import RowMap, map_of_columns
from agentq.engine.problem import sentence
from agentq.engine.rows import Row, parse_row


def table_rows(
    lines: Lines, form: str, *, agent: str, max_usd: Decimal | None, mapping: RowMap | None
) -> Iterator[tuple[str, Row | str]]:
    """A row for each record below the header that has something in it; see `read_rows`.

    Args:
        form: `csv` or `tsv`. Where the header of a CSV has semicolons and no comma, those separate.

    Raises:
        InputError: when the header is wrong, or a quote is never closed.
        UsageError: when the columns do not go with the mapping.
    """
    records = _Records(lines, _separator(form, lines.first()))
    header = _header(records)
    if mapping is None:
        mapping = map_of_columns(header)
    else:
        mapping.refuse_unknown(header)
    while True:
        try:
            cells = records.read()
            if cells is None:
                return
            if not any(cells):
                continue
            where = records.where
            if len(cells) != len(header):
                raise ValueError(f"it has {_cells(len(cells))}, and the header {len(header)}")
            values = dict(zip(header, cells, strict=True))
            found: Row | str = parse_row(mapping.row(values), agent=agent, max_usd=max_usd, where=where)
        except ValueError as error:
            where, found = records.where, sentence(error)
        yield where, found


class _Records:
    """The records of a table, one at a time, and the line on which the last one begins."""

    def __init__(self, lines: Lines, separator: str) -> None:
        # The module has one limit for the process, of 128 kB: it is only ever raised here.
        csv.field_size_limit(max(csv.field_size_limit(), LINE_BYTES_MAX))
        self._feed = _Feed(lines)
        self._reader = csv.reader(self._feed, delimiter=separator, strict=True)

    @property
    def where(self) -> str:
        return self._feed.where

    def read(self) -> list[str] | None:
        """The cells of the next record, or None at the end.

        Raises:
            ValueError: for a record that cannot be read; the next one can.
            InputError: for one that has no end.
        """
        self._feed.begin()
        try:
            return next(self._reader, None)
        except csv.Error as error:
            if "end of data" in str(error):
                raise InputError([f"{self.where}: a quote that opens in this row is never closed"]) from None
            if "new-line character" in str(error):  # the module's own advice is for who writes Python
                raise ValueError(
                    "a line ends in a carriage return alone: save it with line ends of Unix"
                ) from None
            raise ValueError(f"not CSV: {error}") from None


class _Feed:
    """Lines for the csv module, which takes one after the other until a record is complete."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._begins: int | None = None
        self._bytes = 0

    def begin(self) -> None:
        """The next line is the first of a record."""
        self._begins = None
        self._bytes = 0

    @property
    def where(self) -> str:
        return f"{self._lines.label}:{self._begins or self._lines.number}"

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        """Read on.

        Raises:
            ValueError: for a line that is too long, or not UTF-8.
            InputError: when the record is too long: what comes after it cannot be told from it.
        """
        raw = self._lines.read()
        if not raw:
            raise StopIteration
        self._begins = self._begins or self._lines.number
        self._bytes += len(raw)
        if self._bytes > LINE_BYTES_MAX:
            most = f"{LINE_BYTES_MAX // 1_000_000} MB"
            raise InputError(
                [f"{self.where}: this row is longer than {most}: is a quote in it never closed?"]
            )
        return decode(raw)


def _header(records: _Records) -> list[str]:
    try:
        names = [name.strip() for name in records.read() or []]
    except ValueError as error:
        raise InputError([f"{records.where}: the header: {error}"]) from None
    first: dict[str, int] = {}
    problems: list[str] = []
    for number, name in enumerate(names, start=1):
        if not name:
            problems.append(f"{records.where}: column {number} of the header has no name")
        elif name in first:
            problems.append(
                f"{records.where}: the columns {first[name]} and {number} of the header are both {name!r}"
            )
        first.setdefault(name, number)
    if problems:
        raise InputError(problems)
    return names


def _separator(form: str, header: bytes) -> str:
    if form == "tsv":
        return "\t"
    return ";" if b";" in header and b"," not in header else ","


def _cells(count: int) -> str:
    return "1 cell" if count == 1 else f"{count} cells"
