"""Files of prices: JSON, one model a line, every price a whole number of pico-USD per token."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from pathlib import Path
from typing import Any

from agentq.core.errors import UsageError
from agentq.core.words import nearest
from agentq.provider.pricing import PICO_PER_MTOK_USD, PICO_PER_USD, ModelPricing, PriceTier

FORMAT = 1
BUILT_IN = Path(__file__).with_name("prices.json")
MAX_PICO = 2**53 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """The prices of a request with more than `above` input tokens, in pico-USD per token."""

    above: int
    input: int
    cached_input: int | None = None
    cache_write: int | None = None
    output: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One model as a file has it. Prices are whole pico-USD per token: USD per million tokens × 1,000,000.

    `request` is pico-USD for each request. `family` is that of its tokenizer. `not_priced` names what the
    provider sells for this model and the entry does not cover. `changes_on` is the day of a price that its
    source has announced already.
    """

    provider: str = ""
    id: str
    aliases: tuple[str, ...] = ()
    family: str = ""
    input: int
    cached_input: int | None = None
    cache_write: int | None = None
    output: int
    request: int = 0
    tiers: tuple[Tier, ...] = ()
    context_window: int | None = None
    max_output: int | None = None
    effective_from: str = ""
    changes_on: str = ""
    not_priced: tuple[str, ...] = ()
    note: str = ""
    source: str = ""

    @property
    def name(self) -> str:
        """`provider:id`, or the id alone."""
        return f"{self.provider}:{self.id}" if self.provider else self.id

    @property
    def ids(self) -> tuple[str, ...]:
        """The id and its aliases."""
        return (self.id, *self.aliases)

    @property
    def terms(self) -> tuple[object, ...]:
        """What it costs, without what else is known of it: equal for equal prices."""
        return (self.input, self.cached_input, self.cache_write, self.output, self.request, self.tiers)

    def price(self) -> ModelPricing:
        """The price of the model.

        Raises:
            ValueError: when the tiers do not ascend.
        """
        return ModelPricing(
            self.id,
            per_mtok(self.input),
            per_mtok(self.output),
            self.context_window,
            _optional(self.cached_input),
            self.max_output,
            cache_write_per_mtok=_optional(self.cache_write),
            tiers=[
                PriceTier(
                    tier.above,
                    per_mtok(tier.input),
                    per_mtok(tier.output),
                    _optional(tier.cached_input),
                    _optional(tier.cache_write),
                )
                for tier in self.tiers
            ],
            per_request_usd=Decimal(self.request) / PICO_PER_USD,
        )

    def as_dict(self) -> dict[str, Any]:
        """A JSON object without the fields that say nothing."""
        return _filled(self)


@dataclass(frozen=True, slots=True)
class PriceFile:
    """The content of one file. `as_of` is the day whose prices these are, `sources` the versions used."""

    entries: tuple[Entry, ...]
    as_of: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)

    def dump(self) -> str:
        """The text of the file: one model a line, so that a change is one line of a diff."""
        head = {"format": FORMAT, "as_of": self.as_of, "sources": dict(self.sources)}
        lines = ",\n".join(json.dumps(entry.as_dict(), ensure_ascii=False) for entry in self.entries)
        return f'{json.dumps(head)[:-1]}, "models": [\n{lines}\n]}}\n'


def per_mtok(pico: int) -> Decimal:
    """Pico-USD per token as USD per million tokens."""
    return Decimal(pico) / PICO_PER_MTOK_USD


def read_prices(path: Path) -> PriceFile:
    """The content of a file of prices.

    Raises:
        UsageError: when it cannot be read, is no JSON, or an entry is wrong; the sentence names the file and
            the line, or the model and the field.
    """
    try:
        return parse_prices(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", hint="agentq prices import writes such a file"
        ) from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: this is not UTF-8 text") from None


