"""The states of a run, the moves between them, and the reasons for which a run ends."""

from __future__ import annotations

from enum import Enum


class RunState(str, Enum):  # noqa: UP042 - as StopReason
    """Where a run is. Each live state has exactly one index (see `docs/architecture.md`)."""

    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    PARKED = "parked"
    """It waits for money; it holds its escrow and no worker."""
    WAITING = "waiting"
    """For a person's decision, or for its children; it holds its escrow and no worker."""
    HELD = "held"
    """Paused by a person; it holds its escrow and no worker."""
    ENDED = "ended"

    @property
    def is_live(self) -> bool:
        """Whether the run may still change by itself."""
        return self is not RunState.ENDED


TRANSITIONS: dict[RunState, frozenset[RunState]] = {
    RunState.QUEUED: frozenset({RunState.RUNNING, RunState.HELD, RunState.ENDED}),
    RunState.RUNNING: frozenset(
        {RunState.QUEUED, RunState.PARKED, RunState.WAITING, RunState.CANCELLING, RunState.ENDED}
    ),
    RunState.PARKED: frozenset({RunState.QUEUED, RunState.ENDED}),
    RunState.CANCELLING: frozenset({RunState.ENDED}),
    RunState.WAITING: frozenset({RunState.QUEUED, RunState.ENDED}),
    RunState.HELD: frozenset({RunState.QUEUED, RunState.ENDED}),
    RunState.ENDED: frozenset({RunState.QUEUED}),
}
"""Every move that a script may make; out of `ended` only by a retry. A test holds each script against this
table on a real server."""


class StopReason(str, Enum):  # noqa: UP042 - a StrEnum prints its value, and the seed prints the member
    """Why a run ended: exactly one a run. `print` shows the member, JSON and the command line its value."""

    FINISHED = "finished"
    STEP_BUDGET = "step_budget"
    TOKEN_BUDGET = "token_budget"  # noqa: S105 - a budget of tokens, not a secret
    COST_BUDGET = "cost_budget"
    TIME_BUDGET = "time_budget"
    LOOP_DETECTED = "loop_detected"
    TOOL_ERROR_CEILING = "tool_error_ceiling"
    MODEL_ERROR = "model_error"
    OUTPUT_INVALID = "output_invalid"
    CONTEXT_OVERFLOW = "context_overflow"
    APPROVAL_DENIED = "approval_denied"
    APPROVAL_EXPIRED = "approval_expired"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    CANCELLED = "cancelled"
    NEEDS_APPROVAL = "needs_approval"
    """In one process only: a distributed run that waits is `waiting` and has no stop reason."""

    @property
    def is_success(self) -> bool:
        """Whether the work is done."""
        return self is StopReason.FINISHED

    @property
    def is_budget(self) -> bool:
        """Whether one of the four budgets stopped the run."""
        return self in _BUDGET

    @property
    def is_failure(self) -> bool:
        """Whether it ended without its answer, neither by a budget nor by a person's wish."""
        return self not in _NOT_FAILURE


_BUDGET = frozenset(
    {StopReason.STEP_BUDGET, StopReason.TOKEN_BUDGET, StopReason.COST_BUDGET, StopReason.TIME_BUDGET}
)
_NOT_FAILURE = _BUDGET | {StopReason.FINISHED, StopReason.CANCELLED, StopReason.NEEDS_APPROVAL}
