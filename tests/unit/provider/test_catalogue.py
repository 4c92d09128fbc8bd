"""A price is found by an exact name, or not at all; and what users say goes over what we say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentq.app import AgentQ
from agentq.core.errors import UsageError
from agentq.provider.catalogue import (
    Catalogue,
    LayeredPrices,
    built_in,
    catalogue_hash,
    known_prices,
    missing_price_hint,
    price_of,
)
from agentq.provider.pricefile import Entry
from agentq.provider.pricing import ModelPricing, PriceTier
from agentq.provider.scripted import ScriptedClient


def entry(name: str, price: int = 1, provider: str = "", **fields: object) -> Entry:
    return Entry(id=name, provider=provider, input=price, output=price, **fields)  # type: ignore[arg-type]


def catalogue(*entries: Entry) -> Catalogue:
    return Catalogue(lambda: entries)


@pytest.mark.parametrize("model", ["claude-sonnet-4-5-future", "gpt-5-", "gpt", "GPT-5", "gpt-5 ", ""])
def test_a_model_that_nobody_has_entered_has_no_price(model: str) -> None:
    """Nor the price of one whose name it begins with."""
    assert model not in built_in()
    assert built_in().get(model) is None


@pytest.mark.parametrize(
    "alias, model",
    [
        ("gpt-5-2025-08-07", "gpt-5"),
        ("openai:gpt-5", "gpt-5"),
        ("openai:gpt-5-2025-08-07", "gpt-5"),
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
    ],
)
def test_an_alias_and_a_qualified_name_are_the_model(alias: str, model: str) -> None:
    assert built_in()[alias] is not None
    assert built_in()[alias] == built_in()[model]


def test_an_id_at_two_prices_needs_its_provider() -> None:
    """Nobody can say which bill will come."""
    known = catalogue(entry("m", 1, "a"), entry("m", 2, "b"), entry("n", 3, "a"), entry("n", 3, "b"))
    assert "m" not in known
    assert known.get("m") is None
    assert known["b:m"].rates[0].input == 2
    assert known["n"].rates[0].input == 3
    assert sorted(known) == ["a:m", "a:n", "b:m", "b:n", "n"]
    assert len(known) == 5
    assert known.sold_as("m") == ("a:m", "b:m")
    assert known.sold_as("n") == known.sold_as("x") == ()


def test_price_of_asks_for_the_provider_only_where_the_id_is_not_enough() -> None:
    known = catalogue(entry("m", 1, "a"), entry("m", 2, "b"), entry("n", 3, "a"))
    found = [price_of(known, *asked) for asked in (("m", "b"), ("m",), ("n", "b"), ("x", "a"))]
    assert [price and price.rates[0].input for price in found] == [2, None, 3, None]


def test_the_first_layer_that_knows_a_model_prices_it() -> None:
    low = catalogue(entry("a", 1), entry("b", 1))
    high = {"b": ModelPricing("b", "2", "2", 1), "c": ModelPricing("c", "3", "3", 1)}
    both = LayeredPrices(high, low)
    assert {name: price.rates[0].input for name, price in both.items()} == {
        "a": 1,
        "b": 2_000_000,
        "c": 3_000_000,
    }
    assert (len(both), "a" in both, "x" in both, both.get("x")) == (3, True, False, None)
    over = both | {"a": ModelPricing("a", "9", "9", 1)}
    assert (over["a"].rates[0].input, over["b"].rates[0].input) == (9_000_000, 2_000_000)
    assert both["a"].rates[0].input == 1


def prices_file(folder: Path, *models: dict[str, object]) -> str:
    path = folder / "mine.json"
    path.write_text(json.dumps({"format": 1, "models": models}))
    return str(path)


def test_an_agent_has_its_own_prices_over_the_apps_over_the_files_over_ours(tmp_path: Path) -> None:
    names = ("gpt-4o", "gpt-5", "gpt-5-mini")
    file = prices_file(tmp_path, *({"id": name, "input": 7, "output": 7} for name in names))
    mine = {name: ModelPricing(name, 8, 8, 1) for name in names[1:]}
    app = AgentQ("t", pricing=mine, prices_file=file)
    own = {"gpt-5-mini": ModelPricing("gpt-5-mini", 9, 9, 1)}
    agent = app.agent("a", model=ScriptedClient(["x"]), pricing=own)
    assert agent.pricing is not None
    asked = [agent.pricing[name].rates[0].input for name in ("gpt-4.1", *names)]
    assert asked == [2_000_000, 7, 8_000_000, 9_000_000]


def test_a_file_says_who_sells_a_model_of_two_prices(tmp_path: Path) -> None:
    """The entry of a user's file is found by its bare id again."""
    model = "openai/gpt-oss-120b"
    assert model not in known_prices()
    file = prices_file(tmp_path, {"provider": "groq", "id": model, "input": 150_000, "output": 600_000})
    assert known_prices(None, file)[model].rates[0].output == 600_000


def test_a_wrong_file_is_refused_when_the_app_is_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"mine.json: model 1 \('m'\): output is missing"):
        AgentQ("t", prices_file=prices_file(tmp_path, {"id": "m", "input": 1}))


def test_the_hint_names_the_nearest_model_or_the_sellers() -> None:
    known = known_prices({"mine": ModelPricing("mine", 1, 1, 1)})
    assert "did you mean 'gpt-5'?" in missing_price_hint(known, "gpt-5o")
    assert "groq:openai/gpt-oss-120b" in missing_price_hint(known, "openai/gpt-oss-120b")
    assert "prices_file" in missing_price_hint({}, "anything")


BASE = ModelPricing("m", "1", "2", 100)


@pytest.mark.parametrize(
    "changed",
    [
        ModelPricing("m", "1.000001", "2", 100),
        ModelPricing("m", "1", "2.000001", 100),
        ModelPricing("m", "1", "2", 100, "0.5"),
        ModelPricing("m", "1", "2", 100, cache_write_per_mtok="2"),
        ModelPricing("m", "1", "2", 100, per_request_usd="0.000000000001"),
        ModelPricing("m", "1", "2", 100, tiers=[PriceTier(5, "1", "2")]),
    ],
)
def test_another_price_is_another_hash(changed: ModelPricing) -> None:
    assert catalogue_hash({"m": changed}) != catalogue_hash({"m": BASE})


def test_the_hash_is_of_prices_only() -> None:
    """Not of limits, of the order, or of how a price is written."""
    same = ModelPricing("m", "1.0", 2, 200, "1", max_output_tokens=5)
    other = ModelPricing("n", "3", "3", 1)
    assert catalogue_hash({"m": BASE, "n": other}) == catalogue_hash({"n": other, "m": same})
    assert catalogue_hash({"x": BASE}) != catalogue_hash({"m": BASE})
    assert catalogue_hash({"m": BASE}) == "a3aa5a546685"
    assert catalogue_hash({}) == "4f53cda18c2b"


def test_nothing_is_read_before_a_price_is_needed() -> None:
    """Not on import, not for an app with an agent whose model it prices itself."""
    code = (
        "from agentq import AgentQ\n"
        "from agentq.provider.catalogue import built_in\n"
        "from agentq.provider.pricing import ModelPricing\n"
        "app = AgentQ('t', pricing={'scripted-v1': ModelPricing('scripted-v1', 1, 1, 1)})\n"
        "agent = app.agent('a', model='scripted')\n"
        "assert agent.pricing and 'scripted-v1' in agent.pricing\n"
        "assert 'entries' not in vars(built_in())\n"
        "assert 'gpt-5' in agent.pricing\n"
        "assert 'entries' in vars(built_in())\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
