"""Where words go: data to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import click


@dataclass
class Console:
    """The two streams of one call, and how the caller wants them."""

    json: bool = False
    quiet: bool = False
    no_color: bool = False

    @property
    def is_live(self) -> bool:
        """Whether a line on stderr may be redrawn."""
        return sys.stderr.isatty() and not self.quiet and os.environ.get("TERM") != "dumb"

    @property
    def can_ask(self) -> bool:
        """Whether a person is there to answer a question."""
        return sys.stdin.isatty() and sys.stderr.isatty()

    def out(self, text: str = "") -> None:
        """A line of data for a person."""
        click.echo(text, color=self.color)

    def document(self, value: Any) -> None:
        """The one JSON document of this call."""
        click.echo(encode(value, indent=2))

    def event(self, kind: str, **fields: Any) -> None:
        """One line of a stream of events."""
        click.echo(encode({"type": kind, **fields}))

    def say(self, text: str = "") -> None:
        """A message, which `-q` silences."""
        if not self.quiet:
            click.echo(text, err=True, color=self.color)

    def table(
        self, head: Sequence[str], rows: Iterable[Sequence[object]], *, left: Collection[int] = (0,)
    ) -> None:
        """Columns; those in `left` are set flush left."""
        for line in columns(head, rows, left=left):
            self.out(line)

    @property
    def color(self) -> bool | None:
        """False when no colour is wanted; None leaves it to what stands behind the stream."""
        return False if self.no_color or os.environ.get("NO_COLOR") else None


def encode(value: Any, *, indent: int | None = None) -> str:
    """JSON with money as decimal strings and enumerations as their values."""
    return json.dumps(value, ensure_ascii=False, indent=indent, default=_plain)


def plural(count: int, word: str, many: str = "") -> str:
    """`1 run`, `2 runs`; `many` is the plural where it takes more than an s."""
    return f"{count} {word if count == 1 else many or f'{word}s'}"


def columns(
    head: Sequence[str], rows: Iterable[Sequence[object]], *, left: Collection[int] = (0,)
) -> list[str]:
    """A table as lines, each column as wide as its widest cell; those not in `left` are set flush right."""
    lines = [list(head), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(head))]
    return [
        "  ".join(
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return f"{value:f}"
    if hasattr(value, "as_dict"):
        return value.as_dict()
    raise TypeError(f"{type(value).__name__} has no JSON form")
