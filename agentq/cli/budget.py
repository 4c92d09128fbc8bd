"""`agentq budget`: what scopes may spend, have spent, and what people do about it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import click

from agentq.cli.amount import KEEP, Keep, Limit, Nano, Tokens
from agentq.cli.budgettree import node_fields, show_tree, usd
from agentq.cli.console import plural
from agentq.cli.globals import Verb, VerbGroup
from agentq.cli.person import me
from agentq.cli.scope import ONLY_NEW_RUNS, base_of, guess, parse_scope, require_subject
from agentq.core.errors import UsageError
from agentq.core.ids import check_name
from agentq.core.records import Actor
from agentq.core.text import encodable

if TYPE_CHECKING:
    from agentq.app import AgentQ
    from agentq.cli.session import Session
    from agentq.store.connect import Store

_WINDDOWN_AT_ONCE = 100
_LEAVE_TO_RUNS = "run"


@click.group("budget", cls=VerbGroup)
def command() -> None:
    """What scopes may spend and have spent.

    SCOPE is global, tenant:NAME, batch:NAME, run:ID, agent:NAME, model:NAME or key:NAME. With @day or
    @month behind it, it is each day or month (UTC) of that scope.
    """


@command.command("show", cls=Verb)
@click.argument("scope", required=False)
@click.option("--runs", is_flag=True, help="A batch with its runs, a run with its children; up to 1,000.")
@click.pass_obj
def show(session: Session, scope: str | None, runs: bool) -> None:
    """Show SCOPE and what is in it, else everything: money in USD, and who waits for it.

    held is what is set aside for closing turns; left is what may still be reserved; forfeited and
    overage are parts of spent. tokens are those that are spent, reserved or held.
    """
    scope = parse_scope(scope or "global", period=True)
    scopes = session.server_app().store.scopes
    require_subject(scopes, scope)
    root = scopes.tree(scope, runs=runs)
    if session.console.json:
        session.console.document(node_fields(root))
    else:
        show_tree(session.console, root)
    if not scopes.exists(scope) and not scopes.exists(base_of(scope)):
        session.console.say(f"nothing is limited or booked in {scope} yet{guess(scopes, scope)}")


def _acting(name: str, *, needs_reason: bool = False) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a function a verb that changes the ledger: it takes the `Change` first."""

    def wrap(function: Callable[..., Any]) -> click.Command:
        def invoke(
            session: Session,
            scope: str,
            reason: str | None,
            by: str | None,
            operation: str | None,
            **own: Any,
        ) -> None:
            actor = Actor(
                check_name("operation", secrets.token_hex(8) if operation is None else operation),
                encodable(by or me()),
                encodable(reason or ""),
            )
            function(Change(session, scope, actor), **own)

        invoke.__doc__ = function.__doc__
        options = (
            click.argument("scope"),
            click.option("--reason", required=needs_reason, metavar="TEXT", help="Why, for the log."),
            click.option("--by", metavar="NAME", help="Who, for the log; else user@host."),
            click.option(
                "--id",
                "operation",
                metavar="OPERATION",
                help="Done once under this id (for 7 days), however often it is typed; else a fresh one.",
            ),
        )
        wrapped: Any = click.pass_obj(invoke)
        for option in reversed(options):
            wrapped = option(wrapped)
        wrapped.__click_params__ += getattr(function, "__click_params__", [])
        return command.command(name, cls=Verb)(wrapped)

    return wrap


class Change:
    """One change of the ledger: its scope, by whom, and what is said about it afterwards."""

    def __init__(self, session: Session, scope: str, actor: Actor) -> None:
        self.session = session
        self.scope = parse_scope(scope)
        self.actor = actor
        self.kind = self.scope.partition(":")[0].partition("@")[0]

    @property
    def is_window(self) -> bool:
        """Whether it is about the days or months of a scope."""
        return self.scope.endswith(("@day", "@month"))

    def refuse_window(self, hint: str) -> None:
        """Return when it is about a scope itself.

        Raises:
            UsageError: when it is about its windows.
        """
        if self.is_window:
            base = base_of(self.scope)
            raise UsageError(
                f"{self.scope} is a window, and this is for whole scopes", hint=hint.format(base)
            )

    def make(self, act: Callable[[Store], str]) -> None:
        """Do it once and say how things stand then. `act` answers what it has done, in words."""
        app: AgentQ = self.session.server_app()
        store, console = app.store, self.session.console
        require_subject(store.scopes, self.scope)
        before, unknown = store.scopes.parked(self.scope), guess(store.scopes, self.scope)
        again = store.ledger.was_done(self.actor.operation)
        said = act(store)  # also again: under the id of another command it is refused
        if again:
            said = f"operation {self.actor.operation} was done before: nothing was changed"
        node, after = store.scopes.node(self.scope), store.scopes.parked(self.scope)
        if console.json:
            console.document(
                {
                    "operation": self.actor.operation,
                    "done": not again,
                    "parked_before": before,
                    "parked_after": after,
                    "account": node_fields(node),
                }
            )
        else:
            show_tree(console, node)
        console.say(said)
        if unknown and not again:
            console.say(f"  {self.scope} had no account before{unknown}")
        if before or after:
            console.say(f"  {plural(before, 'run')} waited for its money, {after} still do")
        for below, unit in ((node.account.left_nano, "USD"), (node.account.tokens_left, "tokens")):
            if below is not None and below < 0:
                amount = usd(-below) if unit == "USD" else -below
                console.say(f"  more is taken than its limit, by {amount} {unit}: it reserves nothing")


