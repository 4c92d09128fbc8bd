"""Prices are exact and rounded up once."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentq.provider.pricing import ModelPricing, PriceTier
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


TIERED = ModelPricing(
    "m",
    "1",
    "4",
    400_000,
    cached_input_per_mtok="0.1",
    cache_write_per_mtok="1.25",
    tiers=[
        PriceTier(200_000, "2", "6", "0.2", "2.5"),
        PriceTier(300_000, "3", "5"),
    ],
    per_request_usd="0.005",
)


@pytest.mark.parametrize(
    "usage, usd",
    [
        (Usage(0, 0), "0.005"),
        (Usage(200_000, 1_000_000), "4.205"),  # at the threshold, not over it
        (Usage(200_001, 1_000_000), "6.405002"),  # over it, and every token is dearer
        (Usage(300_001, 1_000_000), "5.905003"),
        (Usage(100_000, 0, 100_000), "0.015"),
        (Usage(100_000, 0, cache_write_tokens=100_000), "0.13"),
        (Usage(100_000, 0, 30_000, cache_write_tokens=20_000), "0.083"),
        (Usage(300_001, 0, 300_001), "0.905003"),  # no cached price in this tier: as input of this tier
    ],
)
def test_the_input_tokens_choose_the_tier_of_the_whole_request(usage: Usage, usd: str) -> None:
    """A cliff, not a slope; the request's fee is always there."""
    cost = TIERED.cost(
        usage.input_tokens, usage.output_tokens, usage.cached_input_tokens, usage.cache_write_tokens
    )
    assert cost == Decimal(usd)
    assert TIERED.cost_nano(usage) == int(Decimal(usd) * 10**9)


def test_the_worst_case_is_at_the_dearest_tier_that_can_be_reached() -> None:
    """The highest tier is the cheaper one for output here; a shorter request could be in the dearer one."""
    output = 10_000_000
    assert TIERED.worst_nano(Usage(200_000, output)) == 5_000_000 + 250_000_000 + 4 * 10**10
    assert TIERED.worst_nano(Usage(200_001, output)) == 5_000_000 + 500_002_500 + 6 * 10**10
    assert TIERED.worst_nano(Usage(300_001, output)) == 5_000_000 + 750_002_500 + 6 * 10**10


@st.composite
def tiered_prices(draw: st.DrawFn) -> ModelPricing:
    def rates() -> tuple[Decimal, Decimal, Decimal | None, Decimal | None]:
        return draw(PRICES), draw(PRICES), draw(st.none() | PRICES), draw(st.none() | PRICES)

    starts = draw(st.lists(st.integers(0, 2000), max_size=3, unique=True).map(sorted))
    first_in, first_out, first_cached, first_write = rates()
    return ModelPricing(
        "m",
        first_in,
        first_out,
        None,
        first_cached,
        cache_write_per_mtok=first_write,
        tiers=[PriceTier(start, *rates()) for start in starts],
        per_request_usd=draw(PRICES),
    )


@given(tiered_prices(), st.integers(0, 3000), st.integers(0, 3000), st.data())
def test_no_usage_within_a_bound_costs_more_than_the_worst_case(
    price: ModelPricing, most_in: int, most_out: int, data: st.DataObject
) -> None:
    """Fewer tokens, another tier, any split into classes: never more than was reserved."""
    used = data.draw(st.integers(0, most_in))
    cached = data.draw(st.integers(0, used))
    written = data.draw(st.integers(0, used - cached))
    usage = Usage(used, data.draw(st.integers(0, most_out)), cached, cache_write_tokens=written)
    assert price.cost_nano(usage) <= price.worst_nano(Usage(most_in, most_out))


@pytest.mark.parametrize(
    "wrong, sentence",
    [
        ({"tiers": [PriceTier(5, 1, 1), PriceTier(5, 1, 1)]}, "must ascend"),
        ({"tiers": [PriceTier(5, 1, 1), PriceTier(4, 1, 1)]}, "must ascend"),
        ({"tiers": [PriceTier(-1, 1, 1)]}, "not a number of tokens"),
        ({"tiers": [PriceTier(1, "0.0000001", 1)]}, "m: input_per_mtok=0.0000001 is finer"),
        ({"cache_write_per_mtok": "-1"}, "cache_write_per_mtok=-1 must be 0 or more"),
        ({"per_request_usd": "0.0000000000001"}, "per_request_usd=1E-13 is finer|finer than a pico-USD"),
    ],
)
def test_a_wrong_tier_or_fee_is_refused_in_words(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        ModelPricing("m", 1, 1, 1, **wrong)


def test_cached_and_written_tokens_together_are_not_more_than_the_input() -> None:
    """Each input token is of one class."""
    with pytest.raises(ValueError, match="6 cached and 5 written tokens cannot be part of 10"):
        ModelPricing("m", 2, 8, 1).cost_nano(Usage(10, 0, 6, cache_write_tokens=5))
    with pytest.raises(ValueError, match="negative"):
        ModelPricing("m", 2, 8, 1).cost_nano(Usage(10, 0, cache_write_tokens=-1))


def test_equal_prices_are_equal_however_they_are_written() -> None:
    """Text, whole numbers and decimals."""
    tiers = [PriceTier(5, "2.0", 4)]
    one = ModelPricing("m", "1.50", 3, 1, tiers=tiers)
    other = ModelPricing("m", Decimal("1.5"), "3.0", 1, tiers=[PriceTier(5, 2, "4")])
    assert one == other
    assert one.rates == other.rates
    assert hash(one) == hash(other)
