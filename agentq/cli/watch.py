"""`agentq watch`: look on until a batch has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from agentq.cli.follow import conclude, detached, follow
from agentq.cli.globals import verb

if TYPE_CHECKING:
    from agentq.cli.session import Session


@verb("watch")
@click.argument("batch")
def command(session: Session, batch: str) -> int:
    """Follow BATCH until it ends. Ctrl-C stops looking, not the batch."""
    return watch(session, batch)


def watch(session: Session, name: str, timeout: float | None = None) -> int:
    """Follow a batch, say how it ended, give the exit code."""
    batch = session.server_app().batch(name)
    try:
        tally = follow(session, batch, timeout=timeout)
    except KeyboardInterrupt:
        detached(session, name)
        raise
    return conclude(session, batch, tally)
