"""What a call costs: exact integer arithmetic, rounded up once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from decimal import Decimal, InvalidOperation
from typing import NamedTuple

from agentq.core.money import NanoUSD, ceil_nano
from agentq.provider.types import Usage

PICO_PER_MTOK_USD = 1_000_000
"""One USD per million tokens, in pico-USD per token."""

PICO_PER_USD = 10**12

_PICO_PLACES = 12


class Rates(NamedTuple):
    """What one token of each class costs, in pico-USD, in a request with more than `above` input tokens."""

    above: int
    input: int
    cached_input: int
    cache_write: int
    output: int

    @property
    def dearest_input(self) -> int:
        """The most that one input token can cost, whichever class it turns out to be of."""
        return max(self.input, self.cached_input, self.cache_write)


@dataclass(frozen=True, slots=True)
class PriceTier:
    """The prices of a request with more than `above_input_tokens` input tokens: of all its tokens.

    In USD per million tokens, as in `ModelPricing`. What is not given costs as much as input of this tier.
    """

    above_input_tokens: int
    input_per_mtok: Decimal | str | int
    output_per_mtok: Decimal | str | int
    cached_input_per_mtok: Decimal | str | int | None = None
    cache_write_per_mtok: Decimal | str | int | None = None


@dataclass(frozen=True, slots=True)
class ModelPricing:
    """The price of one model, in USD per million tokens, and its limits in tokens.

    Without a price for cached input, or for input that is written into a cache, such tokens cost as much as
    the others. Prices are kept as `Decimal` and must be whole pico-USD per token (six places of USD per
    million tokens). `tiers` are the prices of longer requests, `per_request_usd` is added to each request.
    A limit in tokens is None where nobody knows it.

    Raises:
        TypeError: for a price given as float.
        ValueError: for a price that is no number, negative, or too fine to count, and for tiers that do not
            ascend.
    """

    model: str
    input_per_mtok: Decimal | str | int
    output_per_mtok: Decimal | str | int
    context_window: int | None
    cached_input_per_mtok: Decimal | str | int | None = None
    max_output_tokens: int | None = None
    cache_write_per_mtok: Decimal | str | int | None = field(default=None, kw_only=True)
    tiers: Sequence[PriceTier] = field(default=(), kw_only=True)
    per_request_usd: Decimal | str | int = field(default=0, kw_only=True)
    _rates: tuple[Rates, ...] = field(init=False, repr=False, compare=False)
    _request_pico: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in _PRICES:
            object.__setattr__(self, name, _price(self.model, name, getattr(self, name)))
        tiers = tuple(_checked_tier(self.model, tier) for tier in self.tiers)
        starts = [tier.above_input_tokens for tier in tiers]
        if starts != sorted(set(starts)):
            raise ValueError(f"{self.model}: its tiers must ascend by above_input_tokens, not {starts}")
        object.__setattr__(self, "tiers", tiers)
        object.__setattr__(
            self, "_rates", (_rates(-1, self), *(_rates(t.above_input_tokens, t) for t in tiers))
        )
        fee = _price(self.model, "per_request_usd", self.per_request_usd, unit=PICO_PER_USD) or Decimal(0)
        object.__setattr__(self, "per_request_usd", fee)
        object.__setattr__(self, "_request_pico", int(fee * PICO_PER_USD))

    @property
    def rates(self) -> tuple[Rates, ...]:
        """The prices of all tiers, the first for any request (`above` is -1)."""
        return self._rates

    @property
    def request_pico(self) -> int:
        """What each request costs beside its tokens, in pico-USD."""
        return self._request_pico

    def cost(
        self, input_tokens: int, output_tokens: int, cached_input_tokens: int = 0, cache_write_tokens: int = 0
    ) -> Decimal:
        """The exact price of a call in USD, not rounded.

        Raises:
            ValueError: for a negative count, or more cached and written tokens than input tokens.
        """
        usage = Usage(input_tokens, output_tokens, cached_input_tokens, cache_write_tokens=cache_write_tokens)
        return Decimal(self._pico(usage)).scaleb(-_PICO_PLACES)

    def cost_nano(self, usage: Usage) -> NanoUSD:
        """The price of a call in nano-USD, rounded up once. Its input tokens choose the tier.

        Raises:
            ValueError: for a negative count, or more cached and written tokens than input tokens.
        """
        return ceil_nano(self._pico(usage))

    def worst_nano(self, usage: Usage) -> NanoUSD:
        """The most that a call can cost which uses at most this many tokens, rounded up once.

        Each input token is taken at the dearest of its classes, and the request at the dearest tier that so
        many input tokens can reach.
        """
        reached = (rates for rates in self._rates if usage.input_tokens > rates.above)
        dearest = max(
            usage.input_tokens * rates.dearest_input + usage.output_tokens * rates.output for rates in reached
        )
        return ceil_nano(self._request_pico + dearest)

    def _pico(self, usage: Usage) -> int:
        cached, written = usage.cached_input_tokens, usage.cache_write_tokens
        fresh = usage.input_tokens - cached - written
        if min(usage.input_tokens, usage.output_tokens, cached, written) < 0:
            raise ValueError(f"{self.model}: a count of tokens cannot be negative")
        if fresh < 0:
            raise ValueError(
                f"{self.model}: {cached} cached and {written} written tokens cannot be part of "
                f"{usage.input_tokens} input tokens"
            )
        rates = next(rates for rates in reversed(self._rates) if usage.input_tokens > rates.above)
        return (
            self._request_pico
            + fresh * rates.input
            + cached * rates.cached_input
            + written * rates.cache_write
            + usage.output_tokens * rates.output
        )


Pricing = Mapping[str, ModelPricing]
"""Prices by exact model id."""

_PRICES = tuple(item.name for item in fields(PriceTier) if item.name.endswith("_per_mtok"))
_OPTIONAL = ("cached_input_per_mtok", "cache_write_per_mtok")


def _checked_tier(model: str, tier: PriceTier) -> PriceTier:
    above = tier.above_input_tokens
    if isinstance(above, bool) or not isinstance(above, int) or above < 0:
        raise ValueError(f"{model}: above_input_tokens={above!r} is not a number of tokens")
    return PriceTier(above, **{name: _price(model, name, getattr(tier, name)) for name in _PRICES})  # type: ignore[arg-type]


def _price(
    model: str, name: str, value: Decimal | str | int | None, unit: int = PICO_PER_MTOK_USD
) -> Decimal | None:
    if value is None and name in _OPTIONAL:
        return None
    if isinstance(value, (float, bool)):
        raise TypeError(f"{model}: {name} is never a {type(value).__name__}: write {str(value)!r} in quotes")
    try:
        price = Decimal(value)  # type: ignore[arg-type]
    except (InvalidOperation, TypeError, ValueError):
        raise ValueError(f"{model}: {name}={value!r} is not a price, write for example '0.25'") from None
    if not price.is_finite() or price < 0:
        raise ValueError(f"{model}: {name}={value} must be 0 or more")
    if price * unit % 1:
        raise ValueError(
            f"{model}: {name}={value} is finer than a pico-USD"
            + (" per token (six decimal places)" if unit == PICO_PER_MTOK_USD else "")
        )
    return price


def _rates(above: int, prices: ModelPricing | PriceTier) -> Rates:
    def pico(price: Decimal | str | int | None) -> int:
        chosen = prices.input_per_mtok if price is None else price
        return int(Decimal(chosen) * PICO_PER_MTOK_USD)

    return Rates(
        above,
        pico(prices.input_per_mtok),
        pico(prices.cached_input_per_mtok),
        pico(prices.cache_write_per_mtok),
        pico(prices.output_per_mtok),
    )
