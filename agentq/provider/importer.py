"""From the data of genai-prices to entries of ours: exact, or refused with a reason.

Nothing is rounded, guessed or averaged. What a text-only call can never be charged for (audio, images,
searches by the provider, other service tiers) is named in `not_priced`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date
from decimal import Decimal
from importlib.metadata import version
from typing import Any

from agentq.core.errors import UsageError
from agentq.provider.makers import dated_ids, family_of
from agentq.provider.pricefile import Entry, PriceFile, Tier
from agentq.provider.pricing import PICO_PER_MTOK_USD, PICO_PER_USD

SOURCE = "genai-prices"
PROVIDERS = ("anthropic", "deepseek", "google", "groq", "mistral", "openai", "openrouter", "x-ai")

_CLASSES = {
    "input": "input_mtok",
    "cached_input": "cache_read_mtok",
    "cache_write": "cache_write_mtok",
    "output": "output_mtok",
}
_FEE = "requests_kcount"
_BESIDE = {
    "cache_write_1h_mtok": "caches of one hour",
    "input_audio_mtok": "audio",
    "output_audio_mtok": "audio",
    "cache_audio_read_mtok": "audio",
    "audio_hours": "audio",
    "input_audio_hours": "audio",
    "input_image_mtok": "images",
    "output_image_mtok": "images",
    "cache_image_read_mtok": "images",
    "input_video_mtok": "video",
    "output_video_mtok": "video",
    "web_searches_kcount": "web searches",
    "storage_searches_kcount": "file searches",
    "input_document_kpages": "documents",
    "input_annotated_document_kpages": "documents",
}


class NotExactError(Exception):
    """An entry of the source that our format cannot say exactly; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A model that was not taken, and why."""

    provider: str
    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Change:
    """What two files say differently of a model: one field, or with no field that it comes or goes."""

    name: str
    field: str
    old: Any
    new: Any


def import_prices(as_of: date) -> tuple[PriceFile, list[Skipped]]:
    """The prices of the installed genai-prices that hold on a day, and what could not be taken.

    Raises:
        UsageError: when the package is not installed.
    """
    try:
        from genai_prices.data import providers
    except ImportError:
        raise UsageError(
            "importing prices needs the package genai-prices", hint="pip install genai-prices"
        ) from None
    entries, skipped = convert(providers, as_of)
    return PriceFile(tuple(entries), as_of.isoformat(), {SOURCE: version(SOURCE)}), skipped


def convert(providers: Iterable[Any], as_of: date) -> tuple[list[Entry], list[Skipped]]:
    """The entries of the source's providers that we know, sorted by provider and id, and what was skipped."""
    entries: list[Entry] = []
    skipped: list[Skipped] = []
    for provider in providers:
        if provider.id not in PROVIDERS:
            continue
        for model in provider.models:
            try:
                entries.append(_entry(provider, model, as_of))
            except NotExactError as reason:
                skipped.append(Skipped(provider.id, model.id, str(reason)))
    return sorted(entries, key=lambda entry: (entry.provider, entry.id)), skipped


def merged(old: PriceFile, new: PriceFile) -> PriceFile:
    """The new prices, and of the old file what was entered by hand: other entries, and `max_output`."""
    before = {entry.name: entry for entry in old.entries}
    kept = {name: entry for name, entry in before.items() if entry.source != SOURCE}
    entries = dict(kept)
    for entry in new.entries:
        if entry.name not in kept:
            known = before.get(entry.name)
            entries[entry.name] = replace(entry, max_output=known.max_output) if known else entry
    ordered = sorted(entries.values(), key=lambda entry: (entry.provider, entry.id))
    return PriceFile(tuple(ordered), new.as_of, {**old.sources, **new.sources})


def changes(old: Sequence[Entry], new: Sequence[Entry]) -> list[Change]:
    """What differs, by model and field, in the order of the names."""
    before = {entry.name: entry for entry in old}
    after = {entry.name: entry for entry in new}
    found: list[Change] = []
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after:
            found.append(Change(name, "", before.get(name), after.get(name)))
            continue
        for item in fields(Entry):
            one, other = getattr(before[name], item.name), getattr(after[name], item.name)
            if one != other:
                found.append(Change(name, item.name, one, other))
    return found


