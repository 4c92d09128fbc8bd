"""One case from its submit to its end: processes die and are started again, as a supervisor would."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path

from agentq.app import AgentQ, Batch
from agentq.core.errors import UsageError
from agentq.core.lifecycle import RunState
from agentq.core.records import RunRecord
from agentq.store.approvals import Wanted
from agentq.testing.case import Case
from agentq.testing.life import Life
from agentq.testing.nursery import Child, Nursery
from agentq.testing.stage import BATCH, Ground, Scene, staged

LIVES_MAX = 8
"""Processes of a kind in one case: one that dies more often does not die of what is planted."""
LOOK_SECONDS = 0.05
THAW_LEASES = 4
"""A frozen process that held nothing goes on after so many leases."""
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
    seconds: float = 0.0
    children: list[Child] = field(default_factory=list)


class Play:
    """A case at work."""

    def __init__(
        self, case: Case, scene: Scene, ground: Ground, nursery: Nursery, user: AgentQ, *, seconds: float
    ) -> None:
        self.case = case
        self.seconds = seconds  # after which it counts as one that never ends
        self.scene = scene
        self.ground = ground
        self.nursery = nursery
        self.app = staged(user, ground, scene)
        self.played = Played(case, scene)
        self._submits = self._lives("submit", case.submit_arms)
        self._works = self._lives("work", case.work_arms)
        self._armed: list[Child] = []

    def _lives(self, kind: str, arms: tuple[str, ...]) -> Iterator[Life]:
        for number, arm in zip(range(1, LIVES_MAX + 1), chain(arms, repeat("")), strict=False):
            yield Life(kind, self.scene, f"{self.scene.folder}/{kind}-{number}.log", arm)  # type: ignore[arg-type]

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
        frozen: Child | None = None
        held: dict[str, str] = {}
        thaw_at = 0.0
        while submitter is not None and worker is not None:
            if submitter.code not in {None, 0}:
                submitter = self._start(self._submits)
            if worker.code is not None:
                worker = self._start(self._works)
            elif worker.frozen and frozen is None:
                frozen, held = worker, self._held()
                thaw_at = time.monotonic() + THAW_LEASES * self.ground.lease_seconds
                worker = self._start(self._works)
            records = self._records()
            self._decide(records)
            if frozen is not None and (self._taken(held) or (not held and time.monotonic() > thaw_at)):
                self.nursery.thaw(frozen)
                held = {"": ""}
            if submitter is not None and submitter.code == 0 and self._over(records):
                return
            if time.monotonic() > deadline:
                self.played.trouble = f"not over after {self.seconds:.0f} s: {_states(records)}"
                return
            time.sleep(LOOK_SECONDS)
        self.played.trouble = f"a process died {LIVES_MAX} times"

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
        for child in self.played.children:
            if not self.nursery.stop(child) and not self.played.trouble:
                self.played.trouble = f"process {child.pid} did not stop when it was asked to"

    def _decide(self, records: list[RunRecord]) -> None:
        """Approve what waits for it. Nobody makes a call again of which it is not known whether it acted."""
        self.app.store.approvals.decide(
            [
                Wanted(record.id, call.id, "approve" if call.kind == "approval" else "deny", BY)
                for record in records
                if record.state is RunState.WAITING
                for call in record.pending
            ]
        )

    # ── looking ──────────────────────────────────────────────────────────────────────────────────

    def _records(self) -> list[RunRecord]:
        """The rows as they stand; none before the batch is there."""
        try:
            runs = list(Batch(self.app.store, BATCH).runs())
        except UsageError:
            return []
        found = self.app.store.runs.read_many([run.id for run in runs])
        return [record for record in found if record is not None]

    def _over(self, records: list[RunRecord]) -> bool:
        return (
            bool(records)
            and all(record.state is RunState.ENDED for record in records)
            and not self.app.store.watch.live()
        )

    def _held(self) -> dict[str, str]:
        """The runs that a worker holds now, with their fences."""
        store = self.app.store
        held = {}
        for run_id in store.watch.live():
            state, fence = store.client.hmget(store.keys.run(run_id), ["state", "fence"])
            if state == RunState.RUNNING.value:
                held[run_id] = str(fence)
        return held

    def _taken(self, held: dict[str, str]) -> bool:
        """Whether somebody else has one of these runs in his hands, or it has ended."""
        if "" in held:
            return False
        live, now = self.app.store.watch.live(), self._held()
        return any(run_id not in live or now.get(run_id, fence) != fence for run_id, fence in held.items())


def _states(records: list[RunRecord]) -> str:
    return ", ".join(f"{record.id} is {record.state.value}" for record in records) or "nothing was submitted"
