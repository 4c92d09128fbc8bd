"""A bound holds, or money is overspent."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentq.provider.bounds import Anchor, call_bound, closing_bound, input_bound
from agentq.provider.scripted import ScriptedClient
from agentq.provider.types import ChatRequest, ChatResult, Message, Role, ToolCall, Usage


class Plain:
    """A client without a bound of its own."""

    provider = "p"
    model = "m"

    def complete(self, req: ChatRequest) -> ChatResult:
        raise AssertionError("a bound makes no call")


@dataclass
class Own(Plain):
    """A client whose bound is one token for each byte of the messages."""

    asked: list[ChatRequest] = field(default_factory=list)

    def bound(self, req: ChatRequest) -> Usage:
        self.asked.append(req)
        return Usage(sum(len(message.content.encode()) for message in req.messages), req.max_output_tokens)


def test_everything_that_is_sent_counts() -> None:
    """Adding a system text, a tool, a schema, a call or a message raises the bound by its bytes."""
    bare = ChatRequest([Message(Role.USER, "x")])
    least = input_bound(bare)
    longer = [
        (replace(bare, system="s" * 100), 100),
        (replace(bare, tools=[{"name": "t" * 100}]), 100),
        (replace(bare, json_schema={"title": "t" * 100}), 100),
        (replace(bare, messages=[*bare.messages, Message(Role.USER, "é" * 50)]), 100),
        (replace(bare, messages=[Message(Role.USER, "x", tool_calls=(ToolCall("i", "n", "a" * 98),))]), 100),
        (replace(bare, messages=[Message(Role.TOOL, "x", tool_call_id="i" * 100)]), 100),
    ]
    for request, size in longer:
        assert input_bound(request) >= least + 4 * size


@given(st.lists(st.text(max_size=40), min_size=2, max_size=6), st.data())
def test_an_anchor_leaves_only_the_new_messages_to_be_bounded(texts: list[str], data: st.DataObject) -> None:
    """What the provider has counted is taken as counted."""
    request = ChatRequest([Message(Role.USER, text) for text in texts], system="long " * 50)
    covered = data.draw(st.integers(0, len(texts)))
    suffix = sum(4 * len(text.encode()) + 16 for text in texts[covered:])
    assert input_bound(request, Anchor(covered, 7)) == 7 + 16 + suffix


def test_a_clients_own_bound_goes_first() -> None:
    """A scripted call can use exactly its usage."""
    request = ChatRequest([Message(Role.USER, "x" * 1000)])
    assert call_bound(ScriptedClient(["a"]), request, None) == Usage(500, 100)
    assert call_bound(Plain(), request, None) == Usage(input_bound(request), 1024)


def test_a_request_without_an_output_cap_is_refused() -> None:
    """It has no worst case."""
    request = ChatRequest([Message(Role.USER, "x")], max_output_tokens=0)
    with pytest.raises(ValueError, match="output cap"):
        call_bound(Plain(), request, None)
    with pytest.raises(ValueError, match="output cap"):
        closing_bound(Plain(), request, None, output_tokens=1, tool_bytes=1)


@given(st.text(max_size=60), st.lists(st.text(max_size=30), max_size=4), st.integers(60, 400))
def test_the_escrow_covers_every_context_that_the_step_can_leave(
    reply: str, results: list[str], granted: int
) -> None:
    """Whatever the step adds within its caps, the real closing turn's bound is not above the escrow."""
    before = [Message(Role.USER, "task")]
    closing = Message(Role.USER, "close")
    sizes = sum(len(text.encode()) for text in results)
    escrow = closing_bound(
        Plain(),
        ChatRequest([*before, closing]),
        Anchor(1, 50),
        output_tokens=granted,
        tool_bytes=sizes,
        tool_messages=len(results),
    )
    after = [
        *before,
        Message(Role.ASSISTANT, reply),
        *(Message(Role.TOOL, text) for text in results),
        closing,
    ]
    # The step's input was at most the bound that the step itself was reserved with.
    counted = Anchor(2, input_bound(ChatRequest(before), Anchor(1, 50)) + granted)
    assert call_bound(Plain(), ChatRequest(after), counted).total_tokens <= escrow.total_tokens


def test_a_clients_own_bound_is_asked_with_fillers_of_the_size_that_may_come() -> None:
    """One filler token for each granted token, one filler byte for each byte of results."""
    client = Own()
    request = ChatRequest([Message(Role.USER, "abc")])
    bound = closing_bound(client, request, None, output_tokens=10, tool_bytes=101, tool_messages=4)
    assert bound.input_tokens >= 3 + 10 + 101
    assert len(client.asked[0].messages) == 1 + 1 + 4
    assert bound.output_tokens == 1024
