"""Child runs, as the tools of a step see them: started once, waited for without a worker."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from agentq.agent.agent import Agent
from agentq.core.errors import UsageError
from agentq.core.failpoints import failpoint
from agentq.core.lifecycle import RunState
from agentq.core.money import to_usd
from agentq.core.records import RunRecord, RunSpec
from agentq.core.words import nearest
from agentq.engine.bill import unpriced
from agentq.engine.rows import parse_row
from agentq.engine.submit import Draft, draft_run, optional_scopes, refuse_unpriced
from agentq.store.connect import Store
from agentq.tools.children import ChildResult, Suspended

if TYPE_CHECKING:
    from agentq.engine.step import Step


def adopt(draft: Draft, parent_id: str, parent: RunSpec) -> Draft:
    """The run as a child: of its parent's tenant, inside its parent's limits.

    Of the scopes `agent:`, `model:` and `key:` it has its own: they say who has spent, not for whom.
    """
    return replace(
        draft,
        spec=replace(
            draft.spec,
            tenant=parent.tenant,
            batch=parent.batch,
            ancestors=(*parent.ancestors, parent_id),
        ),
    )


def refuse_unpriced_inside(store: Store, name: str, agent: Agent, scopes: Sequence[str]) -> None:
    """Return when no scope among these has a limit in USD that could not fire for want of a price.

    Raises:
        UsageError: when one has.
    """
    if not unpriced(agent):
        return
    windows = [f"{scope}@{window}" for scope in scopes for window in ("day", "month")]
    if any(account.limit_nano is not None for account in store.ledger.accounts([*scopes, *windows])):
        refuse_unpriced(name, agent)


@dataclass
class StepChildren:
    """What all calls of one step have in common: who waits for what, and what went wrong."""

    step: Step
    awaited: dict[str, None] = field(default_factory=dict)
    """The children that the step waits for, in the order in which they were asked for."""
    gathers: dict[str, int] = field(default_factory=dict)
    """Each gather that waits, by its name: for how long at most, in ms."""
    trouble: Exception | None = None
    """What kept the store from answering: the step is tried again, and the model does not hear of it."""
    guard: threading.Lock = field(default_factory=threading.Lock)

    def of(self, call: str) -> CallChildren:
        """For the call of this signature. Two equal calls of one step share their children."""
        return CallChildren(self, f"{self.step.lease.step}:{call}")


class CallChildren:
    """The children of one call. Its n-th spawn is the same run each time that the call is made."""

    def __init__(self, step: StepChildren, call: str) -> None:
        self._all = step
        self._call = call
        self._spawned = 0
        self._gathered = 0
        self.suspended = False

    def of(self, call: str) -> CallChildren:
        """The same for another call of the step."""
        return self._all.of(call)

    def spawn(
        self,
        agent: str,
        input: Any,
        *,
        budgets: Any = None,
        custom_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        context: Mapping[str, Any] | None = None,
    ) -> str:
        """Start a child; see `CallContext.spawn`."""
        with self._all.guard:
            self._spawned += 1
            name = custom_id or f"{self._call}:{self._spawned}"
        given = {"input": input, "metadata": metadata, "context": context}
        try:
            row = parse_row({key: value for key, value in given.items() if value is not None})
        except ValueError as error:
            raise UsageError(f"ctx.spawn: {error}") from None
        # A name of ours may be longer than one that a person gives.
        row = replace(row, custom_id=name, agent=agent)
        try:
            return self._start(agent, row, budgets)
        except UsageError:
            raise
        except Exception as error:
            self._all.trouble = error
            raise

    def _start(self, name: str, row: Any, budgets: Any) -> str:
        step = self._all.step
        bench, parent_id, parent = step.bench, step.lease.run_id, step.claim.spec
        agent = bench.agents.get(name)
        if agent is None:
            known = ", ".join(sorted(bench.agents))
            raise UsageError(
                f"there is no agent {name!r}{nearest(name, bench.agents)}", hint=f"this app has {known}"
            )
        if not row.context:
            row = replace(row, context=parent.context)
        draft = draft_run(
            name,
            agent,
            row,
            tenant=parent.tenant,
            budgets=None if budgets is None else budgets.over(bench.run_limits),
            on_unpriced=bench.on_unpriced,
            on_exhausted=parent.on_exhausted,
        )
        draft = adopt(draft, parent_id, parent)
        scopes = optional_scopes(bench.store, name, agent, bench.scopes)
        draft = replace(draft, spec=replace(draft.spec, scopes=scopes))
        if bench.on_unpriced == "refuse":
            refuse_unpriced_inside(bench.store, name, agent, draft.spec.scopes_of(draft.run_id)[:-1])
        hint = bench.make_hint(draft.run_id, 0)
        ((word, run_id),) = bench.store.runs.submit(
            [(draft.run_id, draft.spec, draft.messages)],
            heads=[draft.head],
            retention_ms=0,  # its parent's
            hints=[hint],
            definitions=[draft.definition],
            fence=step.lease.fence,
        )
        failpoint("step.after_spawn")
        if hint is None and word == "CREATED":
            bench.dispatch(run_id, 0)
        return run_id

    def gather(self, ids: Sequence[str], *, timeout: float | None = None) -> list[ChildResult]:
        """How children have ended; see `CallContext.gather`.

        Raises:
            Suspended: while one of them is live and there is time.
        """
        if timeout is not None and timeout < 0:
            raise UsageError(f"ctx.gather: timeout={timeout:g} is less than nothing; 0 does not wait")
        with self._all.guard:
            self._gathered += 1
            name = f"{self._call}:{self._gathered}"
        step = self._all.step
        try:
            family = step.runs.family(step.lease.run_id, name, ids)
        except Exception as error:
            self._all.trouble = error
            raise
        for run_id in ids:
            if run_id not in family.children:
                raise UsageError(f"ctx.gather: {run_id!r} is none of the runs that this run has started")
        live = [record.id for record in family.records if record and record.state is not RunState.ENDED]
        over = timeout == 0 or (family.deadline_ms is not None and step.now_ms() >= family.deadline_ms)
        if live and not over:
            with self._all.guard:
                self._all.awaited.update(dict.fromkeys(live))
                wait_ms = step.bench.approval_ms if timeout is None else max(1, round(timeout * 1000))
                self._all.gathers[name] = wait_ms
                self.suspended = True
            raise Suspended
        return [_result(run_id, record) for run_id, record in zip(ids, family.records, strict=True)]


def _result(run_id: str, record: RunRecord | None) -> ChildResult:
    if record is None:
        return ChildResult(run_id, "gone")
    return ChildResult(
        run_id=run_id,
        state=record.state.value,
        stop_reason=record.stop_reason,
        answer=record.answer or "",
        usd=to_usd(record.usd_nano),
        steps=record.steps,
        custom_id=record.spec.custom_id,
    )
