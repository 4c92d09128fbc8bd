"""One row: what may be in it, what is said of what may not, and by what it is known."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from agentq.engine.rows import Row, parse_row


def nested(levels: int) -> dict[str, Any]:
    """An object with so many more in it."""
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"in": value}
    return value


def test_only_the_input_is_required() -> None:
    row = parse_row({"input": "Where is order 7?"})
    assert row == Row(input="Where is order 7?")
    assert row.messages() == [{"role": "user", "content": "Where is order 7?"}]


def test_a_conversation_stays_a_conversation() -> None:
    talk = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "?"},
        {"role": "user", "content": "x"},
    ]
    assert parse_row({"input": talk}).messages() == talk


def test_an_object_is_sent_as_compact_json() -> None:
    assert parse_row({"input": {"id": 7, "tags": ["ä", 1]}}).input == '{"id":7,"tags":["ä",1]}'


def test_money_is_exact() -> None:
    assert parse_row({"input": "x", "max_usd": "0.10"}).max_usd == Decimal("0.10")
    assert parse_row({"input": "x", "max_usd": 2}).max_usd == Decimal(2)


@pytest.mark.parametrize(
    "row, sentence",
    [
        ({}, "no 'input'"),
        ({"input": "  "}, "empty"),
        ({"input": 7}, "not a number"),
        ({"input": None}, "not null"),
        ({"input": []}, "without a message of the user"),
        ({"input": [{"role": "user"}]}, "message 1"),
        ({"input": [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]}, "role 'tool'"),
        ({"input": [{"role": "user", "content": ["a"]}]}, "not a list"),
        ({"input": "x", "metdata": {}}, "did you mean 'metadata'"),
        ({"input": "x", "metadata": []}, "'metadata' is an object, not a list"),
        ({"input": "x", "custom_id": 7}, "'custom_id' is a string, not a number"),
        ({"input": "x", "custom_id": ""}, "1 to 256"),
        ({"input": "x", "custom_id": "a\nb"}, "printable"),
        ({"input": "x", "max_usd": 0.1}, 'never a float: write "0.1" in quotes'),
        ({"input": "x", "max_usd": "-1"}, "must be 0 or more"),
        ({"input": "x", "max_usd": "cheap"}, "not an amount"),
        ({"input": "x", "max_usd": "1e999999999"}, "more than can be counted"),
        ({"input": "x", "max_usd": True}, "not true or false"),
        ({"input": "x", "context": {"blob": "x" * 8_000}}, "the most is 8000"),
        ({"input": "x", "priority": 10}, "0 to 9, the most urgent, not 10"),
        ({"input": "x", "priority": -1}, "not -1"),
        ({"input": "x", "priority": True}, "whole number from 0 to 9, not true or false"),
        ({"input": "x", "priority": 1.5}, "not 1.5"),
        ({"input": "x", "priority": "high"}, "not a string"),
        ({"messages": []}, "a list of messages is the 'input'"),
        ({"input": {"n": float("inf")}}, "cannot be written as JSON"),
        ({"input": {"n": object()}}, "cannot be written as JSON"),
        ({"input": "x", "custom_id": "\ud800"}, "printable"),
        ({"input": "\ud800"}, "surrogate"),
        ({"input": "x", "metadata": {"n": float("nan")}}, "cannot be written as JSON"),
        ({"input": "x", "metadata": nested(100)}, "'metadata' is nested more than 100 deep"),
        ({"input": "x", "context": nested(100)}, "'context' is nested more than 100 deep"),
    ],
)
def test_a_wrong_row_is_one_sentence(row: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        parse_row(row)
    assert sentence in str(caught.value)


def test_what_is_nested_as_deep_as_it_may_be_is_a_row() -> None:
    assert parse_row({"input": "x", "metadata": nested(99)}).metadata == nested(99)


def test_the_hash_is_of_the_content_alone() -> None:
    first = parse_row({"input": "x", "metadata": {"a": 1, "b": 2}, "custom_id": "one", "max_usd": "0.10"})
    second = parse_row({"max_usd": "0.1", "metadata": {"b": 2, "a": 1}, "input": "x", "custom_id": "two"})
    assert first.content_hash == second.content_hash
    assert len(first.content_hash) == 16
    assert parse_row({"input": "y"}).content_hash != parse_row({"input": "x"}).content_hash


@pytest.mark.parametrize("value", ["text", 3, None, ["input"]])
def test_a_row_that_is_no_object_is_refused_in_words(value):
    with pytest.raises(ValueError, match="a row is an object, not "):
        parse_row(value)


@pytest.mark.parametrize(
    "row, known_as",
    [
        ({"input": "x"}, "0cb8c1f38f764fa9"),
        ({"input": 'ä"\n\u2028', "agent": "a"}, "2303bc6a46bcfe99"),
        (
            {
                "input": [{"role": "user", "content": "ü"}, {"role": "assistant", "content": "b"}],
                "metadata": {"b": [1, 2.5, None], "a": {"z": 1, "y": True}},
            },
            "828dba74ca127dcc",
        ),
        ({"input": {"b": 1, "a": 2}, "context": {"user_id": "m"}, "max_usd": "0.10"}, "267c00ea7c6033a8"),
        ({"input": "x", "max_usd": 2, "custom_id": "t"}, "fa36201a2a6ffa88"),
    ],
)
def test_a_hash_is_what_it_was_in_the_batches_that_are_stored(row: dict[str, Any], known_as: str) -> None:
    assert parse_row(row).content_hash == known_as


def test_a_hash_is_of_sorted_compact_json() -> None:
    row = parse_row({"input": "x", "agent": "a"}, call={"model": "m", "dialect": "openai"})
    content = {
        "agent": "a",
        "call": {"dialect": "openai", "model": "m"},
        "context": {},
        "input": "x",
        "max_usd": None,
        "metadata": {},
    }
    text = json.dumps(content, separators=(",", ":"), sort_keys=True)
    assert row.content_hash == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_another_priority_is_the_same_content_and_another_call_is_not() -> None:
    plain = parse_row({"input": "x"})
    assert parse_row({"input": "x", "priority": 9}).content_hash == plain.content_hash
    calls = [{"dialect": "openai", "model": "m", "options": {"temperature": n}} for n in (0, 1)]
    hashes = {parse_row({"input": "x"}, call=call).content_hash for call in calls}
    assert len(hashes | {plain.content_hash}) == 3


def test_what_is_given_for_all_rows_yields_to_the_row_and_changes_no_derived_id() -> None:
    plain = parse_row({"input": "x"})
    given = parse_row({"input": "x"}, agent="a", max_usd=Decimal(1), where="in:1")
    assert (given.agent, given.max_usd, given.where) == ("a", Decimal(1), "in:1")
    assert given.content_hash != plain.content_hash
    assert given.derived_id == plain.derived_id == plain.content_hash
    own = parse_row({"input": "x", "agent": "b", "max_usd": "2"}, agent="a", max_usd=Decimal(1))
    assert (own.agent, own.max_usd) == ("b", Decimal(2))
    assert own.derived_id == own.content_hash


def test_a_changed_copy_has_a_hash_of_its_own() -> None:
    row = parse_row({"input": "x"})
    assert replace(row, input="y").content_hash == parse_row({"input": "y"}).content_hash
    assert row.named("t-1") == replace(row, custom_id="t-1")
    assert row.named("t-1").content_hash == row.content_hash
