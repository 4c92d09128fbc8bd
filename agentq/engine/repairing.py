"""The repair call: an answer that is not in the form that was asked for is corrected once, or the run ends.

The answer was committed with the step that gave it, so whoever has the run next makes this call; it ends the
run, and its reply is committed with that end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentq.agent.loop import apply_repair
from agentq.agent.request import call_rungs, repair_request
from agentq.core.failpoints import failpoint

if TYPE_CHECKING:
    from agentq.agent.budgets import Rung
    from agentq.engine.step import Step


def repair(step: Step, problem: str) -> None:
    """Make the repair call of a claimed step's run and end it."""
    metadata = step.claim.spec.metadata
    request = repair_request(step.agent, step.thread, problem, metadata)

    def rungs(most: int) -> tuple[Rung, ...]:
        return call_rungs(step.agent, step.thread, request, metadata, most=most)

    made = step.ask(request, rungs)
    if made is None:
        return
    result, cost, settlement = made
    apply_repair(step.agent, step.thread, result, cost=cost)
    failpoint("step.after_repair")
    step.finish(settlement, detail=step.thread.trace[-1].detail if step.is_failed else "")
