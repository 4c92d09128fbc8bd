"""A file of prices is right, or refused with the name of the model and the field."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentq.core.errors import UsageError
from agentq.provider.families import FAMILIES
from agentq.provider.pricefile import BUILT_IN, Entry, PriceFile, Tier, parse_prices, read_prices
from agentq.provider.types import Usage

PICO = st.integers(0, 2**40)
OPTIONAL = st.none() | PICO
NAME = st.text("abc-/.:é", min_size=1, max_size=8)


def file_of(*models: dict[str, Any], **head: Any) -> str:
    return json.dumps({"format": 1, "models": list(models), **head})


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    starts = sorted(draw(st.sets(st.integers(0, 10**6), max_size=3)))
    tiers = tuple(
        Tier(
            above=start,
            input=draw(PICO),
            output=draw(PICO),
            cached_input=draw(OPTIONAL),
            cache_write=draw(OPTIONAL),
        )
        for start in starts
    )
    names = draw(st.lists(NAME, min_size=1, max_size=3, unique=True))
    return Entry(
        provider=draw(st.sampled_from(["", "openai"])),
        id=names[0],
        aliases=tuple(names[1:]),
        input=draw(PICO),
        output=draw(PICO),
        cached_input=draw(OPTIONAL),
        cache_write=draw(OPTIONAL),
        request=draw(PICO),
        tiers=tiers,
        context_window=draw(st.none() | st.integers(1, 10**7)),
        max_output=draw(st.none() | st.integers(1, 10**6)),
        effective_from=draw(st.sampled_from(["", "2026-01-01"])),
        not_priced=tuple(draw(st.lists(NAME, max_size=2))),
        note=draw(st.text(max_size=5)),
    )


@given(entries())
def test_what_is_written_is_read_again(entry: Entry) -> None:
    """Zero stays zero and absent stays absent: a cached token for nothing is not one without a price."""
    file = PriceFile((entry,), "2026-11-29", {"somebody": "1"})
    assert parse_prices(file.dump(), "f") == file


def test_a_model_is_one_line() -> None:
    """So that a change of price is one line of a diff."""
    text = PriceFile((Entry(id="a", input=1, output=2), Entry(id="b", input=3, output=4))).dump()
    assert text.splitlines()[1:3] == [
        '{"id": "a", "input": 1, "output": 2},',
        '{"id": "b", "input": 3, "output": 4}',
    ]


def test_an_entry_costs_what_its_numbers_say() -> None:
    """1,250,000 pico-USD per token is 1.25 USD per million; the fee is per request."""
    tier = Tier(above=100, input=2_500_000, output=9)
    price = Entry(id="m", input=1_250_000, output=10_000_000, request=7_000, tiers=(tier,)).price()
    assert (price.input_per_mtok, price.per_request_usd) == (Decimal("1.25"), Decimal("0.000000007"))
    assert price.cost_nano(Usage(100, 1)) == 7 + 125_000 + 10_000
    assert price.cost_nano(Usage(200, 1000)) == 7 + 500_000 + 9


@pytest.mark.parametrize(
    "text, sentence",
    [
        ('{"format": 1,\n"models": [\n{"id": }]}', "f:3: not JSON"),
        ("[]", "the file must be a JSON object"),
        (file_of(format=2), "format must be 1, not 2"),
        ('{"format": 1}', "models must be a list"),
        (file_of(model=1), r"unknown field 'model' \(did you mean 'models'\?\)"),
        (file_of({"input": 1, "output": 1}), "model 1: id is missing"),
        (
            file_of({"id": "a", "input": 1, "output": 1}, {"id": "b", "input": 1}),
            r"model 2 \('b'\): output is missing",
        ),
        (
            file_of({"id": "a", "inputs": 1}),
            r"model 1 \('a'\): unknown field 'inputs' \(did you mean 'input'\?\)",
        ),
        (
            file_of({"id": "a", "input": 1.25, "output": 1}),
            r"\('a'\): input must be a whole number of pico-USD, not 1.25; "
            "for 1.25 USD per million tokens write 1250000",
        ),
        (file_of({"id": "a", "input": "1", "output": 1}), "input must be a whole number"),
        (file_of({"id": "a", "input": True, "output": 1}), "input must be a whole number"),
        (
            file_of({"id": "a", "input": 0.0000001, "output": 1}),
            "input must be a whole number of pico-USD, not 1e-07\n",
        ),
        (file_of({"id": "a", "input": -1, "output": 1}), "input must be from 0 to"),
        (file_of({"id": "a", "input": 1, "output": 2**53}), "output must be from 0 to"),
        (file_of({"id": " a", "input": 1, "output": 1}), "id must be a name"),
        (file_of({"id": "a", "input": 1, "output": 1, "aliases": "b"}), "aliases must be a list"),
        (
            file_of({"id": "a", "input": 1, "output": 1, "context_window": 0}),
            "context_window must be a number",
        ),
        (file_of({"id": "a", "input": 1, "output": 1, "tiers": {}}), "tiers must be a list"),
        (
            file_of({"id": "a", "input": 1, "output": 1, "tiers": [{"above": 1, "input": 1}]}),
            r"\('a'\): tiers \[0\]: output is missing",
        ),
        (
            file_of(
                {"id": "a", "input": 1, "output": 1, "tiers": [{"above": 1, "input": 1, "output": 1}] * 2}
            ),
            r"\('a'\): tiers: .*must ascend",
        ),
        (
            file_of({"id": "a", "input": 1, "output": 1}, {"id": "a", "input": 2, "output": 1}),
            "'a' is a name of 'a'",
        ),
        (
            file_of(
                {"id": "a", "input": 1, "output": 1}, {"id": "b", "aliases": ["a"], "input": 2, "output": 1}
            ),
            "model 'b': 'a' is a name of 'a' already",
        ),
        (file_of(sources=[]), "sources must be a JSON object"),
        (file_of(as_of=5), "as_of must be text, not 5"),
    ],
)
def test_a_wrong_file_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        parse_prices(text, "f")


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.json cannot be read: No such file"):
        read_prices(tmp_path / "none.json")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_prices(tmp_path / "binary")


def test_the_same_id_may_be_sold_by_two_providers() -> None:
    """They are two models."""
    file = parse_prices(
        file_of(
            {"provider": "a", "id": "m", "input": 1, "output": 1},
            {"provider": "b", "id": "m", "input": 2, "output": 1},
        ),
        "f",
    )
    assert [entry.name for entry in file.entries] == ["a:m", "b:m"]


def test_the_built_in_file_is_right_and_has_the_providers_that_people_use() -> None:
    """Every entry has a price that can be computed, a source, and a family that exists or none."""
    text = BUILT_IN.read_text(encoding="utf-8")
    file = parse_prices(text, "built in")
    assert file.dump() == text
    count = dict.fromkeys(
        ("openai", "anthropic", "google", "mistral", "deepseek", "x-ai", "groq", "openrouter"), 0
    )
    for entry in file.entries:
        count[entry.provider] += 1
        assert entry.family in {*FAMILIES, ""}
        assert entry.source
        assert entry.price().worst_nano(Usage(10**6, 10**5)) >= entry.price().cost_nano(Usage(10**6, 10**5))
    assert min(count.values()) >= 5
    assert list(file.entries) == sorted(file.entries, key=lambda entry: (entry.provider, entry.id))
