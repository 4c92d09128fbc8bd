"""The handle of one run. Every attribute is read from Redis when it is asked for."""

from __future__ import annotations

from decimal import Decimal

from agentq.agent.thread import Thread, TraceEvent
from agentq.app.result import Result, result_of
from agentq.app.waiting import wait_for
from agentq.core.errors import UsageError
from agentq.core.lifecycle import RunState, StopReason
from agentq.core.money import to_usd
from agentq.core.records import RunRecord
from agentq.engine.cancel import cancel_run
from agentq.engine.snapshot import decode_event, load
from agentq.store.connect import Store


class Run:
    """One execution of an agent on a thread."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
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
            raise UsageError(f"there is no run {self.id!r}", hint="it may be older than the retention")
        return record

    @property
    def custom_id(self) -> str | None:
        """The id that the caller gave."""
        return self.record().spec.custom_id

    @property
    def state(self) -> str:
        """queued, running, cancelling, parked, waiting or ended."""
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
        return None if parent is None else Run(self._store, parent)

    def children(self) -> list[Run]:
        """The runs that it has started, in no order."""
        return [Run(self._store, run_id) for run_id in self._store.runs.children(self.id)]

    def done(self) -> bool:
        """Whether it has ended."""
        return self.record().state is RunState.ENDED

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the end. A failed run is returned, not raised.

        Raises:
            TimeoutError: after `timeout` seconds; the run goes on.
        """
        wait_for(self.done, timeout, f"run {self.id}")
        return result_of(self.record())

    def thread(self) -> Thread:
        """A copy of its thread as it stands.

        Raises:
            UsageError: when there is no such run.
        """
        record = self.record()
        parts = self._store.runs.parts(self.id)
        if parts is None:
            raise UsageError(f"there is no run {self.id!r}")
        thread = load(parts, record.spec.detector, record.seconds_ms).thread
        thread.stop_reason = record.stop_reason.value if record.stop_reason else None
        thread.answer = record.answer or ""
        thread.spend.usd = to_usd(record.usd_nano)
        return thread

    def trace(self, start: int = 0) -> list[TraceEvent]:
        """What happened, from the `start`-th event on."""
        return [decode_event(text) for text in self._store.runs.trace(self.id, start)]

    def cancel(self, by: str = "python") -> bool:
        """Cancel it and all that it has started; False when nothing of that was live.

        What a call in flight costs is still booked.
        """
        return bool(cancel_run(self._store, self.id, by=by))
