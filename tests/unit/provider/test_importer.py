"""What is imported costs what the source says, to the last digit; the rest is refused with a reason."""

from __future__ import annotations

import builtins
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest
from genai_prices.data import providers
from genai_prices.types import (
    ClauseEquals,
    ClauseOr,
    ClauseStartsWith,
    ConditionalPrice,
    ModelInfo,
    ModelPrice,
    PriceVariant,
    Provider,
    StartDateConstraint,
    Tier,
    TieredPrices,
    TimeOfDateConstraint,
)
from genai_prices.types import Usage as TheirUsage

from agentq.core.errors import UsageError
from agentq.provider import importer
from agentq.provider.importer import Change, changes, convert, import_prices, merged
from agentq.provider.pricefile import Entry, PriceFile
from agentq.provider.pricefile import Tier as OurTier

DAY = date(2026, 11, 29)
NOON = datetime.combine(DAY, time(12), UTC)


def source(*models: ModelInfo, id: str = "openai") -> list[Provider]:
    return [Provider(id=id, name=id, api_pattern="x", models=list(models))]


def model(id: str, prices: Any = None, match: Any = None, **fields: Any) -> ModelInfo:
    if prices is None:
        prices = ModelPrice(input_mtok=Decimal(1), output_mtok=Decimal(2))
    return ModelInfo(id=id, match=match or ClauseEquals(id), prices=prices, **fields)


def only(made: tuple[list[Entry], list[Any]]) -> Entry:
    entries, skipped = made
    assert (len(entries), skipped) == (1, [])
    return entries[0]


def tokens_near(entry: Entry) -> Iterable[int]:
    """Around every tier's start, and far beyond."""
    for tier in entry.tiers:
        yield from (tier.above - 1, tier.above, tier.above + 1)
    yield from (0, 1, 777, 3_000_000)


def test_every_imported_price_is_the_sources_own_to_the_last_digit() -> None:
    """All models of the installed release, at every tier, with any split into classes."""
    entries, _ = convert(providers, DAY)
    theirs = {provider.id: provider for provider in providers}
    draw = random.Random(7)
    compared = 0
    for entry in entries:
        provider = theirs[entry.provider]
        found = provider.find_model(entry.id)
        assert found is not None
        assert all(provider.find_model(alias) is found for alias in entry.aliases)
        price = entry.price()
        for input_tokens in tokens_near(entry):
            cached = draw.randint(0, max(input_tokens, 0))
            written = draw.randint(0, input_tokens - cached)
            output = draw.randint(0, 5000)
            usage = TheirUsage(
                input_tokens=input_tokens,
                output_tokens=output,
                cache_read_tokens=cached,
                cache_write_tokens=written,
            )
            wanted = found.calc_price(usage, provider, genai_request_timestamp=NOON).total_price
            assert price.cost(input_tokens, output, cached, written) == wanted, entry.name
            compared += 1
    assert compared > 2000


def test_every_model_of_a_provider_is_taken_or_named_with_a_reason() -> None:
    """None is lost on the way."""
    entries, skipped = convert(providers, DAY)
    ours = [provider for provider in providers if provider.id in importer.PROVIDERS]
    assert len(ours) == len(importer.PROVIDERS)
    assert Counter(e.provider for e in entries) + Counter(s.provider for s in skipped) == Counter(
        {provider.id: len(provider.models) for provider in ours}
    )
    assert all(one.reason for one in skipped)


@pytest.mark.parametrize(
    "prices, reason",
    [
        ({"input_mtok": "0.0833333333", "output_mtok": "1"}, "the price of input is finer than a pico-USD"),
        ({"input_mtok": "1"}, "no price for tokens of output"),
        ({"output_mtok": "1"}, "no price for tokens of input"),
        ({}, "the source has no price"),
        (
            {"input_mtok": "1", "output_mtok": "1", "output_reasoning_mtok": "3"},
            "a price that a bill of tokens cannot have: output_reasoning_mtok",
        ),
        (
            {"input_mtok": "1", "output_mtok": "1", "requests_kcount": "0.0000000001"},
            "the price of each request is finer",
        ),
    ],
)
def test_what_cannot_be_said_exactly_is_skipped(prices: dict[str, str], reason: str) -> None:
    given = ModelPrice(**{key: Decimal(value) for key, value in prices.items()})
    entries, skipped = convert(source(model("m", given)), DAY)
    assert entries == []
    assert [(one.provider, one.id) for one in skipped] == [("openai", "m")]
    assert skipped[0].reason.startswith(reason)


def test_a_price_by_the_time_of_the_day_is_skipped() -> None:
    cheap = ModelPrice(input_mtok=Decimal(1), output_mtok=Decimal(1))
    hours = TimeOfDateConstraint(start_time=time(1), end_time=time(2))
    by_day = [ConditionalPrice(prices=cheap), ConditionalPrice(hours, prices=cheap)]
    _, skipped = convert(source(model("m", by_day)), DAY)
    assert skipped[0].reason == "its price depends on the time of the day"


def test_the_price_of_the_day_is_taken_and_the_next_one_announced() -> None:
    def at(price: int, start: date | None) -> ConditionalPrice:
        prices = ModelPrice(input_mtok=Decimal(price), output_mtok=Decimal(price))
        return ConditionalPrice(StartDateConstraint(start_date=start) if start else None, prices=prices)

    prices = [at(1, None), at(2, DAY), at(3, date(2027, 1, 1)), at(4, date(2027, 6, 1))]
    taken = only(convert(source(model("m", prices)), DAY))
    assert (taken.input, taken.effective_from, taken.changes_on) == (2_000_000, "2026-11-29", "2027-01-01")
    before = only(convert(source(model("m", prices)), date(2026, 11, 28)))
    assert (before.input, before.effective_from, before.changes_on) == (1_000_000, "", "2026-11-29")


