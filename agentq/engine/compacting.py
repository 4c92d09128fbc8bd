"""When the next call would not fit the model's window: the oldest turns are summed up, or the run ends.

The summary is a call of its own, with its own reservation, and is committed before the next one is made. A
worker that dies after that leaves a run whose next call fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentq.agent.context import summary_request
from agentq.agent.loop import apply_summary, end, refused_as_too_long
from agentq.agent.request import call_rungs
from agentq.core.failpoints import failpoint
from agentq.core.lifecycle import StopReason
from agentq.core.records import Granted, Settlement
from agentq.engine.failure import described, is_unclear

if TYPE_CHECKING:
    from agentq.agent.budgets import Rung
    from agentq.engine.step import Step
    from agentq.provider.types import ChatRequest


def compact(step: Step, start: int) -> None:
    """Have all that is sent before this message summed up; the run's next claim makes its next call."""
    metadata = step.claim.spec.metadata
    request = summary_request(step.agent, step.thread, start, metadata)

    def rungs(most: int) -> tuple[Rung, ...]:
        return call_rungs(step.agent, step.thread, request, metadata, most=most, anchored=False)

    made = step.ask(request, rungs)
    if made is None:
        return
    result, cost, settlement = made
    apply_summary(step.agent, step.thread, start, result, cost=cost)
    failpoint("step.after_summary")
    if step.is_failed:
        step.finish(settlement, detail=step.thread.trace[-1].detail)
    else:
        step.proceed(settlement)


def end_overflown(step: Step, detail: str) -> None:
    """End a run whose next call does not fit, and is not made."""
    end(step.thread, StopReason.CONTEXT_OVERFLOW, detail, kind="context_overflow")
    step.finish(None, detail=detail)


def compacts_after(step: Step, request: ChatRequest, error: Exception, granted: Granted) -> bool:
    """Give the step back for a compaction, where a provider found its call too long; answers whether it did.

    The same call is not made again before that: the head of the thread says that it was too long.
    """
    if not refused_as_too_long(step.agent, step.thread, request, error, described(error)):
        return False
    how = "forfeit" if is_unclear(error) else "release"
    settlement = Settlement(granted.reservation, how, granted.usd, granted.tokens)
    step.runs.release(step.lease, delay_ms=0, settlement=settlement, head=step.delta().head)
    step.bench.dispatch(step.lease.run_id, step.lease.step)
    return True
