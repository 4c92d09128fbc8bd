"""The leases that this process holds: renewed together, and checked before anything that costs or acts.

The server's clock decides when a lease ends. Here the monotonic clock only makes the worker stricter:
it stops trusting a lease some time before the server would.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from agentq.core.records import Lease, Settlement

MARGIN = 0.2
"""The share of a lease by which the worker stops trusting it early."""


class LeaseLostError(Exception):
    """The step may not go on: its lease is lost, too old to be trusted, or its run is being cancelled."""


class Renewing(Protocol):
    """What the leases need of the store."""

    def renew(self, leases: Sequence[Lease], lease_ms: int) -> Sequence[str]:
        """Extend leases; for each OK, CANCELLING or LOST."""
        ...


class Hold:
    """One lease while a step is at work, and what is at hand should the step be cut."""

    def __init__(self, lease: Lease, *, now: Callable[[], float], sent_at: float, term: float) -> None:
        self.lease = lease
        self.taken_at = sent_at
        self.doing = "start"
        """What the step is in, in a word or two."""
        self.flight: Settlement | None = None
        """How the reservation of its request is to be closed when it is cut now; None: nothing is open."""
        self._guard = threading.Lock()
        self._now = now
        self._term = term
        self._good_until = sent_at + term
        self._lost = ""

    def renewed(self, sent_at: float) -> None:
        """The server has extended the lease with a request sent at this time."""
        self._good_until = max(self._good_until, sent_at + self._term)

    def lose(self, why: str) -> None:
        """The server has said that the lease is gone."""
        self._lost = why

    def begin(self, doing: str, flight: Settlement | None = None) -> None:
        """Check, and note what the step goes on to do: a call or a tool is begun by this, or by nothing.

        Args:
            doing: what it is, in a word or two.
            flight: how the reservation is to be closed when the step is cut while it is at it.

        Raises:
            LeaseLostError: when the step may not go on. Nothing is noted then.
        """
        with self._guard:
            self.check()
            self.doing, self.flight = doing, flight

    def cut(self, why: str) -> Settlement | None:
        """Take the step out of its thread's hands; answers how its open reservation is to be closed.

        The thread may go on, but it begins nothing more: what it had begun is in the answer.
        """
        with self._guard:
            self.lose(why)
            return self.flight

    def check(self) -> None:
        """Return when the step may go on.

        Raises:
            LeaseLostError: when it may not.
        """
        if self._lost:
            raise LeaseLostError(f"{self.lease.run_id}: {self._lost}")
        if self._now() > self._good_until:
            raise LeaseLostError(f"{self.lease.run_id}: the lease was not renewed in time")


class Leases:
    """All leases of this process, and the steps that it has taken on.

    `renew` is called by the heartbeat, `admit` and `keep` around each step, `close` when the process stops.
    """

    def __init__(
        self,
        watch: Renewing,
        *,
        lease_ms: int,
        longest_seconds: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watch = watch
        self._lease_ms = lease_ms
        self._longest = longest_seconds
        self._now = now
        self._held: set[Hold] = set()
        self._at_work = 0
        self._closed = False
        self._guard = threading.Lock()

    def now(self) -> float:
        """The clock of these leases: monotonic seconds."""
        return self._now()

    @contextmanager
    def admit(self) -> Iterator[bool]:
        """Count a step as at work inside the block, its claim included; false: nothing may be claimed."""
        with self._guard:
            admitted = not self._closed
            self._at_work += admitted
        try:
            yield admitted
        finally:
            with self._guard:
                self._at_work -= admitted

    def close(self) -> None:
        """Admit nothing more. Steps at work go on, and their leases are renewed."""
        with self._guard:
            self._closed = True

    @property
    def at_work(self) -> int:
        """How many steps were admitted and have not ended."""
        return self._at_work

    def held(self) -> frozenset[Hold]:
        """The leases that are held now."""
        with self._guard:
            return frozenset(self._held)

    @contextmanager
    def keep(self, lease: Lease, *, sent_at: float) -> Iterator[Hold]:
        """Have a lease that was asked for at `sent_at` renewed inside the block."""
        hold = Hold(lease, now=self._now, sent_at=sent_at, term=self._lease_ms / 1000 * (1 - MARGIN))
        with self._guard:
            self._held.add(hold)
        try:
            yield hold
        finally:
            with self._guard:
                self._held.discard(hold)

    def renew(self) -> None:
        """Extend every lease in one round trip. A step that takes longer than the longest is let go."""
        holds = self.held()
        sent_at = self._now()
        current = []
        for hold in holds:
            if sent_at - hold.taken_at > self._longest:
                hold.lose("the step takes longer than any may")
            else:
                current.append(hold)
        answers = self._watch.renew([hold.lease for hold in current], self._lease_ms)
        for hold, answer in zip(current, answers, strict=True):
            if answer == "OK":
                hold.renewed(sent_at)
            else:
                hold.lose("the run is being cancelled" if answer == "CANCELLING" else "the lease is lost")

    def __len__(self) -> int:
        return len(self._held)
