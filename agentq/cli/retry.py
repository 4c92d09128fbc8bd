"""`agentq retry`: what has ended goes on, or a new run goes on from an earlier step of it."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING

import click

from agentq.cli.amount import USD
from agentq.cli.console import plural
from agentq.cli.globals import verb
from agentq.cli.person import me
from agentq.cli.target import Chosen, choose, confirm, target_options
from agentq.core.errors import UsageError
from agentq.core.text import encodable

if TYPE_CHECKING:
    from agentq.app import AgentQ, Run
    from agentq.cli.session import Session
    from agentq.engine.fork import MadeCall
    from agentq.engine.retry import NewBudgets, Retried

SHOWN = 20
"""So many calls that a fork may make again are listed."""


@verb("retry")
@target_options
@click.option(
    "--max-steps", type=click.IntRange(1), metavar="N", help="The most steps, with those it has made."
)
@click.option(
    "--max-tokens", type=click.IntRange(1), metavar="N", help="The most tokens, with those it has used."
)
@click.option("--max-usd", type=USD, help="The most that it may spend, with what it has spent.")
@click.option("--max-seconds", type=float, metavar="S", help="The longest at work, with what it has been.")
@click.option(
    "--from-step",
    type=click.IntRange(0),
    metavar="N",
    help="Make a new run of the first N steps of the run TARGET.",
)
@click.option("--by", metavar="NAME", help="Who, for the trace; else user@host.")
def command(  # noqa: PLR0917 - click passes all of them by name
    session: Session,
    target: tuple[str, ...],
    filters: tuple[str, ...],
    yes: bool,
    max_steps: int | None,
    max_tokens: int | None,
    max_usd: Decimal | None,
    max_seconds: float | None,
    from_step: int | None,
    by: str | None,
) -> None:
    """Retry TARGET: a run that has ended, or all runs of a batch that ended without finishing.

    A run goes on from its last committed step; what it has spent and done stays. One that a budget of its own
    has stopped needs a larger one. --where needs batch=NAME. With --from-step the run stays as it is, and a
    new one goes on behind its step N.
    """
    from agentq.app import Run

    app = session.server_app()
    found, who = choose(app, target, filters, ended=True), encodable(by or me())
    budgets: NewBudgets = {
        "max_steps": max_steps,
        "max_tokens": max_tokens,
        "max_usd": max_usd,
        "max_seconds": max_seconds,
    }
    if from_step is not None:
        if not isinstance(found, Run):
            raise UsageError("--from-step is for one run", hint="agentq retry RUN --from-step N")
        _fork(session, app, found, from_step, budgets, by=who, yes=yes)
    elif isinstance(found, Run):
        found.retry(by=who, **budgets)
        if session.console.json:
            session.console.document({"target": found.id, "retried": 1, "refused": {}})
        else:
            record = found.record()
            calls = record.phase == "tools"  # their reply is committed and paid
            at = f"with the calls of step {record.steps}" if calls else f"from step {record.steps + 1}"
            session.console.out(f"{found.id} goes on {at}")
    elif isinstance(found, Chosen):
        from agentq.engine.retry import Retried, retry_runs

        if not found.runs:
            _say(session, found.name, Retried(), found.nothing)
            return
        confirm(session, "retry", len(found.runs), found.name, yes=yes)
        _say(session, found.name, retry_runs(app.store, found.runs, by=who, budgets=budgets))
    else:
        reasons = found.stop_reasons()
        count = sum(reasons.values()) - reasons.get("finished", 0)
        if count:
            confirm(session, "retry", count, found.name, yes=yes)
        _say(session, found.name, found.retry(by=who, **budgets))


def _say(session: Session, target: str, retried: Retried, sentence: str | None = None) -> None:
    from agentq.engine.refusal import NEVER_STARTED

    if session.console.json:
        session.console.document(
            {
                "target": target,
                "retried": len(retried.runs),
                "rows": retried.rows,
                "refused": {_key(why): count for why, count in retried.groups().items()},
                "runs": retried.runs,
            }
        )
        return
    rows = f", and {plural(retried.rows, 'row')} that had never begun" if retried.rows else ""
    session.console.out(sentence or f"{target}: {plural(len(retried.runs), 'run')} retried{rows}")
    for why, count in retried.groups().items():
        session.console.out(f"  {count} not: they {why}")
    if retried.rows_stay:
        session.console.say(
            "  rows that had never begun stay ended while runs cancelled with them have not ended"
        )
        session.console.say(f"  agentq retry {target} again, when agentq status {target} shows none of these")
    if hint := next((one.hint for one in retried.refused.values() if one.group == NEVER_STARTED), ""):
        session.console.say(f"  {hint}")


def _key(why: str) -> str:
    """Why runs were not retried, as a key of JSON: `need more (--max-steps)` is `need_more_max_steps`."""
    return "_".join(re.findall(r"\w+", why))


def _fork(
    session: Session, app: AgentQ, run: Run, step: int, budgets: NewBudgets, *, by: str, yes: bool
) -> None:
    agent = app.agents.get(run.record().spec.agent)
    calls = run.calls_after(step, agent)
    if calls and not yes:
        _ask(session, step, calls, only_acts=agent is not None)
    forked = run.fork(step, by, **budgets)
    if session.console.json:
        session.console.document(
            {
                "run": forked.id,
                "forked_from": run.id,
                "step": step,
                "calls": [
                    {"step": call.step, "tool": call.tool, "arguments": call.arguments, "result": call.result}
                    for call in calls
                ],
            }
        )
    else:
        session.console.out(f"{forked.id} goes on behind step {step} of {run.id}")


def _ask(session: Session, step: int, calls: list[MadeCall], *, only_acts: bool) -> None:
    """Return when a person wants the fork although it may make these calls again.

    Raises:
        UsageError: when not, or nobody is there to ask.
    """
    console = session.console
    what = "side effect" if only_acts else "call"
    known = "" if only_acts else "; which of them only read is known with -A module:app"
    console.say(f"{plural(len(calls), what)} behind step {step} may be made again by the new run{known}:")
    for call in calls[:SHOWN]:
        result = "not known" if call.result is None else " ".join(call.result.split())[:80]
        console.say(f"  step {call.step}  {call.tool}({call.arguments}) → {result}")
    if len(calls) > SHOWN:
        console.say(f"  and {len(calls) - SHOWN} more")
    if not console.can_ask:
        raise UsageError("there is nobody to ask here whether to make them again", hint="-y says yes")
    if not click.confirm("Make the new run?", err=True):
        raise UsageError("nothing was done")
