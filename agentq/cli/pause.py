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
from agentq.core.text import encodable

if TYPE_CHECKING:
    from agentq.app import Batch
    from agentq.cli.session import Session


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
        words = pause_runs(app.store, [found.id], by=who)
        if not words["HELD"] + words["PAUSING"]:
            state = found.record().state.value
            raise UsageError(f"run {found.id} is {state}: only a run that may still go on is paused")
        _say(session, found.id, words)
    elif isinstance(found, Chosen):
        if found.runs:
            confirm(session, "pause", len(found.runs), found.name, yes=yes)
        _say(session, found.name, pause_runs(app.store, found.runs, by=who))
    else:
        _batch(session, found, who, yes=yes)


def _batch(session: Session, batch: Batch, by: str, *, yes: bool) -> None:
    counts, before = batch.counts(), batch.record().paused
    live = counts["total"] - counts["ended"]
    if before is None:
        confirm(session, "pause", live, batch.name, yes=yes)
        batch.pause(by=by)
    if session.console.json:
        session.console.document({"target": batch.name, "live": live, "paused_by": before or by})
        return
    already = f"had already been paused by {before}" if before else "is paused"
    session.console.out(f"{batch.name} {already}: {plural(live, 'run')} not ended")
    session.console.say(f"  agentq resume {batch.name} lets it go on")


def _say(session: Session, target: str, words: Counter[str]) -> None:
    held, pausing = words["HELD"], words["PAUSING"]
    if session.console.json:
        session.console.document({"target": target, "held": held, "pausing": pausing})
        return
    parts = [f"{held} held"] if held else []
    parts += [f"{pausing} held when what they are at is over"] if pausing else []
    session.console.out(f"{target}: {', '.join(parts) or 'no live run is meant'}")
