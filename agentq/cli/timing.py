"""`agentq submit --every`: the rows of a file become a schedule in place of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from agentq.cli.console import plural
from agentq.cli.estimate import confirm_cost, show_estimate
from agentq.cli.loading import LoadProgress
from agentq.cli.resultline import seconds
from agentq.cli.schedules import warn_without_workers
from agentq.cli.when import say_when

if TYPE_CHECKING:
    from agentq.app import AgentQ
    from agentq.app.schedule import Terms
    from agentq.cli.session import Session
    from agentq.engine.rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What `--every` and its neighbours say."""

    name: str
    """Of the schedule."""
    cron: str
    tz: str | None
    overlap: str
    agent: str | None
    dry_run: bool
    confirm_above: Decimal | None
    yes: bool


def schedule_rows(
    session: Session, app: AgentQ, timing: Timing, rows: Iterator[tuple[str, Row | str]], terms: Terms
) -> int:
    """Make a schedule of these rows, once all are checked, and say when it is due; the exit code.

    Raises:
        InputError: when a row is wrong; nothing was kept.
        UsageError: when the expression, the zone or a term cannot be.
        ConflictError: when there is another schedule of that name.
        UnavailableError: when there is no server.
    """
    from agentq.app.schedule import ScheduleDraft

    console, progress = session.console, LoadProgress(session.console)
    with ScheduleDraft(
        app,
        timing.name,
        timing.cron,
        agent=timing.agent,
        tz=timing.tz,
        overlap=timing.overlap,
        tell=progress,
        terms=terms,
    ) as draft:
        try:
            for where, row in rows:
                draft.add(where, row)
            draft.load.check()
        finally:
            progress.done()
        if timing.dry_run:
            show_estimate(console, timing.name, draft.load)
            return 0
        session.need_server(app)
        confirm_cost(console, draft.load, timing.confirm_above, yes=timing.yes)
        schedule, is_new = draft.write()
    record, plan = schedule.record(), schedule.plan()
    said: dict[str, Any] = {
        "schedule": timing.name,
        "new": is_new,
        "rows": record.rows,
        "cron": plan.cron,
        "tz": plan.zone,
        "next_at": None if record.paused is not None else seconds(record.next_ms),
    }
    if console.json:
        console.document(said)
        return 0
    known = "" if is_new else ", there already"
    console.out(f"schedule {timing.name}: {plural(record.rows, 'row')}, {plan.cron} ({plan.zone}){known}")
    following = schedule.next
    if following is not None:
        console.out(f"  next {say_when(following, app.store.watch.server_ms())}")
    console.say(f"  agentq schedules show {timing.name}")
    warn_without_workers(session, app)
    return 0
