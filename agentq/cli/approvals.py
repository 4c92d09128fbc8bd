"""`agentq approvals`: calls that wait for a person, and what people decide about them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentq.cli.console import plural
from agentq.cli.conversation import conversation
from agentq.cli.globals import Verb, VerbGroup
from agentq.cli.inbox import find, question_card, question_fields, question_table, the_question
from agentq.cli.person import me
from agentq.core.errors import ConflictError, UsageError
from agentq.core.words import nearest
from agentq.engine.decide import DONE, Answer, Decided, Question, decide_many, questions, said

if TYPE_CHECKING:
    from agentq.app import AgentQ
    from agentq.app.approval import Approval
    from agentq.cli.session import Session
    from agentq.store.approvals import Verdict

_LISTED = 50
_MESSAGES = 4


@click.group("approvals", cls=VerbGroup)
def command() -> None:
    """Calls that wait for a person.

    ID is what `list` shows, or enough of its beginning. WHERE is key=value: run, batch, tenant, agent, state,
    custom_id, tool, or kind (approval, or unknown: a call that may have acted). Several must all hold.
    """


@command.command("list", cls=Verb)
@click.argument("where", nargs=-1)
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help=f"Show N at most. [default: {_LISTED}]"
)
@click.pass_obj
def list_(session: Session, where: tuple[str, ...], limit: int | None) -> None:
    """List what waits.

    All calls that wait for a person, or those that WHERE means; who has waited longest comes first.
    """
    app, console = session.server_app(), session.console
    found = _meant(app, where)
    if console.json:
        console.document([question_fields(question) for question in found[:limit]])
        return
    shown = found[: limit or _LISTED]
    if not found:
        console.say(_nothing(app, where))
        return
    for line in question_table(shown, app.store.watch.server_ms()):
        console.out(line)
    if len(found) > len(shown):
        console.say(f"… and {len(found) - len(shown)} more; --limit {len(found)} shows all")
    console.say("  agentq approvals show ID | approve ID… | deny ID… --reason TEXT")


@command.command("show", cls=Verb)
@click.argument("id")
@click.pass_obj
def show(session: Session, id: str) -> None:
    """Show one call.

    Its arguments, what has led to it, how long it waits, and what happens then.
    """
    app, console = session.server_app(), session.console
    question = the_question(app.store, id)
    messages = app.run(question.run.id).thread().messages
    if console.json:
        said = [message.as_dict() for message in messages[-_MESSAGES:]]
        console.document({**question_fields(question), "messages": said})
        return
    for line in question_card(question, app.store.watch.server_ms()):
        console.out(line)
    console.out(f"  the end of the conversation (agentq show {question.run.id} --messages shows all):")
    for line in conversation(messages[-_MESSAGES:]):
        console.out(f"    {line}")
    console.say(f"  agentq approvals approve {question.id}")
    console.say(f"  agentq approvals deny {question.id} --reason TEXT")


def _deciding(name: str) -> Callable[[Callable[..., None]], click.Command]:
    """Make a function a verb that decides: it takes the session, the ids, and what else was chosen."""
    options = (
        click.argument("ids", nargs=-1, metavar="[ID]..."),
        click.option("--all", "everything", is_flag=True, help="All calls that wait."),
        click.option(
            "--where",
            multiple=True,
            metavar="KEY=VALUE",
            help="All calls that wait and of which all this holds. Further KEY=VALUE may follow it.",
        ),
        click.option("--by", metavar="NAME", help="Who decides; else user@host."),
        click.option("-y", "--yes", is_flag=True, help="Do not ask first (--all and --where do)."),
    )

    def wrap(function: Callable[..., None]) -> click.Command:
        wrapped: Any = click.pass_obj(function)
        for option in reversed(options):
            wrapped = option(wrapped)
        return command.command(name, cls=Verb)(wrapped)

    return wrap


@_deciding("approve")
@click.option(
    "--arguments", metavar="JSON|@FILE", help="Make the call with these instead: all of them, as an object."
)
@click.option("--reason", metavar="TEXT", help="Kept with the decision.")
def approve(session: Session, arguments: str | None, reason: str | None, **chosen: Any) -> None:
    """Let calls be made. A run goes on when all of its calls are decided.

    With -A the --arguments are checked against the tool before; else the model hears of what does not fit.
    """
    changed = None if arguments is None else _arguments(arguments)
    _Decision(session, "approve", reason, **chosen).take(changed)


@_deciding("deny")
@click.option("--reason", metavar="TEXT", help="Why: the model reads it.")
def deny(session: Session, reason: str | None, **chosen: Any) -> None:
    """Do not let calls be made. The model reads the reason; or the run ends, where its agent says so."""
    _Decision(session, "deny", reason, **chosen).take(None)


class _Decision:
    """One decision as it was typed, about one call or many."""

    def __init__(
        self,
        session: Session,
        verdict: Verdict,
        reason: str | None,
        *,
        ids: tuple[str, ...],
        everything: bool,
        where: tuple[str, ...],
        by: str | None,
        yes: bool,
    ) -> None:
        from agentq.app.where import is_term

        if where:  # further terms may follow the first one
            where += tuple(word for word in ids if is_term(word))
            ids = tuple(word for word in ids if not is_term(word))
        if bool(ids) + everything + bool(where) != 1:
            raise UsageError(
                "say which calls: some IDs, --where, or --all, and only one of them",
                hint="agentq approvals list shows what waits",
            )
        self.session = session
        self.verdict: Verdict = verdict
        self.reason = reason or ""
        self.ids = list(dict.fromkeys(ids))
        self.where = where
        self.by = me() if by is None else by
        self.yes = yes

    def take(self, arguments: Mapping[str, Any] | None) -> None:
        """Decide, and say what came of it."""
        if arguments is not None and len(self.ids) != 1:
            raise UsageError("--arguments is for one call", hint="give one ID")
        app = self.session.server_app()
        if len(self.ids) == 1:
            self._one(app, arguments)
        elif self.ids:
            self._many(app, list(dict.fromkeys(find(app.store, word) for word in self.ids)))
        else:
            self._all(app)

    def _one(self, app: AgentQ, arguments: Mapping[str, Any] | None) -> None:
        from agentq.app.approval import approval_of

        found = approval_of(the_question(app.store, self.ids[0]), app.store, app.agents)
        if self.verdict == "deny":
            left = found.deny(by=self.by, reason=self.reason)
        else:
            left = found.approve(by=self.by, arguments=arguments, reason=self.reason)
        if self.session.console.json:
            self.session.console.document({"id": found.id, "verdict": self.verdict, "left": left})
            return
        follows = f"{plural(left, 'call')} of its run still to be decided" if left else self._next(app, found)
        self.session.console.out(f"{found.id} is {DONE[self.verdict]}: {follows}")
        if arguments is not None and found.agent not in app.agents:
            self.session.console.say("  its arguments were not checked: -A names the app that knows the tool")

    def _next(self, app: AgentQ, decided: Approval) -> str:
        record = app.run(decided.run_id).record()
        batch = record.spec.batch
        if record.paused is not None:
            return f"its run is paused, agentq resume {record.id} lets it go on"
        if batch is not None and app.batch(batch).record().paused is not None:
            return f"its batch is paused, agentq resume {batch} lets it go on"
        return "its run goes on"

    def _all(self, app: AgentQ) -> None:
        found = _meant(app, self.where)
        if not found:
            if self.session.console.json:
                self._say(Decided())
            else:
                self.session.console.out(_nothing(app, self.where))
            return
        if not self.yes:
            self._ask(found)
        self._many(app, [(question.run.id, question.call.id) for question in found])

    def _ask(self, found: Sequence[Question]) -> None:
        tools = Counter(question.call.tool for question in found)
        each = ", ".join(f"{count} {tool}" for tool, count in tools.most_common())
        what = f"{self.verdict} {plural(len(found), 'call')} ({each})"
        if not self.session.console.can_ask:
            raise UsageError(f"there is nobody to ask here whether to {what}", hint="-y says yes")
        if not click.confirm(f"{what[0].upper()}{what[1:]}?", err=True):
            raise UsageError("nothing was decided")

    def _many(self, app: AgentQ, calls: Sequence[tuple[str, str]]) -> None:
        done = decide_many(app.store, calls, Answer(self.verdict, self.by, self.reason))
        if not done.decided and len(done.taken) == len(calls):
            name, first = done.taken[0]
            raise ConflictError(
                f"all {plural(len(calls), 'call')} were decided before; {name} was {said(first)}",
                hint="agentq approvals list shows what waits",
            )
        self._say(done)

    def _say(self, done: Decided) -> None:
        console = self.session.console
        if console.json:
            taken = [
                {"id": name, "verdict": first.verdict, "by": first.by, "at": first.at_ms / 1000}
                for name, first in done.taken
            ]
            console.document(
                {
                    "verdict": self.verdict,
                    "decided": done.decided,
                    "taken": taken,
                    "expired": done.expired,
                    "closed": done.closed,
                }
            )
            return
        console.out(f"{plural(done.decided, 'call')} {DONE[self.verdict]}")
        who = Counter((DONE[first.verdict], first.by) for _, first in done.taken)
        for (what, by), count in who.most_common():
            console.out(f"  {plural(count, 'call')} {what} before by {by}")
        if done.expired:
            console.out(f"  {plural(done.expired, 'call')} too late: the time was over")
        if done.closed:
            console.out(f"  {plural(done.closed, 'call')} of runs that do not wait any more")


def _meant(app: AgentQ, words: tuple[str, ...]) -> list[Question]:
    from agentq.app.where import CALL_KEYS, where

    wanted = where(words, keys=CALL_KEYS, now=app.store.watch.server_ms)
    if (batch := wanted.only("batch")) is not None:
        app.batch(batch)
    return list(questions(app.store, wanted.holds_for))


def _nothing(app: AgentQ, words: tuple[str, ...]) -> str:
    """That nothing is meant, and what may have been."""
    from agentq.app.where import CALL_KEYS, where

    wanted = where(words, keys=CALL_KEYS, now=app.store.watch.server_ms)
    if not wanted:
        return "no call waits for a decision"
    tools = {question.call.tool for question in _meant(app, ())}
    tool = wanted.only("tool") or ""
    close = nearest(tool, tools - {tool})
    return f"no call waits where {wanted}{close}"


def _arguments(text: str) -> Mapping[str, Any]:
    """What was given to --arguments.

    Raises:
        UsageError: when it is no JSON object, with the place.
    """
    where = "--arguments"
    if text.startswith("@"):
        where = text[1:]
        try:
            text = Path(where).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UsageError(f"{where} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError as error:
        said = f"{error.msg[:1].lower()}{error.msg[1:]} at line {error.lineno}, column {error.colno}"
        raise UsageError(
            f"{where}: not JSON: {said}", hint="""give an object: '{"order_id": "1001"}', or @FILE"""
        ) from None
    except ValueError as error:  # a number with more digits than Python reads
        raise UsageError(f"{where}: cannot be read: {error}") from None
    except RecursionError:
        raise UsageError(f"{where}: nested too deeply") from None
    if not isinstance(parsed, dict):
        raise UsageError(
            f"{where}: the arguments must be a JSON object, not {text.strip()[:40]}",
            hint="""'{"order_id": "1001"}' names each argument""",
        )
    return parsed
