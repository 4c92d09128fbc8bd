"""The numbers by which a process knows whether the server still has what it has acknowledged.

Each reservation carries a number of its own process. The server keeps the highest and answers when it knows
less than the process has seen acknowledged before it asked: then it was rolled back, whoever else has
written meanwhile.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

REMEMBERED = 10_000
"""Reservations of which a process knows what they were about."""
SILENT_SECONDS = 12 * 3600
"""After so long without a reservation a process takes a new name: the server forgets the silent."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """An acknowledged reservation: its number, its name `run:reservation`, its worst case, and when."""

    number: int
    name: str
    usd: int
    tokens: int
    at: float


@dataclass(frozen=True, slots=True)
class Loss:
    """What a rollback has taken from this process; `seconds`: how long ago the first was acknowledged."""

    process: str
    known: int
    acknowledged: int
    reserved: tuple[Reserved, ...]
    seconds: float


class Operations:
    """The operation numbers of one process. Safe to use from several threads."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._guard = threading.Lock()
        self._lost: OrderedDict[str, Reserved] = OrderedDict()
        self._begin()

    def _begin(self) -> None:
        self.process = secrets.token_hex(5)
        self._number = self._acknowledged = 0
        self._recent: OrderedDict[int, Reserved] = OrderedDict()
        self._last = self._now()

    def next(self) -> tuple[str, int, int]:
        """The process, a fresh number, and the highest number that has been acknowledged up to now."""
        with self._guard:
            if self._now() - self._last > SILENT_SECONDS and self._number == self._acknowledged:
                self._begin()
            self._number += 1
            return self.process, self._number, self._acknowledged

    def current(self) -> tuple[str, int]:
        """The process, and the highest number that has been acknowledged."""
        with self._guard:
            return self.process, self._acknowledged

    def acknowledge(self, number: int, name: str, usd: int, tokens: int) -> None:
        """The server has answered that this reservation is made."""
        with self._guard:
            self._last = self._now()
            self._acknowledged = max(self._acknowledged, number)
            self._recent[number] = Reserved(number, name, usd, tokens, self._last)
            while len(self._recent) > REMEMBERED:
                self._recent.popitem(last=False)

    def rolled_back(self, known: int) -> Loss:
        """The server knows no number above `known`: what that means."""
        with self._guard:
            lost = [reserved for number, reserved in self._recent.items() if number > known]
            for reserved in lost:
                self._lost[reserved.name] = reserved
                del self._recent[reserved.number]
            while len(self._lost) > REMEMBERED:
                self._lost.popitem(last=False)
            first = min((reserved.at for reserved in lost), default=self._now())
            return Loss(self.process, known, self._acknowledged, tuple(lost), self._now() - first)

    def lost(self, name: str) -> Reserved | None:
        """The reservation of this name, if a rollback has taken it."""
        with self._guard:
            return self._lost.get(name)
