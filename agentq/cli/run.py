"""`agentq run`: one run in the foreground."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from agentq.cli.card import run_fields, waits_for
from agentq.cli.globals import verb
from agentq.cli.tally import BUDGET_ROWS, WAITING_FOR_APPROVAL, Tally, cure, is_refusal, wanted
from agentq.cli.traceline import trace_line
from agentq.core.errors import UnavailableError, UsageError
from agentq.core.lifecycle import RunState

if TYPE_CHECKING:
    from agentq.app import AgentQ, Run
    from agentq.cli.session import Session
    from agentq.core.records import RunRecord

_PAUSE = 0.15


@verb("run")
@click.argument("agent")
@click.argument("text", required=False)
@click.option("--tenant", metavar="NAME", help="Who pays.")
def command(session: Session, agent: str, text: str | None, tenant: str | None) -> int:
    """Run AGENT once on TEXT (- or a pipe: standard input): its steps on stderr, its answer on stdout.

    Ctrl-C cancels the run.
    """
    app = session.user_app("run")
    _check_agent(app, agent)
    task = _task(text)
    session.server_app()
    if not app.workers():
        raise UnavailableError(
            "no worker process is alive, so nobody would do the run",
            hint="start one in another terminal: agentq up, or agentq worker",
        )
    run = app.submit(agent, task, tenant=tenant)
    session.console.say(f"{run.id}")
    try:
        record = _follow(session, run)
    except KeyboardInterrupt:
        run.cancel(by="Ctrl-C")
        session.console.say(f"\ncancelled {run.id}")
        raise
    return _conclude(session, record)


def _check_agent(app: AgentQ, agent: str) -> None:
    if agent not in app.agents:
        from agentq.core.words import nearest

        known = ", ".join(sorted(app.agents)) or "none"
        raise UsageError(
            f"there is no agent {agent!r}{nearest(agent, app.agents)}", hint=f"this app has: {known}"
        )


def _task(text: str | None) -> str:
    if text is None and sys.stdin.isatty():
        raise UsageError("there is no text to run on", hint='agentq run AGENT "text", or pipe it in')
    task = text if text not in {None, "-"} else sys.stdin.read()
    if not task or not task.strip():
        raise UsageError("the text is empty")
    return task


def _follow(session: Session, run: Run) -> RunRecord:
    said, troubles = 0, ""
    while True:
        # The record first: all events of a run that has ended are there to be read.
        record = run.record()
        for event in run.trace(said):
            session.console.say(trace_line(event))
            said += 1
        if record.state is RunState.QUEUED and record.last_error and record.last_error != troubles:
            troubles = record.last_error
            session.console.say(f"  not yet: {troubles}; tries again")
        if record.state is RunState.ENDED or (record.state is RunState.WAITING and record.gathering is None):
            return record
        if record.parked is not None and record.parked.is_dry:
            return record
        time.sleep(_PAUSE)


def _conclude(session: Session, record: RunRecord) -> int:
    console = session.console
    if console.json:
        console.document(run_fields(record))
    elif record.answer is not None:
        console.out(record.answer)
    if record.state is RunState.WAITING:
        for call in record.pending:
            for line in waits_for(record.id, call):
                console.say(line)
        console.say(f"  agentq cancel {record.id} ends it")
        return WAITING_FOR_APPROVAL
    if record.parked is not None:
        console.say(f"parked: {wanted(record.parked)}")
        for line in cure(record.parked):
            console.say(f"  {line}")
        return BUDGET_ROWS
    reason = record.stop_reason.value if record.stop_reason else ""
    if record.stop_reason is not None and not record.stop_reason.is_success:
        console.say(f"stopped: {' '.join(filter(None, (reason, record.stop_scope, record.stop_detail)))}")
    return _exit_code(record, reason)


def _exit_code(record: RunRecord, reason: str) -> int:
    refused = int(is_refusal(record.stop_detail))
    tally = Tally(record.id, total=1, ended=1, stop_reasons={reason: 1}, refused=refused)
    return tally.exit_code()
