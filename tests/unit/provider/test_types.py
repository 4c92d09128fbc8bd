"""Values of a model call go through JSON and add up."""

from __future__ import annotations

import json

from agentq.provider.types import ChatResult, Message, Role, ToolCall, Usage


def test_a_plain_message_has_only_role_and_content_in_json() -> None:
    """Fields that say nothing cost no bytes."""
    assert Message(Role.USER, "hi").as_dict() == {"role": "user", "content": "hi"}


def test_a_message_with_calls_survives_json() -> None:
    """Ids, names and arguments come back as they were."""
    asked = Message(Role.ASSISTANT, "", tool_calls=(ToolCall("c1", "get", '{"a":1}'),))
    answered = Message(Role.TOOL, "{}", tool_call_id="c1")
    for message in (asked, answered):
        assert Message.from_dict(json.loads(json.dumps(message.as_dict()))) == message


def test_usage_adds_field_by_field() -> None:
    """A sum of two calls keeps each kind of token apart."""
    total = Usage(1, 2, 3, 4) + Usage(10, 20, 30, 40)
    assert total == Usage(11, 22, 33, 44)
    assert total.total_tokens == 33


def test_a_reply_wants_tools_only_when_it_calls_some() -> None:
    """The finish reason does not matter, the calls do."""
    assert not ChatResult("x", Usage(), "p", "m", finish_reason="tool_calls").wants_tools
    assert ChatResult("", Usage(), "p", "m", tool_calls=(ToolCall("1", "a", "{}"),)).wants_tools
