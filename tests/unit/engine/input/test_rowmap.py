"""A map is parsed once, and each mistake in it is a sentence."""

from __future__ import annotations

import pytest

from agentq.core.errors import UsageError
from agentq.engine.input import parse_map


@pytest.mark.parametrize(
    "texts, sentence",
    [
        (["question"], "not FIELD=TEMPLATE"),
        (["inptu={a}"], "did you mean 'input'"),
        (["metadata={a}"], "did you mean 'metadata.KEY'"),
        (["metadata.={a}"], "no such field"),
        (["input.x={a}"], "no such field"),
        (["input={a}", "input={b}"], "input is there twice"),
        (["input={a"], "the '{' at character 1 has no partner"),
        (["input=a}"], "the '}' at character 2 has no partner"),
        (["input={a{b}}"], "has no partner"),
        (["input={}"], "no column between { and }"),
        (["input={{a}}"], "all rows would be the same"),
        (["custom_id="], "its template is empty"),
    ],
)
def test_a_wrong_map_is_refused_in_words(texts: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_map(texts)
    assert sentence in str(caught.value)
    assert caught.value.hint


def test_braces_stand_for_columns_and_twice_for_themselves() -> None:
    mapping = parse_map(["input={{{ a }}} = {b}"])
    assert mapping.row({"a": "1", "b": "{c}"}) == {"input": "{1} = {c}"}


def test_blank_text_leaves_its_field_out() -> None:
    mapping = parse_map(["input={a}", "custom_id={b}", "metadata.x={b}", "priority={c}"])
    assert mapping.row({"a": " ", "b": " ", "c": " 3 "}) == {"input": " ", "priority": 3}


def test_a_key_may_have_dots() -> None:
    assert parse_map(["context.user.id={a}"]).row({"a": "7", "input": "x"}) == {
        "context": {"user.id": "7"},
        "input": "x",
    }
