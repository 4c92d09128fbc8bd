"""The whole state of a run: one value that goes through JSON and back without loss."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentq.agent.budgets import Spend
from agentq.agent.loopdetect import LoopDetector
from agentq.agent.view import Summary, sent
from agentq.core.lifecycle import StopReason
from agentq.provider.bounds import Anchor
from agentq.provider.types import Message, Role, ToolCall

VERSION = 1


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One thing that happened. `at` is ISO 8601 UTC, empty until somebody with a clock fills it.

    A `tool_result` also has `call`, the call's signature, and `digest`, its result's, so that the loop
    detector's counts can be folded from the trace; its `detail` is `tool:ok` or `tool:error_code`.
    """

    kind: str
    detail: str = ""
    ok: bool = True
    step: int = 0
    at: str = ""
    call: str | None = None
    digest: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """A JSON object; `call` and `digest` only where there are any."""
        data: dict[str, Any] = {
            "kind": self.kind,
            "detail": self.detail,
            "ok": self.ok,
            "step": self.step,
            "at": self.at,
        }
        if self.call is not None:
            data["call"] = self.call
        if self.digest is not None:
            data["digest"] = self.digest
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TraceEvent:
        """The inverse of `as_dict`."""
        return cls(**data)


@dataclass
class Thread:
    """A conversation with everything that a resumed run needs.

    `tool_results` holds the good results of calls that act once, by signature. `closing` is set when a
    stop is decided and its closing turn is due. `anchor` is what the provider counted of the messages that
    are sent. `unpriced_calls` counts the calls whose price is unknown. A `detector` of None is detection off.
    `repair` is what is wrong with the last reply, while its repair call is due; `repaired` says that one was
    made. `overflow` is what the provider has said of a call that was too long. `summaries` are the
    compactions: all messages stay, and `sent` says which of them the model reads. `kept` holds results that
    were too long for it, by reference; in a worker they are kept with the run instead.
    """

    goal: str = ""
    messages: list[Message] = field(default_factory=list)
    step: int = 0
    spend: Spend = field(default_factory=Spend)
    trace: list[TraceEvent] = field(default_factory=list)
    tool_results: dict[str, str] = field(default_factory=dict)
    detector: LoopDetector | None = field(default_factory=LoopDetector)
    stop_reason: str | None = None
    answer: str = ""
    pending_approvals: list[str] = field(default_factory=list)
    closing: StopReason | None = None
    anchor: Anchor | None = None
    unpriced_calls: int = 0
    repair: str | None = None
    repaired: bool = False
    overflow: str | None = None
    summaries: list[Summary] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)

    @property
    def sent(self) -> list[Message]:
        """The messages that the model reads."""
        return sent(self.messages, self.summaries)

    @property
    def pending_approval(self) -> str | None:
        """The first call that waits for a person, as its signature."""
        return self.pending_approvals[0] if self.pending_approvals else None

    def add(self, role: Role, content: str) -> None:
        """Append a plain message."""
        self.messages.append(Message(role, content))

    def record(
        self,
        kind: str,
        detail: str = "",
        *,
        ok: bool = True,
        call: str | None = None,
        digest: str | None = None,
    ) -> TraceEvent:
        """Append an event of the present step to the trace, and return it."""
        event = TraceEvent(kind, detail, ok, self.step, call=call, digest=digest)
        self.trace.append(event)
        return event

    def as_dict(self) -> dict[str, Any]:
        """The thread as a JSON object with its format's version."""
        return {
            "version": VERSION,
            "goal": self.goal,
            "messages": [message.as_dict() for message in self.messages],
            "step": self.step,
            "spend": self.spend.as_dict(),
            "trace": [event.as_dict() for event in self.trace],
            "tool_results": dict(self.tool_results),
            "detector": self.detector.as_dict() if self.detector else None,
            "stop_reason": self.stop_reason,
            "answer": self.answer,
            "pending_approvals": list(self.pending_approvals),
            "closing": self.closing.value if self.closing else None,
            "anchor": [self.anchor.messages, self.anchor.tokens, self.anchor.tokenizer]
            if self.anchor
            else None,
            "unpriced_calls": self.unpriced_calls,
            **self._late_parts(),
        }

    def _late_parts(self) -> dict[str, Any]:
        """What threads of older releases do not have, where there is any."""
        parts = {
            "repair": self.repair,
            "repaired": self.repaired,
            "overflow": self.overflow,
            "summaries": [[part.message, part.start, part.step] for part in self.summaries],
            "kept": dict(self.kept),
        }
        return {name: value for name, value in parts.items() if value}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Thread:
        """The inverse of `as_dict`.

        Raises:
            ValueError: for a version that this agentq does not know.
            KeyError: when a part is missing.
        """
        version = data.get("version")
        if version != VERSION:
            raise ValueError(
                f"this thread has format version {version!r}, this agentq reads version {VERSION} only"
            )
        return cls(
            goal=data["goal"],
            messages=[Message.from_dict(message) for message in data["messages"]],
            step=data["step"],
            spend=Spend.from_dict(data["spend"]),
            trace=[TraceEvent.from_dict(event) for event in data["trace"]],
            tool_results=dict(data["tool_results"]),
            detector=LoopDetector.from_dict(data["detector"]) if data["detector"] else None,
            stop_reason=data["stop_reason"],
            answer=data["answer"],
            pending_approvals=list(data["pending_approvals"]),
            closing=StopReason(data["closing"]) if data["closing"] else None,
            anchor=Anchor(*data["anchor"]) if data["anchor"] else None,
            unpriced_calls=data["unpriced_calls"],
            repair=data.get("repair"),
            repaired=data.get("repaired", False),
            overflow=data.get("overflow"),
            summaries=[Summary(*numbers) for numbers in data.get("summaries", ())],
            kept=dict(data.get("kept", {})),
        )

    def to_json(self, indent: int | None = None) -> str:
        """The thread as JSON text."""
        return json.dumps(self.as_dict(), ensure_ascii=False, indent=indent)

    @classmethod
    def from_json(cls, text: str) -> Thread:
        """The inverse of `to_json`.

        Raises:
            ValueError: when it is no JSON, no thread, or of an unknown version.
        """
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ValueError("this is no thread: a thread is a JSON object")
        return cls.from_dict(data)


def pending_calls(thread: Thread) -> list[ToolCall]:
    """The calls of the last assistant message that have no result yet, in the order they were asked for."""
    answered: set[str | None] = set()
    for message in reversed(thread.messages):
        if message.role is Role.ASSISTANT:
            return [call for call in message.tool_calls if call.id not in answered]
        if message.role is Role.TOOL:
            answered.add(message.tool_call_id)
    return []


def step_calls(thread: Thread) -> tuple[ToolCall, ...]:
    """The calls of the last assistant message, also those that have a result."""
    last = next((message for message in reversed(thread.messages) if message.role is Role.ASSISTANT), None)
    return () if last is None else last.tool_calls
