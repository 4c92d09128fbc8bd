"""The result of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from agentq.agent.agent import Agent
from agentq.agent.output import json_answer
from agentq.core.lifecycle import StopReason
from agentq.core.money import to_usd
from agentq.core.records import RunRecord
from agentq.provider.errors import InvalidRequest
from agentq.provider.types import Usage

_FINAL = frozenset(
    {StopReason.CONTEXT_OVERFLOW, StopReason.APPROVAL_DENIED, StopReason.ATTEMPTS_EXHAUSTED}
)  # fmt: skip
"""Ends that come again: of the row itself, of a person's no, and of what has killed several workers."""


@dataclass(frozen=True, slots=True)
class Result:
    """What an ended run came to. A failed run is a result, not an exception: look at `error`."""

    custom_id: str | None
    run_id: str
    state: str
    stop_reason: StopReason
    answer: str
    output: Any
    """The answer in the form that its agent wants: an instance of its model where this app has the agent,
    else the JSON value; None without one, and for an answer that does not fit."""
    steps: int
    usage: Usage
    usd: Decimal
    attempts: int
    error: dict[str, Any] | None
    """`code`, `message`, and `retryable`: whether the same may end otherwise when it is retried."""
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
    model: str = ""
    """The model that gave the answer, as its provider names it."""
    is_cut: bool = False
    """Whether the answer ends where its output cap was."""
    dialect: str = ""
    """Of a line of a provider's batch file: openai-chat, openai or anthropic."""
    body: dict[str, Any] | None = None
    """Of such a line that no agent took: what its provider answered, where that was kept."""


def result_of(record: RunRecord, agents: Mapping[str, Agent] | None = None) -> Result:
    """The result of a run that has ended.

    Args:
        record: the run.
        agents: those of this app.
    """
    reason = record.stop_reason or StopReason.CANCELLED
    error = None
    if not reason.is_success and (not reason.is_budget or not record.answer):
        error = {
            "code": reason.value,
            "message": record.stop_detail or reason.value.replace("_", " "),
            "retryable": _is_retryable(reason, record.stop_detail or ""),
        }
    return Result(
        custom_id=record.spec.custom_id,
        run_id=record.id,
        state=record.state.value,
        stop_reason=reason,
        answer=record.answer or "",
        output=output_of(record, (agents or {}).get(record.spec.agent)),
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
        model=record.model,
        is_cut=record.is_cut,
        dialect=str(record.spec.call.get("dialect", "")),
        body=json.loads(record.body) if record.body else None,
    )


def _is_retryable(reason: StopReason, detail: str) -> bool:
    """Whether a retry may end otherwise although the row is the same: no request is wrong only once."""
    return reason not in _FINAL and not detail.startswith(f"{InvalidRequest.__name__}:")


def output_of(record: RunRecord, agent: Agent | None = None) -> Any:
    """The output of a run: an instance of the agent's model where that takes it, else JSON, or None."""
    if not record.has_output or not record.answer:
        return None
    # The model may have changed since: then what was stored is still JSON.
    known = None if agent is None or agent.output is None else agent.output.read(record.answer)
    return json_answer(record.answer) if known is None else known
