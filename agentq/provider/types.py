"""What goes to a model and what comes back, in one shape for every provider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Role(str, Enum):  # noqa: UP042 - printed as `Role.USER`, as in the seed
    """Who speaks in a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asks for. `arguments` is the text it wrote: perhaps not JSON, never trusted."""

    id: str
    name: str
    arguments: str

    def as_dict(self) -> dict[str, str]:
        """The three fields as a JSON object."""
        return {"id": self.id, "name": self.name, "arguments": self.arguments}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ToolCall:
        """The inverse of `as_dict`.

        Raises:
            KeyError: when a field is missing.
        """
        return cls(data["id"], data["name"], data["arguments"])


@dataclass(frozen=True, slots=True)
class Turn:
    """An assistant's turn exactly as its provider gave it: reasoning, signatures and all.

    Providers want it back unmodified, and only the model that wrote it may read it. `by` is that model, as
    `dialect:model`; `body` is a JSON value of the dialect, never looked into by anybody but its adapter.
    """

    by: str
    body: Any

    def as_dict(self) -> dict[str, Any]:
        """The two fields as a JSON object."""
        return {"by": self.by, "body": self.body}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Turn:
        """The inverse of `as_dict`.

        Raises:
            KeyError: when a field is missing.
        """
        return cls(data["by"], data["body"])


@dataclass(frozen=True, slots=True)
class Message:
    """One message. An assistant's may ask for tools; a tool's names the call that it answers."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    turn: Turn | None = None
    """Of an assistant's: the provider's own form of it, where that holds more than this message does."""

    def as_dict(self) -> dict[str, Any]:
        """A JSON object; fields that say nothing are left out."""
        data: dict[str, Any] = {"role": self.role.value, "content": self.content}
        if self.tool_calls:
            data["tool_calls"] = [call.as_dict() for call in self.tool_calls]
        if self.tool_call_id is not None:
            data["tool_call_id"] = self.tool_call_id
        if self.turn is not None:
            data["turn"] = self.turn.as_dict()
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Message:
        """The inverse of `as_dict`.

        Raises:
            KeyError: when `role` is missing.
            ValueError: for a role that does not exist.
        """
        return cls(
            role=Role(data["role"]),
            content=data.get("content", ""),
            tool_calls=tuple(ToolCall.from_dict(call) for call in data.get("tool_calls", ())),
            tool_call_id=data.get("tool_call_id"),
            turn=Turn.from_dict(data["turn"]) if "turn" in data else None,
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a call. The cached ones are part of the input, the reasoning ones part of the output.

    `cached_input_tokens` were read from a cache of the provider, `cache_write_tokens` were written into one.
    No token is both.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_input_tokens + other.cached_input_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One call of a model.

    `max_output_tokens` is the cap on the answer, without which a call has no worst case. `tools` are
    declarations (`name`, `description`, `parameters`); `tool_choice="none"` forbids calling them. `extra`
    is added to what the provider receives; `metadata` is the label of the row that is worked on: the
    client may read it, but it is never sent out. `summarised` is how many turns of the assistant a summary
    among the messages stands for.
    """

    messages: Sequence[Message]
    system: str | None = None
    max_output_tokens: int = 1024
    temperature: float | None = None
    stop: Sequence[str] = ()
    prompt_ref: str | None = None
    json_schema: Mapping[str, Any] | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: str | None = None
    operation: str = "chat"
    extra: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    summarised: int = 0


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a provider says of one limit: so much a minute, so much left, full again in `reset_s`."""

    limit: int | None = None
    remaining: int | None = None
    reset_s: float | None = None


@dataclass(frozen=True, slots=True)
class RateLimits:
    """The limits that came with a reply, of requests and of tokens; None for one that it does not name."""

    requests: Allowance | None = None
    tokens: Allowance | None = None


@dataclass(frozen=True, slots=True)
class ChatResult:
    """The reply: text, calls that the model asks for, or both. `model` is the one that really answered.

    `turn` is kept with the message and sent back. `notes` are what the adapter has to say of the reply, each
    `kind: detail`, and become events of the trace.
    """

    text: str
    usage: Usage
    provider: str
    model: str
    finish_reason: str = "stop"
    prompt_ref: str | None = None
    tool_calls: Sequence[ToolCall] = ()
    raw: Any = None
    turn: Turn | None = None
    request_id: str | None = None
    limits: RateLimits | None = None
    notes: Sequence[str] = ()

    @property
    def wants_tools(self) -> bool:
        """Whether the model waits for results before it answers."""
        return bool(self.tool_calls)
