"""`agentq cancel`: a run, or all of a batch that has not ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from agentq.cli.console import plural
from agentq.cli.globals import verb
from agentq.cli.target import find
from agentq.core.errors import UsageError

if TYPE_CHECKING:
    from agentq.app import Batch, Run
    from agentq.cli.session import Session

_BY = "agentq cancel"


@verb("cancel")
@click.argument("target")
@click.option("-y", "--yes", is_flag=True, help="Do not ask first.")
def command(session: Session, target: str, yes: bool) -> None:
    """Cancel TARGET: a run, or the runs of a batch that have not ended. What is spent stays in the books."""
    from agentq.app import Run

    found = find(session.server_app(), target)
    if isinstance(found, Run):
        _run(session, found)
    else:
        _batch(session, found, yes=yes)


def _run(session: Session, run: Run) -> None:
    was_live = run.record().state.is_live
    if was_live:
        run.cancel(by=_BY)
    _say(
        session,
        run.id,
        int(was_live),
        f"{run.id} is cancelled" if was_live else f"{run.id} had already ended",
    )


def _batch(session: Session, batch: Batch, *, yes: bool) -> None:
    counts = batch.counts()
    live = counts["total"] - counts["ended"]
    if not live:
        _say(session, batch.name, 0, f"all runs of {batch.name} had already ended")
        return
    if not yes:
        _ask(
            session, f"{plural(live, 'run')} of {batch.name} that {'has' if live == 1 else 'have'} not ended"
        )
    cancelled = batch.cancel(by=_BY)
    _say(session, batch.name, cancelled, f"{batch.name}: {plural(cancelled, 'run')} cancelled")


def _ask(session: Session, what: str) -> None:
    if not session.console.can_ask:
        raise UsageError(f"there is nobody to ask here whether to cancel {what}", hint="-y says yes")
    if not click.confirm(f"Cancel {what}?", err=True):
        raise UsageError("nothing was cancelled")


def _say(session: Session, target: str, count: int, sentence: str) -> None:
    if session.console.json:
        session.console.document({"target": target, "cancelled": count})
    else:
        session.console.out(sentence)
