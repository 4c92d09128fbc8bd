"""The matrix: each crash point, with each fault of the hints, and once with a process that only froze."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from agentq.core.errors import UsageError
from agentq.core.failpoints import FAILPOINTS
from agentq.core.words import nearest
from agentq.testing.delivery import Delivery

Fault = Literal["none", "duplicate", "late", "lost", "freeze"]
FAULTS: Mapping[Fault, str] = {
    "none": "the process is killed; hints arrive",
    "duplicate": "the process is killed; each hint arrives twice",
    "late": "the process is killed; the first hint of each step is later than a lease",
    "lost": "the process is killed; the first hint of each step is lost",
    "freeze": "the process is stopped past its lease and goes on when another has its run",
}
LATER_PASS = {"heartbeat.before": 2, "tick.before": 3, "tick.after_due": 3}
"""Of what a worker does all the time, the pass by which it has runs in its hands."""
_UNDISTURBED = "undisturbed"
CALM, BUSY, SLOW = 0.05, 0.4, 1.0
"""How long a model call takes, in seconds: longer where somebody has to be caught at work, and longest where
even the only call of a run must see several ticks."""


@dataclass(frozen=True, slots=True)
class Case:
    """One crash: at which pass of which point, with which fault."""

    point: str
    fault: Fault = "none"
    nth: int = 1

    @property
    def name(self) -> str:
        """`step.after_claim/none`; of a later pass `step.after_claim#2/none`."""
        return f"{self.point}{'' if self.nth == 1 else f'#{self.nth}'}/{self.fault}"

    @property
    def delivery(self) -> Delivery:
        """What becomes of its hints."""
        return "none" if self.fault == "freeze" else self.fault

    @property
    def pace(self) -> float:
        """How long its model calls take, in seconds."""
        if self.point in LATER_PASS:
            return SLOW
        return BUSY if self.fault == "freeze" else CALM

    @property
    def submit_arms(self) -> tuple[str, ...]:
        """What `AGENTQ_FAILPOINTS` is in the first processes that submit; empty in later ones."""
        return (self._arm(),) if self.point.startswith("submit.") or self.point == _UNDISTURBED else ()

    @property
    def work_arms(self) -> tuple[str, ...]:
        """The same of the workers. For a rescue there must be something to rescue."""
        if self.point.startswith("submit."):
            return ()
        if self.point.startswith("rescue."):
            return ("step.after_claim=kill", self._arm())
        return (self._arm(),)

    def _arm(self) -> str:
        if self.point == _UNDISTURBED:
            return ",".join(f"{point}=count" for point in FAILPOINTS)
        verb = "freeze" if self.fault == "freeze" else "kill"
        return f"{self.point}={verb}#{self.nth}"


UNDISTURBED = (Case(_UNDISTURBED), Case(_UNDISTURBED, nth=2))
"""Twice, since what an app does by itself must be the same each time."""


def matrix(passed: Mapping[str, int], *, passes: int) -> list[Case]:
    """The cases of an app whose undisturbed run has come by these points so often.

    Each fault at the first pass of a point; at later ones, up to `passes`, those without faults of the hints.
    """
    cases: list[Case] = []
    for point in FAILPOINTS:
        rescue = point.startswith("rescue.")
        if not passed.get(point) and not rescue:
            continue
        if point in LATER_PASS or rescue:
            numbers = [LATER_PASS.get(point, 1)]
        else:
            numbers = list(range(1, min(passes, passed[point]) + 1))
        for nth in numbers:
            for fault in FAULTS:
                if fault == "freeze" and point.startswith("submit."):
                    continue  # who submits holds nothing that could be taken from it
                if nth == numbers[0] or fault in {"none", "freeze"}:
                    cases.append(Case(point, fault, nth))
    return cases


def possible(passes: int) -> list[Case]:
    """Every case that some app could have."""
    return matrix(dict.fromkeys(FAILPOINTS, passes), passes=passes)


def chosen(cases: list[Case], patterns: Sequence[str]) -> list[Case]:
    """The cases whose name matches one of the patterns (`*` is anything), or begins with it; all without any.

    Raises:
        UsageError: when a pattern matches none of them.
    """
    found: set[Case] = set()
    for pattern in patterns:
        matching = {c for c in cases if fnmatchcase(c.name, pattern) or c.name.startswith(pattern)}
        if not matching:
            names = [case.name for case in cases]
            raise UsageError(
                f"--only {pattern!r} matches no case{nearest(pattern, names)}",
                hint=f"for example --only {names[0]} or --only 'step.*'",
            )
        found |= matching
    return [case for case in cases if case in found or not patterns]
