"""One case from its submit to its end: processes die and are started again, as a supervisor would."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path
from threading import Event
from typing import Literal

from agentq.app import AgentQ
from agentq.core.lifecycle import RunState
from agentq.store.approvals import Wanted
from agentq.store.connect import Store
from agentq.testing.case import Case
from agentq.testing.files import read
from agentq.testing.life import Life
from agentq.testing.nursery import Child, Nursery
from agentq.testing.stage import BILL, Ground, Scene, staged

LIVES_MAX = 8
"""Processes of a kind in one case: one that dies more often does not die of what is planted."""
LOOK_SECONDS = 0.1
THAW_LEASES = 4
"""A frozen process that held nothing goes on after so many leases."""
_NEVER_TAKEN = "0-"
"""The fence of a run that no worker has had yet."""
_AT_WORK = (RunState.RUNNING.value, RunState.CANCELLING.value)
BY = "agentq chaos"
"""Who decides on calls that wait for a person."""


@dataclass(slots=True)
class Played:
    """What a case came to. `trouble` says why it has no end, if it has none."""

    case: Case
    scene: Scene
    reached: bool = False
    """Whether every armed process came to its crash."""
    trouble: str = ""
    idle: bool = False
    """Whether it has no end since no worker came to work: then it says nothing about the app."""
    seconds: float = 0.0
    children: list[Child] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    """What was wrong while it was played, a sentence each."""


class Play:
    """A case at work. It takes at most so many `seconds`, and none more once `stopping` is set."""

    def __init__(
        self,
        case: Case,
        scene: Scene,
        ground: Ground,
        nursery: Nursery,
        user: AgentQ,
        *,
        seconds: float,
        stopping: Event,
    ) -> None:
        self.case = case
        self.seconds = seconds
        self.scene = scene
        self.ground = ground
        self.nursery = nursery
        self.app = staged(user, ground, scene)
        self.played = Played(case, scene)
        self._submits = self._lives("submit", case.submit_arms)
        self._works = self._lives("work", case.work_arms)
        self._frozen: _Frozen | None = None
        self._stopping = stopping

    def _lives(self, kind: Literal["submit", "work"], arms: tuple[str, ...]) -> Iterator[Life]:
        for number, arm in zip(range(1, LIVES_MAX + 1), chain(arms, repeat("")), strict=False):
            yield Life(kind, self.scene, f"{self.scene.folder}/{kind}-{number}.log", arm)

    def run(self) -> Played:
        """Play it, and stop all that it started."""
        began = time.monotonic()
        Path(self.scene.folder).mkdir(parents=True, exist_ok=True)
        with closing(self.app.store.client):
            try:
                self._until_the_end(began + self.seconds)
            finally:
                self._stop()
        self.played.seconds = time.monotonic() - began
        return self.played

    def _until_the_end(self, deadline: float) -> None:
        submitter, worker = self._start(self._submits), self._start(self._works)
        while submitter is not None and worker is not None and not self._stopping.is_set():
            if submitter.code not in {None, 0}:
                submitter = self._start(self._submits)
            worker = self._tended(worker)
            # Asked before the look: what is submitted after it is not in what it finds.
            submitted = submitter is not None and submitter.code == 0
            live = self.app.store.watch.live()
            self._decide()
            self._look(live)
            if self._frozen is not None:
                self._frozen.thaw_if_taken(live)
            if submitted and not live:
                return
            if time.monotonic() > deadline:
                self._give_up(live)
                return
            time.sleep(LOOK_SECONDS)
        self.played.trouble = f"a process died {LIVES_MAX} times"

    def _give_up(self, live: Collection[str]) -> None:
        never_taken = all(self._state(run_id)[1] == _NEVER_TAKEN for run_id in live)
        self.played.idle = bool(live) and never_taken and not read(Path(self.scene.folder) / BILL)
        if self.played.idle:
            self.played.trouble = (
                f"no worker came to work in {self.seconds:.0f} s, so nothing was tested: "
                f"try --only {self.case.name!r} with fewer --jobs"
            )
        else:
            self.played.trouble = f"not over after {self.seconds:.0f} s: {self._states(live)}"

    def _tended(self, worker: Child) -> Child | None:
        """The worker, or another where it has died or is frozen."""
        if worker.frozen and self._frozen is None:
            self._frozen = _Frozen(worker, self.nursery, self.app.store, self.ground.lease_seconds)
            return self._start(self._works)
        return worker if worker.code is None else self._start(self._works)

    def _start(self, lives: Iterator[Life]) -> Child | None:
        life = next(lives, None)
        if life is None:
            return None
        child = self.nursery.start(life)
        self.played.children.append(child)
        return child

    def _stop(self) -> None:
        armed = [child for child in self.played.children if child.arm and "=count" not in child.arm]
        wanted = len(self.case.submit_arms) + len(self.case.work_arms)
        self.played.reached = len(armed) == wanted and all(child.reached for child in armed)
        if self._stopping.is_set():
            return  # the nursery ends all of its children at once
        for child in self.played.children:
            self.nursery.stop(child)

    def _decide(self) -> None:
        """Approve what waits for it. Nobody makes a call again of which it is not known whether it acted."""
        store = self.app.store
        for run_ids in store.approvals.runs():
            store.approvals.decide(
                [
                    Wanted(record.id, call.id, "approve" if call.kind == "approval" else "deny", BY)
                    for record in store.runs.read_many(run_ids)
                    if record is not None
                    for call in record.pending
                ]
            )

    def _look(self, live: Collection[str]) -> None:
        """Note each run that holds a call's money and is in nobody's hands: the end would not show it."""
        store = self.app.store
        for run_id in live:
            before = self._state(run_id)
            if before[0] in _AT_WORK:
                continue
            held = [name for name in store.ledger.open_reservations(run_id) if name != "escrow"]
            # Whoever takes a run, or leaves it, changes its fence: in between nobody has.
            if held and self._state(run_id) == before:
                self.played.seen.add(
                    f"{run_id} was {before[0]}, in nobody's hands, and held {', '.join(held)}"
                )

    def _state(self, run_id: str) -> tuple[str, str]:
        store = self.app.store
        state, fence = store.client.hmget(store.keys.run(run_id), ["state", "fence"])
        return str(state), str(fence)

    def _states(self, live: Collection[str]) -> str:
        records = self.app.store.runs.read_many(list(live))
        states = [f"{record.id} is {record.state.value}" for record in records if record is not None]
        return ", ".join(states) or "the rows are not all submitted"


class _Frozen:
    """A worker that stands still. It goes on when somebody else has what it held, or it held nothing."""

    def __init__(self, child: Child, nursery: Nursery, store: Store, lease_seconds: float) -> None:
        self._child = child
        self._nursery = nursery
        self._store = store
        self._held = self._fences()
        self._thaw_at = time.monotonic() + THAW_LEASES * lease_seconds
        self._thawed = False

    def thaw_if_taken(self, live: Collection[str]) -> None:
        """Let it go on as soon as somebody else is at work on one of its runs, or one has ended."""
        if self._thawed:
            return
        if self._held:
            now = self._fences()
            taken = any(run not in live or now.get(run, fence) != fence for run, fence in self._held.items())
        else:
            taken = time.monotonic() > self._thaw_at
        if taken:
            self._nursery.thaw(self._child)
            self._thawed = True

    def _fences(self) -> dict[str, str]:
        """The runs that some worker has in its hands now, with their fences."""
        fences = {}
        for run_id in self._store.watch.live():
            state, fence = self._store.client.hmget(self._store.keys.run(run_id), ["state", "fence"])
            if state == RunState.RUNNING.value:
                fences[run_id] = str(fence)
        return fences