def test_classes_with_tiers_of_their_own_are_put_together() -> None:
    """Each tier says the price of every class there; a class without tiers has one price throughout."""
    prices = ModelPrice(
        input_mtok=TieredPrices(base=Decimal(1), tiers=[Tier(100, Decimal(2))]),
        output_mtok=TieredPrices(base=Decimal(4), tiers=[Tier(50, Decimal(5)), Tier(100, Decimal(6))]),
        cache_read_mtok=Decimal("0.5"),
    )
    taken = only(convert(source(model("m", prices)), DAY))
    assert taken.tiers == (
        OurTier(above=50, input=1_000_000, cached_input=500_000, output=5_000_000),
        OurTier(above=100, input=2_000_000, cached_input=500_000, output=6_000_000),
    )


def test_exact_ids_are_aliases_and_patterns_are_not() -> None:
    match = ClauseOr([ClauseEquals("m"), ClauseEquals("m-1"), ClauseEquals("other"), ClauseStartsWith("m-")])
    made = convert(source(model("other"), model("m", match=match)), DAY)
    assert [(entry.id, entry.aliases) for entry in made[0]] == [("m", ("m-1",)), ("other", ())]


def test_an_id_that_means_no_model_is_replaced_by_one_that_does() -> None:
    taken = only(convert(source(model("m", match=ClauseEquals("m-2025"))), DAY))
    assert (taken.id, taken.aliases) == ("m-2025", ())
    _, skipped = convert(source(model("m", match=ClauseStartsWith("x-"))), DAY)
    assert skipped[0].reason == "its id is not one that the provider takes"


def test_what_text_is_never_charged_for_is_named() -> None:
    prices = ModelPrice(input_mtok=Decimal(1), output_mtok=Decimal(2), web_searches_kcount=Decimal(10))
    batch = PriceVariant({"processing": "batch"}, ModelPrice(input_mtok=Decimal("0.5")))
    usual = PriceVariant({"service_tier": "default"}, ModelPrice())
    taken = only(convert(source(model("m", prices, price_variants=[batch, usual])), DAY))
    assert taken.not_priced == ("processing=batch", "web searches")


def test_a_fee_is_per_request() -> None:
    prices = ModelPrice(input_mtok=Decimal(1), output_mtok=Decimal(2), requests_kcount=Decimal(5))
    taken = only(convert(source(model("m", prices)), DAY))
    assert taken.price().cost(0, 0) == Decimal("0.005")


def test_a_free_model_costs_nothing_and_has_a_price() -> None:
    taken = only(convert(source(model("a/m:free", ModelPrice()), id="openrouter"), DAY))
    assert taken.price().cost(10**6, 10**6) == 0


def test_ids_of_openrouter_have_a_maker_and_claude_on_vertex_is_left_out() -> None:
    _, skipped = convert(source(model("m"), id="openrouter"), DAY)
    assert "not of the provider's form" in skipped[0].reason
    _, skipped = convert(source(model("claude-x"), id="google"), DAY)
    assert "Vertex" in skipped[0].reason
    assert convert(source(model("m"), id="somebody"), DAY) == ([], [])


IMPORTED = Entry(provider="p", id="a", input=1, output=1, source=importer.SOURCE)


def test_an_import_keeps_what_was_entered_by_hand() -> None:
    """Entries of another source, and max_output, which the source does not have; what it dropped goes."""
    by_hand = Entry(provider="p", id="h", input=5, output=5, source="by hand")
    gone = replace(IMPORTED, id="gone")
    old = PriceFile((replace(IMPORTED, max_output=9), by_hand, gone), "2026-01-01", {"x": "1"})
    new = PriceFile(
        (replace(IMPORTED, input=2), replace(by_hand, input=6, source=importer.SOURCE)),
        "2026-02-01",
        {"y": "2"},
    )
    assert merged(old, new) == PriceFile(
        (replace(IMPORTED, input=2, max_output=9), by_hand), "2026-02-01", {"x": "1", "y": "2"}
    )


def test_a_difference_is_a_line_for_each_field() -> None:
    old = [IMPORTED, replace(IMPORTED, id="gone"), replace(IMPORTED, id="same")]
    new = [
        replace(IMPORTED, input=2, aliases=("b",)),
        replace(IMPORTED, id="same"),
        replace(IMPORTED, id="new"),
    ]
    assert changes(old, new) == [
        Change("p:a", "aliases", (), ("b",)),
        Change("p:a", "input", 1, 2),
        Change("p:gone", "", old[1], None),
        Change("p:new", "", None, new[2]),
    ]
    assert changes(old, old) == []


def test_without_the_package_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("genai_prices"):
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError) as caught:
        import_prices(DAY)
    assert caught.value.hint == "pip install genai-prices"


def test_an_import_says_whose_prices_of_which_day_it_has() -> None:
    file, skipped = import_prices(DAY)
    assert file.as_of == "2026-11-29"
    assert set(file.sources) == {"genai-prices"}
    assert len(file.entries) > 500
    assert skipped
