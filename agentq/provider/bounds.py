"""The most tokens that a call can use, known before it is made.

A bound is only useful if it always holds: money is reserved by it. So unknown tokenizers are taken at
their worst, and the part of the context that the provider has already counted is taken as it counted it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agentq.provider.client import LLMClient
from agentq.provider.types import ChatRequest, Message, Role, Usage

TOKENS_PER_BYTE = 4
"""No tokenizer that we know makes more tokens than this of one UTF-8 byte."""

FRAMING_TOKENS = 16
"""What a provider may put around one message."""

# Two bytes, rare enough that no tokenizer joins several into one token.
_FILLER = "\u07ea"
_FILLER_BYTES = 2


@dataclass(frozen=True, slots=True)
class Anchor:
    """What the provider counted at the last call: the first `messages` of the thread are `tokens` tokens.

    `tokens` is the reported input (system and tools included) plus the reported output, which the last of
    these messages holds.
    """

    messages: int
    tokens: int


def input_bound(request: ChatRequest, anchor: Anchor | None = None) -> int:
    """The most input tokens that the request can have. An anchor must come from the same model and prefix."""
    if anchor is None:
        fixed = _bytes(request.system or "")
        fixed += sum(_bytes(json.dumps(tool, ensure_ascii=False, default=str)) for tool in request.tools)
        if request.json_schema is not None:
            fixed += _bytes(json.dumps(request.json_schema, ensure_ascii=False, default=str))
        # One frame for the system text and one for each tool declaration.
        base = fixed * TOKENS_PER_BYTE + FRAMING_TOKENS * (1 + len(request.tools))
        return base + _messages_bound(request.messages)
    # The frame is for the anchored reply: as output it had none, as input it has.
    return anchor.tokens + FRAMING_TOKENS + _messages_bound(request.messages[anchor.messages :])


def call_bound(client: LLMClient, request: ChatRequest, anchor: Anchor | None) -> Usage:
    """The most that this call can use: the client's own bound if it has one, else the general one.

    Raises:
        ValueError: when the request has no output cap.
    """
    _check_cap(request)
    own = _own_bound(client)
    if own is not None:
        return own(request)
    return Usage(input_bound(request, anchor), request.max_output_tokens)


def closing_bound(
    client: LLMClient,
    closing_request: ChatRequest,
    anchor: Anchor | None,
    *,
    output_tokens: int,
    tool_bytes: int,
    tool_messages: int = 32,
) -> Usage:
    """The most that a later closing turn can use, if one more step is made before it.

    Args:
        client: the model that will answer.
        closing_request: the closing turn as it would be sent now.
        anchor: what the provider counted of the present context.
        output_tokens: the cap on the output of the step in between.
        tool_bytes: the cap on the bytes of that step's tool messages, all together.
        tool_messages: how many tool messages that step can add.

    Raises:
        ValueError: when the request has no output cap.
    """
    _check_cap(closing_request)
    own = _own_bound(client)
    if own is not None:
        each = -(-tool_bytes // (_FILLER_BYTES * tool_messages)) if tool_messages else 0
        fillers = [Message(Role.ASSISTANT, _FILLER * output_tokens)]
        fillers += [Message(Role.USER, _FILLER * each)] * tool_messages
        return own(replace(closing_request, messages=[*closing_request.messages, *fillers]))
    grown = output_tokens + tool_bytes * TOKENS_PER_BYTE + FRAMING_TOKENS * (1 + tool_messages)
    return Usage(input_bound(closing_request, anchor) + grown, closing_request.max_output_tokens)


def _own_bound(client: LLMClient) -> Callable[[ChatRequest], Usage] | None:
    # Not isinstance(client, Bounded): on a protocol that costs more than all the rest here.
    return getattr(client, "bound", None)


def _check_cap(request: ChatRequest) -> None:
    if not isinstance(request.max_output_tokens, int) or request.max_output_tokens < 1:
        raise ValueError("a request without an output cap has no worst case: set max_output_tokens")


def _messages_bound(messages: Sequence[Message]) -> int:
    return sum(_message_bytes(message) * TOKENS_PER_BYTE + FRAMING_TOKENS for message in messages)


def _message_bytes(message: Message) -> int:
    calls = sum(_bytes(call.id) + _bytes(call.name) + _bytes(call.arguments) for call in message.tool_calls)
    return _bytes(message.content) + calls + _bytes(message.tool_call_id or "")


def _bytes(text: str) -> int:
    # A lone surrogate cannot be encoded, yet must be counted: it is replaced before it is sent.
    return len(text.encode("utf-8", "surrogatepass"))
