"""`agentq schedules`: batches that are made again and again, and what people do about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from agentq.cli.console import plural
from agentq.cli.globals import Verb, VerbGroup
from agentq.cli.person import me
from agentq.cli.resultline import seconds
from agentq.cli.tally import Tally
from agentq.cli.when import say_when
from agentq.core.errors import UsageError

if TYPE_CHECKING:
    from agentq.app import AgentQ
    from agentq.app.schedule import Schedule
    from agentq.cli.session import Session

_HEAD = ("schedule", "every", "next", "last batch", "how it went")


@click.group("schedules", cls=VerbGroup, invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Batches that are made again and again.

    `agentq submit FILE --every '0 8 * * 1-5'` makes a schedule; workers make its batches, each called after
    the schedule and its time. Without a verb they are listed.
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_)


@command.command("list", cls=Verb)
@click.pass_obj
def list_(session: Session) -> None:
    """List the schedules, whose turn is next first."""
    app, console = session.server_app(), session.console
    found = app.schedules()
    if console.json:
        console.document([schedule_fields(app, schedule) for schedule in found])
    elif found:
        now_ms = app.store.watch.server_ms()
        rows = [_row(schedule, now_ms) for schedule in found]
        console.table(_HEAD, rows, left=range(len(_HEAD)))
        warn_without_workers(session, app)
    else:
        console.say("no schedules yet; agentq submit FILE --every '0 8 * * 1-5' makes one")


@command.command("show", cls=Verb)
@click.argument("name")
@click.pass_obj
def show(session: Session, name: str) -> None:
    """Show what schedule NAME makes, when, and how the last time went."""
    app, console = session.server_app(), session.console
    schedule = _found(app, name)
    if console.json:
        console.document(schedule_fields(app, schedule))
        return
    record, plan, now_ms = schedule.record(), schedule.plan(), app.store.watch.server_ms()
    console.out(f"{name}: {plural(record.rows, 'row')}, {plan.cron} ({plan.zone})")
    terms = {
        "agent": plan.agent,
        "tenant": plan.tenant,
        "max usd": plan.max_usd,
        "max tokens": plan.max_tokens,
        "overlap": plan.overlap,
        **{key.replace("_", " "): value for key, value in plan.options.items()},
    }
    facts = {
        "next": _next(schedule, now_ms),
        "last": "none yet" if record.last is None else f"{record.last}: {_outcome(schedule)}",
        "made": plural(record.made, "batch", "batches"),
        **{key: str(value) for key, value in terms.items() if value is not None},
    }
    for key, value in facts.items():
        console.out(f"  {key:<14}{value}")
    warn_without_workers(session, app)


@command.command("pause", cls=Verb)
@click.argument("name")
@click.pass_obj
def pause(session: Session, name: str) -> None:
    """Make no batch of schedule NAME until it is resumed. What is made already goes on."""
    app = session.server_app()
    schedule = _found(app, name)
    schedule.pause(by=me())
    _say(session, app, schedule, f"{name} is paused", f"  agentq schedules resume {name}")


@command.command("resume", cls=Verb)
@click.argument("name")
@click.pass_obj
def resume(session: Session, name: str) -> None:
    """Let schedule NAME go on. The times that were over meanwhile are left out."""
    app = session.server_app()
    schedule = _found(app, name)
    schedule.resume()
    _say(session, app, schedule, f"{name} goes on: {_next(schedule, app.store.watch.server_ms())}", "")


@command.command("run", cls=Verb)
@click.argument("name")
@click.pass_obj
def run(session: Session, name: str) -> None:
    """Have a worker make a batch of schedule NAME now, also while it is paused."""
    app = session.server_app()
    schedule = _found(app, name)
    batch = schedule.run()
    if session.console.json:
        session.console.document({"schedule": name, "batch": batch})
        return
    session.console.out(f"{name}: a worker makes the batch {batch}")
    session.console.say(f"  agentq watch {batch}")
    warn_without_workers(session, app)


@command.command("remove", cls=Verb)
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def remove(session: Session, name: str, yes: bool) -> None:
    """Forget schedule NAME and its rows. The batches that it has made stay."""
    app, console = session.server_app(), session.console
    schedule = _found(app, name)
    rows = schedule.record().rows
    if not yes:
        if not console.can_ask:
            raise UsageError(
                f"there is nobody to ask here whether to remove the schedule {name!r}", hint="-y says yes"
            )
        if not click.confirm(f"Remove the schedule {name} with its {plural(rows, 'row')}?", err=True):
            raise UsageError("nothing was removed")
    schedule.remove()
    if console.json:
        console.document({"schedule": name, "rows": rows})
    else:
        console.out(f"{name} is gone; its batches stay")


# ── what is said ─────────────────────────────────────────────────────────────────────────────────────


def schedule_fields(app: AgentQ, schedule: Schedule) -> dict[str, Any]:
    """A schedule for JSON."""
    record, plan, last = schedule.record(), schedule.plan(), schedule.last
    return {
        "schedule": schedule.name,
        "cron": plan.cron,
        "tz": plan.zone,
        "overlap": plan.overlap,
        "agent": plan.agent,
        "tenant": plan.tenant,
        "max_usd": plan.max_usd,
        "max_tokens": plan.max_tokens,
        "options": dict(plan.options),
        "rows": record.rows,
        "bytes": record.bytes,
        "created_at": seconds(record.created_ms),
        "next_at": None if record.paused is not None else seconds(record.next_ms),
        "asked_at": seconds(record.asked_ms),
        "paused_by": record.paused,
        "made": record.made,
        "outcome": record.outcome or None,
        "detail": record.detail or None,
        "last_batch": record.last,
        "last_at": seconds(record.last_ms),
        "last": None if last is None else Tally.read(last).as_dict(),
        "workers": len(app.workers()),
    }


def warn_without_workers(session: Session, app: AgentQ) -> None:
    """Say that nothing is made while no worker is alive."""
    if not app.workers():
        session.console.say(
            "no worker is alive, and batches are made by workers: agentq worker, or agentq up"
        )


def _found(app: AgentQ, name: str) -> Schedule:
    """The schedule of this name.

    Raises:
        UsageError: when there is none, with the nearest.
    """
    from agentq.app.schedule import Schedule

    schedule = Schedule(app, name)
    schedule.record()
    return schedule


def _say(session: Session, app: AgentQ, schedule: Schedule, words: str, hint: str) -> None:
    if session.console.json:
        session.console.document(schedule_fields(app, schedule))
        return
    session.console.out(words)
    if hint:
        session.console.say(hint)


def _row(schedule: Schedule, now_ms: int) -> tuple[str, ...]:
    record, plan = schedule.record(), schedule.plan()
    every = f"{plan.cron} ({plan.zone})"
    return schedule.name, every, _next(schedule, now_ms), record.last or "none yet", _outcome(schedule)


def _next(schedule: Schedule, now_ms: int) -> str:
    record = schedule.record()
    if record.asked_ms is not None:
        return "now, as asked for"
    if record.is_claimed:
        return "is made now"
    if record.paused is not None:
        return f"paused by {record.paused}"
    following = schedule.next
    return "never again" if following is None else say_when(following, now_ms)


def _outcome(schedule: Schedule) -> str:
    """How the last batch went, or why there is none of the last time."""
    record, last = schedule.record(), schedule.last
    parts = []
    if record.outcome == "retry":
        parts.append(f"is tried again: {record.detail}")
    elif record.outcome in {"failed", "skipped", "late"}:
        parts.append(f"{record.outcome}: {record.detail}")
    if last is not None:
        tally = Tally.read(last)
        failed = f", {tally.failed} failed" if tally.failed else ""
        parts.append(f"{tally.ended} of {tally.total} ended{failed}")
    elif record.last is not None:
        parts.append("kept no longer")
    return "; ".join(parts)
