"""`agentq results`: what the runs of a batch came to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from agentq.cli.globals import verb
from agentq.cli.outfile import STDOUT, write_results

if TYPE_CHECKING:
    from agentq.cli.session import Session


@verb("results")
@click.argument("batch")
@click.option(
    "-o", "--output", metavar="FILE", default=STDOUT, help="Append to FILE what it does not have yet."
)
def command(session: Session, batch: str, output: str) -> None:
    """Write one JSON line for each run of BATCH that has ended, in the order of the input.

    A line is what the OpenAI Batch API writes, with agentq's own fields under "agentq".
    """
    found = session.server_app().batch(batch)
    write_results(session, found, output)
    counts = found.counts()
    if counts["ended"] < counts["total"]:
        session.console.say(
            f"{counts['total'] - counts['ended']} of {counts['total']} runs have not ended yet"
        )
