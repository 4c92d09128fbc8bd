"""A step's results share their room, and nothing is lost silently."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentq.agent.loopdetect import REPEAT_WARNING
from agentq.agent.toolmessage import MIN_BYTES_PER_CALL, cut, json_bytes, size, tool_message, tool_messages
from agentq.provider.types import Role, ToolCall
from agentq.tools import ToolResult

CALL = ToolCall("c1", "look", "{}")
TEXTS = st.text(st.characters(codec="utf-8"), max_size=3000)


def test_a_result_stands_in_the_seeds_json() -> None:
    """Five fields; `cached` only when it is."""
    message = tool_message(CALL, ToolResult.failure("timeout", "né"))
    assert (message.role, message.tool_call_id) == (Role.TOOL, "c1")
    assert json.loads(message.content) == {
        "tool_call_id": "c1",
        "tool": "look",
        "ok": False,
        "error_code": "timeout",
        "content": "né",
    }
    assert json.loads(tool_message(CALL, ToolResult(True, "x", cached=True)).content)["cached"] is True


@given(TEXTS, st.integers(-5, 400))
def test_a_cut_is_the_longest_beginning_that_fits(text: str, limit: int) -> None:
    """Measured in bytes inside JSON, where a quote is two."""
    kept = cut(text, limit)
    assert text.startswith(kept)
    assert json_bytes(kept) <= max(limit, 0)
    if kept != text:
        assert json_bytes(text[: len(kept) + 1]) > limit


@given(st.lists(st.tuples(TEXTS, st.booleans()), min_size=1, max_size=6))
def test_the_messages_of_a_step_never_exceed_its_room(items: list[tuple[str, bool]]) -> None:
    """With warnings, failures and the longest ids and names."""
    calls = [ToolCall("i" * 64, "n" * 100, "{}") for _ in items]
    results = [ToolResult.failure("outcome_unknown", text) for text, _ in items]
    notes = [REPEAT_WARNING if warned else "" for _, warned in items]
    limit = MIN_BYTES_PER_CALL * len(items)
    messages = tool_messages(calls, results, notes, limit)
    assert sum(size(message.content) for message in messages) <= limit
    for message, note in zip(messages, notes, strict=True):
        assert json.loads(message.content)["content"].endswith(note)


def test_a_long_result_takes_the_room_that_short_ones_leave() -> None:
    """And says how much of it is missing."""
    results = [ToolResult(True, "short"), ToolResult(True, "x" * 10_000)]
    short, long = tool_messages([CALL, CALL], results, ["", ""], 4000)
    assert json.loads(short.content)["content"] == "short"
    content = json.loads(long.content)["content"]
    kept = content.count("x")
    assert 3600 < kept < 4000
    assert content.endswith(f"[cut: {10_000 - kept} more characters omitted]")


def test_a_result_is_missing_for_no_call() -> None:
    """A half turn is an error here, not at the provider."""
    with pytest.raises(ValueError, match="zip"):
        tool_messages([CALL], [], [""], 4000)
