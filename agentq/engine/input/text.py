"""Plain text: a line is what the user says."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from agentq.engine.input.eachline import each_line
from agentq.engine.input.lines import Lines
from agentq.engine.rows import Row, parse_row


def text_rows(lines: Lines, *, agent: str, max_usd: Decimal | None) -> Iterator[tuple[str, Row | str]]:
    """A row for each line that is not blank; see `read_rows`."""

    def parse(text: str, where: str) -> Row:
        return parse_row({"input": text}, agent=agent, max_usd=max_usd, where=where)

    return each_line(lines, parse)
