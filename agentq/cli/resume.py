"""`agentq resume`: what was paused goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentq.cli.console import plural
from agentq.cli.globals import verb
from agentq.cli.target import Chosen, choose, confirm, resume_them, target_options
from agentq.core.errors import UsageError
from agentq.core.lifecycle import RunState

if TYPE_CHECKING:
    from agentq.app import Batch
    from agentq.cli.session import Session


@verb("resume")
@target_options
def command(session: Session, target: tuple[str, ...], filters: tuple[str, ...], yes: bool) -> None:
    """Let TARGET go on that was paused: a run, or a batch. A run that was paused itself is resumed itself.

    Workers take up what goes on within seconds.
    """
    from agentq.app import Run
    from agentq.engine.pause import resume_runs

    app = session.server_app()
    found = choose(app, target, filters, ended=False)
    if isinstance(found, Run):
        record = found.record()
        if not record.state.is_live:
            raise UsageError(f"run {found.id} has ended", hint=f"agentq retry {found.id} reopens it")
        if record.state is RunState.CANCELLING:
            raise UsageError(f"run {found.id} is being cancelled")
        resumed = resume_runs(app.store, [found.id])["RESUMED"]
        if not resumed:
            raise UsageError(
                f"run {found.id} is held by the pause of its batch", hint=f"agentq resume {record.spec.batch}"
            )
        paused = record.paused is not None or record.state is RunState.HELD
        _say(session, found.id, int(paused), f"{found.id} {'goes on' if paused else 'was not paused'}")
    elif isinstance(found, Chosen):
        if not found.runs:
            _say(session, found.name, 0, found.nothing)
            return
        confirm(session, "resume", len(found.runs), found.name, yes=yes)
        words = resume_runs(app.store, found.runs)
        held = f", {words['HELD']} held by the pause of their batch" if words["HELD"] else ""
        _say(
            session,
            found.name,
            words["RESUMED"],
            f"{found.name}: {plural(words['RESUMED'], 'run')} resumed{held}",
        )
    else:
        _batch(session, found, yes=yes)


def _batch(session: Session, batch: Batch, *, yes: bool) -> None:
    record = batch.record()
    live, paused = record.total - record.ended, record.paused is not None
    if paused and live:
        confirm(session, "resume", live, batch.name, yes=yes)
    resumed = batch.resume()  # also of one that is not paused: an earlier resume may have been cut short
    left = batch.counts()["held"]
    rows = f", {plural(record.rows, 'row')} may begin" if record.rows else ""
    done = f"goes on: {plural(resumed, 'run')} let go{rows}" if paused or resumed else "was not paused"
    itself = "itself stays" if left == 1 else "themselves stay"
    still = f", {plural(left, 'run')} paused by {itself} so" if left else ""
    _say(session, batch.name, resumed, f"{batch.name} {done}{still}")
    if left:
        session.console.say(f"  {resume_them(batch.name)}")


def _say(session: Session, target: str, resumed: int, sentence: str) -> None:
    if session.console.json:
        session.console.document({"target": target, "resumed": resumed})
    else:
        session.console.out(sentence)