def parse_prices(text: str, where: str) -> PriceFile:
    """The same for a text; `where` is what errors call it.

    Raises:
        UsageError: as `read_prices`.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{where}:{error.lineno}: not JSON: {error.msg}") from None
    try:
        _known(data, ("format", "as_of", "sources", "models"), "the file")
        if data.get("format") != FORMAT:
            raise ValueError(f"format must be {FORMAT}, not {data.get('format')!r}")
        if not isinstance(data.get("models"), list):
            raise ValueError("models must be a list")
        sources = _sources(data.get("sources", {}))
        entries = tuple(_entry(index, raw) for index, raw in enumerate(data["models"], 1))
        _refuse_doubles(entries)
        if not isinstance(data.get("as_of", ""), str):
            raise TypeError(f"as_of must be text, not {data['as_of']!r}")
        return PriceFile(entries, data.get("as_of", ""), sources)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where}: {error}", hint="docs/prices.md describes the format") from None


def _entry(index: int, raw: object) -> Entry:
    where = f"model {index}"
    if isinstance(raw, dict) and isinstance(raw.get("id"), str):
        where += f" ({raw['id']!r})"
    values = _checked(where, raw, _ENTRY, ("id", "input", "output"))
    entry = Entry(**values)
    try:
        entry.price()
    except ValueError as error:
        raise ValueError(f"{where}: tiers: {error}") from None
    return entry


def _checked(
    where: str, raw: object, known: Mapping[str, Callable[[Any], Any]], needed: Iterable[str]
) -> dict[str, Any]:
    _known(raw, known, where)
    assert isinstance(raw, dict)  # noqa: S101 - _known has refused all else
    for name in needed:
        if name not in raw:
            raise ValueError(f"{where}: {name} is missing")
    values = {}
    for name, value in raw.items():
        try:
            values[name] = known[name](value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: {name} {error}") from None
    return values


def _known(raw: object, known: Iterable[str], where: str) -> None:
    if not isinstance(raw, dict):
        raise TypeError(f"{where} must be a JSON object")
    for name in raw:
        if name not in known:
            raise ValueError(f"{where}: unknown field {name!r}{nearest(name, tuple(known))}")


def _pico(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        meant = Decimal(str(value)) * PICO_PER_MTOK_USD if isinstance(value, float) else Decimal("0.5")
        example = f"; for {value} USD per million tokens write {int(meant)}" if not meant % 1 else ""
        raise TypeError(f"must be a whole number of pico-USD, not {value!r}{example}")
    if not 0 <= value <= MAX_PICO:
        raise ValueError(f"must be from 0 to {MAX_PICO}, not {value}")
    return value


def _optional_pico(value: Any) -> int | None:
    return None if value is None else _pico(value)


def _count(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise TypeError(f"must be a number of tokens, not {value!r}")
    return value


def _above(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError(f"must be a number of tokens, not {value!r}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"must be text, not {value!r}")
    return value


def _name(value: Any) -> str:
    if not _text(value).strip() or value != value.strip():
        raise ValueError(f"must be a name, not {value!r}")
    return str(value)


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError(f"must be a list of names, not {value!r}")
    return tuple(_name(item) for item in value)


def _tiers(value: Any) -> tuple[Tier, ...]:
    if not isinstance(value, list):
        raise TypeError(f"must be a list of objects, not {value!r}")
    needed = ("above", "input", "output")
    return tuple(Tier(**_checked(f"[{i}]", raw, _TIER, needed)) for i, raw in enumerate(value))


def _sources(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise TypeError("sources must be a JSON object")
    return {name: str(version) for name, version in value.items()}


_TIER: dict[str, Callable[[Any], Any]] = {
    "above": _above,
    "input": _pico,
    "cached_input": _optional_pico,
    "cache_write": _optional_pico,
    "output": _pico,
}
_ENTRY: dict[str, Callable[[Any], Any]] = {
    **{name: check for name, check in _TIER.items() if name != "above"},
    "provider": _text,
    "id": _name,
    "aliases": _names,
    "family": _text,
    "request": _pico,
    "tiers": _tiers,
    "context_window": _count,
    "max_output": _count,
    "effective_from": _text,
    "changes_on": _text,
    "not_priced": _names,
    "note": _text,
    "source": _text,
}


def _refuse_doubles(entries: tuple[Entry, ...]) -> None:
    seen: dict[tuple[str, str], str] = {}
    for entry in entries:
        for name in entry.ids:
            if (entry.provider, name) in seen:
                other = seen[entry.provider, name]
                raise ValueError(f"model {entry.id!r}: {name!r} is a name of {other!r} already")
            seen[entry.provider, name] = entry.id


def _optional(pico: int | None) -> Decimal | None:
    return None if pico is None else per_mtok(pico)


def as_json(value: Any) -> Any:
    """A field of an entry, or a whole one, as JSON has it."""
    if isinstance(value, (Entry, Tier)):
        return _filled(value)
    return [as_json(item) for item in value] if isinstance(value, tuple) else value


def _filled(value: Entry | Tier) -> dict[str, Any]:
    nothing: dict[str, Any] = {item.name: item.default for item in fields(value)}
    return {name: as_json(content) for name in nothing if (content := getattr(value, name)) != nothing[name]}
