"""`agentq cancel`: what has not ended of a run, a batch, or the runs that a filter means."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from agentq.cli.console import plural
from agentq.cli.globals import verb
from agentq.cli.person import me
from agentq.cli.target import Chosen, choose, confirm, target_options
from agentq.core.text import encodable

if TYPE_CHECKING:
    from agentq.cli.session import Session
    from agentq.engine.cancel import Cancelled

SHOWN = 20
"""So many runs that were at work are listed."""


@verb("cancel")
@target_options
@click.option("--by", metavar="NAME", help="Who, for those who look at it later; else user@host.")
def command(
    session: Session, target: tuple[str, ...], filters: tuple[str, ...], yes: bool, by: str | None
) -> None:
    """Cancel TARGET: a run, or the runs of a batch that have not ended, with all that these have started.

    A call in flight is not interrupted; what is spent stays in the books. Where each run at work stopped is
    listed.
    """
    from agentq.app import Run
    from agentq.engine.cancel import cancel_runs

    app = session.server_app()
    found, who = choose(app, target, filters, ended=False), encodable(by or me())
    if isinstance(found, Run):
        record = found.record()
        if not record.state.is_live and not record.descendants:
            _say(session, found.id, None, f"{found.id} had already ended")
            return
        cancelled = found.cancel(by=who)
        below = f", and {plural(cancelled.children, 'run')} below it" if cancelled.children else ""
        _say(session, found.id, cancelled, f"{found.id} is cancelled{below}")
        return
    if isinstance(found, Chosen):
        if not found.runs:
            _say(session, found.name, None, found.nothing)
            return
        confirm(session, "cancel", len(found.runs), found.name, yes=yes)
        cancelled = cancel_runs(app.store, found.runs, by=who)
    else:
        record_of_batch = found.record()
        live = record_of_batch.total - record_of_batch.ended + record_of_batch.descendants
        if not live and record_of_batch.loader is None:
            _say(session, found.name, None, f"all runs of {found.name} had already ended")
            return
        if live:  # else a load that came to no row is ended
            confirm(session, "cancel", live, found.name, yes=yes)
        cancelled = found.cancel(by=who)
    below = f", and {plural(cancelled.children, 'run')} below them" if cancelled.children else ""
    _say(session, found.name, cancelled, f"{found.name}: {plural(cancelled.live, 'run')} cancelled{below}")


def _say(session: Session, target: str, cancelled: Cancelled | None, sentence: str) -> None:
    stopped_at = cancelled.stopped_at if cancelled else {}
    if session.console.json:
        session.console.document(
            {
                "target": target,
                "cancelled": cancelled.live if cancelled else 0,
                "children": cancelled.children if cancelled else 0,
                "stopped_at": stopped_at,
            }
        )
        return
    session.console.out(sentence)
    for run_id, where in list(stopped_at.items())[:SHOWN]:
        session.console.out(f"  {run_id} was at {where}")
    if len(stopped_at) > SHOWN:
        session.console.out(f"  and {len(stopped_at) - SHOWN} more")
