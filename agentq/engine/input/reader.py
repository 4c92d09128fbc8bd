"""An input from its first row to its last, in one pass."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from decimal import Decimal

from agentq.core.errors import InputError
from agentq.engine.input.form import check_form, form_of
from agentq.engine.input.jsonlines import json_rows
from agentq.engine.input.lines import Lines, open_lines
from agentq.engine.input.rowmap import RowMap
from agentq.engine.input.table import table_rows
from agentq.engine.input.text import text_rows
from agentq.engine.rows import Row


def read_rows(
    source: str,
    *,
    agent: str = "",
    max_usd: Decimal | None = None,
    form: str | None = None,
    mapping: RowMap | None = None,
) -> Generator[tuple[str, Row | str], None, None]:
    """The rows of an input, each as it is read: nothing but the current one is kept.

    What spans rows is not looked at: ids that are there twice, or equal rows without one. The file is open
    until the last row was given, or `close()` is called.

    Args:
        source: a path, or `-`.
        agent: the agent of rows that name none. With it, or an agent of its own, a provider's batch line is
            a run of that agent; without, it is one call of its own model.
        max_usd: the cap of rows that name none.
        form: one of `FORMS`, when it is not to be found out.
        mapping: which columns make which field.

    Yields:
        Where the row begins, as `file:line`, and the row, or what is wrong with it.

    Raises:
        UsageError: for a form that does not exist or does not go with the mapping; once the first rows are
            asked for, also for a column that does not exist.
        InputError: while rows are asked for, when the input cannot be read on, or has no row in it.
    """
    check_form(form, mapped=mapping is not None)
    return _rows(source, agent, max_usd, form, mapping)


def _rows(
    source: str, agent: str, max_usd: Decimal | None, form: str | None, mapping: RowMap | None
) -> Generator[tuple[str, Row | str], None, None]:
    with open_lines(source) as lines:
        empty = True
        for found in _of_form(
            form or form_of(source, lines.first(), mapped=mapping is not None), lines, agent, max_usd, mapping
        ):
            empty = False
            yield found
        if empty:
            raise InputError([f"{lines.label}: there is no row in it"])


def _of_form(
    form: str, lines: Lines, agent: str, max_usd: Decimal | None, mapping: RowMap | None
) -> Iterator[tuple[str, Row | str]]:
    match form:
        case "text":
            return text_rows(lines, agent=agent, max_usd=max_usd)
        case "csv" | "tsv":
            return table_rows(lines, form, agent=agent, max_usd=max_usd, mapping=mapping)
        case _:
            return json_rows(lines, form, agent=agent, max_usd=max_usd, mapping=mapping)
