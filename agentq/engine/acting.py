"""The tools of a step: executed under the journal, then committed; or the run waits for somebody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentq.agent.loop import apply_results
from agentq.core.failpoints import failpoint
from agentq.engine.asking import ask_again, record_decisions
from agentq.engine.children import StepChildren
from agentq.engine.effects import StepJournal
from agentq.engine.shelf import RunShelf
from agentq.provider.types import ToolCall
from agentq.tools import CallContext

if TYPE_CHECKING:
    from agentq.engine.step import Step


def run_tools(step: Step, calls: tuple[ToolCall, ...]) -> None:
    """Execute the calls of the kept reply and commit the step."""
    step.hold.begin("its tools")
    spec = step.claim.spec
    children = StepChildren(step)
    context = CallContext(
        user_id=str(spec.context.get("user_id", "")),
        tenant_id=str(spec.context.get("tenant_id", spec.tenant)),
        approved_calls=step.approved,
        extra={k: v for k, v in spec.context.items() if k not in {"user_id", "tenant_id"}},
        run_id=step.lease.run_id,
        children=children.of(""),
        shelf=RunShelf(step.bench.store, step.lease),
    )
    journal = StepJournal(step, calls)
    results = step.agent.executor.call_many(
        journal.planned(),
        context,
        allowlist=step.agent.allowlist,
        cache=step.thread.tool_results,
        journal=journal,
    )
    if children.trouble is not None:
        raise children.trouble
    asked = [call for call, result in zip(calls, results, strict=True) if result.asks]
    if asked:
        ask_again(step, asked, journal)
        return
    results = journal.explained(results)
    done = [(call, result) for call, result in zip(calls, results, strict=True) if not result.suspended]
    later = len(calls) - len(done)
    record_decisions(step, [call for call, _ in done])
    apply_results(
        step.agent, step.thread, [call for call, _ in done], [result for _, result in done], later=later
    )
    failpoint("step.after_tools")
    if later:
        _gather(step, children)
    else:
        step.proceed(None)


def _gather(step: Step, children: StepChildren) -> None:
    """Keep the results that there are and wait for children; the calls that wait are made again then."""
    step.thread.record("gather", f"{len(children.awaited)} runs")
    delta = step.delta()
    answer = step.runs.commit_gather(
        step.lease, delta, list(children.awaited), children.gathers, step.wake_hint(), kept=step.kept
    )
    failpoint("step.after_gather")
    if answer == "STALE" and step.kept is not None:
        step.runs.release(step.lease, delay_ms=0)
    if answer == "OK":
        step.snapshot.stored(delta)
        step.bench.cache.put(step.lease.run_id, step.runs.commit_id(step.lease, "gather"), step.snapshot)
