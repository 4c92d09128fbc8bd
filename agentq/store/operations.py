"""What a process remembers of its reservations, to notice that the server was rolled back, and to mend it.

The server numbers the reservations of each process. When it knows a lower number than it has acknowledged
before it was asked, or gives one away for the second time, it has lost writes: there is no other way to
that, whoever else has written meanwhile. Then the process books again what was taken from it.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

from agentq.core.records import Lease, Settlement

REMEMBERED = 10_000
"""The latest reservations of which a process knows what they were about."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """An acknowledged reservation, and what is known of its call: its worst case (`forfeit`) or its bill."""

    number: int
    run_id: str
    reservation: str
    scopes: str
    how: str
    usd: int
    tokens: int
    at: float

    @property
    def name(self) -> str:
        """The reservation's name in the ledger's log."""
        return f"{self.run_id}:{self.reservation}"


@dataclass(frozen=True, slots=True)
class Loss:
    """What a rollback has taken from a process.

    `incident` is the how-many-th of this process, `seconds` how long ago the first of what is lost was
    acknowledged.
    """

    process: str
    incident: int
    known: int
    acknowledged: int
    reserved: tuple[Reserved, ...]
    seconds: float


class Operations:
    """The reservations of one process. Safe to use from several threads."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.process = secrets.token_hex(5)
        self._now = now
        self._guard = threading.Lock()
        self._acknowledged = 0
        self._recent: OrderedDict[int, Reserved] = OrderedDict()
        self._numbers: dict[str, int] = {}
        # Of a rollback that was noticed: what the server knew and what is lost, while that is not reported;
        # what is lost and has no bill; what must be booked again.
        self._known: int | None = None
        self._unreported: list[Reserved] = []
        self._incidents = 0
        self._lost: dict[str, Reserved] = {}
        self._unbooked: dict[str, Reserved] = {}

    # ── while all is well ────────────────────────────────────────────────────────────────────────

    def current(self) -> tuple[str, int]:
        """The process, and the highest number that was acknowledged up to now."""
        with self._guard:
            return self.process, self._acknowledged

    def acknowledge(self, number: int, lease: Lease, reservation: str, usd: int, tokens: int) -> None:
        """The server has made this reservation and given it this number."""
        reserved = Reserved(
            number, lease.run_id, reservation, lease.scopes, "forfeit", usd, tokens, self._now()
        )
        with self._guard:
            before = self._recent.get(number)
            if before is not None and before.name != reserved.name:
                self._lose(before, number - 1)
            self._acknowledged = max(self._acknowledged, number)
            self._recent[number] = reserved
            self._numbers[reserved.name] = number
            while len(self._recent) > REMEMBERED:
                _, oldest = self._recent.popitem(last=False)
                del self._numbers[oldest.name]

    def closed(self, lease: Lease, settlement: Settlement) -> None:
        """The server was told how this reservation closes."""
        name = f"{lease.run_id}:{settlement.reservation}"
        with self._guard:
            number = self._numbers.get(name)
            if number is not None:
                if settlement.how in {"release", "restore"}:  # nothing was billed: no loss if it is lost
                    del self._recent[number], self._numbers[name]
                else:
                    self._recent[number] = _with(self._recent[number], settlement)
            elif name in self._lost:
                self._lost[name] = self._unbooked[name] = _with(self._lost[name], settlement)

    # ── when the server has lost writes ──────────────────────────────────────────────────────────

    def gone(self, lease: Lease, reservation: str) -> None:
        """The server knows the lease and says that it has never made this reservation."""
        with self._guard:
            number = self._numbers.get(f"{lease.run_id}:{reservation}")
            if number is not None:
                self._lose(self._recent[number], number - 1)

    def rolled_back(self, known: int) -> None:
        """The server knows no number above `known`. No news when that is all that it has acknowledged."""
        with self._guard:
            if known >= self._acknowledged:
                return
            self._known = known if self._known is None else min(known, self._known)
            for reserved in [r for number, r in self._recent.items() if number > known]:
                self._lose(reserved, known)

    def _lose(self, reserved: Reserved, known: int) -> None:
        self._known = known if self._known is None else min(known, self._known)
        del self._recent[reserved.number], self._numbers[reserved.name]
        self._unreported.append(reserved)
        self._lost[reserved.name] = self._unbooked[reserved.name] = reserved

    @property
    def has_news(self) -> bool:
        """Whether something is to be reported, or to be booked again."""
        return self._known is not None or bool(self._unbooked)

    def loss(self) -> Loss | None:
        """What was lost and is not yet reported."""
        with self._guard:
            if self._known is None:
                return None
            first = min((reserved.at for reserved in self._unreported), default=self._now())
            return Loss(
                self.process,
                self._incidents + 1,
                self._known,
                self._acknowledged,
                tuple(self._unreported),
                self._now() - first,
            )

    def reported(self, loss: Loss) -> None:
        """The server has written this down."""
        with self._guard:
            self._incidents = loss.incident
            self._unreported = self._unreported[len(loss.reserved) :]
            if not self._unreported:
                self._known = None

    def unbooked(self) -> list[Reserved]:
        """What is lost and must be booked again, as it is known now."""
        with self._guard:
            return list(self._unbooked.values())

    def found(self, facts: list[Reserved]) -> None:
        """The server has these after all: they were made while others heard that it was rolled back."""
        with self._guard:
            for fact in facts:
                self._unbooked.pop(fact.name, None)
                if self._lost.pop(fact.name, None) is not None and fact.number not in self._recent:
                    self._recent[fact.number] = fact
                    self._numbers[fact.name] = fact.number

    def booked(self, facts: list[Reserved]) -> None:
        """These are in the books. What has no bill yet is booked in full, and once more when it has."""
        with self._guard:
            for fact in facts:
                if self._unbooked.get(fact.name) is fact:
                    del self._unbooked[fact.name]
                    if fact.how != "forfeit":
                        del self._lost[fact.name]


def _with(reserved: Reserved, settlement: Settlement) -> Reserved:
    return replace(reserved, how=settlement.how, usd=settlement.usd, tokens=settlement.tokens)
