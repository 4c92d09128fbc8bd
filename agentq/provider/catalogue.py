"""Which price holds for a model: the built-in catalogue, and what users put over it.

A model is found by its exact id, by an alias that its entry names, or as `provider:id`. Nothing is guessed:
a model that nobody has entered has no price. An id that two providers sell at different prices is found as
`provider:id` only.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

from agentq.core.words import nearest
from agentq.provider.pricefile import BUILT_IN, Entry, read_prices
from agentq.provider.pricing import ModelPricing, Pricing

HASH_CHARACTERS = 12


class Catalogue(Mapping[str, ModelPricing]):
    """Prices by every name of every entry. The entries are loaded when a price is first asked for."""

    def __init__(self, load: Callable[[], Iterable[Entry]]) -> None:
        self._load = load
        self._prices: dict[str, ModelPricing] = {}

    @functools.cached_property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, in the order of the file.

        Raises:
            UsageError: when the file is wrong.
        """
        return tuple(self._load())

    @functools.cached_property
    def named(self) -> dict[str, tuple[Entry, ...]]:
        """The entries of each name, most often one."""
        named: dict[str, list[Entry]] = {}
        for entry in self.entries:
            for name in entry.ids:
                named.setdefault(name, []).append(entry)
                if entry.provider:
                    named.setdefault(f"{entry.provider}:{name}", []).append(entry)
        return {name: tuple(entries) for name, entries in named.items()}

    def sold_as(self, model: str) -> tuple[str, ...]:
        """`provider:id` of each that sells this id, when their prices differ; else nothing."""
        entries = self.named.get(model, ())
        return () if _agree(entries) else tuple(f"{entry.provider}:{model}" for entry in entries)

    def __getitem__(self, model: str) -> ModelPricing:
        price = self._prices.get(model)
        if price is None:
            entries = self.named[model]
            if not _agree(entries):
                raise KeyError(model)
            price = self._prices[model] = entries[0].price()
        return price

    def __contains__(self, model: object) -> bool:
        return model in self._prices or (model in self.named and _agree(self.named[str(model)]))

    def __iter__(self) -> Iterator[str]:
        return (model for model, entries in self.named.items() if _agree(entries))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        """True, without loading: to ask is not to need a price."""
        return True


class LayeredPrices(Mapping[str, ModelPricing]):
    """Several mappings seen as one; of a model that several have, the first one's price holds."""

    def __init__(self, *layers: Pricing) -> None:
        self.layers = layers

    def __getitem__(self, model: str) -> ModelPricing:
        for layer in self.layers:
            price = layer.get(model)
            if price is not None:
                return price
        raise KeyError(model)

    def __contains__(self, model: object) -> bool:
        return any(model in layer for layer in self.layers)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(chain.from_iterable(self.layers)))

    def __len__(self) -> int:
        return len(dict.fromkeys(chain.from_iterable(self.layers)))

    def __bool__(self) -> bool:
        return any(self.layers)

    def __or__(self, over: Pricing) -> LayeredPrices:
        """These prices under others, as with two dicts."""
        return LayeredPrices(over, *self.layers)


@functools.cache
def built_in() -> Catalogue:
    """The catalogue that agentq brings."""
    return Catalogue(lambda: read_prices(BUILT_IN).entries)


def prices_of(path: str | Path) -> Catalogue:
    """The prices of a user's file, read and checked now.

    Raises:
        UsageError: when it cannot be read or an entry is wrong.
    """
    entries = read_prices(Path(path)).entries
    return Catalogue(lambda: entries)


def known_prices(pricing: Pricing | None = None, prices_file: str | None = None) -> LayeredPrices:
    """What an application knows: its own prices, over those of its file, over the built-in ones.

    Raises:
        UsageError: when the file cannot be read or an entry of it is wrong.
    """
    layers: list[Pricing] = [dict(pricing or {})]
    if prices_file is not None:
        layers.append(prices_of(prices_file))
    return LayeredPrices(*layers, built_in())


def price_of(pricing: Pricing, model: str, provider: str = "") -> ModelPricing | None:
    """The price of a model, or None: by its id, or where that is sold at several prices, by its provider."""
    price = pricing.get(model)
    if price is None and provider:
        price = pricing.get(f"{provider}:{model}")
    return price


def missing_price_hint(pricing: Pricing, model: str) -> str:
    """What to type when a model has no price: the nearest known id, or how to say who sells it."""
    layers = pricing.layers if isinstance(pricing, LayeredPrices) else (pricing,)
    for layer in layers:
        sellers = layer.sold_as(model) if isinstance(layer, Catalogue) else ()
        if sellers:
            return (
                f"its price depends on who sells it ({', '.join(sellers)}): "
                "give one of them in prices_file, or in AgentQ(pricing={…})"
            )
    return (
        f"agentq prices list shows the known ones{nearest(model, list(pricing))}; add it in prices_file or "
        "AgentQ(pricing={…}), or set on_unpriced='allow' (counted as 0)"
    )


def catalogue_hash(pricing: Pricing) -> str:
    """Twelve hex digits that are the same for the same prices of the same names, in any order or process.

    Only what decides a bill counts: not limits, notes, nor where a price comes from. For what one agent may
    spend, give the prices of its models only; over few models this costs microseconds.
    """
    rows = [[name, pricing[name].request_pico, pricing[name].rates] for name in sorted(pricing)]
    text = json.dumps(rows, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_CHARACTERS]


def _agree(entries: tuple[Entry, ...]) -> bool:
    return len(entries) == 1 or len({entry.terms for entry in entries}) == 1
