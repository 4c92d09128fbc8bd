"""`agentq batches`: all of them, the newest first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentq.cli.globals import verb
from agentq.cli.tally import Tally
from agentq.core.money import format_usd

if TYPE_CHECKING:
    from agentq.cli.session import Session

HEAD = ("batch", "total", "ended", "running", "queued", "parked", "waiting", "held", "failed", "USD")


@verb("batches")
def command(session: Session) -> None:
    """List the batches, the newest first."""
    tallies = [Tally.read(batch) for batch in session.server_app().batches()]
    if session.console.json:
        session.console.document([tally.as_dict() for tally in tallies])
    elif tallies:
        show_batches(session, tallies)
    else:
        session.console.say("no batches yet; agentq submit FILE makes one")


def show_batches(session: Session, tallies: list[Tally]) -> None:
    """The batches as a table."""
    session.console.table(
        HEAD,
        [
            (
                *(t.name, t.total, t.ended, t.running, t.queued, t.parked, t.waiting, t.held, t.failed),
                format_usd(t.spent_nano),
            )
            for t in tallies
        ],
    )
