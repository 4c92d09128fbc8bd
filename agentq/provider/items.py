"""The items of an output in the Responses dialect: what they say, and which may be sent back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentq.provider.history import arguments_text, json_object, mapping
from agentq.provider.types import ToolCall, Turn

_LONGEST_CALL_ID = 64
_PLAIN_KEYS = {
    "message": frozenset({"type", "id", "role", "status", "content"}),
    "function_call": frozenset({"type", "id", "status", "call_id", "name", "arguments"}),
}
_PLAIN_PARTS = frozenset({"type", "text", "annotations", "logprobs", "refusal"})
_DIRECT = {"type": "direct"}


def text_of(items: Sequence[Mapping[str, Any]]) -> str:
    """What the items say in words: the final answer where they tell it from remarks on the way."""
    said = [(item.get("phase"), _words(item, "output_text", "text")) for item in items if _is_message(item)]
    final = [text for phase, text in said if phase == "final_answer"]
    return "\n\n".join(text for text in final or [text for _, text in said] if text)


def refusal_of(items: Sequence[Mapping[str, Any]]) -> str:
    """The words in which the model refuses, or an empty text."""
    return "".join(_words(item, "refusal", "refusal") for item in items if _is_message(item))


def tool_calls(items: Sequence[Mapping[str, Any]]) -> tuple[ToolCall, ...]:
    """The calls. An id that is missing is given by whoever takes the reply in; one without a name is none."""
    return tuple(
        ToolCall(str(item.get("call_id") or ""), str(item["name"]), arguments_text(item.get("arguments")))
        for item in items
        if item.get("type") == "function_call" and item.get("name")
    )


def calls_in(body: Any) -> list[tuple[str, str]]:
    """The (id, name) of each call in a turn that was kept."""
    return [
        (str(item.get("call_id") or ""), str(item.get("name")))
        for item in (body if isinstance(body, list) else ())
        if item.get("type") == "function_call"
    ]


def is_cut(items: Sequence[Mapping[str, Any]]) -> bool:
    """Whether one of them says that it is not whole."""
    return any(item.get("status") in {"incomplete", "in_progress"} for item in items)


def kept(by: str, items: Sequence[Mapping[str, Any]]) -> Turn | None:
    """The turn as it came, where it holds more than text and calls: reasoning, phases, what is new.

    None, too, where it could not be sent back: nothing is stored at the provider, so an item of reasoning
    must hold what was thought, and what it led to must follow it. Text and calls alone can always be sent.
    """
    if not items or (_is_ordered(items) and all(map(_is_plain, items))):
        return None
    thoughts = [item for item in items if item.get("type") == "reasoning"]
    if not all(item.get("encrypted_content") or item.get("content") for item in thoughts):
        return None
    if items[-1].get("type") == "reasoning":
        return None
    if not all(name and 0 < len(call_id) <= _LONGEST_CALL_ID for call_id, name in calls_in(list(items))):
        return None
    return Turn(by, list(items))


def sendable(items: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """A turn that was kept, as it came but for arguments that are no JSON: those are refused for ever."""
    return [
        {**item, "arguments": json_object(arguments_text(item.get("arguments")))}
        if item.get("type") == "function_call"
        else item
        for item in items
    ]


def _is_message(item: Mapping[str, Any]) -> bool:
    return item.get("type") == "message"


def _words(item: Mapping[str, Any], kind: str, key: str) -> str:
    content = item.get("content") or []
    if isinstance(content, str):
        return content if kind == "output_text" else ""
    return "".join(str(part[key]) for part in content if mapping(part).get("type") == kind)


def _is_plain(item: Mapping[str, Any]) -> bool:
    """Whether text and calls say all that the item says."""
    known = _PLAIN_KEYS.get(str(item.get("type")))
    if known is None:
        return False
    for key, value in item.items():
        if value and key not in known and not (key == "caller" and value == _DIRECT):
            return False
    content = item.get("content")
    parts = content if isinstance(content, list) else []
    return not any(value and key not in _PLAIN_PARTS for part in parts for key, value in part.items())


def _is_ordered(items: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all text stands before all calls, as it does when the turn is made of its text and calls."""
    kinds = [item.get("type") for item in items]
    return kinds == sorted(kinds, key=lambda kind: kind == "function_call")
