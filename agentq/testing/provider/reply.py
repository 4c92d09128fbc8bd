"""What the model says, before it is put into the words of a dialect."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from agentq.testing.provider.request import Request, text_bytes, tokens_of
from agentq.testing.provider.script import Turn

_SECRET = b"the fake provider's own"
_PIECE = 16
CALLS_MAX = 16


@dataclass(slots=True)
class Usage:
    """Tokens of one reply. `cached` and `cache_written` are parts of `input`, `reasoning` of `output`."""

    input: int = 0
    output: int = 0
    cached: int = 0
    cache_written: int = 0
    reasoning: int = 0


@dataclass(slots=True)
class Said:
    """A call in a reply. `arguments` is the JSON text; a fault may put anything there."""

    id: str
    name: str
    arguments: Any
    extra: dict[str, Any] = field(default_factory=dict)
    """More fields of the call, for faults."""


@dataclass(slots=True)
class Reply:
    """One reply. Faults change it before a dialect writes it down."""

    stem: str
    """What the ids in the reply have in common."""
    text: str = ""
    thinking: str = ""
    calls: list[Said] = field(default_factory=list)
    stop: str = "stop"
    """`stop`, `calls`, `length`, `filter`, `refusal`, `pause`, `window`, or what a fault puts there."""
    usage: Usage = field(default_factory=Usage)
    redacted: bool = False
    """The thinking is not shown (Anthropic's `redacted_thinking`)."""
    shows_reasoning: bool = False
    """Chat completions carry the thinking as `reasoning_content`."""


_ids = itertools.count(1)
_process = secrets.token_hex(4)


def new_stem(*, thought: bool) -> str:
    """24 characters that no other reply has. The first says whether the reply began with thinking."""
    return f"{'1' if thought else '0'}{_process}{next(_ids):015x}"


def reply_to(request: Request, turn: Turn) -> Reply:
    """The turn as a reply: with ids and usage, cut where the request caps it."""
    thinking = turn.thinking or ("Let me think about this." if request.thinks else "")
    stem = new_stem(thought=bool(thinking))
    calls = [
        Said(f"call_{stem}{i:x}", call.name, call.text()) for i, call in enumerate(turn.called[:CALLS_MAX])
    ]
    reply = Reply(stem, turn.text, thinking, calls, stop=turn.stop or ("calls" if calls else "stop"))
    reasoning = tokens_of(text_bytes(thinking)) if turn.reasoning_tokens is None else turn.reasoning_tokens
    if request.output_cap is not None:
        _cut(reply, max(0, request.output_cap - reasoning) * 4)
    size = text_bytes([reply.text, *(f"{call.name}{call.arguments}" for call in reply.calls)])
    output = reasoning + max(1, tokens_of(size))
    reply.usage = Usage(
        request.input_tokens if turn.input_tokens is None else turn.input_tokens,
        output if turn.output_tokens is None else turn.output_tokens,
        reasoning=reasoning,
    )
    reply.usage.cached = min(turn.cached_tokens, reply.usage.input)
    reply.usage.cache_written = min(turn.cache_write_tokens, reply.usage.input - reply.usage.cached)
    if request.output_cap is not None and turn.output_tokens is None:
        reply.usage.output = min(reply.usage.output, max(1, request.output_cap))
    return reply


def _cut(reply: Reply, room: int) -> None:
    """Leave what fits into so many bytes, as a model that is stopped in the middle of a word."""
    text = reply.text.encode()
    if len(text) > room:
        reply.text, reply.calls, reply.stop = text[:room].decode(errors="ignore"), [], "length"
        return
    room -= len(text)
    for number, call in enumerate(reply.calls):
        size = len(call.name) + len(call.arguments.encode())
        if size > room:
            call.arguments = call.arguments.encode()[: max(0, room - len(call.name))].decode(errors="ignore")
            reply.calls, reply.stop = reply.calls[: number + 1], "length"
            return
        room -= size


def sign(*parts: str) -> str:
    """A signature over texts, which the server can check without keeping anything."""
    return hmac.new(_SECRET, json.dumps(parts).encode(), hashlib.sha256).hexdigest()


def pieces(text: str) -> Iterator[str]:
    """A text in the pieces in which it is streamed."""
    for start in range(0, len(text), _PIECE):
        yield text[start : start + _PIECE]
