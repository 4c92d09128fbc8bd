"""How a tool's result stands in the conversation, and how a step's results share their room."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence

from agentq.provider.types import Message, Role, ToolCall
from agentq.tools import ToolResult

MIN_BYTES_PER_CALL = 800
"""The least room for a call: its envelope, two notes, and the refusal of one call in excess."""

_NAME_BYTES = 64
_NOTE_BYTES = 64


def tool_message(call: ToolCall, result: ToolResult, content: str | None = None) -> Message:
    """The message that answers `call`, with `content` in place of the result's own if given."""
    body: dict[str, object] = {
        "tool_call_id": call.id,
        "tool": cut(call.name, _NAME_BYTES),
        "ok": result.ok,
        "error_code": result.error_code,
        "content": result.content if content is None else content,
    }
    if result.cached:
        body["cached"] = True
    return Message(Role.TOOL, json.dumps(body, ensure_ascii=False), tool_call_id=call.id)


def tool_messages(
    calls: Sequence[ToolCall], results: Sequence[ToolResult], notes: Sequence[str], limit: int
) -> list[Message]:
    """One message for each call, in order, with at most `limit` bytes of content all together.

    Long contents are cut, with a note of how much is missing; short ones leave their room to them. A
    result's note stands at the end of its content and is never cut.

    Raises:
        ValueError: when there is not one result and one note for each call.
    """
    frames = [
        size(tool_message(call, result, "").content) for call, result in zip(calls, results, strict=True)
    ]
    wanted = [
        frame + json_bytes(result.content + note)
        for frame, result, note in zip(frames, results, notes, strict=True)
    ]
    messages = []
    for call, result, note, frame, want, share in zip(
        calls, results, notes, frames, wanted, shares(wanted, limit), strict=True
    ):
        content = result.content
        if want > share:
            kept = cut(content, share - frame - json_bytes(note) - _NOTE_BYTES)
            content = f"{kept}\n[cut: {len(content) - len(kept)} more characters omitted]"
        messages.append(tool_message(call, result, content + note))
    return messages


def size(text: str) -> int:
    """Bytes of UTF-8."""
    return len(text.encode("utf-8", "surrogatepass"))


def json_bytes(text: str) -> int:
    """Bytes of the text inside a JSON string."""
    return size(json.dumps(text, ensure_ascii=False)) - 2


def cut(text: str, limit: int) -> str:
    """The longest beginning that takes at most `limit` bytes inside a JSON string."""
    if json_bytes(text) <= limit:
        return text
    return (
        text[: bisect_right(range(len(text) + 1), limit, key=lambda n: json_bytes(text[:n])) - 1]
        if limit > 0
        else ""
    )


def shares(wanted: Sequence[int], limit: int) -> list[int]:
    """A fair share for each: who wants less than the average leaves the rest to the others."""
    shares = [0] * len(wanted)
    left = limit
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    for done, i in enumerate(order):
        shares[i] = min(wanted[i], left // (len(wanted) - done))
        left -= shares[i]
    return shares
