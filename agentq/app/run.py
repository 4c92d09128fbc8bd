"""The handle of one run. Every attribute is read from Redis when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Unpack

from agentq.agent.agent import Agent
from agentq.agent.thread import Thread, TraceEvent
from agentq.app.result import Result, result_of
from agentq.app.waiting import wait_for
from agentq.core.errors import NoSuchRunError, UsageError
from agentq.core.lifecycle import RunState, StopReason
from agentq.core.money import to_usd
from agentq.core.records import RunRecord
from agentq.engine.cancel import Cancelled, cancel_run
from agentq.engine.fork import MadeCall, calls_after, fork_run
from agentq.engine.pause import pause_runs, resume_runs
from agentq.engine.retry import NewBudgets, retry_run
from agentq.engine.snapshot import decode_event, load
from agentq.store.connect import Store


class Run:
    """One execution of an agent on a thread."""

    def __init__(self, store: Store, run_id: str, agents: Mapping[str, Agent] | None = None) -> None:
        self._store = store
        self._agents = agents
        self.id = run_id

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    def record(self) -> RunRecord:
        """Everything about the run, read at once.

        Raises:
            UsageError: when there is no such run, or no longer.
        """
        record = self._store.runs.read(self.id)
        if record is None:
            raise NoSuchRunError(self.id)
        return record

    @property
    def custom_id(self) -> str | None:
        """The id that the caller gave."""
        return self.record().spec.custom_id

    @property
    def state(self) -> str:
        """queued, running, cancelling, parked, waiting, held or ended."""
        return self.record().state.value

    @property
    def stop_reason(self) -> StopReason | None:
        """Why it ended; None while it is live."""
        return self.record().stop_reason

    @property
    def answer(self) -> str | None:
        """Its answer, once it has one."""
        return self.record().answer

    @property
    def usd(self) -> Decimal:
        """What the ledger has booked on it so far."""
        return to_usd(self.record().usd_nano)

    @property
    def parent(self) -> Run | None:
        """The run that started it, of a child."""
        parent = self.record().spec.parent
        return None if parent is None else Run(self._store, parent, self._agents)

    def children(self) -> list[Run]:
        """The runs that it has started, in no order."""
        return [Run(self._store, run_id, self._agents) for run_id in self._store.runs.children(self.id)]

    def done(self) -> bool:
        """Whether it has ended."""
        return self.record().state is RunState.ENDED

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the end. A failed run is returned, not raised.

        Raises:
            TimeoutError: after `timeout` seconds; the run goes on.
        """
        wait_for(self.done, timeout, f"run {self.id}")
        return result_of(self.record(), self._agents)

    def thread(self) -> Thread:
        """A copy of its thread as it stands.

        Raises:
            UsageError: when there is no such run.
        """
        record = self.record()
        parts = self._store.runs.parts(self.id)
        if parts is None:
            raise NoSuchRunError(self.id)
        thread = load(parts, record.spec.detector, record.seconds_ms).thread
        thread.stop_reason = record.stop_reason.value if record.stop_reason else None
        thread.answer = record.answer or ""
        thread.spend.usd = to_usd(record.usd_nano)
        thread.kept = self._store.results.all(self.id)
        return thread

    def trace(self, start: int = 0) -> list[TraceEvent]:
        """What happened, from the `start`-th event on."""
        return [decode_event(text) for text in self._store.runs.trace(self.id, start)]

    def cancel(self, by: str = "python") -> Cancelled:
        """Cancel it and all that it has started; false when nothing of that was live.

        What a call in flight costs is still booked.
        """
        return cancel_run(self._store, self.id, by=by)

    def pause(self, by: str = "python") -> bool:
        """Start nothing of it any more until it is resumed; False when it is not live, or being cancelled.

        A step at work is finished. A run that waits, for money, a decision or children, goes on waiting.
        """
        words = pause_runs(self._store, [self.id], by=by)
        return words["HELD"] + words["PAUSING"] > 0

    def resume(self) -> bool:
        """Take back `pause`; False when it is not live, or its batch's pause still holds it."""
        return resume_runs(self._store, [self.id])["RESUMED"] > 0

    def retry(
        self,
        by: str = "python",
        **budgets: Unpack[NewBudgets],
    ) -> Run:
        """Go on after its end, from its last committed step; what it has spent and done stays.

        Args:
            by: who wants it, for its trace.
            budgets: max_steps, max_tokens, max_usd or max_seconds in place of what it has. What it has used
                before counts.

        Raises:
            UsageError: when it cannot be: it is live, has finished, or a budget is used up.
        """
        retry_run(self._store, self.id, by=by, budgets=budgets)
        return self

    def fork(
        self,
        from_step: int,
        by: str = "python",
        **budgets: Unpack[NewBudgets],
    ) -> Run:
        """Make a new run of its first steps, which goes on from there; this one stays as it is.

        It is a single run with money of its own. What tools did in later steps it may do again: look at
        `calls_after` first.

        Args:
            from_step: how many steps it keeps; 0 keeps what was submitted.
            by: who wants it, for its trace.
            budgets: max_steps, max_tokens, max_usd or max_seconds in place of this run's. The steps that it
                keeps count; else it has used nothing yet.

        Raises:
            UsageError: when there is no such step, or none may follow it.
        """
        forked = fork_run(self._store, self.id, from_step, by=by, budgets=budgets)
        return Run(self._store, forked, self._agents)

    def calls_after(self, step: int, agent: Agent | None = None) -> list[MadeCall]:
        """The tool calls that it has made behind a step; with its agent, only those that may have acted.

        Args:
            step: the step; 0 is before the first.
            agent: the agent itself, as `app.agents["triage"]` has it.

        Raises:
            UsageError: when there is no such step, or `agent` is no agent.
        """
        if agent is not None and not isinstance(agent, Agent):
            raise UsageError(
                f"calls_after needs the agent itself, not {agent!r}", hint='app.agents["NAME"] is it'
            )
        tools = None if agent is None else agent.executor.registry
        return calls_after(self._store, self.id, step, tools)
