"""Two calls are the same call when they mean the same."""

from __future__ import annotations

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from agentq.tools import call_signature

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=6), VALUES, max_size=5), st.randoms())
def test_neither_order_nor_spacing_nor_form_changes_a_signature(
    arguments: dict[str, object], random: object
) -> None:
    """A mapping, its JSON, and its JSON shuffled and indented are one call."""
    items = list(arguments.items())
    random.shuffle(items)  # type: ignore[attr-defined]
    signature = call_signature("t", arguments)
    assert signature == call_signature("t", json.dumps(arguments))
    assert signature == call_signature("t", json.dumps(dict(items), indent=2, ensure_ascii=False))
    assert re.fullmatch(r"t:[0-9a-f]{16}", signature)


def test_other_arguments_or_another_tool_are_another_call() -> None:
    """And a number is not its text."""
    same = {call_signature("a", {"x": 1}), call_signature("a", {"x": "1"}), call_signature("b", {"x": 1})}
    assert len(same) == 3


def test_what_is_not_json_is_signed_as_text() -> None:
    """The same mistake twice is the same call; empty arguments are none."""
    assert call_signature("a", "{oops") == call_signature("a", "{oops")
    assert call_signature("a", "{oops") != call_signature("a", "{oops ")
    assert call_signature("a", "") == call_signature("a", "{}") == call_signature("a", {})
    assert call_signature("a", "[" * 100_000)
    assert call_signature("a", "1" * 10_000)
