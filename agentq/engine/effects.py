"""Side effects of a step: noted before and after, so that no worker's death makes one act twice."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from agentq.agent.thread import TraceEvent
from agentq.core.records import Decision
from agentq.engine.leases import LeaseLostError
from agentq.engine.snapshot import encode_event
from agentq.provider.types import ToolCall
from agentq.store.effects import Effect
from agentq.tools import PlannedCall, ToolResult, ToolSpec, call_signature
from agentq.tools.running import outcome_unknown

if TYPE_CHECKING:
    from agentq.engine.step import Step

log = logging.getLogger("agentq.step")

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_AGAIN = "again"
"""In place of a result: the call waits for children and is made again from its start."""
_UNKNOWN = "What came of this call is not known."
_LOST = "The worker that made this call was lost before it could say what came of it."


class StepJournal:
    """The journal of one step, as its calls see it. It goes on with what an earlier attempt has noted."""

    def __init__(self, step: Step, calls: Sequence[ToolCall]) -> None:
        self._step = step
        self._calls = calls
        self._begun: dict[int, Effect] = {}
        self._decisions = step.decisions

    def planned(self) -> list[PlannedCall]:
        """The calls as they are to be made: with what is known, and what was decided."""
        return [self._planned(call) for call in self._calls]

    def _planned(self, call: ToolCall) -> PlannedCall:
        known = _result_in(self._entry(call))
        if known is not None:
            return PlannedCall(call.name, self.executed(call).arguments, answer=known)
        again, decision = self._again(call), self._decisions.get(call.id)
        if again is not None and again.verdict != "approve":
            return PlannedCall(call.name, call.arguments, answer=self._not_again(call, again))
        if decision is None:
            return PlannedCall(call.name, call.arguments, id=call.id)
        if decision.verdict == "approve":
            return PlannedCall(call.name, self.executed(call).arguments, approved=True, id=call.id)
        return PlannedCall(call.name, call.arguments, answer=_refused(decision))

    def _not_again(self, call: ToolCall, decision: Decision) -> ToolResult:
        spec = self._step.agent.executor.registry.get(call.name)
        said = f" A person who was asked says: {decision.reason}" if decision.reason else ""
        if spec is None:
            return ToolResult.failure("outcome_unknown", f"{_UNKNOWN}{said}")
        return outcome_unknown(spec, f"{_UNKNOWN}{said}")

    def _again(self, call: ToolCall) -> Decision | None:
        """What a person has said about making this very attempt again, if one was asked."""
        return self._step.claim.decisions.get(self.question(call))

    def question(self, call: ToolCall) -> str:
        """The id under which a person is asked about an attempt: each attempt is a question of its own."""
        begun = any(effect.call == call.id for effect in self._begun.values())
        attempt = None if begun else self._attempt(call)
        asked, fence = attempt or (call.id, self._step.lease.fence)
        return f"{asked}@{fence.partition('-')[0]}"

    def _attempt(self, call: ToolCall) -> tuple[str, str] | None:
        """The call, or the equal one that speaks for it, and the fence under which that began."""
        entry = self._entry(call)
        if entry:
            return call.id, entry.split(" ")[1]
        spec = self._step.agent.executor.registry.get(call.name)
        if spec is None or not spec.acts_once:
            return None
        made = self.executed(call)
        alike = f"{self._step.lease.step} {call_signature(made.name, made.arguments)}"
        for other, text in self._step.claim.effects.items():
            word, fence, what = text.split(" ", 2)
            if word == "started" and what == alike:
                return other, fence
        return None

    def executed(self, call: ToolCall) -> ToolCall:
        """The call with the arguments with which it is made: a person may have changed them."""
        decision = self._decisions.get(call.id)
        if decision is None or not decision.arguments:
            return call
        return replace(call, arguments=decision.arguments)

    def _entry(self, call: ToolCall) -> str:
        return self._step.claim.effects.get(call.id, "")

    # ── what the executor asks and tells ─────────────────────────────────────────────────────────

    def check(self) -> None:
        """Return when the step may go on.

        Raises:
            LeaseLostError: when it may not.
        """
        self._step.hold.check()

    def begin(
        self, position: int, spec: ToolSpec, signature: str, reads: Mapping[int, ToolResult]
    ) -> ToolResult | None:
        """Note that a call begins; what answers in its place when it may not be made.

        Raises:
            LeaseLostError: when the step is somebody else's by now, or cancelled.
        """
        self._step.hold.begin(f"its tool {spec.name}")
        call = self._calls[position]
        again = self._again(call)
        allowed = again is not None and again.verdict == "approve"
        effect = Effect(self._step.lease, call.id, signature, spec.acts_once)
        word, text = self._step.bench.store.effects.begin(
            effect,
            retry=spec.idempotent or allowed,
            reads={self._calls[at].id: _text_of(result) for at, result in reads.items()},
        )
        match word:
            case "GO":
                self._begun[position] = effect
                return None
            case "DONE":
                return _read(text)
            case "CACHED":
                return ToolResult(ok=True, content=text, cached=True)
            case "UNKNOWN":
                return outcome_unknown(spec, _LOST)
            case _:
                why = "the run is being cancelled" if word == "CANCELLED" else "the lease is lost"
                raise LeaseLostError(f"{self._step.lease.run_id}: {why}, {spec.name} is not called")

    def done(self, position: int, spec: ToolSpec, signature: str, result: ToolResult, *, late: bool) -> None:
        """Note what a call has given, also when nobody waits for it any more."""
        effect = self._begun[position]
        detail = f"{spec.name}:{'ok' if result.ok else result.error_code}"
        event = TraceEvent("late_result", detail, result.ok, self._step.thread.step, call=signature)
        try:
            word = self._step.bench.store.effects.done(
                effect,
                _text_of(result),
                late=late,
                event=encode_event(event, self._step.now_ms()),
                content=result.content if result.ok else None,
            )
        except Exception:
            if not late:
                raise
            log.exception("late_result_lost run=%s call=%s", effect.lease.run_id, effect.call)
            return
        if word != "OK":
            log.warning(
                "tool_late run=%s call=%s tool=%s word=%s", effect.lease.run_id, effect.call, spec.name, word
            )

    def asks(self, spec: ToolSpec) -> bool:
        """Whether a person is asked about a call of which nobody knows whether it has acted."""
        return (spec.on_unknown or self._step.agent.on_unknown) == "ask"

    def explained(self, results: Sequence[ToolResult]) -> list[ToolResult]:
        """The results; where a person has changed the arguments, they say so."""
        return [self._explained(call, result) for call, result in zip(self._calls, results, strict=True)]

    def _explained(self, call: ToolCall, result: ToolResult) -> ToolResult:
        decision = self._decisions.get(call.id)
        if decision is None or not decision.arguments or result.suspended:
            return result
        note = f"[A person has changed this call. It was made with these arguments: {decision.arguments}]"
        return replace(result, content=f"{note}\n{result.content}")


def _refused(decision: Decision) -> ToolResult:
    if decision.verdict == "expired":
        return ToolResult.failure(
            "approval_expired",
            "Nobody has decided on this call in time, and it was not made. Go on without it.",
        )
    why = f" The reason: {decision.reason}." if decision.reason else ""
    return ToolResult.failure(
        "approval_denied",
        f"A person has refused this call, and it was not made.{why} "
        "Do not ask for it again as it is; go on without it.",
    )


def decisions_of(decisions: Mapping[str, Decision], calls: Sequence[ToolCall]) -> dict[str, Decision]:
    """What was decided about these calls; a decision speaks for all equal calls that were not asked for."""
    by_signature = {
        call_signature(call.name, call.arguments): decisions[call.id]
        for call in calls
        if call.id in decisions
    }
    found = {}
    for call in calls:
        decision = decisions.get(call.id) or by_signature.get(call_signature(call.name, call.arguments))
        if decision is not None:
            found[call.id] = decision
    return found


def _text_of(result: ToolResult) -> str:
    if result.suspended:
        return _AGAIN
    return _encode(
        [int(result.ok), result.content, result.error_code, int(result.retryable), int(result.cached)]
    )


def _read(text: str) -> ToolResult:
    ok, content, code, retryable, cached = json.loads(text)
    return ToolResult(bool(ok), content, code, bool(retryable), cached=bool(cached))


def _result_in(entry: str) -> ToolResult | None:
    """The result that an entry of the journal has, if it has one."""
    word, *rest = entry.split(" ", 4)
    if word != "done" or rest[3] == _AGAIN:
        return None
    return _read(rest[3])
