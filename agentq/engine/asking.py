"""What a step asks a person: may these calls be made, and is one that may have acted made again?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentq.agent.loop import Wait, end
from agentq.agent.thread import pending_calls
from agentq.core.failpoints import failpoint
from agentq.core.lifecycle import StopReason
from agentq.core.records import Settlement
from agentq.provider.types import ToolCall
from agentq.tools import call_signature

if TYPE_CHECKING:
    from agentq.engine.effects import StepJournal
    from agentq.engine.step import Step


def wait_for_person(step: Step, wait: Wait, settlement: Settlement | None) -> None:
    """Nothing of the step runs until its gated calls are decided; no worker is held meanwhile."""
    asked: list[ToolCall] = []
    seen: set[str] = set()
    for call in pending_calls(step.thread):
        signature = call_signature(call.name, call.arguments)
        spec = step.agent.executor.registry.get(call.name)
        again = spec is not None and spec.repeatable
        # An equal call that would not act again needs no decision of its own.
        if signature in wait.signatures and (again or signature not in seen):
            asked.append(call)
            seen.add(signature)
    _ask(step, [(call.id, call, "approval") for call in asked], settlement)


def ask_again(step: Step, calls: Sequence[ToolCall], journal: StepJournal) -> None:
    """A person says whether these calls, which may have acted, are made again."""
    calls = [journal.executed(call) for call in calls]
    step.thread.pending_approvals = [call_signature(call.name, call.arguments) for call in calls]
    step.thread.record("outcome_unknown", ", ".join(call.name for call in calls), ok=False)
    _ask(step, [(journal.question(call), call, "unknown") for call in calls], step.kept)


def _ask(step: Step, questions: Sequence[tuple[str, ToolCall, str]], settlement: Settlement | None) -> None:
    """Wait for a person: an id, the call, and why it is asked about."""
    now_ms, default = step.now_ms(), step.agent.on_expired
    pending = [
        {
            "id": question,
            "tool": call.name,
            "arguments": call.arguments,
            "signature": call_signature(call.name, call.arguments),
            "asked_at_ms": now_ms,
            "default": default,
            "kind": kind,
        }
        for question, call, kind in questions
    ]
    fields = step.wake_hint() | {"on_expired": default}
    kept = step.kept is not None
    answer = step.runs.commit_wait(
        step.lease,
        step.delta(),
        settlement,
        pending,
        deadline_ms=step.bench.approval_ms,
        fields=fields,
        kept=kept,
    )
    failpoint("step.after_wait")
    if answer == "STALE" and kept:
        step.runs.release(step.lease, delay_ms=0)


def end_if_refused(step: Step) -> bool:
    """End the run where a call was refused and its agent wants that; answers whether it has ended."""
    refusals = [(call, decision) for call, decision in step.decided if decision.verdict == "deny"]
    if not refusals or step.agent.on_denied != "stop":
        return False
    call, decision = refusals[0]
    refused = f"{call.name} was refused by {decision.by}"
    if decision.reason:
        refused += f": {decision.reason}"
    record_decisions(step, pending_calls(step.thread))
    end(step.thread, StopReason.APPROVAL_DENIED, refused)
    step.finish(None, detail=refused)
    return True


def record_decisions(step: Step, calls: Sequence[ToolCall]) -> None:
    """Record what people have said about these calls: once, with the commit that has their results."""
    for call in calls:
        for question, decision in step.claim.decisions.items():
            # An attempt that is asked about has the id of its call and a number of its own.
            if question != call.id and not question.startswith(f"{call.id}@"):
                continue
            aside = "" if question == call.id else ","
            detail = f"{call.name}, which may have acted" if aside else call.name
            detail += f"{aside} by {decision.by}" if decision.by else ""
            detail += ", with other arguments" if decision.arguments else ""
            detail += f": {decision.reason}" if decision.reason else ""
            signature = call_signature(call.name, call.arguments)
            step.thread.record(decision.verdict, detail, ok=decision.verdict == "approve", call=signature)
