"""What a call costs: exact integer arithmetic, rounded up once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from agentq.core.money import NanoUSD, ceil_nano
from agentq.provider.types import Usage

PICO_PER_MTOK_USD = 1_000_000
"""One USD per million tokens, in pico-USD per token."""

_PICO_PLACES = 12


@dataclass(frozen=True, slots=True)
class ModelPricing:
    """The price of one model, in USD per million tokens, and its limits in tokens.

    Without a price for cached input such tokens cost as much as the others. Prices are kept as
    `Decimal` and must be whole pico-USD per token (six places of USD per million tokens).

    Raises:
        TypeError: for a price given as float.
        ValueError: for a price that is no number, negative, or too fine to count.
    """

    model: str
    input_per_mtok: Decimal | str | int
    output_per_mtok: Decimal | str | int
    context_window: int
    cached_input_per_mtok: Decimal | str | int | None = None
    max_output_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("input_per_mtok", "output_per_mtok", "cached_input_per_mtok"):
            value = getattr(self, name)
            if value is None and name == "cached_input_per_mtok":
                continue
            object.__setattr__(self, name, _price(self.model, name, value))

    def cost(self, input_tokens: int, output_tokens: int, cached_input_tokens: int = 0) -> Decimal:
        """The exact price of a call in USD, not rounded.

        Raises:
            ValueError: for a negative count, or more cached tokens than input tokens.
        """
        pico = self._pico(Usage(input_tokens, output_tokens, cached_input_tokens))
        return Decimal(pico).scaleb(-_PICO_PLACES)

    def cost_nano(self, usage: Usage) -> NanoUSD:
        """The price of a call in nano-USD, rounded up once.

        Raises:
            ValueError: for a negative count, or more cached tokens than input tokens.
        """
        return ceil_nano(self._pico(usage))

    def worst_nano(self, usage: Usage) -> NanoUSD:
        """The most that this many tokens can cost: each input token at the dearer of its two prices."""
        dearest = max(_pico_per_token(self.input_per_mtok), self._cached_pico())
        return ceil_nano(
            usage.input_tokens * dearest + usage.output_tokens * _pico_per_token(self.output_per_mtok)
        )

    def _cached_pico(self) -> int:
        cached = self.cached_input_per_mtok
        return _pico_per_token(self.input_per_mtok if cached is None else cached)

    def _pico(self, usage: Usage) -> int:
        fresh = usage.input_tokens - usage.cached_input_tokens
        if min(usage.input_tokens, usage.output_tokens, usage.cached_input_tokens) < 0:
            raise ValueError(f"{self.model}: a count of tokens cannot be negative")
        if fresh < 0:
            raise ValueError(
                f"{self.model}: {usage.cached_input_tokens} cached tokens cannot be part of "
                f"{usage.input_tokens} input tokens"
            )
        return (
            fresh * _pico_per_token(self.input_per_mtok)
            + usage.cached_input_tokens * self._cached_pico()
            + usage.output_tokens * _pico_per_token(self.output_per_mtok)
        )


Pricing = Mapping[str, ModelPricing]
"""Prices by exact model id."""


def _price(model: str, name: str, value: Decimal | str | int) -> Decimal:
    if isinstance(value, (float, bool)):
        raise TypeError(f"{model}: {name} is never a {type(value).__name__}: write {str(value)!r} in quotes")
    try:
        price = Decimal(value)
    except (InvalidOperation, TypeError, ValueError):
        raise ValueError(f"{model}: {name}={value!r} is not a price, write for example '0.25'") from None
    if not price.is_finite() or price < 0:
        raise ValueError(f"{model}: {name}={value} must be 0 or more")
    if price * PICO_PER_MTOK_USD % 1:
        raise ValueError(f"{model}: {name}={value} is finer than a pico-USD per token (six decimal places)")
    return price


def _pico_per_token(price: Decimal | str | int) -> int:
    return int(Decimal(price) * PICO_PER_MTOK_USD)
