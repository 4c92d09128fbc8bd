"""The most tokens that a call can use, known before it is made.

A bound is only useful if it always holds: money is reserved by it. So a text is taken at the worst that the
tokenizers of its model's family can make of it, and the part of the context that the provider has already
counted is taken as it counted it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from agentq.provider.client import LLMClient
from agentq.provider.families import UNKNOWN, Family, families_of
from agentq.provider.types import ChatRequest, Message, Role, Usage

TokenBounds = Literal["strict", "tight"]
"""`strict` is a bound. `tight` is what the client's tokenizer counts, and a tenth more."""

FRAMING_TOKENS = 16
"""What a provider may put around one message."""

PREAMBLE_TOKENS = 128
"""What a provider may put before the first message (gpt-oss: about 90, the date and its channels)."""

TOOLS_PREAMBLE_TOKENS = 600
"""What a provider may say about tools before the first of them (Claude: up to 530)."""

_BYTES_PER_TOKEN = 4
"""Of English text, in the tokenizers of today."""

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
    tokenizer: int = field(default=0, compare=False)
    """Which model counted: a number of the agent's; 0 where it is not known."""


def input_bound(request: ChatRequest, anchor: Anchor | None = None, family: Family = UNKNOWN) -> int:
    """The most input tokens that the request can have. An anchor must come from the same model and prefix."""
    if anchor is not None:
        # The frame is for the anchored reply: as output it had none, as input it has.
        return anchor.tokens + FRAMING_TOKENS + _messages_bound(request.messages[anchor.messages :], family)
    fixed = PREAMBLE_TOKENS + FRAMING_TOKENS + family.tokens(request.system or "")
    if request.tools:
        fixed += TOOLS_PREAMBLE_TOKENS + FRAMING_TOKENS * len(request.tools)
        fixed += sum(family.tokens(_json(tool)) for tool in request.tools)
    elif called := {call.name for message in request.messages for call in message.tool_calls}:
        # One dialect declares the tools of the history, by their names, to forbid them.
        fixed += TOOLS_PREAMBLE_TOKENS + FRAMING_TOKENS * len(called)
    if request.json_schema is not None:
        fixed += family.tokens(_json(request.json_schema))
    return fixed + _messages_bound(request.messages, family)


def call_bound(
    client: LLMClient, request: ChatRequest, anchor: Anchor | None, *, policy: TokenBounds = "strict"
) -> Usage:
    """The most that this call can use: the client's own bound if it has one, else that of its family.

    With the policy `tight`, and a client that has `count(request) -> int`, its count and a tenth more where
    that is less. Without a `count` there is nothing to be tight by, and the bound is the strict one.

    Raises:
        ValueError: when the request has no output cap, or the client names a family that does not exist.
    """
    _check_cap(request)
    own = _own_bound(client)
    if own is not None:
        return own(request)
    most = max(_input_bound(client, request, anchor, family) for family in families_of(client))
    return Usage(_tightened(client, request, most, policy), request.max_output_tokens)


def closing_bound(
    client: LLMClient,
    closing_request: ChatRequest,
    anchor: Anchor | None,
    *,
    output_tokens: int,
    tool_bytes: int,
    tool_messages: int = 32,
    policy: TokenBounds = "strict",
) -> Usage:
    """The most that a later closing turn can use, if one more step is made before it.

    What that step will add is not known, so it is bounded by its size under either policy.

    Args:
        client: the model that will answer.
        closing_request: the closing turn as it would be sent now.
        anchor: what the provider counted of the present context.
        output_tokens: the cap on the output of the step in between.
        tool_bytes: the cap on the bytes of that step's tool messages, all together.
        tool_messages: how many tool messages that step can add.
        policy: as for `call_bound`.

    Raises:
        ValueError: when the request has no output cap, or the client names a family that does not exist.
    """
    _check_cap(closing_request)
    own = _own_bound(client)
    if own is not None:
        each = -(-tool_bytes // (_FILLER_BYTES * tool_messages)) if tool_messages else 0
        fillers = [Message(Role.ASSISTANT, _FILLER * output_tokens)]
        fillers += [Message(Role.USER, _FILLER * each)] * tool_messages
        return own(replace(closing_request, messages=[*closing_request.messages, *fillers]))
    families = families_of(client)
    now = max(_input_bound(client, closing_request, anchor, family) for family in families)
    # A tool message is two texts: its content, and the id of the call that it answers.
    added = max(family.worst(tool_bytes, 2 * tool_messages) for family in families)
    grown = output_tokens + added + FRAMING_TOKENS * (1 + tool_messages)
    return Usage(_tightened(client, closing_request, now, policy) + grown, closing_request.max_output_tokens)


def input_estimate(
    request: ChatRequest, anchor: Anchor | None = None, *, bytes_per_token: int = _BYTES_PER_TOKEN
) -> int:
    """About how many input tokens the request has: what was counted, and a token for four bytes of the rest.

    No bound: for what is corrected when the bill comes.
    """
    messages = request.messages if anchor is None else request.messages[anchor.messages :]
    texts = [text for message in messages for text in _texts(message)]
    if anchor is None:
        texts += [request.system or "", *map(_json, request.tools)]
        texts += [] if request.json_schema is None else [_json(request.json_schema)]
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    return (0 if anchor is None else anchor.tokens) - (-size // bytes_per_token)


def _input_bound(client: LLMClient, request: ChatRequest, anchor: Anchor | None, family: Family) -> int:
    """`input_bound`, and what the options of the client may add to it: a schema of the answer is read too."""
    most = input_bound(request, anchor, family)
    if anchor is not None:  # they were counted with the rest
        return most
    links: Sequence[LLMClient] = getattr(client, "chain", (client,))
    options = [given for link in links if (given := getattr(link, "options", None))]
    return most + max((family.tokens(_json(given)) for given in options), default=0)


def _tightened(client: LLMClient, request: ChatRequest, most: int, policy: TokenBounds) -> int:
    count: Callable[[ChatRequest], int] | None = getattr(client, "count", None)
    if policy == "strict" or count is None:
        return most
    return min(most, -(-count(request) * 11 // 10))


def _own_bound(client: LLMClient) -> Callable[[ChatRequest], Usage] | None:
    # Not isinstance(client, Bounded): on a protocol that costs more than all the rest here.
    return getattr(client, "bound", None)


def _check_cap(request: ChatRequest) -> None:
    if not isinstance(request.max_output_tokens, int) or request.max_output_tokens < 1:
        raise ValueError("a request without an output cap has no worst case: set max_output_tokens")


def _messages_bound(messages: Sequence[Message], family: Family) -> int:
    return sum(FRAMING_TOKENS + sum(family.tokens(text) for text in _texts(message)) for message in messages)


def _texts(message: Message) -> Iterator[str]:
    if message.turn is not None:
        # What is sent in its place says all that the message says, and more.
        yield _json(message.turn.body)
        return
    yield message.content
    for call in message.tool_calls:
        yield from (call.id, call.name, call.arguments)
    if message.tool_call_id is not None:
        yield message.tool_call_id


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
