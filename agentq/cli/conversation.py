"""A conversation as lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentq.provider.types import Message


def conversation(messages: Iterable[Message]) -> list[str]:
    """Each message under its role, with the calls that it asks for."""
    lines = []
    for message in messages:
        lines.append(f"── {message.role.value}")
        lines += message.content.splitlines()
        lines += [f"→ {call.name}({call.arguments})" for call in message.tool_calls]
    return lines