@_acting("set")
@click.option(
    "--max-usd", type=Limit(Nano()), default=KEEP, metavar="USD|none", help="The most that it may spend."
)
@click.option(
    "--max-tokens", type=Limit(Tokens()), default=KEEP, metavar="N|none", help="The same in tokens."
)
@click.option(
    "--on-exhausted",
    type=click.Choice(["park", "stop", "winddown", _LEAVE_TO_RUNS]),
    help="When it is dry its runs wait (park), answer with what they have (stop), or something in between "
    "(winddown); run: as each was submitted.",
)
def set_(
    change: Change, max_usd: int | Keep | None, max_tokens: int | Keep | None, on_exhausted: str | None
) -> None:
    """Set the limits of SCOPE, also below what is spent; none takes a limit away."""
    if max_usd == KEEP and max_tokens == KEEP and on_exhausted is None:
        raise UsageError("there is nothing to set", hint="give --max-usd, --max-tokens or --on-exhausted")
    if change.kind == "run":
        if 0 in (max_usd, max_tokens):
            raise UsageError(
                "a run's limit must be more than 0",
                hint=f"agentq cancel {change.scope.partition(':')[2]} ends it",
            )
        if on_exhausted is not None:
            raise UsageError(
                "a run whose own budget is used up always stops", hint="leave --on-exhausted out"
            )

    def act(store: Store) -> str:
        policy = KEEP if on_exhausted is None else None if on_exhausted == _LEAVE_TO_RUNS else on_exhausted
        store.ledger.set_limit(
            change.scope, usd=max_usd, tokens=max_tokens, on_exhausted=policy, actor=change.actor
        )
        if change.kind in ONLY_NEW_RUNS:
            return (
                f"{change.scope} is set; runs that are submitted from now on are in it, those before are not"
            )
        return f"{change.scope} is set"

    change.make(act)


@_acting("topup")
@click.option("--usd", "nano", type=Nano(signed=True), default="0", metavar="±USD", help="By so much.")
@click.option("--tokens", type=Tokens(signed=True), default="0", metavar="±N", help="By so much.")
def topup(change: Change, nano: int, tokens: int) -> None:
    """Raise the limits of SCOPE, or lower them. Runs that waited for that money go on where they were."""
    _refuse_nothing(nano, tokens)

    def act(store: Store) -> str:
        store.ledger.topup(change.scope, actor=change.actor, usd=nano, tokens=tokens)
        return f"{change.scope}: limit {_changes(nano, tokens)}"

    change.make(act)


@_acting("freeze")
def freeze(change: Change) -> None:
    """Reserve nothing in SCOPE any more. Calls in flight are still booked; its runs are parked."""
    change.refuse_window("agentq budget freeze {}")

    def act(store: Store) -> str:
        store.ledger.freeze(change.scope, actor=change.actor)
        return f"{change.scope} is frozen; agentq budget unfreeze {change.scope} lets it go on"

    change.make(act)


@_acting("unfreeze")
def unfreeze(change: Change) -> None:
    """Let SCOPE go on, and the runs that were parked in it."""
    change.refuse_window("agentq budget unfreeze {}")

    def act(store: Store) -> str:
        store.ledger.freeze(change.scope, actor=change.actor, frozen=False)
        return f"{change.scope} goes on"

    change.make(act)


@_acting("winddown")
def winddown(change: Change) -> None:
    """Let the runs that are parked in SCOPE, or in its windows, make their closing turns and end."""
    from agentq.store.scopes import places

    def act(store: Store) -> str:
        # Each round is done once; the operation itself is the last, so a half of it can be typed again.
        wound, rounds = 0, 0
        for place in places(change.scope):
            left = 1
            while left:
                rounds += 1
                part = replace(change.actor, operation=f"{change.actor.operation}.{rounds}")
                count, left = store.ledger.winddown(place, actor=part, at_most=_WINDDOWN_AT_ONCE)
                wound += count
        count, _ = store.ledger.winddown(change.scope, actor=change.actor, at_most=_WINDDOWN_AT_ONCE)
        wound += count
        return f"{change.scope}: {plural(wound, 'run')} will make their closing turns"

    change.make(act)


@_acting("charge", needs_reason=True)
@click.option("--usd", "nano", type=Nano(), default="0", metavar="USD", help="What it cost.")
@click.option("--tokens", type=Tokens(), default="0", metavar="N", help="Tokens that it used.")
def charge(change: Change, nano: int, tokens: int) -> None:
    """Book in SCOPE, and around it, what was spent without agentq. Never refused for want of budget."""
    _book(change, "charge", nano, tokens)


@_acting("adjust", needs_reason=True)
@click.option("--usd", "nano", type=Nano(signed=True), default="0", metavar="±USD", help="By so much.")
@click.option("--tokens", type=Tokens(signed=True), default="0", metavar="±N", help="By so much.")
def adjust(change: Change, nano: int, tokens: int) -> None:
    """Correct what SCOPE, and the scopes around it, have spent: an invoice says otherwise."""
    _book(change, "adjust", nano, tokens)


def _book(change: Change, kind: Literal["charge", "adjust"], nano: int, tokens: int) -> None:
    change.refuse_window(f"agentq budget {kind} {{}}: its running day and month get it too")
    _refuse_nothing(nano, tokens)

    def act(store: Store) -> str:
        store.ledger.book(change.scope, kind, actor=change.actor, usd=nano, tokens=tokens)
        return f"{change.scope} and the scopes around it: spent {_changes(nano, tokens)}"

    change.make(act)


def _refuse_nothing(nano: int, tokens: int) -> None:
    if not nano and not tokens:
        raise UsageError("that would change nothing", hint="give --usd, --tokens or both")


def _changes(nano: int, tokens: int) -> str:
    """`+5.000000 USD, -100 tokens`."""
    money = [f"{'-' if nano < 0 else '+'}{usd(abs(nano))} USD"] if nano else []
    return ", ".join([*money, *([f"{tokens:+d} tokens"] if tokens else [])])
