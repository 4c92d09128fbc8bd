"""Making the batch of a schedule that is due. Any worker may do it, and one that dies is followed by another.

A batch is called after its schedule and its time, and rows are loaded as by `submit`: whoever makes the
same one again adds what is missing, so that no time is made twice or by half.
"""

from __future__ import annotations

import logging
import time
from typing import Protocol

from agentq.core.errors import UsageError
from agentq.core.failpoints import failpoint
from agentq.core.text import clock
from agentq.engine.load import Load, Told
from agentq.engine.plan import Plan, batch_at, last_time, next_time, unpack_rows
from agentq.store.connect import Store
from agentq.store.schedules import Claim

log = logging.getLogger("agentq.schedule")

BATCHES_A_ROUND = 20
TRIES = 5
"""After so many failures the time is given up, and the schedule waits for its next one."""
RETRY_MS = 30_000
RENEWALS_A_LEASE = 3
DETAIL_CHARS_MAX = 300


class Maker(Protocol):
    """What makes batches: the app, with its agents."""

    def load(self, batch: str, plan: Plan, tell: Told) -> Load:
        """Begin to check rows for a batch on the terms of a plan."""

    def write(self, load: Load, plan: Plan) -> None:
        """Write the rows of a load to their batch."""


class _LostError(Exception):
    """Somebody else makes the batch by now, or the schedule is gone."""


def make_due(store: Store, maker: Maker, *, lease_ms: int) -> None:
    """Make the batches of the schedules that are due, at most `BATCHES_A_ROUND`.

    Args:
        store: where the schedules are.
        maker: see `Maker`.
        lease_ms: after how long without a sign of life another worker makes the batch.
    """
    for _ in range(BATCHES_A_ROUND):
        claim = store.schedules.claim(lease_ms)
        if claim is None:
            return
        failpoint("schedule.after_claim")
        try:
            occurrence = _Occurrence(store, maker, claim, lease_ms)
        except Exception as error:  # noqa: BLE001 - a zone that this machine lacks: another may have it
            log.warning("schedule_unreadable schedule=%s error=%r", claim.name, error)
            store.schedules.defer(claim, time_ms=claim.due_ms, why=_why(error), retry_ms=RETRY_MS)
        else:
            occurrence.settle()


class _Occurrence:
    """One time of a schedule."""

    def __init__(self, store: Store, maker: Maker, claim: Claim, lease_ms: int) -> None:
        self._store, self._maker, self._claim = store, maker, claim
        self._lease_ms = lease_ms
        self._renewed = time.monotonic()
        self._plan = Plan.from_json(claim.spec)
        due = claim.due_ms
        self._time_ms = due if claim.is_asked else last_time(self._plan, due, claim.begun_ms)
        self._batch = batch_at(claim.name, self._plan, self._time_ms)

    def settle(self) -> None:
        """Make the batch, or say why not."""
        before = self._before()
        if before:
            self._settle(None, "skipped", f"{before} is not over yet")
            return
        try:
            self._make()
        except _LostError:
            log.info("schedule_lost schedule=%s batch=%s", self._claim.name, self._batch)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is said at the schedule and tried again
            self._failed(_why(error))
        else:
            missed = self._time_ms != self._claim.due_ms
            detail = f"the times from {clock(self._claim.due_ms)} on were missed" if missed else ""
            self._settle(self._batch, "late" if missed else "made", detail)

    def _before(self) -> str | None:
        """The batch that was made last, where it is in the way of this one."""
        claim = self._claim
        if claim.is_asked or self._plan.overlap == "allow" or claim.last in {None, self._batch}:
            return None
        record = self._store.batches.read(str(claim.last))
        if record is None or (record.sealed and record.ended >= record.total and not record.descendants):
            return None
        return record.name

    def _make(self) -> None:
        claim = self._claim
        with self._maker.load(self._batch, self._plan, self._alive) as load:
            found = 0
            for row in unpack_rows(self._store.schedules.chunks(claim.name, claim.part)):
                load.add(row.where or f"row {found + 1}", row)
                found += 1
            # Of a schedule that is removed meanwhile some rows are gone: nothing is made by half.
            if found != claim.rows:
                raise _LostError
            load.check()
            self._maker.write(load, self._plan)
        failpoint("schedule.after_load")

    def _alive(self, what: str, rows: int) -> None:  # noqa: ARG002 - as `Told` has it
        now = time.monotonic()
        if now - self._renewed < self._lease_ms / 1000 / RENEWALS_A_LEASE:
            return
        self._renewed = now
        if not self._store.schedules.renew(self._claim, self._lease_ms):
            raise _LostError

    def _failed(self, why: str) -> None:
        claim = self._claim
        log.warning(
            "schedule_failed schedule=%s batch=%s try=%s why=%s",
            claim.name,
            self._batch,
            claim.tries + 1,
            why,
        )
        if claim.tries + 1 < TRIES:
            self._store.schedules.defer(claim, time_ms=self._time_ms, why=why, retry_ms=RETRY_MS)
        else:
            self._settle(None, "failed", why)

    def _settle(self, batch: str | None, outcome: str, detail: str) -> None:
        claim = self._claim
        self._store.schedules.settle(
            claim,
            time_ms=self._time_ms,
            batch=batch,
            outcome=outcome,
            detail=detail,
            next_ms=next_time(self._plan, max(claim.begun_ms, self._time_ms)),
        )
        log.info("schedule_%s schedule=%s batch=%s", outcome, claim.name, self._batch)


def _why(error: Exception) -> str:
    """What went wrong, for people."""
    why = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
    return why[:DETAIL_CHARS_MAX]
