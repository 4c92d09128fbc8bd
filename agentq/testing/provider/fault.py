"""A fault that is switched on: which, and for which requests."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from agentq.core.errors import UsageError
from agentq.core.words import nearest
from agentq.testing.provider.catalogue import CATALOGUE
from agentq.testing.provider.known import Known
from agentq.testing.provider.request import Request


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault by name, for every request that it can concern, or for some of them.

    Of the requests that `when` accepts, of the dialects that the fault is for, the first `after` are spared.
    Of the rest each `every`-th is hit, `first` of them (None: all), each with the probability `share`.
    `seconds` is the wait that a fault names or makes, `tokens` the size that it names.

    Raises:
        UsageError: when there is no such fault.
    """

    name: str
    first: int | None = None
    every: int = 1
    after: int = 0
    share: float = 1.0
    when: Callable[[Request], bool] | None = None
    seconds: float = 1.0
    tokens: int = 4_096

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name.replace("-", "_"))
        if self.name not in CATALOGUE:
            raise UsageError(
                f"there is no fault {self.name!r}{nearest(self.name, CATALOGUE)}",
                hint="agentq fake-provider --faults lists them",
            )
        if (
            self.every < 1
            or self.after < 0
            or self.seconds < 0
            or (self.first is not None and self.first < 0)
        ):
            raise UsageError(
                f"the fault {self.name}: every is at least 1; after, first and seconds at least 0"
            )

    @property
    def known(self) -> Known:
        """What the fault does."""
        return CATALOGUE[self.name]


AnyFault = str | Fault


class Faults:
    """The faults of a server, and how often each could have hit."""

    def __init__(self, faults: Iterable[AnyFault] | AnyFault, source: random.Random) -> None:
        """Take faults by name or as `Fault`.

        Raises:
            UsageError: when there is no such fault.
        """
        given = [faults] if isinstance(faults, str | Fault) else faults
        self.all = [fault if isinstance(fault, Fault) else Fault(fault) for fault in given]
        self._source = source
        self._lock = threading.Lock()
        self._met = [0] * len(self.all)

    def hitting(self, request: Request) -> list[Fault]:
        """Those that hit this request, in the order in which they were given. Counts it."""
        hit = []
        for i, fault in enumerate(self.all):
            if request.dialect not in fault.known.dialects or (fault.when and not fault.when(request)):
                continue
            with self._lock:
                self._met[i] += 1
                number = self._met[i] - fault.after
                drawn = self._source.random() if fault.share < 1 else 0.0
            if number < 1 or number % fault.every or drawn >= fault.share:
                continue
            if fault.first is None or number // fault.every <= fault.first:
                hit.append(fault)
        return hit
