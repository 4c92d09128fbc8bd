"""A thread between its stored pieces and its object: loaded whole, written back only where it grew.

Messages and trace events are append-only lists, so a commit carries what is new and one small head.
The loop detector is not stored at all: its counts are a fold over the trace.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from agentq.agent.budgets import Spend
from agentq.agent.loopdetect import LoopDetector
from agentq.agent.metrics import is_error
from agentq.agent.thread import Thread, TraceEvent
from agentq.agent.view import Summary
from agentq.core.lifecycle import StopReason
from agentq.core.money import NANO, to_usd
from agentq.core.records import Delta, ThreadParts
from agentq.provider.bounds import Anchor
from agentq.provider.types import Message, Role, Usage

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
OBJECT_BYTES = 500
"""What a message takes in memory beside its text, roughly."""
RETRIED = "retried"
"""The event with which a run goes on after its end: repeats are counted from there."""
_WITH_CALL = 7
"""An event has this many values when it is a tool's result: the last are its call and its digest."""


@dataclass(slots=True)
class Snapshot:
    """A thread with the marks up to which it is stored."""

    thread: Thread
    usage: Usage = field(default_factory=Usage)
    bytes: int = 0
    """What its messages and results take in memory, roughly."""
    results: int = 0
    """How many results of tools are stored; `failed` of them were errors."""
    failed: int = 0
    _messages: int = 0
    _trace: int = 0
    _results: frozenset[str] = frozenset()

    def mark(self) -> None:
        """Take the thread as stored, as it is now."""
        self.results, self.failed = self._counted(self.thread.trace[self._trace :])
        self._messages = len(self.thread.messages)
        self._trace = len(self.thread.trace)
        self._results = frozenset(self.thread.tool_results)

    def delta(self, now_ms: int) -> Delta:
        """What a commit at this time (the server's milliseconds) has to add."""
        thread = self.thread
        return Delta(
            head=encode_head(thread, self.usage, *self._counted(thread.trace[self._trace :])),
            messages=tuple(encode_message(m) for m in thread.messages[self._messages :]),
            trace=tuple(encode_event(e, now_ms) for e in thread.trace[self._trace :]),
            tool_results={k: v for k, v in thread.tool_results.items() if k not in self._results},
        )

    def last_event(self, now_ms: int) -> Delta:
        """Only the last thing that happened, and the head as it is now."""
        last = self.thread.trace[-1:]
        return Delta(
            head=encode_head(self.thread, self.usage, *self._counted(last)),
            trace=tuple(encode_event(event, now_ms) for event in last),
        )

    def _counted(self, new: Sequence[TraceEvent]) -> tuple[int, int]:
        """How many results of tools there are with these events, and how many of them were errors."""
        results = [is_error(event) for event in new if event.kind == "tool_result"]
        return self.results + len(results), self.failed + results.count(True)

    def stored(self, delta: Delta) -> None:
        """The delta was committed."""
        self.bytes += sum(map(len, delta.messages)) + sum(map(len, delta.tool_results.values()))
        self.bytes += OBJECT_BYTES * len(delta.messages)
        self.mark()
        self.thread.trace.clear()  # a step only adds events; what is stored is not read again
        self._trace = 0


