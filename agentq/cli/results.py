"""`agentq results`: what the runs of a batch came to."""

from __future__ import annotations

import time
from contextlib import closing, nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from agentq.cli.follow import conclude, detached, say_what_waits
from agentq.cli.globals import verb
from agentq.cli.progress import progress
from agentq.cli.resultfile.feed import AllEnded, AsEnded, Feed, InInputOrder
from agentq.cli.resultfile.form import FORMS
from agentq.cli.resultfile.join import Join, check_join, count_rows
from agentq.cli.resultfile.outputs import STDOUT, Outputs
from agentq.cli.tally import OK, Tally
from agentq.core.errors import UsageError

if TYPE_CHECKING:
    from agentq.app import Batch
    from agentq.cli.session import Session

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 1.0
_READS_PAUSE = 4
"""Where many runs wait it takes time to count them: it is paused for so many times that, at least."""
_PARQUET = "parquet"


class _Form(click.Choice[str]):
    """One of those that are written. Who asks for Parquet is told what to take instead."""

    def __init__(self) -> None:
        super().__init__(FORMS)

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value == _PARQUET:
            raise UsageError(
                "Parquet is not written", hint="--format csv, or JSONL, which every tool for it reads"
            )
        return super().convert(value, param, ctx)


@verb("results")
@click.argument("batch")
@click.option(
    "-o", "--output", metavar="FILE", default=STDOUT, help="Append to FILE what it does not have yet."
)
@click.option("--errors", metavar="FILE", help="Append those with an error to this file too.")
@click.option(
    "--retry-file",
    metavar="FILE",
    help="Append the input lines of failures that may end otherwise: to be submitted again.",
)
@click.option(
    "--format",
    "form",
    type=_Form(),
    metavar="|".join(FORMS),
    help="[default: by the ending of FILE, else jsonl]",
)
@click.option(
    "--order",
    type=click.Choice(["input", "completed"]),
    help="input: none before those above it; completed: as they ended. [default: what has ended, in input "
    "order; with --follow completed]",
)
@click.option(
    "--follow", is_flag=True, help="Go on until nothing in the batch moves; the exit code is wait's."
)
@click.option(
    "--strict-join", is_flag=True, help="Prove that every row is there once, or has not ended; else exit 3."
)
def command(  # noqa: PLR0917 - click passes all of them by name
    session: Session,
    batch: str,
    output: str,
    errors: str | None,
    retry_file: str | None,
    form: str | None,
    order: str | None,
    follow: bool,
    strict_join: bool,
) -> int:
    """Write one line for each run of BATCH that has ended.

    A line is what the OpenAI Batch API writes, with agentq's own fields under "agentq". Files are only
    continued: the same command again adds what they do not have, also after it was killed.
    """
    console = session.console
    found = session.server_app().batch(batch)
    found.record()
    events = follow and console.json and output == STDOUT
    outputs = Outputs.choose(found, output, errors=errors, retry=retry_file, form=form, events=events)
    tally, join = None, None
    with outputs:
        feed = _feed(found, outputs, order, follow=follow)
        if follow:
            try:
                tally = _follow(session, found, feed, outputs)
            except KeyboardInterrupt:
                detached(session, batch)
                raise
        elif not strict_join or order == "completed":  # else the join takes them, in input order too
            for result in chain(feed.new(), feed.rest()):
                outputs.take(result)
            outputs.flush()
        if strict_join:
            join = _join(found, outputs, in_order=order == "input")
        outputs.say(console, batch)
    if join is not None:
        console.say(f"strict join: {join}")
    if tally is not None:
        return _conclude(session, found, tally, outputs)
    held_up_by = feed.held_up_by if join is None else join.held_up_by
    _say_what_is_missing(session, found, held_up_by)
    if console.json and output != STDOUT:
        console.document(_document(found, outputs, join))
    return OK


def _feed(batch: Batch, outputs: Outputs, order: str | None, *, follow: bool) -> Feed:
    if order == "input":
        return InInputOrder(batch, outputs.has)
    return AsEnded(batch) if follow or order == "completed" else AllEnded(batch)


def _follow(session: Session, batch: Batch, feed: Feed, outputs: Outputs) -> Tally:
    """Write results as they come, until nothing in the batch moves by itself."""
    console, pause = session.console, _FIRST_PAUSE
    with_progress = console.json or bool(outputs.files)
    with progress(console) if with_progress else nullcontext() as shown:
        while True:
            began = time.monotonic()
            tally = Tally.read(batch)
            took = time.monotonic() - began
            for result in chain(feed.new(), feed.rest() if tally.is_settled else ()):
                outputs.take(result)
            outputs.flush()
            if shown is not None:
                shown.show(tally)
            if tally.is_settled:
                return tally
            time.sleep(max(pause, _READS_PAUSE * took))
            pause = min(pause * 1.2, _LONGEST_PAUSE)


def _join(batch: Batch, outputs: Outputs, *, in_order: bool) -> Join:
    join = count_rows(batch, outputs.take, outputs.has, in_order=in_order)
    outputs.flush()
    with closing(outputs.main.reread()) as written:
        check_join(batch, join, written)
    return join


def _conclude(session: Session, batch: Batch, tally: Tally, outputs: Outputs) -> int:
    """Say how it ended, where there is room for it; give the exit code."""
    console = session.console
    if console.json or outputs.main in outputs.files:
        return conclude(session, batch, tally)
    console.say(f"{batch.name}: {tally}")
    say_what_waits(session, batch, tally)
    return tally.exit_code()


def _say_what_is_missing(session: Session, batch: Batch, held_up_by: str | None) -> None:
    counts = batch.counts()
    left = counts["total"] - counts["ended"]
    if left:
        session.console.say(f"{left} of {counts['total']} runs have not ended yet")
    if held_up_by is not None:
        session.console.say(f"in input order it is the turn of {held_up_by}, which has not ended")


def _document(batch: Batch, outputs: Outputs, join: Join | None) -> dict[str, Any]:
    counts = batch.counts()
    document: dict[str, Any] = {"batch": batch.name, "total": counts["total"], "ended": counts["ended"]}
    document["files"] = outputs.as_list()
    if join is not None:
        document["join"] = join.as_dict()
    return document
