"""`agentq tune`: how the rows of a batch are admitted, changed while it runs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from agentq.cli.amount import KEEP, Keep
from agentq.cli.cap import IN_FLIGHT, OPEN
from agentq.cli.console import plural
from agentq.cli.globals import verb
from agentq.cli.when import parse_when, say_when
from agentq.core.errors import UsageError
from agentq.engine.rows import PRIORITY_MAX

if TYPE_CHECKING:
    from agentq.cli.session import Session
    from agentq.core.records import BatchRecord


@verb("tune")
@click.argument("batch")
@click.option(
    "--priority",
    type=click.IntRange(0, PRIORITY_MAX),
    metavar="P",
    help="0 to 9: before other batches of the tenant, the highest first.",
)
@click.option(
    "--max-in-flight", type=IN_FLIGHT, default=KEEP, help="The most runs that are queued or running at once."
)
@click.option("--max-open", type=OPEN, default=KEEP, help="The most runs that have begun and not ended.")
@click.option(
    "--at",
    "when",
    metavar="TIME|now",
    help="Start none of its rows before: 08:00, 2026-12-01T08:00, 'in 2h'.",
)
def command(  # noqa: PLR0917 - click passes all of them by name
    session: Session,
    batch: str,
    priority: int | None,
    max_in_flight: int | Keep | None,
    max_open: int | Keep | None,
    when: str | None,
) -> None:
    """Change how the rows of BATCH that wait are started, at once and at any size; else say how they are.

    Runs that have begun go on. Without an option nothing is changed.
    """
    app = session.server_app()
    found = app.batch(batch)
    now_ms = app.store.watch.server_ms()
    changes: dict[str, Any] = {
        name: value
        for name, value in (("max_in_flight", max_in_flight), ("max_open", max_open))
        if value != KEEP
    }
    if priority is not None:
        changes["priority"] = priority
    if when is not None:
        changes["at"] = None if when.strip().lower() == "now" else parse_when(when, now_ms)
    if changes and _is_over(found.record()):
        raise UsageError(
            f"batch {batch!r} is over: no row of it waits",
            hint=f"agentq retry {batch} lets go on what ended without finishing",
        )
    if changes:
        found.tune(**changes)
    _show(session, found.record(), now_ms)


def _is_over(record: BatchRecord) -> bool:
    return record.sealed and record.ended >= record.total


def _show(session: Session, record: BatchRecord, now_ms: int) -> None:
    starts = record.at_ms if record.at_ms is not None and record.at_ms > now_ms else None
    if session.console.json:
        session.console.document(
            {
                "batch": record.name,
                "tenant": record.tenant,
                "priority": record.priority,
                "max_in_flight": record.max_in_flight,
                "max_open": record.max_open,
                "starts_at": None if starts is None else starts / 1000,
                "rows": record.rows,
                "in_flight": record.in_flight,
                "open": record.open,
            }
        )
        return
    in_flight, open_runs = (
        f"{now} of at most {most}" if most is not None else f"{now}, no cap"
        for now, most in ((record.in_flight, record.max_in_flight), (record.open, record.max_open))
    )
    out = session.console.out
    out(f"batch {record.name} of tenant {record.tenant}: {plural(record.rows, 'row')} waiting")
    out(f"  priority   {record.priority}")
    out(f"  in flight  {in_flight}")
    out(f"  open       {open_runs}")
    if starts is not None:
        moment = datetime.fromtimestamp(starts / 1000, UTC).astimezone()
        out(f"  starts     {say_when(moment, now_ms)}")
