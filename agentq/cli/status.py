"""`agentq status`: where everything, a batch or a run stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from agentq.cli.batches import show_batches
from agentq.cli.card import pending_fields, run_card, run_fields
from agentq.cli.console import plural
from agentq.cli.globals import verb
from agentq.cli.holdups import holdup_lines, holdups
from agentq.cli.liveview import forecast_line, standing
from agentq.cli.resultline import seconds
from agentq.cli.tally import Tally, money_lines
from agentq.cli.target import find, resume_them
from agentq.core.money import format_usd
from agentq.core.text import clock
from agentq.core.webhook import GIVEN_UP

if TYPE_CHECKING:
    from agentq.app import AgentQ, Batch
    from agentq.cli.session import Session
    from agentq.core.records import Account, BatchRecord

SHOWN = 20


@verb("status")
@click.argument("target", required=False)
def command(session: Session, target: str | None) -> None:
    """Show everything, or one batch or run (TARGET)."""
    from agentq.app import Run

    app = session.server_app()
    if target is None:
        _everything(session, app)
        return
    found = find(app, target)
    if isinstance(found, Run):
        record = found.record()
        if session.console.json:
            session.console.document(run_fields(record))
        else:
            run_card(session.console, record)
    else:
        _batch(session, found)


def _everything(session: Session, app: AgentQ) -> None:
    workers = app.workers()
    tallies = [Tally.read(batch) for batch in app.batches()]
    asking = app.store.approvals.count()
    if session.console.json:
        names = [tally.as_dict() for tally in tallies]
        session.console.document(
            {"namespace": app.settings.namespace, "workers": workers, "asking": asking, "batches": names}
        )
        return
    session.console.out(f"namespace {app.settings.namespace}, {plural(len(workers), 'worker')}")
    if not workers:
        session.console.say("  nothing is worked on: agentq up, or agentq worker, starts a worker")
    if asking:
        session.console.out(f"{plural(asking, 'run')} waiting for a person: agentq approvals list")
    if tallies:
        session.console.out()
        show_batches(session, tallies)
    else:
        session.console.say("no batches yet; agentq submit FILE makes one")


def _batch(session: Session, batch: Batch) -> None:
    console = session.console
    tally, record, account = Tally.read(batch), batch.record(), batch.account()
    waiting = batch.pending(SHOWN) if tally.waiting else []
    held_up = holdups(batch, tally)
    if console.json:
        fields: dict[str, Any] = {"agent": record.agent, "tenant": record.tenant, **tally.as_dict()}
        fields["held_up"] = held_up
        fields |= {"notify": record.notify, "notified": seconds(record.notified_ms)}
        fields["notify_error"] = record.notify_error
        pending = [{"run": run, **pending_fields(call)} for run, call in waiting]
        console.document({**fields, "account": account_fields(account), "pending": pending})
        return
    agent = f"agent {record.agent}" if record.agent else "several agents"
    console.out(f"batch {batch.name}: {agent}, tenant {record.tenant}")
    console.out(f"  {tally}")
    for why in standing(tally):
        goes_on = "lets it go on" if tally.ended < tally.total else "lets rows begin that come later"
        cure = f": agentq resume {batch.name} {goes_on}" if why.startswith("paused") else ""
        cure = ": the same agentq submit again goes on with it" if why.startswith("its load") else cure
        console.out(f"  {why}{cure}")
    if tally.held and not record.paused:
        console.out(f"  {plural(tally.held, 'run')} paused: {resume_them(batch.name)}")
    for line in holdup_lines(held_up):
        console.out(f"  {line}")
    for reason, count in tally.stop_reasons.items():
        console.out(f"    {reason:<20}{count:>8}")
    console.out(f"  money   {money_line(account)}")
    if tally.forecast is not None and tally.ended < tally.total:
        console.out(f"  all     {forecast_line(tally.forecast, account.limit_nano)}")
    for line in money_lines(tally.money):
        console.out(f"  {line}")
    if record.notify:
        console.out(f"  notice  {_notice(record)}")
    for run, call in waiting:
        console.out(
            f"  waits   {run}:{call.id}  {call.tool}({call.arguments}) until {clock(call.deadline_ms)}"
        )
    if tally.waiting:
        console.say(f"  agentq approvals list batch={batch.name}   shows all, and what to type")


def _notice(record: BatchRecord) -> str:
    """Whom it tells that it is over, and whether it has."""
    if record.notified_ms is not None:
        return f"{record.notify} was told at {clock(record.notified_ms)}"
    if record.notify_error:
        yet = "" if record.notify_error.startswith(GIVEN_UP) else " yet"
        return f"{record.notify} was not told{yet}: {record.notify_error}"
    return f"{record.notify} is told when it is over"


def account_fields(account: Account) -> dict[str, Any]:
    """A scope's money for JSON, as decimal text."""
    return {
        "limit_usd": None if account.limit_nano is None else format_usd(account.limit_nano),
        "spent_usd": format_usd(account.spent_nano),
        "reserved_usd": format_usd(account.reserved_nano),
        "escrowed_usd": format_usd(account.escrowed_nano),
        "forfeited_usd": format_usd(account.forfeited_nano),
        "overage_usd": format_usd(account.overage_nano),
        "tokens_spent": account.tokens_spent,
    }


def money_line(account: Account) -> str:
    """A scope's money in one line."""
    left = "" if account.left_nano is None else f", left {format_usd(max(0, account.left_nano))}"
    limit = "no limit" if account.limit_nano is None else f"limit {format_usd(account.limit_nano)}"
    return (
        f"{limit}, spent {format_usd(account.spent_nano)}, reserved {format_usd(account.reserved_nano)}, "
        f"escrowed {format_usd(account.escrowed_nano)}{left} USD"
    )
