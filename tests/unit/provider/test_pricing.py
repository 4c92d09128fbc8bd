"""Prices are exact and rounded up once."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentq.provider.pricing import ModelPricing
from agentq.provider.types import Usage

PRICES = st.integers(0, 100_000_000).map(lambda micro: Decimal(micro).scaleb(-6))
TOKENS = st.integers(0, 2_000_000)


def test_a_cached_token_costs_its_own_price() -> None:
    """A million of each class costs what the price list says."""
    price = ModelPricing("m", "2.00", "8.00", 128_000, cached_input_per_mtok="0.50")
    assert price.cost(2_000_000, 1_000_000, 1_000_000) == Decimal("10.50")


def test_without_a_cached_price_a_cached_token_costs_as_much_as_another() -> None:
    """No discount is assumed."""
    price = ModelPricing("m", 2, 8, 128_000)
    assert price.cost(1000, 0, 1000) == price.cost(1000, 0)


def test_more_cached_tokens_than_input_are_refused() -> None:
    """Such a usage is wrong, and guessing would be worse."""
    with pytest.raises(ValueError, match="cannot be part of"):
        ModelPricing("m", 2, 8, 128_000).cost(1, 0, 2)


@pytest.mark.parametrize("field", ["input_per_mtok", "output_per_mtok", "cached_input_per_mtok"])
def test_a_float_price_is_refused_in_words(field: str) -> None:
    """Binary fractions are not money."""
    prices: dict[str, object] = {"input_per_mtok": 1, "output_per_mtok": 1, field: 0.1}
    with pytest.raises(TypeError, match=r"'0\.1' in quotes"):
        ModelPricing("m", context_window=1, **prices)  # type: ignore[arg-type]


@pytest.mark.parametrize("price", ["-1", "NaN", "dear", "0.0000001"])
def test_a_price_that_cannot_be_counted_is_refused(price: str) -> None:
    """Negative, no number, or finer than a pico-USD per token."""
    with pytest.raises(ValueError, match="m: input_per_mtok"):
        ModelPricing("m", price, 1, 1)


@given(PRICES, PRICES, PRICES, st.tuples(TOKENS, TOKENS, TOKENS))
def test_nano_is_the_exact_cost_rounded_up_once(
    fresh: Decimal, cached: Decimal, output: Decimal, tokens: tuple[int, int, int]
) -> None:
    """Checked against fractions, which know no rounding."""
    tokens_in, tokens_out, tokens_cached = tokens
    price = ModelPricing("m", fresh, output, 1, cached_input_per_mtok=cached)
    usage = Usage(tokens_in + tokens_cached, tokens_out, tokens_cached)
    exact = (
        tokens_in * Fraction(fresh) + tokens_cached * Fraction(cached) + tokens_out * Fraction(output)
    ) * 1000
    nano = price.cost_nano(usage)
    assert 0 <= nano - exact < 1
    assert Fraction(price.cost(usage.input_tokens, tokens_out, tokens_cached)) * 10**9 == exact


@given(PRICES, PRICES, TOKENS, TOKENS, st.data())
def test_the_worst_case_is_never_less_than_the_cost(
    fresh: Decimal, cached: Decimal, tokens_in: int, tokens_out: int, data: st.DataObject
) -> None:
    """Whatever part of the input turns out to be cached, also where cached tokens are the dearer ones."""
    price = ModelPricing("m", fresh, 1, 1, cached_input_per_mtok=cached)
    part = data.draw(st.integers(0, tokens_in))
    usage = Usage(tokens_in, tokens_out, part)
    assert price.worst_nano(Usage(tokens_in, tokens_out)) >= price.cost_nano(usage)
