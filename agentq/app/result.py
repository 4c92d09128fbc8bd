"""The result of a run."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from agentq.core.lifecycle import StopReason
from agentq.core.money import to_usd
from agentq.core.records import RunRecord
from agentq.provider.types import Usage


@dataclass(frozen=True, slots=True)
class Result:
    """What an ended run came to. A failed run is a result, not an exception: look at `error`."""

    custom_id: str | None
    run_id: str
    state: str
    stop_reason: StopReason
    answer: str
    output: Any
    steps: int
    usage: Usage
    usd: Decimal
    attempts: int
    error: dict[str, str] | None
    stop_scope: str | None
    stop_detail: str | None
    started_ms: int | None
    ended_ms: int | None
    metadata: dict[str, Any]
    agent: str
    generation: int = 0
    """How often it was retried."""
    stopped_at: str | None = None
    """Where it was when it was cancelled."""


def result_of(record: RunRecord) -> Result:
    """The result of a run that has ended."""
    reason = record.stop_reason or StopReason.CANCELLED
    error = None
    if not reason.is_success and (not reason.is_budget or not record.answer):
        error = {"code": reason.value, "message": record.stop_detail or reason.value.replace("_", " ")}
    return Result(
        custom_id=record.spec.custom_id,
        run_id=record.id,
        state=record.state.value,
        stop_reason=reason,
        answer=record.answer or "",
        output=None,
        steps=record.steps,
        usage=Usage(input_tokens=record.input_tokens, output_tokens=record.output_tokens),
        usd=to_usd(record.usd_nano),
        attempts=record.attempts,
        error=error,
        stop_scope=record.stop_scope,
        stop_detail=record.stop_detail,
        started_ms=record.started_ms,
        ended_ms=record.ended_ms,
        metadata=dict(record.spec.metadata),
        agent=record.spec.agent,
        generation=record.generation,
        stopped_at=record.stopped_at,
    )