def load(
    parts: ThreadParts, detector: Mapping[str, Any] | None, spent_ms: int = 0, *, with_trace: bool = True
) -> Snapshot:
    """The thread that was stored.

    Args:
        parts: its stored pieces.
        detector: the thresholds of the run's loop detector; None for none.
        spent_ms: the time that the run has spent inside steps.
        with_trace: have the old events in its trace. A step does without: it only adds new ones.
    """
    head = json.loads(parts.head)
    events: list[list[Any]] = json.loads(parts.trace) if with_trace or detector is not None else []
    thread = Thread(
        messages=[Message.from_dict(message) for message in json.loads(parts.messages)],
        step=head.get("step", 0),
        spend=Spend(
            steps=head.get("step", 0),
            tokens=head.get("in", 0) + head.get("out", 0),
            usd=to_usd(head.get("usd", 0)),
            seconds=spent_ms / 1000,
            tool_errors=head.get("errors", 0),
        ),
        trace=[_decode_event(values) for values in events] if with_trace else [],
        tool_results=dict(parts.tool_results),
        detector=None if detector is None else LoopDetector.from_dict(detector),
        closing=StopReason(head["closing"]) if "closing" in head else None,
        anchor=Anchor(*head["anchor"]) if "anchor" in head else None,
        pending_approvals=list(head.get("pending", ())),
        unpriced_calls=head.get("unpriced", 0),
        stop_reason=head.get("stop"),
        repair=head.get("repair"),
        repaired="repaired" in head,
        overflow=head.get("overflow"),
        summaries=[Summary(*numbers) for numbers in head.get("summaries", ())],
    )
    thread.goal = next((m.content for m in thread.messages if m.role is Role.USER), "")
    if thread.stop_reason and thread.messages and thread.messages[-1].role is Role.ASSISTANT:
        thread.answer = thread.messages[-1].content
    if thread.detector is not None:
        for values in events:
            if len(values) == _WITH_CALL:
                thread.detector.observe_digest(values[_WITH_CALL - 2], values[_WITH_CALL - 1])
            elif values[0] == RETRIED:
                thread.detector = thread.detector.fresh()
    usage = Usage(input_tokens=head.get("in", 0), output_tokens=head.get("out", 0))
    size = (
        len(parts.messages) + sum(map(len, parts.tool_results.values())) + OBJECT_BYTES * len(thread.messages)
    )
    snapshot = Snapshot(thread, usage, size)
    snapshot.mark()
    snapshot.results, snapshot.failed = head.get("results", 0), head.get("failed", 0)
    return snapshot


def encode_head(thread: Thread, usage: Usage, results: int = 0, failed: int = 0) -> str:
    """The small part of a thread that changes: compact JSON, zeros left out.

    Args:
        thread: the thread.
        usage: the tokens of all its calls.
        results: how many results of tools its trace has; `failed` of them were errors.
        failed: see `results`.
    """
    head: dict[str, Any] = {
        "step": thread.step,
        "in": usage.input_tokens,
        "out": usage.output_tokens,
        "usd": int(thread.spend.usd * NANO),
        "errors": thread.spend.tool_errors,
        "unpriced": thread.unpriced_calls,
        "results": results,
        "failed": failed,
        "closing": thread.closing and thread.closing.value,
        "anchor": thread.anchor and [thread.anchor.messages, thread.anchor.tokens, thread.anchor.tokenizer],
        "pending": list(thread.pending_approvals),
        "stop": thread.stop_reason,
        "repair": thread.repair,
        "repaired": int(thread.repaired),
        "overflow": thread.overflow,
        "summaries": [[part.message, part.start, part.step] for part in thread.summaries],
    }
    return _encode({name: value for name, value in head.items() if value})


def encode_message(message: Message) -> str:
    """One message as compact JSON."""
    text = _encode(message.as_dict())
    if message.turn is not None and not _is_utf8(text):
        # Half of a character in what a provider wants back as it was: written as an escape, it stays.
        return json.dumps(message.as_dict(), separators=(",", ":"))
    return text


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def encode_event(event: TraceEvent, now_ms: int) -> str:
    """A trace event as it is stored, at this time."""
    values = [event.kind, event.detail, int(event.ok), event.step, now_ms, event.call, event.digest]
    while values[-1] is None:
        values.pop()
    return _encode(values)


def decode_event(text: str) -> TraceEvent:
    """One stored trace event; `at` is the server's time in ISO 8601, UTC."""
    return _decode_event(json.loads(text))


def _decode_event(values: list[Any]) -> TraceEvent:
    kind, detail, ok, step, at_ms, call, digest = (*values, None, None)[:7]
    at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return TraceEvent(kind=kind, detail=detail, ok=bool(ok), step=step, at=at, call=call, digest=digest)
