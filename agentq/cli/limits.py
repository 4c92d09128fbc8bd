"""`agentq limits`: the rate limits of providers that the fleet has found, and who waits for them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from agentq.cli.console import columns, plural
from agentq.cli.globals import Verb, VerbGroup
from agentq.cli.person import me
from agentq.core.errors import UsageError
from agentq.core.text import clock
from agentq.core.words import nearest

if TYPE_CHECKING:
    from agentq.cli.session import Session
    from agentq.core.records import LaneRecord

HEAD = ("account", "model", "requests/min", "tokens/min", "waiting", "refused", "")


@click.group("limits", cls=VerbGroup)
def command() -> None:
    """The rate limits that the fleet has found: of each provider's account and model, a minute."""


@command.command("list", cls=Verb)
@click.pass_obj
def list_limits(session: Session) -> None:
    """List the lanes of the last day: calls of one account and model share one."""
    lanes = session.server_app().store.governor.lanes()
    if session.console.json:
        session.console.document([asdict(lane) for lane in lanes])
        return
    if not lanes:
        session.console.say("no call of a provider has been made in the last day")
        return
    for line in columns(HEAD, map(_row, lanes), left={0, 1, 6}):
        session.console.out(line)
    for account in dict.fromkeys(lane.account for lane in lanes if lane.stopped is not None):
        session.console.say(f"  agentq limits resume {account}   calls it again at once")


@command.command("resume", cls=Verb)
@click.argument("account")
@click.pass_obj
def resume(session: Session, account: str) -> None:
    """Call ACCOUNT again (as `list` names it, or `all`), which was stopped because it had no quota left."""
    governor = session.server_app().store.governor
    lanes = governor.lanes()
    stopped = sorted({lane.account for lane in lanes if lane.stopped is not None})
    known = sorted({lane.account for lane in lanes})
    if account != "all" and account not in known:
        raise UsageError(
            f"there is no account {account!r}{nearest(account, known)}", hint="agentq limits list shows them"
        )
    wanted = stopped if account == "all" else [account]
    resumed = [name for name in wanted if governor.resume(name, by=me())]
    if session.console.json:
        session.console.document({"resumed": resumed})
    else:
        session.console.out(f"{plural(len(resumed), 'account')} resumed")


def _row(lane: LaneRecord) -> tuple[str, ...]:
    def rate(value: int | None) -> str:
        return "?" if value is None else f"{value:,}"

    return (
        lane.account,
        lane.model,
        rate(lane.requests_a_minute),
        rate(lane.tokens_a_minute),
        str(lane.waiting),
        f"{lane.refused} of {lane.taken}",
        _state(lane),
    )


def _state(lane: LaneRecord) -> str:
    if lane.stopped is not None:
        return f"stopped {clock(lane.stopped_ms)}: {lane.stopped}"
    if lane.wait_ms:
        return f"all wait {lane.wait_ms / 1000:.1f} s"
    return "as its headers say" if lane.is_named else ""
