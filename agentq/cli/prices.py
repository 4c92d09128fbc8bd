"""`agentq prices`: what models cost, whether yours are priced, and what an import would change."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentq.cli.console import columns, plural
from agentq.cli.failure import USAGE
from agentq.cli.globals import Verb, VerbGroup
from agentq.core.errors import UsageError
from agentq.core.words import nearest

if TYPE_CHECKING:
    from datetime import date

    from agentq.cli.session import Session
    from agentq.provider.importer import Change
    from agentq.provider.pricefile import Entry, PriceFile, Tier
    from agentq.provider.pricing import Pricing

HEAD = ("model", "provider", "input", "cached", "write", "output", "above", "context")
DEFAULT_FILE = "prices.json"
AS_OF = click.DateTime(["%Y-%m-%d"])


@click.group("prices", cls=VerbGroup)
def command() -> None:
    """What models cost. Prices are USD per million tokens."""


@command.command("list", cls=Verb)
@click.option("--provider", metavar="NAME", help="Only what this one sells.")
@click.option("--search", metavar="TEXT", help="Only models with this in an id.")
@click.pass_obj
def list_prices(session: Session, provider: str | None, search: str | None) -> None:
    """List the prices of the built-in catalogue, and those of your prices_file over them."""
    known = _known_entries(session)
    sellers = {entry.provider for entry in known if entry.provider}
    if provider is not None and provider not in sellers:
        raise UsageError(
            f"no model of a provider {provider!r} is known{nearest(provider, sellers)}",
            hint=f"providers are {', '.join(sorted(sellers))}",
        )
    wanted = [
        entry
        for entry in known
        if (provider is None or entry.provider == provider)
        and (search is None or any(search.lower() in name.lower() for name in entry.ids))
    ]
    if session.console.json:
        session.console.document([entry.as_dict() for entry in wanted])
        return
    for line in columns(HEAD, [row for entry in wanted for row in _rows(entry)], left=(0, 1)):
        session.console.out(line)
    session.console.say(f"{plural(len(wanted), 'model')}, USD per million tokens")


@command.command("check", cls=Verb)
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.pass_obj
def check(session: Session, models: tuple[str, ...]) -> int:
    """Check that each MODEL has a price, or else each model of the app's agents. Reads prices_file.

    The exit code is 2 when one has none.
    """
    from agentq.provider.catalogue import missing_price_hint, price_of

    asked = _asked(session, models)
    found = [(agent, model, price_of(pricing, model, seller)) for agent, seller, model, pricing in asked]
    if session.console.json:
        session.console.document(
            [{"agent": agent, "model": model, "priced": price is not None} for agent, model, price in found]
        )
    else:
        for (agent, model, price), (*_, pricing) in zip(found, asked, strict=True):
            owner = f"{agent}: " if agent else ""
            if price is None:
                session.console.out(f"{owner}{model}: no price")
                session.console.say(f"  {missing_price_hint(pricing, model)}")
            else:
                session.console.out(f"{owner}{model}: {price.input_per_mtok} in, {price.output_per_mtok} out")
    missing = sum(price is None for *_, price in found)
    session.console.say(f"{plural(len(found), 'model')} checked, {missing} without a price")
    return USAGE if missing else 0


@command.command("import", cls=Verb)
@click.option(
    "-o", "out", metavar="FILE", help="Where to; else prices_file, else prices.json. - is standard output."
)
@click.option("--source", type=click.Choice(["genai-prices"]), default="genai-prices", show_default=True)
@click.option("--as-of", type=AS_OF, metavar="DAY", help="The prices of this day; else today's (UTC).")
@click.pass_obj
def import_(session: Session, out: str | None, source: str, as_of: datetime | None) -> None:  # noqa: ARG001 - there is one
    """Write the prices of genai-prices into a file of ours. What was entered there by hand stays.

    A model whose price cannot be said exactly is skipped, with the reason on stderr.
    """
    from agentq.provider.importer import import_prices, merged

    target = out or session.settings.prices_file or DEFAULT_FILE
    new, skipped = import_prices(_day(as_of))
    old = None if target == "-" else _present(Path(target))
    result = merged(old, new) if old else new
    if target != "-":
        _write(Path(target), result.dump())
    if session.console.json and target != "-":
        session.console.document(
            {
                "file": target,
                "models": len(result.entries),
                "skipped": [{"provider": s.provider, "id": s.id, "reason": s.reason} for s in skipped],
            }
        )
    if target == "-":
        click.echo(result.dump(), nl=False)
    for one in skipped:
        session.console.say(f"skipped {one.provider}:{one.id}: {one.reason}")
    session.console.say(f"{target}: {plural(len(result.entries), 'model')}, {len(skipped)} skipped")


@command.command("diff", cls=Verb)
@click.argument("file", required=False)
@click.option("--as-of", type=AS_OF, metavar="DAY", help="The prices of this day; else today's (UTC).")
@click.pass_obj
def diff(session: Session, file: str | None, as_of: datetime | None) -> None:
    """Show what an import would change in FILE, else in prices_file, else in the built-in catalogue.

    One line for each field of each model. The exit code is 0 whether or not there is a difference; the
    last line, on stderr, counts.
    """
    from agentq.provider.importer import changes, import_prices, merged
    from agentq.provider.pricefile import BUILT_IN, read_prices

    path = file or session.settings.prices_file
    old = read_prices(Path(path) if path else BUILT_IN)
    new, _ = import_prices(_day(as_of))
    found = changes(old.entries, merged(old, new).entries)
    if session.console.json:
        session.console.document(
            [
                {"model": c.name, "field": c.field or None, "old": _plain(c.old), "new": _plain(c.new)}
                for c in found
            ]
        )
    else:
        for change in found:
            session.console.out(_line(change))
    models = len({change.name for change in found})
    session.console.say(f"{path or 'built-in catalogue'}: {plural(models, 'model')} would change")


def _asked(session: Session, models: tuple[str, ...]) -> list[tuple[str | None, str, str, Pricing]]:
    """Agent, provider, model and the prices that it is looked up in."""
    from agentq.provider.catalogue import known_prices

    app = session.any_app() if session.app_path else None
    if models or app is None:
        known: Pricing = app.pricing if app else known_prices(None, session.settings.prices_file)
        return [(None, "", model, known) for model in models]
    return [
        (name, agent.client.provider, model, agent.pricing or {})
        for name, agent in app.agents.items()
        for model in getattr(agent.client, "models", (agent.client.model,))
    ]


def _known_entries(session: Session) -> list[Entry]:
    from agentq.provider.catalogue import built_in
    from agentq.provider.pricefile import read_prices

    known = {entry.name: entry for entry in built_in().entries}
    if session.settings.prices_file:
        known |= {entry.name: entry for entry in read_prices(Path(session.settings.prices_file)).entries}
    return [known[name] for name in sorted(known)]


def _rows(entry: Entry) -> list[tuple[object, ...]]:
    """A line for its prices, and one for each tier."""
    first = (entry.id, entry.provider, *_prices(entry), "", entry.context_window or "?")
    return [first, *(("", "", *_prices(tier), tier.above, "") for tier in entry.tiers)]


def _prices(rates: Entry | Tier) -> tuple[str, ...]:
    return tuple(
        "" if pico is None else _usd(pico)
        for pico in (rates.input, rates.cached_input, rates.cache_write, rates.output)
    )


def _usd(pico: int) -> str:
    from agentq.provider.pricefile import per_mtok

    return f"{per_mtok(pico):f}"


def _line(change: Change) -> str:
    """`+` for a model that comes, `-` for one that goes, `~` for a field."""
    if not change.field:
        entry = change.new or change.old
        sign = "+" if change.old is None else "-"
        return f"{sign} {change.name}  {_usd(entry.input)} in, {_usd(entry.output)} out"
    money = change.field in {"input", "cached_input", "cache_write", "output"}
    old, new = (_usd(v) if money and v is not None else _short(v) for v in (change.old, change.new))
    return f"~ {change.name}  {change.field}: {old} → {new}"


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_short, value)) or "none"
    if hasattr(value, "above"):
        return f"above {value.above}: {_usd(value.input)} in, {_usd(value.output)} out"
    return "none" if value in (None, "") else str(value)


def _plain(value: Any) -> Any:
    from agentq.provider.pricefile import as_json

    return as_json(value)


def _present(path: Path) -> PriceFile | None:
    from agentq.provider.pricefile import read_prices

    return read_prices(path) if path.exists() else None


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def _day(as_of: datetime | None) -> date:
    from datetime import UTC

    # No run depends on it: which price holds today is a question to the calendar of whoever imports.
    return (as_of or datetime.now(UTC)).date()  # noqa: TID251
