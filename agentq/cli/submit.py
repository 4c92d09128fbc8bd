"""`agentq submit`: every row of a file becomes a run of one batch."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import click

from agentq.cli.amount import USD
from agentq.cli.console import plural
from agentq.cli.estimate import confirm_cost, show_estimate
from agentq.cli.failure import is_unreachable
from agentq.cli.follow import conclude, detached, follow
from agentq.cli.globals import verb
from agentq.cli.loading import LoadProgress, fill, rows_of
from agentq.cli.outfile import check_output, write_results
from agentq.cli.timing import Timing, schedule_rows
from agentq.cli.wanted import Wanted, batch_name
from agentq.cli.when import parse_when, say_when
from agentq.core.errors import UsageError
from agentq.core.money import to_nano
from agentq.core.settings import ON_EXHAUSTED

if TYPE_CHECKING:
    from agentq.app import AgentQ, Batch
    from agentq.cli.session import Session

_FORMS = ("jsonl", "openai", "anthropic", "csv", "tsv", "text")
_COUNT = click.IntRange(min=1)


@verb("submit")
@click.argument("file")
@click.option("--agent", metavar="NAME", help="The agent of rows that name none.")
@click.option("--batch", metavar="NAME", help="The batch's name; else the file's name without its ending.")
@click.option("--tenant", metavar="NAME", help="Who pays.")
@click.option("--max-usd", type=USD, help="The most that the whole batch may spend.")
@click.option("--max-tokens", type=_COUNT, metavar="N", help="The same in tokens.")
@click.option("--per-run-usd", type=USD, help="The most that each run may spend; a row's own max_usd wins.")
@click.option(
    "--on-exhausted",
    type=click.Choice(ON_EXHAUSTED),
    help="When --max-usd is used up: wait for more (park), answer and end (stop), or answer only where runs "
    "that wait are in the way (winddown). [default: as the agent says, else park]",
)
@click.option(
    "--max-in-flight", type=_COUNT, metavar="N", help="The most runs that are queued or running at once."
)
@click.option("--max-open", type=_COUNT, metavar="N", help="The most runs that have begun and not ended.")
@click.option(
    "--priority",
    type=click.IntRange(0, 9),
    metavar="P",
    help="0 to 9: before other batches of the tenant, the highest first. [default: 0]",
)
@click.option("--at", metavar="TIME", help="Start none of its rows before: 2026-12-01T08:00, 08:00, 'in 2h'.")
@click.option(
    "--every",
    metavar="CRON",
    help="Keep the rows, and make a batch of them again and again: '0 8 * * 1-5'. See agentq schedules.",
)
@click.option("--tz", metavar="ZONE", help="The time zone of --at or --every. [default: this machine's]")
@click.option(
    "--overlap",
    type=click.Choice(("skip", "allow")),
    help="With --every: when the batch before is not over yet, make none, or make it. [default: skip]",
)
@click.option("--notify", metavar="URL", help="POST to it, signed, when the batch is over.")
@click.option(
    "--pilot",
    metavar="N|N%",
    help="Run so many rows first; pause for a yes when they say that the rest costs more than --max-usd, or "
    "--confirm-above.",
)
@click.option("--form", type=click.Choice(_FORMS), help="What FILE is, when it is not to be found out.")
@click.option(
    "--map",
    "maps",
    multiple=True,
    metavar="FIELD={COLUMN}",
    help="Of CSV, or JSON objects of your own: what makes a field, as 'input={question}'. May be repeated.",
)
@click.option("--limit", type=_COUNT, metavar="N", help="Only the first N rows.")
@click.option("--dry-run", is_flag=True, help="Check everything, say what it may cost, submit nothing.")
@click.option(
    "--confirm-above",
    type=USD,
    help="Ask first when it may cost more than that; -y says yes where nobody is.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--wait", is_flag=True, help="Stay until the batch has ended; the exit code says how.")
@click.option("-o", "--output", metavar="FILE", help="With --wait: write the results there.")
def command(  # noqa: PLR0917 - click passes all of them by name
    session: Session,
    file: str,
    agent: str | None,
    batch: str | None,
    tenant: str | None,
    max_usd: Decimal | None,
    max_tokens: int | None,
    per_run_usd: Decimal | None,
    on_exhausted: str | None,
    max_in_flight: int | None,
    max_open: int | None,
    priority: int | None,
    at: str | None,
    every: str | None,
    tz: str | None,
    overlap: str | None,
    notify: str | None,
    pilot: str | None,
    form: str | None,
    maps: tuple[str, ...],
    limit: int | None,
    dry_run: bool,
    confirm_above: Decimal | None,
    yes: bool,
    wait: bool,
    output: str | None,
) -> int:
    """Submit FILE as a batch, one run a row; - is standard input.

    JSONL with {"input": "..."} and, if you like, custom_id, agent, metadata, context, max_usd and priority;
    batch files of OpenAI and Anthropic as they are; CSV, TSV, plain text; each of them gzipped too. All rows
    are checked first; one mistake, and nothing is submitted. The same file again resumes: rows that are
    there already are skipped.
    """
    if output and not wait:
        raise UsageError(
            "-o needs --wait: there are no results yet", hint="later: agentq results BATCH -o FILE"
        )
    if output:
        check_output(output)
    if every is not None and (wait or at is not None or pilot is not None):
        raise UsageError(
            "--every makes batches later, by itself: none of --wait, --at and --pilot goes with it",
            hint="agentq watch BATCH follows one that is made",
        )
    if (tz is not None and every is None and at is None) or (overlap is not None and every is None):
        raise UsageError(
            "--tz goes with --at or --every, --overlap with --every",
            hint="for example --every '0 8 * * 1-5' --tz Europe/Berlin",
        )
    wanted = Wanted(
        file=file,
        agent=agent,
        batch=batch_name(file, batch),
        tenant=tenant,
        max_usd=max_usd,
        max_tokens=max_tokens,
        per_run_usd=per_run_usd,
        form=form,
        maps=maps,
        limit=limit,
        options={"max_in_flight": max_in_flight, "max_open": max_open, "priority": priority},
        at=at,
        tz=tz,
        notify=notify,
        pilot=pilot,
        on_exhausted=on_exhausted,
    )
    app = session.user_app("submit")
    if every is not None:
        timing = Timing(
            name=wanted.batch,
            cron=every,
            tz=tz,
            overlap=overlap or "skip",
            agent=agent,
            dry_run=dry_run,
            confirm_above=confirm_above,
            yes=yes,
        )
        return schedule_rows(session, app, timing, wanted.rows(app), wanted.terms())
    submitted = _submit(app, wanted, session, dry_run=dry_run, confirm_above=confirm_above, yes=yes)
    if submitted is None:
        return 0
    total = submitted.record().total
    if not wait:
        return _say_submitted(session, wanted.batch, total)
    if session.console.json:
        session.console.event("submitted", batch=wanted.batch, total=total)
    try:
        tally = follow(session, submitted)
    except KeyboardInterrupt:
        detached(session, wanted.batch)
        raise
    code = conclude(session, submitted, tally)
    if output:
        write_results(session, submitted, output)
    return code


def submit_file(app: AgentQ, file: str, *, agent: str | None, batch: str, session: Session) -> Batch:
    """Check the whole file, then submit it, as it is and without a question.

    Raises:
        InputError: when a row is wrong; nothing was submitted.
        UsageError: when the agent is unknown.
        ConflictError: when the batch exists with other content.
        UnavailableError: when there is no server.
    """
    session.need_server(app)
    with app.load(batch) as load:
        fill(load, rows_of(app, file, agent=agent), LoadProgress(session.console))
        return app.write(load, agent=agent)


def _submit(
    app: AgentQ,
    wanted: Wanted,
    session: Session,
    *,
    dry_run: bool,
    confirm_above: Decimal | None,
    yes: bool,
) -> Batch | None:
    """The batch, or None when nothing was to be submitted."""
    from agentq.app.options import batch_options
    from agentq.engine.pilot import parse_pilot

    at = None
    if wanted.at is not None:
        session.need_server(app)
        now_ms = app.store.watch.server_ms()
        at = parse_when(wanted.at, now_ms, wanted.tz)
        session.console.say(f"starts {say_when(at, now_ms)}")
    options = batch_options(**wanted.options, at=at) | app.notice_to(wanted.notify)
    pilot = None if wanted.pilot is None else parse_pilot(wanted.pilot)
    if pilot is not None and confirm_above is not None:
        options["confirm_above"] = str(to_nano(confirm_above))
    progress = LoadProgress(session.console)
    rows = wanted.rows(app)
    with app.load(
        wanted.batch,
        tenant=wanted.tenant,
        max_usd=wanted.max_usd,
        max_tokens=wanted.max_tokens,
        tell=progress,
    ) as load:
        fill(load, rows, progress)
        if dry_run:
            show_estimate(session.console, wanted.batch, load)
            return None
        session.need_server(app)
        there = app.store.batches.read(wanted.batch)
        begun = there is not None and there.pilot is None
        if pilot is None or begun or not pilot.size(load.rows):
            # Else what the sample of its pilot costs is asked about, not what the whole may cost at most.
            confirm_cost(session.console, load, confirm_above, yes=yes)
        try:
            batch = app.write(
                load, agent=wanted.agent, on_exhausted=wanted.on_exhausted, options=options, pilot=pilot
            )
            if there is not None:  # a batch is found by its file's name: perhaps this one was not meant
                new = batch.record().total - there.total
                session.console.say(f"batch {wanted.batch} is there: {new} of {plural(load.rows, 'row')} new")
            return batch
        except (KeyboardInterrupt, Exception) as error:
            if isinstance(error, KeyboardInterrupt) or is_unreachable(error):
                progress.done()
                session.console.say(
                    "stopped: nothing of this load has begun; the same command again goes on with it"
                )
            raise
        finally:
            progress.done()


def _say_submitted(session: Session, name: str, total: int) -> int:
    console = session.console
    if console.json:
        console.document({"batch": name, "total": total})
    else:
        console.out(f"batch {name}: {plural(total, 'run')}")
        console.say(f"  agentq watch {name}")
    return 0
