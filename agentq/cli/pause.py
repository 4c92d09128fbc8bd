"""`agentq pause`: nothing of a run, a batch, or the runs that a filter means is started any more."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click

from agentq.cli.console import plural
from agentq.cli.globals import verb
from agentq.cli.person import me
from agentq.cli.target import Chosen, choose, confirm, target_options
from agentq.core.errors import UsageError
from agentq.core.lifecycle import RunState
from agentq.core.text import encodable

if TYPE_CHECKING:
    from agentq.app import Batch
    from agentq.cli.session import Session
    from agentq.core.records import RunRecord


@verb("pause")
@target_options
@click.option("--by", metavar="NAME", help="Who, as status shows it; else user@host.")
def command(
    session: Session, target: tuple[str, ...], filters: tuple[str, ...], yes: bool, by: str | None
) -> None:
    """Pause TARGET: a run, or a batch with rows that are submitted later. `agentq resume` lets it go on.

    A step at work is finished. A run that waits, for money, a decision or its children, goes on waiting and
    is held when it could go on.
    """
    from agentq.app import Run
    from agentq.engine.pause import pause_runs

    app = session.server_app()
    found, who = choose(app, target, filters, ended=False), encodable(by or me())
    if isinstance(found, Run):
        before, words = found.record(), pause_runs(app.store, [found.id], by=who)
        if not words["HELD"] + words["PAUSING"]:
            state = found.record().state.value
            raise UsageError(f"run {found.id} is {state}: only a run that may still go on is paused")
        _say(session, found.id, words, f"{found.id} {_single(before, held=bool(words['HELD']))}")
        if not session.console.json:
            session.console.say(f"  agentq resume {found.id} lets it go on")
    elif isinstance(found, Chosen):
        if not found.runs:
            _say(session, found.name, Counter(), found.nothing)
            return
        confirm(session, "pause", len(found.runs), found.name, yes=yes)
        words = pause_runs(app.store, found.runs, by=who)
        held, pausing = words["HELD"], words["PAUSING"]
        parts = [f"{held} held"] if held else []
        parts += [f"{pausing} held when what they are at is over"] if pausing else []
        _say(session, found.name, words, f"{found.name}: {', '.join(parts) or 'all have ended meanwhile'}")
    else:
        _batch(session, found, who, yes=yes)


def _batch(session: Session, batch: Batch, by: str, *, yes: bool) -> None:
    counts, before = batch.counts(), batch.record().paused
    live = counts["total"] - counts["ended"]
    if before is None:
        if live:
            confirm(session, "pause", live, batch.name, yes=yes)
        batch.pause(by=by)
    if session.console.json:
        session.console.document({"target": batch.name, "live": live, "paused_by": before or by})
        return
    already = f"had already been paused by {before}" if before else "is paused"
    rows = f"{plural(live, 'run')} not ended" if live else "no run is live, and rows that come later are held"
    session.console.out(f"{batch.name} {already}: {rows}")
    session.console.say(f"  agentq resume {batch.name} lets it go on")


def _single(before: RunRecord, *, held: bool) -> str:
    """What became of the one run that was paused."""
    if before.paused is not None:
        return f"had already been paused by {before.paused}"
    if held:
        return "is paused"
    over = "its step is over" if before.state is RunState.RUNNING else "it could go on"
    return f"is paused when {over}"


def _say(session: Session, target: str, words: Counter[str], sentence: str) -> None:
    if session.console.json:
        session.console.document({"target": target, "held": words["HELD"], "pausing": words["PAUSING"]})
    else:
        session.console.out(sentence)
