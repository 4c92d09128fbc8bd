"""Named crash points, inert unless `AGENTQ_FAILPOINTS` is set: `step.after_model=kill,tick.before=raise`.

Actions: `kill` (the process dies as by `kill -9`), `freeze` (it stops as by `kill -STOP`, until it is sent
SIGCONT), `raise` (FailpointError) and `count` (nothing, but `passes` knows of it). `kill#2` acts on the
second pass only, `kill:0.2` on a fifth of the passes.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from threading import Lock

from agentq.core.errors import UsageError
from agentq.core.words import nearest

VARIABLE = "AGENTQ_FAILPOINTS"
FAILPOINTS: Mapping[str, str] = {
    "submit.after_open": "a batch is opened for loading; no row of the load is in it",
    "submit.after_chunk": "some rows are in; the batch is not sealed, so none of them is admitted",
    "submit.after_write": "a run is stored and watched, and a hint that no script pushed is not sent; or a "
    "batch is sealed",
    "step.after_claim": "the step has a lease; nothing else was done",
    "step.after_reserve": "the money of a call is set aside; nothing was sent",
    "step.after_model": "the provider has answered and billed; the reply is not stored",
    "step.after_model_commit": "the reply is stored and paid; no tool was called",
    "step.after_repair": "the repair call was answered and billed; the run has not ended",
    "step.after_summary": "a summary was given and billed; it is not stored",
    "step.after_wait": "the run waits for a decision; nobody holds it",
    "effect.after_begin": "it is written down that a tool is about to act; it was not called",
    "effect.after_tool": "a tool has acted; its result is not written down",
    "effect.after_done": "a tool's result is written down; the step is not committed",
    "step.after_tools": "all tools of the step have answered; the step is not committed",
    "step.after_spawn": "a child is stored; a hint that no script pushed is not sent",
    "step.after_gather": "the run waits for its children; nobody holds it",
    "step.after_commit": "the step is committed; a hint that no script pushed is not sent",
    "step.after_convert": "the escrow is the reservation of the closing turn; nothing was sent",
    "step.after_closing": "the closing turn was answered and billed; the run has not ended",
    "heartbeat.before": "leases are due to be renewed",
    "tick.before": "the tick is due; nothing was looked at",
    "tick.after_due": "the due times of queued runs have moved; their hints are not sent",
    "rescue.before": "a run was found that somebody must put right; nothing was done",
    "rescue.after": "it was put right; its hint is not sent",
    "schedule.after_claim": "a worker has taken on a schedule that is due; its batch is not begun",
    "schedule.after_load": "the batch of a schedule is sealed; the schedule has not moved on",
    "notice.after_claim": "a worker has taken on a notice; nothing is sent",
    "notice.after_send": "the notice was received; nobody knows that it was",
}
"""Every point, and what has happened by then."""
STOP_SECONDS = 0.2
"""How long a process may take to stop once it is told to; a frozen one loses it again when it goes on."""
ACTIONS = ("kill", "freeze", "raise", "count")
_ACTION = re.compile(r"(?P<verb>\w+)(?:#(?P<nth>[1-9]\d*)|:(?P<chance>\d*\.?\d+))?")


class FailpointError(BaseException):
    """Raised by a failpoint whose action is `raise`. Not an Exception: like a crash, nothing handles it."""


@dataclass(frozen=True, slots=True)
class Action:
    """What an armed point does, and when."""

    verb: str
    nth: int | None = None
    """The only pass of this process on which it acts; None: on each."""
    chance: float = 1.0

    def acts(self, number: int) -> bool:
        """Whether it acts on this pass, counted from 1."""
        if self.nth is not None:
            return number == self.nth
        return self.chance >= 1 or random.random() < self.chance  # noqa: S311 - chance, not security


_passes: Counter[str] = Counter()
_guard = Lock()


@cache
def armed(spec: str) -> Mapping[str, Action]:
    """The points that a value of `AGENTQ_FAILPOINTS` arms.

    Raises:
        UsageError: for a point or an action that does not exist.
    """
    points: dict[str, Action] = {}
    for part in filter(None, (p.strip() for p in spec.split(","))):
        name, _, text = part.partition("=")
        if name not in FAILPOINTS:
            raise UsageError(
                f"{VARIABLE}: there is no crash point {name!r}{nearest(name, FAILPOINTS)}",
                hint=f"the points are {', '.join(FAILPOINTS)}",
            )
        found = _ACTION.fullmatch(text or "raise")
        if found is None or found["verb"] not in ACTIONS:
            raise UsageError(
                f"{VARIABLE}: {name}={text} is no action{nearest(text, ACTIONS)}",
                hint=f"an action is {', '.join(ACTIONS)}; kill#2 is the second pass only, kill:0.2 a fifth",
            )
        nth, chance = found["nth"], found["chance"]
        points[name] = Action(found["verb"], int(nth) if nth else None, float(chance) if chance else 1.0)
    return points


def check_failpoints() -> None:
    """Return when `AGENTQ_FAILPOINTS` is not set, or arms points that exist.

    Raises:
        UsageError: when it does not.
    """
    armed(os.environ.get(VARIABLE, ""))


def passes() -> dict[str, int]:
    """How often this process has come by each armed point."""
    with _guard:
        return dict(_passes)


def failpoint(name: str) -> None:
    """Act here when the point is armed; otherwise nothing.

    Raises:
        FailpointError: when its action is `raise`.
        UsageError: when `AGENTQ_FAILPOINTS` names a point that does not exist.
    """
    spec = os.environ.get(VARIABLE)
    if not spec:
        return
    action = armed(spec).get(name)
    if action is None:
        return
    with _guard:
        _passes[name] += 1
        number = _passes[name]
    if not action.acts(number):
        return
    match action.verb:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
            # Any thread may take the signal and stop the others; until then this one would go on.
            time.sleep(STOP_SECONDS)
        case "raise":
            raise FailpointError(name)