def _entry(provider: Any, model: Any, as_of: date) -> Entry:
    names = _names(provider, model)
    prices, since, until = _standing(model, as_of)
    free = not prices and names[0].endswith(":free")
    if not prices and not free:
        raise NotExactError("the source has no price")
    beside = {_BESIDE[key] for key in prices if key in _BESIDE}
    unknown = sorted(set(prices) - {*_CLASSES.values(), _FEE} - _BESIDE.keys())
    if unknown:
        raise NotExactError(f"a price that a bill of tokens cannot have: {', '.join(unknown)}")
    for needed in ("input_mtok", "output_mtok"):
        if needed not in prices and not free:
            raise NotExactError(f"no price for tokens of {needed.removesuffix('_mtok')}")
    rates, tiers = _rates(prices)
    for variant in model.price_variants or ():
        if any(price is not None for price in vars(variant.prices).values()):
            beside.update(f"{key}={value}" for key, value in variant.when.items())
    return Entry(
        provider=provider.id,
        id=names[0],
        aliases=names[1:],
        family=family_of(provider.id, names[0]),
        tiers=tiers,
        request=_whole("each request", prices.get(_FEE, Decimal(0)), PICO_PER_USD // 1000),
        context_window=model.context_window,
        effective_from=since,
        changes_on=until,
        not_priced=tuple(sorted(beside)),
        source=SOURCE,
        **rates,
    )


def _names(provider: Any, model: Any) -> tuple[str, ...]:
    """The exact ids that mean this model in the source too, its own first. Patterns are not taken."""
    clauses = getattr(model.match, "or_", [model.match])
    named = {clause.equals for clause in clauses if hasattr(clause, "equals")}
    named.update(dated_ids(provider.id, model.id))
    names = [name for name in (model.id, *sorted(named - {model.id})) if provider.find_model(name) is model]
    if not names:
        raise NotExactError("its id is not one that the provider takes")
    if provider.id != "groq":
        # OpenRouter's ids are maker/model, and the makers' own are not.
        names = [name for name in names if ("/" in name) == (provider.id == "openrouter")]
    if not names:
        raise NotExactError("its ids are not of the provider's form")
    if provider.id == "google" and names[0].startswith("claude"):
        raise NotExactError("Claude on Vertex has ids with a version, which the source does not list")
    return tuple(names)


def _standing(model: Any, as_of: date) -> tuple[dict[str, Any], str, str]:
    """The prices that hold on the day, since when, and the day of the next ones."""
    conditional = model.prices if isinstance(model.prices, list) else None
    if conditional is None:
        return _given(model.prices), "", ""
    since, chosen, later = "", conditional[0].prices, []
    for item in conditional:
        start = getattr(item.constraint, "start_date", None)
        if item.constraint is not None and start is None:
            raise NotExactError("its price depends on the time of the day")
        if start is not None and start > as_of:
            later.append(start.isoformat())
        else:
            since, chosen = (start.isoformat() if start else ""), item.prices
    return _given(chosen), since, min(later, default="")


def _given(prices: Any) -> dict[str, Any]:
    return {key: price for key, price in vars(prices).items() if price is not None}


def _rates(prices: dict[str, Any]) -> tuple[dict[str, Any], tuple[Tier, ...]]:
    """The prices of short requests, and those of each tier. A tier's price is that of all tokens."""
    tiered = (getattr(prices.get(theirs), "tiers", ()) for theirs in _CLASSES.values())
    starts = sorted({tier.start for tiers in tiered for tier in tiers})
    tiers = tuple(Tier(above=start, **_at(prices, start)) for start in starts)
    return _at(prices, -1), tiers


def _at(prices: dict[str, Any], start: int) -> dict[str, Any]:
    rates: dict[str, Any] = {"input": 0, "output": 0}
    for ours, theirs in _CLASSES.items():
        price = prices.get(theirs)
        if price is None:
            continue
        reached = [tier.price for tier in getattr(price, "tiers", ()) if tier.start <= start]
        rates[ours] = _whole(
            ours, reached[-1] if reached else getattr(price, "base", price), PICO_PER_MTOK_USD
        )
    return rates


def _whole(what: str, price: Any, unit: int) -> int:
    pico = price * unit
    if pico % 1:
        raise NotExactError(f"the price of {what} is finer than a pico-USD: {price}")
    return int(pico)
