"""`agentq submit`: every line of a file becomes a run of one batch."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentq.cli.amount import USD
from agentq.cli.console import plural
from agentq.cli.follow import conclude, detached, follow
from agentq.cli.globals import verb
from agentq.cli.outfile import check_output, write_results
from agentq.core.errors import UsageError
from agentq.core.ids import check_name
from agentq.core.settings import ON_EXHAUSTED

if TYPE_CHECKING:
    from agentq.app import AgentQ, Batch
    from agentq.cli.session import Session


@verb("submit")
@click.argument("file")
@click.option("--agent", metavar="NAME", help="The agent of rows that name none.")
@click.option("--batch", metavar="NAME", help="The batch's name; else the file's name without its ending.")
@click.option("--tenant", metavar="NAME", help="Who pays.")
@click.option("--max-usd", type=USD, help="The most that the whole batch may spend.")
@click.option("--per-run-usd", type=USD, help="The most that each run may spend; a row's own max_usd wins.")
@click.option(
    "--on-exhausted",
    type=click.Choice(ON_EXHAUSTED),
    help="When --max-usd is used up: wait for more (park), answer and end (stop), or answer only where runs "
    "that wait are in the way (winddown). [default: as the agent says, else park]",
)
@click.option("--wait", is_flag=True, help="Stay until the batch has ended; the exit code says how.")
@click.option("-o", "--output", metavar="FILE", help="With --wait: write the results there.")
def command(  # noqa: PLR0917 - click passes all of them by name
    session: Session,
    file: str,
    agent: str | None,
    batch: str | None,
    tenant: str | None,
    max_usd: Decimal | None,
    per_run_usd: Decimal | None,
    on_exhausted: str | None,
    wait: bool,
    output: str | None,
) -> int:
    """Submit FILE (JSONL, one run a line; - is standard input) as a batch.

    A line is {"input": "..."} and, if you like, custom_id, agent, metadata, context and max_usd. All lines
    are checked first; one mistake, and nothing is submitted. The same file again resumes: rows that are
    there already are skipped.
    """
    if output and not wait:
        raise UsageError(
            "-o needs --wait: there are no results yet", hint="later: agentq results BATCH -o FILE"
        )
    if output:
        check_output(output)
    name = _batch_name(file, batch)
    app = session.user_app("submit")
    submitted = submit_file(
        app,
        file,
        agent=agent,
        batch=name,
        tenant=tenant,
        max_usd=max_usd,
        per_run_usd=per_run_usd,
        on_exhausted=on_exhausted,
        session=session,
    )
    total = submitted.counts()["total"]
    if not wait:
        return _say_submitted(session, name, total)
    if session.console.json:
        session.console.event("submitted", batch=name, total=total)
    try:
        tally = follow(session, submitted)
    except KeyboardInterrupt:
        detached(session, name)
        raise
    code = conclude(session, submitted, tally)
    if output:
        write_results(session, submitted, output)
    return code


def submit_file(
    app: AgentQ,
    file: str,
    *,
    agent: str | None,
    batch: str,
    session: Session,
    tenant: str | None = None,
    max_usd: Decimal | None = None,
    per_run_usd: Decimal | None = None,
    on_exhausted: str | None = None,
) -> Batch:
    """Check the whole file, then submit it.

    Raises:
        InputError: when a line is wrong; nothing was submitted.
        UsageError: when the agent is unknown.
        ConflictError: when the batch exists with other content.
        UnavailableError: when there is no server.
    """
    from agentq.core.words import nearest
    from agentq.engine.rowfile import load_rows

    if agent is not None and agent not in app.agents:
        known = ", ".join(sorted(app.agents)) or "none"
        raise UsageError(
            f"there is no agent {agent!r}{nearest(agent, app.agents)}", hint=f"this app has: {known}"
        )
    with load_rows(file, agents=app.agents, agent=agent or _only(app), max_usd=per_run_usd) as rows:
        session.need_server(app)
        return app.submit_many(
            agent, rows, batch=batch, tenant=tenant, max_usd=max_usd, on_exhausted=on_exhausted
        )


def _only(app: AgentQ) -> str:
    """The app's agent when it has just one: no need to name it."""
    return next(iter(app.agents)) if len(app.agents) == 1 else ""


def _batch_name(file: str, batch: str | None) -> str:
    if batch is not None:
        return check_name("batch", batch)
    if file == "-":
        raise UsageError("rows from standard input need a name for their batch", hint="add --batch NAME")
    name = Path(file).name.partition(".")[0]
    try:
        return check_name("batch", name)
    except UsageError as error:
        raise UsageError(str(error), hint="add --batch NAME") from None


def _say_submitted(session: Session, name: str, total: int) -> int:
    console = session.console
    if console.json:
        console.document({"batch": name, "total": total})
    else:
        console.out(f"batch {name}: {plural(total, 'run')}")
        console.say(f"  agentq watch {name}")
    return 0
