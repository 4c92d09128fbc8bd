"""The blocks of an assistant's message in the Anthropic dialect: what they say, and what is sent back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentq.provider.history import arguments_text, json_object
from agentq.provider.types import ToolCall, Turn

_THOUGHTS = frozenset({"thinking", "redacted_thinking"})
_PLAIN_KEYS = {"text": frozenset({"type", "text"}), "tool_use": frozenset({"type", "id", "name", "input"})}
_DIRECT = {"type": "direct"}
_SERVER_CALL = "server_tool_use"


def text_of(blocks: Sequence[Mapping[str, Any]]) -> str:
    """What the blocks say in words."""
    return "".join(str(block["text"]) for block in blocks if block.get("type") == "text")


def tool_calls(blocks: Sequence[Mapping[str, Any]]) -> tuple[ToolCall, ...]:
    """The calls of the user's tools. An id that is missing is given by whoever takes the reply in."""
    return tuple(
        ToolCall(str(block.get("id") or ""), str(block["name"]), arguments_text(block.get("input")))
        for block in blocks
        if block.get("type") == "tool_use"
    )


def calls_in(body: Any) -> list[tuple[str, str]]:
    """The (id, name) of each call in a turn that was kept."""
    return [
        (str(block.get("id") or ""), str(block.get("name")))
        for block in (body if isinstance(body, list) else ())
        if block.get("type") == "tool_use"
    ]


def kept(by: str, blocks: Sequence[Mapping[str, Any]], *, paused: bool) -> Turn | None:
    """The turn as it came, where it holds more than text and calls: thoughts, signatures, what is new.

    All blocks are as they were and in their order, but that those with nothing in them are left out, and that
    a call has an object for its arguments: with others the provider refuses every later request.

    Args:
        by: who wrote it.
        blocks: what was written.
        paused: it will be sent back as it is, whatever it holds, to be gone on with.
    """
    body = [_sendable(block) for block in blocks if block.get("type") != "text" or str(block["text"]).strip()]
    if not body:
        return None
    if paused:
        return Turn(by, body)
    if body[-1].get("type") in _THOUGHTS or (_is_ordered(body) and all(map(_is_plain, body))):
        return None  # a turn that ends with a thought is refused; text and calls say all the rest
    return Turn(by, body)


def can_stand(blocks: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a turn may have another one after it: no call of the provider's own tools is left open.

    Where the turn has calls of the user's tools, the provider goes on with its own after their results.
    """
    if calls_in(blocks):
        return True
    done = {block.get("tool_use_id") for block in blocks}
    opened = (block.get("id") for block in blocks if block.get("type") == _SERVER_CALL)
    return all(name in done for name in opened) and blocks[-1].get("type") not in _THOUGHTS


def opens_with_thought(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the assistant's last message begins with a thought, or has no calls and need not."""
    last = next((message for message in reversed(messages) if message["role"] == "assistant"), None)
    return last is None or not calls_in(last["content"]) or last["content"][0].get("type") in _THOUGHTS


def _sendable(block: Mapping[str, Any]) -> Mapping[str, Any]:
    if block.get("type") != "tool_use" or isinstance(block.get("input"), dict):
        return block
    return {**block, "input": json.loads(json_object(arguments_text(block.get("input"))))}


def _is_plain(block: Mapping[str, Any]) -> bool:
    known = _PLAIN_KEYS.get(str(block.get("type")))
    return known is not None and all(
        key in known or not value or (key == "caller" and value == _DIRECT) for key, value in block.items()
    )


def _is_ordered(blocks: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all text stands before all calls, as it does when the turn is made of its text and calls."""
    kinds = [block.get("type") for block in blocks]
    return kinds == sorted(kinds, key=lambda kind: kind == "tool_use")
