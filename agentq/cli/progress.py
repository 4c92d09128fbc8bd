"""Progress of a batch on stderr: a live view for a person, a line every ten seconds for a log, or events."""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Self

from agentq.cli.console import Console, plural
from agentq.cli.liveview import panel, plain_line
from agentq.cli.tally import Tally

if TYPE_CHECKING:
    from rich.live import Live

PLAIN_SECONDS = 10.0
EVENT_SECONDS = 1.0


class Progress(AbstractContextManager["Progress"]):
    """Shows nothing: the base, and what `-q` asks for."""

    def show(self, tally: Tally) -> None:
        """The batch is now here."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop showing."""


class PlainProgress(Progress):
    """One line at once, one every ten seconds, one at the end; none that says what the last one said.

    Of a batch in which nothing moves from the start there is no progress: how it ended is said by who asks.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._due = 0.0
        self._said: Tally | None = None

    def show(self, tally: Tally) -> None:
        """Write a line when it is time for one."""
        now = time.monotonic()
        if tally.is_settled and self._said is None:
            return
        if self._said is None:
            self._console.say(f"{tally.name}: {plural(tally.total, 'row')}")
        if (now >= self._due or tally.is_settled) and tally != self._said:
            self._console.say(plain_line(tally, time.strftime("%H:%M:%S")))
            self._said, self._due = tally, now + PLAIN_SECONDS


class EventProgress(Progress):
    """A JSON line on stdout when something changed, at most one a second."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._due = 0.0
        self._said: Tally | None = None

    def show(self, tally: Tally) -> None:
        """Write an event when there is news."""
        now = time.monotonic()
        if (now >= self._due or tally.is_settled) and tally != self._said:
            self._console.event("progress", **tally.as_dict())
            self._said, self._due = tally, now + EVENT_SECONDS


class LiveProgress(Progress):
    """A panel that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._no_color = console.no_color
        self._stack = ExitStack()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        from rich.console import Console as Terminal
        from rich.live import Live

        terminal = Terminal(file=sys.stderr, no_color=self._no_color or None, highlight=False)
        self._live = self._stack.enter_context(Live(console=terminal, auto_refresh=False))
        return self

    def show(self, tally: Tally) -> None:
        """Redraw."""
        if self._live is not None:
            self._live.update(panel(tally), refresh=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def progress(console: Console, *, events: bool = True) -> Progress:
    """The right kind for where stderr goes; with `events`, JSON lines when JSON was asked for."""
    if console.json and events:
        return EventProgress(console)
    if console.quiet:
        return Progress()
    return LiveProgress(console) if console.is_live else PlainProgress(console)
