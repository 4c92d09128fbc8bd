"""`agentq wait`: for scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from agentq.cli.globals import verb
from agentq.cli.watch import watch

if TYPE_CHECKING:
    from agentq.cli.session import Session


@verb("wait")
@click.argument("batch")
@click.option(
    "--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Give up after this long (exit 6)."
)
def command(session: Session, batch: str, timeout: float | None) -> int:
    """Wait for BATCH.

    \b
    Exit codes, the first that applies:
      7 server unreachable   8 provider refused key or quota   2 usage   6 time is up
      5 waits for approval   3 a run failed   4 a budget stopped a run, or it is parked for money
      0 all finished
    """  # noqa: D301 - click's mark for lines that stay as they are
    return watch(session, batch, timeout)
