"""`agentq show`: one run from near."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from agentq.cli.card import run_card, run_fields
from agentq.cli.conversation import conversation
from agentq.cli.globals import verb
from agentq.cli.traceline import trace_line
from agentq.core.errors import NoSuchRunError, UsageError

if TYPE_CHECKING:
    from agentq.app import AgentQ, Run
    from agentq.cli.session import Session


@verb("show")
@click.argument("run")
@click.option("--messages", "view", flag_value="messages", help="The conversation.")
@click.option("--trace", "view", flag_value="trace", help="What happened, event by event.")
@click.option("--raw", "view", flag_value="raw", help="The whole thread as it is stored, in JSON.")
def command(session: Session, run: str, view: str | None) -> None:
    """Show RUN: how it stands and its answer, or one view of its thread."""
    found = _found(session.server_app(), run)
    match view:
        case None if session.console.json:
            session.console.document(run_fields(found.record()))
        case None:
            run_card(session.console, found.record())
            session.console.say(f"  agentq show {run} --messages | --trace | --raw shows more")
        case "messages":
            _messages(session, found)
        case "trace":
            _trace(session, found)
        case "raw":
            session.console.out(found.thread().to_json(indent=2))
        case _:
            raise UsageError(f"there is no view {view!r}")


def _found(app: AgentQ, word: str) -> Run:
    """The run of this id. A batch's name is answered with what shows a batch."""
    try:
        return app.run(word)
    except NoSuchRunError:
        if app.store.batches.read(word) is None:
            raise
    raise UsageError(
        f"{word!r} is a batch, and this shows one run",
        hint=f"agentq status {word} shows it, agentq runs --batch {word} lists its runs",
    )


def _messages(session: Session, run: Run) -> None:
    messages = run.thread().messages
    if session.console.json:
        session.console.document([message.as_dict() for message in messages])
        return
    if not messages:
        session.console.say("nothing is kept of its conversation any more")
    for line in conversation(messages):
        session.console.out(line)


def _trace(session: Session, run: Run) -> None:
    events = run.trace()
    if session.console.json:
        session.console.document([event.as_dict() for event in events])
        return
    for event in events:
        session.console.out(trace_line(event))
