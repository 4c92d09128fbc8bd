"""The handle of a batch. Everything is read from Redis when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, Literal, Unpack

from agentq.agent.agent import Agent
from agentq.agent.metrics import Counts, RunMetrics
from agentq.agent.thread import Thread
from agentq.app.options import batch_options
from agentq.app.outcomes import Endings, Outcome, outcomes
from agentq.app.result import Result
from agentq.app.run import Run
from agentq.app.waiting import wait_for
from agentq.core.errors import UsageError
from agentq.core.lifecycle import RunState
from agentq.core.records import Account, BatchRecord, Parked, PendingCall, RunRecord
from agentq.core.words import nearest
from agentq.engine.cancel import Cancelled, cancel_batch
from agentq.engine.forecast import Forecast, forecast
from agentq.engine.origin import input_lines
from agentq.engine.pause import resume_batch
from agentq.engine.retry import NewBudgets, Retried, retry_batch
from agentq.store.connect import Store

_CHUNK = 500

Order = Literal["input", "completed"]
"""Of results: as the rows were submitted, or as their runs ended."""


class Batch:
    """Runs that were submitted together under one name."""

    def __init__(self, store: Store, name: str, agents: Mapping[str, Agent] | None = None) -> None:
        self._store = store
        self._agents = agents
        self.name = name

    def __repr__(self) -> str:
        return f"Batch({self.name!r})"

    def record(self) -> BatchRecord:
        """Everything about the batch but its runs.

        Raises:
            UsageError: when there is no such batch, or no longer.
        """
        record = self._store.batches.read(self.name)
        if record is None:
            close = nearest(self.name, self._store.batches.names())
            raise UsageError(
                f"there is no batch {self.name!r}{close}", hint="agentq batches lists those that there are"
            )
        return record

    def counts(self, record: BatchRecord | None = None) -> dict[str, int]:
        """How many runs there are in all (`total`) and in each state; `rows` of those queued have not begun.

        It costs no more for a large batch: only runs that have begun are looked at.

        Args:
            record: where it was read already, so that both say the same.
        """
        record = self.record() if record is None else record
        live = self._store.batches.live_states(self.name)
        live[RunState.QUEUED] += record.rows
        counts = {"total": record.total, "rows": record.rows}
        counts.update({state.value: live[state] for state in RunState if state.is_live})
        return counts | {"ended": record.ended}

    def parked(self) -> dict[Parked, int]:
        """What money its parked runs wait for, and how many wait for it, the most first."""
        return dict(self._store.batches.parked(self.name).most_common())

    def stop_reasons(self) -> dict[str, int]:
        """How many runs ended for each reason."""
        return dict(self.record().stop_reasons)

    def account(self) -> Account:
        """The batch's scope in the ledger."""
        return self._store.ledger.account(f"batch:{self.name}")

    def runs(self) -> Iterator[Run]:
        """Its runs in input order."""
        for chunk in self._store.batches.runs(self.name):
            yield from (Run(self._store, run_id, self._agents) for run_id in chunk)

    def pending(self, limit: int = 20) -> list[tuple[str, PendingCall]]:
        """Tool calls of its runs that wait for a decision, with the run's id; at most about `limit`."""
        found: list[tuple[str, PendingCall]] = []
        live = self._store.batches.live(self.name)
        for start in range(0, len(live), _CHUNK):
            for record in self._store.runs.read_many(live[start : start + _CHUNK]):
                if record is not None and record.state is RunState.WAITING:
                    found += [(record.id, call) for call in record.pending]
            if len(found) >= limit:
                break
        return found[:limit]

    def live(self, limit: int) -> Iterator[RunRecord]:
        """Its runs that have not ended, in no order; at most `limit`."""
        live = self._store.batches.live(self.name)[:limit]
        for start in range(0, len(live), _CHUNK):
            yield from filter(None, self._store.runs.read_many(live[start : start + _CHUNK]))

    def results(self, order: Order = "input") -> Iterator[Result]:
        """The results of the runs that have ended, and of the rows that ended without being started.

        They are read as you go, a few hundred at a time.

        Args:
            order: input; or completed: as they ended, those that were never started last. A run that was
                retried stands where it first ended.

        Raises:
            UsageError: for another order.
        """
        if order == "input":
            return (result for _, result in self.outcomes() if result is not None)
        if order == "completed":
            endings = self.endings()
            return chain(endings.new(), endings.dropped())
        raise UsageError(f"results come in the order input or completed, not {order!r}")

    def outcomes(self, start: int = 0) -> Iterator[Outcome]:
        """Each row in input order, from the `start`-th on: its run's id, and its result or None."""
        return outcomes(self._store, self.name, self._agents, start=start)

    def endings(self) -> Endings:
        """A place in the order of ends, to be asked again and again for the results that are new."""
        return Endings(self._store, self.name, self._agents)

    def input_lines(self, run_ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        """The input lines from which runs came, to be submitted again; none for one that is gone."""
        return input_lines(self._store, run_ids)

    def threads(self) -> Iterator[Thread]:
        """The threads of all runs, in input order."""
        return (run.thread() for run in self.runs())

    def metrics(self) -> RunMetrics:
        """The metrics of the rows that have ended, of those too that never became runs.

        They are counted when a run ends: bills that come later are not in `mean_usd`, and runs of 200 steps
        or more count as 200. Nothing is read that grows with the batch.
        """
        record = self.record()
        return Counts.stored(record.counters, record.stop_reasons).metrics()

    def forecast(self) -> Forecast | None:
        """What it will have cost when it has ended, and when that will be; None until 5 runs have ended.

        Of a batch that is paused the time is counted from its resume, at the pace that it had.
        """
        record = self.record()
        now_ms, ends = self._store.batches.recent_ends(self.name)
        if record.paused is not None and ends:
            now_ms = ends[0][1]
        return forecast(
            record.counters,
            left=record.total - record.ended,
            spent_nano=self.account().spent_nano,
            now_ms=now_ms,
            ends=ends,
        )

    def done(self) -> bool:
        """Whether all rows are in and all their runs have ended."""
        record = self.record()
        return record.sealed and record.ended >= record.total

    def wait(self, timeout: float | None = None) -> Batch:
        """Wait until every run has ended. Parked runs wait for money, perhaps for days: see `parked`.

        Raises:
            TimeoutError: after `timeout` seconds; the batch goes on.
        """
        wait_for(self.done, timeout, f"batch {self.name}")
        return self

    def cancel(self, by: str = "python") -> Cancelled:
        """Cancel every run that is live, with all that these have started.

        `live` of the answer is how many there were, `stopped_at` where each was that a worker held. False
        when there was none.
        """
        return cancel_batch(self._store, self.name, by=by)

    def pause(self, by: str = "python") -> None:
        """Start nothing of its runs any more until it is resumed, nor of rows that are submitted meanwhile.

        Steps at work are finished. A run is counted as `held` from when a worker would have taken it.
        """
        self._store.batches.pause(self.name, by)

    def resume(self) -> int:
        """Take back `pause`; how many runs it held. One that was paused by itself stays so."""
        return resume_batch(self._store, self.name)

    def retry(
        self,
        by: str = "python",
        **budgets: Unpack[NewBudgets],
    ) -> Retried:
        """Retry each run that has ended without finishing, as far as it can be: see `Run.retry`.

        `runs` of the answer are those that go on, `groups()` says why the others do not.

        Raises:
            UsageError: when one of the budgets cannot be; nothing was retried.
        """
        return retry_batch(self._store, self.name, by=by, budgets=budgets)

    def tune(
        self,
        *,
        max_in_flight: int | Literal["same"] | None = "same",
        max_open: int | Literal["same"] | None = "same",
        priority: int | Literal["same"] = "same",
        at: datetime | Literal["same"] | None = "same",
    ) -> None:
        """Change how its rows are admitted, at once and at any size; None takes a cap, or the time, away.

        Raises:
            UsageError: for a number out of its range, or a time without a time zone.
        """
        given = {"max_in_flight": max_in_flight, "max_open": max_open, "priority": priority, "at": at}
        asked: dict[str, Any] = {name: value for name, value in given.items() if value != "same"}
        checked = batch_options(*(asked.get(name) for name in given))
        self._store.batches.tune(self.name, {name: checked.get(name) for name in asked})
