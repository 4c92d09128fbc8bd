"""One run on a few lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentq.cli.console import plural
from agentq.cli.resultline import seconds
from agentq.cli.tally import cure, wanted
from agentq.core.money import format_usd
from agentq.core.text import clock

if TYPE_CHECKING:
    from agentq.cli.console import Console
    from agentq.core.records import PendingCall, RunRecord


def run_fields(record: RunRecord) -> dict[str, Any]:
    """A run for JSON."""
    from agentq.app.result import output_of

    return {
        "id": record.id,
        "agent": record.spec.agent,
        "tenant": record.spec.tenant,
        "batch": record.spec.batch,
        "parent": record.spec.parent,
        "depth": len(record.spec.ancestors),
        "children": record.children,
        "descendants": record.descendants,
        "gathering": record.gathering,
        "custom_id": record.spec.custom_id,
        "state": record.state.value,
        "step": record.step,
        "phase": record.phase,
        "stop_reason": record.stop_reason.value if record.stop_reason else None,
        "stop_scope": record.stop_scope,
        "stop_detail": record.stop_detail,
        "stopped_at": record.stopped_at,
        "paused_by": record.paused,
        "generation": record.generation,
        "answer": record.answer,
        "output": output_of(record),
        "steps": record.steps,
        "attempts": record.attempts,
        "failures": record.failures,
        "last_error": record.last_error,
        "usage": {"input_tokens": record.input_tokens, "output_tokens": record.output_tokens},
        "usd": format_usd(record.usd_nano),
        "parked": parked_fields(record),
        "pending": [pending_fields(call) for call in record.pending],
        "metadata": dict(record.spec.metadata),
        "created_at": seconds(record.created_ms),
        "started_at": seconds(record.started_ms),
        "ended_at": seconds(record.ended_ms),
    }


def parked_fields(record: RunRecord) -> dict[str, Any] | None:
    """What money a run waits for, for JSON."""
    parked = record.parked
    if parked is None:
        return None
    since = seconds(record.parked_ms)
    return {"scope": parked.scope, "unit": parked.unit, "kind": parked.kind, "since": since}


def pending_fields(call: PendingCall) -> dict[str, Any]:
    """A call that waits for a decision, for JSON."""
    return {
        "id": call.id,
        "tool": call.tool,
        "arguments": call.arguments,
        "signature": call.signature,
        "asked_at": seconds(call.asked_at_ms),
        "deadline": seconds(call.deadline_ms),
        "default": call.default,
        "kind": call.kind,
    }


def run_card(console: Console, record: RunRecord) -> None:
    """A run for a person."""
    spec = record.spec
    why = record.stop_reason.value if record.stop_reason else f"step {record.step}, {record.phase}"
    console.out(f"run {record.id}: {record.state.value}, {why}")
    of_batch = f", batch {spec.batch}" if spec.batch else ""
    called = f", custom_id {spec.custom_id}" if spec.custom_id else ""
    console.out(f"  agent {spec.agent}, tenant {spec.tenant}{of_batch}{called}")
    if spec.parent:
        console.out(f"  child of run {spec.parent}, depth {len(spec.ancestors)}")
    if record.children:
        console.out(f"  has started {plural(record.children, 'run')}; {record.descendants} live below it")
    if record.stop_scope or record.stop_detail:
        console.out(f"  because: {', '.join(filter(None, (record.stop_scope, record.stop_detail)))}")
    if record.stopped_at:
        console.out(f"  stopped at {record.stopped_at}")
    if record.paused:
        console.out(f"  paused by {record.paused}: agentq resume {record.id} lets it go on")
    if record.generation:
        console.out(f"  retried {plural(record.generation, 'time')}")
    console.out(
        f"  {plural(record.steps, 'step')}, {plural(record.attempts, 'attempt')}, "
        f"{record.input_tokens} tokens in, {record.output_tokens} out, "
        f"{format_usd(record.usd_nano)} USD, {record.seconds_ms / 1000:.1f} s at work"
    )
    console.out(f"  submitted {clock(record.created_ms)}, ended {clock(record.ended_ms)}")
    if record.failures:
        console.out(f"  tried in vain {plural(record.failures, 'time')}: {record.last_error}")
    for line in _waits(record):
        console.out(f"  {line}")
    if record.answer is not None:
        console.out(f"  answer: {record.answer}")


def _waits(record: RunRecord) -> list[str]:
    """What a run waits for, and what to type."""
    lines = []
    if record.parked is not None:
        lines.append(f"parked since {clock(record.parked_ms)}: {wanted(record.parked)}")
        lines += [f"  {line}" for line in cure(record.parked)]
    if record.state.is_live and record.last_error and not record.failures:
        lines.append(record.last_error)  # it is left to another worker
    if record.gathering is not None:
        lines.append(f"waits for {plural(record.gathering, 'child run')} until {clock(record.deadline_ms)}")
    for call in record.pending:
        lines += waits_for(record.id, call)
    return lines


def waits_for(run_id: str, call: PendingCall) -> list[str]:
    """That a call waits for a person, and what to type."""
    made = f"{call.tool}({call.arguments})"
    what = f"waits for approval of {made}"
    if call.kind == "unknown":
        what = f"{made} may have acted: waits for a person to say whether it is made again"
    at_the_end = "then the model is told" if call.default == "tell" else "then the run ends"
    return [
        f"{what}, asked {clock(call.asked_at_ms)}, until {clock(call.deadline_ms)}, {at_the_end}",
        f"  agentq approvals approve {run_id}:{call.id}",
        f"  agentq approvals deny {run_id}:{call.id} --reason TEXT",
    ]
