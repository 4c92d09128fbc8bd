"""`agentq fake-provider`: a model provider on this machine, that costs nothing and does as it is told."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentq.cli.console import encode, plural
from agentq.cli.failure import INTERRUPTED
from agentq.cli.globals import verb
from agentq.core.errors import UsageError

if TYPE_CHECKING:
    from agentq.cli.session import Session
    from agentq.testing import FakeProvider, Limits


@verb("fake-provider")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="N",
    help="Where to listen; else any free port.",
)
@click.option(
    "--script", metavar="TURNS.json", help="What the model does: a list of turns, or such by model."
)
@click.option("--key", "keys", multiple=True, metavar="KEY", help="An API key that is taken; else any.")
@click.option("--model", "models", multiple=True, metavar="NAME", help="A model that there is; else any.")
@click.option("--rpm", type=click.FloatRange(min=0, min_open=True), metavar="N", help="Requests a minute.")
@click.option("--tpm", type=click.FloatRange(min=0, min_open=True), metavar="N", help="Tokens a minute.")
@click.option("--headers", is_flag=True, help="Tell the limits in the headers of each answer.")
@click.option("--fault", "faults", multiple=True, metavar="NAME", help="Switch on a fault.")
@click.option("--faults", "list_faults", is_flag=True, help="List the faults and leave.")
@click.option(
    "--latency", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS", help="Before each answer."
)
@click.option("--bill", type=click.Path(dir_okay=False), metavar="FILE", help="Add a line for each request.")
def command(  # noqa: PLR0917 - click passes all of them by name
    session: Session,
    port: int,
    script: str | None,
    keys: tuple[str, ...],
    models: tuple[str, ...],
    rpm: float | None,
    tpm: float | None,
    headers: bool,
    faults: tuple[str, ...],
    list_faults: bool,
    latency: float,
    bill: str | None,
) -> int:
    """Run a model provider on this machine: Chat Completions, Responses and Messages at one URL.

    The first line is the URL for OPENAI_BASE_URL and ANTHROPIC_BASE_URL. Without --script the model calls
    the first tool, and then quotes the user. It runs until Ctrl-C. --key, --model and --fault may be given
    again.
    """
    from agentq.testing import FakeProvider
    from agentq.testing.provider import load_script

    if list_faults:
        _list(session)
        return 0
    provider = FakeProvider(
        None if script is None else load_script(script),
        port=port,
        keys=keys or None,
        models=models or None,
        faults=faults,
        limits=_limits(rpm, tpm, headers=headers),
        latency=latency,
        bill_file=None if bill is None else Path(bill),
    )
    return _run(session, provider)


def _limits(rpm: float | None, tpm: float | None, *, headers: bool) -> Limits | None:
    from agentq.testing import Limits

    if rpm is None and tpm is None:
        if headers:
            raise UsageError("--headers tells limits, and there are none", hint="add --rpm N or --tpm N")
        return None
    return Limits(requests_per_minute=rpm, tokens_per_minute=tpm, headers=headers)


def _run(session: Session, provider: FakeProvider) -> int:
    """Serve until a signal comes: SIGTERM ends it in order, Ctrl-C as every verb."""
    ends = {signal.SIGTERM, signal.SIGINT}
    # Held back from all threads, before any is started and before the URL is printed: whoever has read it
    # may already end us.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    try:
        with provider:
            where = {"url": provider.url, "port": provider.port}
            click.echo(encode(where) if session.console.json else provider.url)
            session.console.say("set OPENAI_BASE_URL or ANTHROPIC_BASE_URL to it; Ctrl-C stops it")
            came = signal.sigwait(ends)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    totals = provider.bill.totals
    session.console.say(
        f"{plural(totals.requests, 'request')}, {totals.answered} answered, {totals.limited} refused for a "
        f"limit; {totals.input_tokens} tokens in, {totals.output_tokens} out"
    )
    return INTERRUPTED if came == signal.SIGINT else 0


def _list(session: Session) -> None:
    from agentq.testing.provider.catalogue import CATALOGUE

    if session.console.json:
        faults = {
            name: {"says": known.says, "dialects": list(known.dialects)} for name, known in CATALOGUE.items()
        }
        session.console.document(faults)
        return
    width = max(map(len, CATALOGUE))
    for name, known in CATALOGUE.items():
        where = "" if len(known.dialects) == 3 else f" ({', '.join(known.dialects)})"
        click.echo(f"{name:<{width}}  {known.says}{where}")
