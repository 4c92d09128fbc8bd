"""Arguments and options that are the name of something: a shell completes them from what there is.

Names of files the shell completes itself: it is only told that one is wanted.

Whoever presses Tab wants a name, or nothing, at once: without a server, with a wrong app or a wrong setting
there are no names, and nothing is said.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from agentq.cli.session import Session

if TYPE_CHECKING:
    from agentq.app import AgentQ

MOST = 100
"""So many names are offered: nobody chooses among more."""


class Name(click.types.StringParamType):
    """A text, for which there are names to choose from. `kinds` are batch, run and agent."""

    def __init__(self, *kinds: str) -> None:
        self._kinds = kinds

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002 - click's signature
        incomplete: str,
    ) -> list[CompletionItem]:
        """The names that begin with what was typed so far."""
        session = ctx.find_object(Session)
        if session is None:
            return []
        found = []
        with _silent():
            found = sorted({name for name in self._names(session, incomplete) if name.startswith(incomplete)})
        return [CompletionItem(name) for name in found[:MOST]]

    def _names(self, session: Session, incomplete: str) -> Iterator[str]:
        if "agent" in self._kinds:
            yield from session.any_app().agents
        if not {"batch", "run"} & set(self._kinds):
            return
        app = session.server_app()
        if "batch" in self._kinds:
            yield from app.store.batches.names()
        if "run" in self._kinds and (incomplete.startswith("run_") or self._kinds == ("run",)):
            yield from _live(app)


def _live(app: AgentQ) -> list[str]:
    return list(app.store.watch.live())


class FileName(click.types.StringParamType):
    """A text that is the path of a file or, with `kind` dir, of a folder."""

    def __init__(self, kind: str = "file") -> None:
        self._kind = kind

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        param: click.Parameter,  # noqa: ARG002 - click's signature
        incomplete: str,
    ) -> list[CompletionItem]:
        """Have the shell look for what begins with what was typed so far."""
        return [CompletionItem(incomplete, type=self._kind)]


NAMES: dict[str, click.types.StringParamType] = {
    "batch": Name("batch"),
    "target": Name("batch", "run"),
    "run": Name("run"),
    "agent": Name("agent"),
    **dict.fromkeys(("file", "output", "out", "errors", "retry_file", "script"), FileName()),
    "folder": FileName("dir"),
}
"""By what the argument, or the option, is called."""


def complete_names(command: click.Command) -> None:
    """Let the parameters of a verb that are names be completed as such."""
    for param in command.params:
        if param.type is click.STRING and param.name in NAMES:
            param.type = NAMES[param.name]


@contextmanager
def _silent() -> Iterator[None]:
    """Neither a word nor an error comes out, whatever the user's own modules do."""
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        try:
            yield
        except (Exception, SystemExit):  # noqa: BLE001 - there is nobody to tell
            return
