"""Rows on their way from an input into a load, with what a person sees of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING

from agentq.cli.console import Console
from agentq.core.errors import UsageError
from agentq.core.words import nearest

if TYPE_CHECKING:
    from agentq.app import AgentQ
    from agentq.engine.load import Load
    from agentq.engine.rows import Row

_PLAIN_SECONDS = 10.0
_LIVE_SECONDS = 0.2


class LoadProgress:
    """How many rows were checked and written: a line that is redrawn, or one every ten seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._due = time.monotonic() + (_LIVE_SECONDS if console.is_live else _PLAIN_SECONDS)
        self._drawn = False

    def __call__(self, what: str, rows: int) -> None:
        """So many rows are `checked`, or `written`."""
        now = time.monotonic()
        if now < self._due:
            return
        if self._console.is_live:
            sys.stderr.write(f"\r\x1b[K{rows:,} rows {what}")
            sys.stderr.flush()
            self._due, self._drawn = now + _LIVE_SECONDS, True
        else:
            self._console.say(f"{rows:,} rows {what}")
            self._due = now + _PLAIN_SECONDS

    def done(self) -> None:
        """Take the line away."""
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._drawn = False


def known_agent(app: AgentQ, agent: str | None) -> str:
    """The agent of rows that name none: this one, or the app's only one; empty when there are several.

    Raises:
        UsageError: when the app has no such agent.
    """
    if agent is not None and agent not in app.agents:
        known = ", ".join(sorted(app.agents)) or "none"
        raise UsageError(
            f"there is no agent {agent!r}{nearest(agent, app.agents)}", hint=f"this app has: {known}"
        )
    return agent or (next(iter(app.agents)) if len(app.agents) == 1 else "")


def rows_of(
    app: AgentQ,
    file: str,
    *,
    agent: str | None = None,
    max_usd: Decimal | None = None,
    form: str | None = None,
    maps: Sequence[str] = (),
    limit: int | None = None,
) -> Iterator[tuple[str, Row | str]]:
    """The rows of a file as the app takes them, one at a time: where each stands, and it or what is wrong.

    Args:
        app: whose agents the rows may name.
        file: a path, or `-`.
        agent: of rows that name none. Without it, a provider's batch line is a run of its own model, and
            other rows are of the app's only agent.
        max_usd: the cap of rows that name none.
        form: what the input is; None to find out.
        maps: which columns make which fields, as `input={question}`.
        limit: only so many rows, the first.

    Raises:
        UsageError: when the agent is unknown, or a column.
        InputError: when the input cannot be read.
    """
    from agentq.engine.input import parse_map, read_rows

    only = known_agent(app, agent)
    mapping = parse_map(maps) if maps else None
    found = read_rows(file, agent=agent or "", max_usd=max_usd, form=form, mapping=mapping)
    with closing(found):
        for where, row in islice(found, limit):
            if isinstance(row, str) or row.agent or row.own_call is not None or not only:
                yield where, row
            else:
                # Its id is that of the line as it is written, whatever agent the app has.
                yield where, replace(row, agent=only, line_hash=row.derived_id)


def fill(load: Load, rows: Iterator[tuple[str, Row | str]], progress: LoadProgress) -> None:
    """Check all rows of a load.

    Raises:
        InputError: with what is wrong; nothing was submitted.
    """
    try:
        for where, row in rows:
            load.add(where, row)
        load.check()
    finally:
        progress.done()
