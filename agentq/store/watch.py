"""Liveness: which runs somebody must look at, who is alive, and how leases are kept."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import redis

from agentq.core.records import Lease
from agentq.store.keys import Keys
from agentq.store.ledger import Ledger
from agentq.store.scripts import Scripts, unexpected

Renewal = Literal["OK", "CANCELLING", "LOST"]

GRACE_MS = 5_000
"""How long a queued run's message may take before it is sent again; doubled each time."""
LONGEST_GRACE_MS = 300_000
LOOKS_MAX = 1_000
"""The most due runs that one tick looks at."""
SUSPECT_MS = 2_000
"""Suspects of one dead process may be claimed again within so long, each at a time of its own."""


@dataclass(frozen=True, slots=True)
class Due:
    """What a tick has to do: hints to send, as (run, step), runs to put right, and so on."""

    hints: list[tuple[str, int]]
    runs: list[str]
    parked: list[str] = field(default_factory=list)
    """Scopes with parked runs."""
    events: list[dict[str, Any]] = field(default_factory=list)
    """To be logged."""
    pilots: list[str] = field(default_factory=list)
    """Batches whose pilot is over."""


@dataclass(frozen=True, slots=True)
class Rescue:
    """What was done about one due run. `verdict` is the script's word; `step` is set when a hint is due."""

    verdict: str
    step: int | None = None
    reason: str | None = None
    run_id: str = field(default="", compare=False)


class Watch:
    """The index of live runs by the time at which they need a look."""

    def __init__(self, client: redis.Redis, keys: Keys, scripts: Scripts, ledger: Ledger) -> None:
        self._client = client
        self._keys = keys
        self._scripts = scripts
        self._ledger = ledger

    def due(self, lease_ms: int, *, room: int, rescues: int) -> Due:
        """What is due now, the longest due first: up to `room` hints, up to `rescues` runs to put right."""
        reply = self._scripts.call("tick", lease_ms, LOOKS_MAX, room, rescues, GRACE_MS, LONGEST_GRACE_MS)
        hints, runs, parked, events, pilots = reply
        steps = [int(step) for step in hints[1::2]]
        return Due(
            list(zip(hints[::2], steps, strict=True)),
            runs,
            parked,
            [json.loads(event) for event in events],
            pilots,
        )

    def rescue(self, run_id: str, lease_ms: int) -> Rescue:
        """Put one due run right: see `run_rescue.lua`."""
        later_ms = random.randrange(SUSPECT_MS)  # noqa: S311 - jitter
        reply = self._scripts.call("run_rescue", run_id, lease_ms, GRACE_MS, later_ms)
        match reply:
            case ["SUSPECT", _]:
                return Rescue("SUSPECT", run_id=run_id)
            case [("RESCUED" | "WOKEN") as verdict, step]:
                return Rescue(verdict, step=int(step), run_id=run_id)
            case ["ENDED", reason]:
                return Rescue("ENDED", reason=reason, run_id=run_id)
            case [("NOT_DUE" | "PATIENT" | "GONE") as verdict]:
                return Rescue(verdict, run_id=run_id)
            case _:
                raise unexpected("run_rescue", reply)

    def renew(self, leases: Sequence[Lease], lease_ms: int) -> list[Renewal]:
        """Extend leases, all in one round trip; one answer for each."""
        calls = [(lease.run_id, lease.fence, lease_ms) for lease in leases]
        answers: list[Renewal] = []
        for reply in self._scripts.call_many("lease_renew", calls):
            match reply:
                case [("OK" | "CANCELLING" | "LOST") as word]:
                    answers.append(word)
                case _:
                    raise unexpected("lease_renew", reply)
        return answers

    def live(self) -> dict[str, int]:
        """Every live run and the time (ms) at which somebody looks at it."""
        entries: Any = self._client.zrange(self._keys.watch, 0, -1, withscores=True)
        return {str(run): int(due) for run, due in entries}

    def sign_on(
        self, worker: str, seconds: float, *, slots: int = 1, hint: tuple[str, str] | None = None
    ) -> None:
        """Count a worker process as alive for so long, and notice when the server was rolled back.

        Called again and again by its heartbeat.

        Args:
            worker: the process.
            seconds: how long it counts as alive.
            slots: how many steps it works on at once: half as many again are admitted.
            hint: a queue's key and the message that `@run@` may begin, for scripts that admit rows; None
                where a script cannot send one.

        Raises:
            SchemaError: when the state is newer than this release understands: it should stop.
        """
        process, acknowledged = self._ledger.operations.current()
        reply = self._scripts.call(
            "worker_sign_on",
            worker,
            round(seconds * 1000),
            process,
            acknowledged,
            slots,
            "" if hint is None else " ".join(hint),
        )
        match reply:
            case ["OK"]:
                self._ledger.report()
            case ["ROLLBACK", known]:
                self._ledger.rolled_back(int(known))
            case _:
                raise unexpected("worker_sign_on", reply)

    def sign_off(self, worker: str) -> None:
        """Forget a worker process that stops in good order."""
        self._client.zrem(self._keys.workers, worker)
        self._client.hdel(self._keys.schemas, worker)
        self._client.hdel(self._keys.worker_slots, worker)

    def workers(self) -> list[str]:
        """The worker processes that are alive."""
        alive: Any = self._client.zrange(self._keys.workers, f"({self.server_ms()}", "+inf", byscore=True)
        return [str(name) for name in alive]

    def server_ms(self) -> int:
        """The server's clock in milliseconds since 1970."""
        seconds, micros = self._client.time()
        return int(seconds) * 1000 + int(micros) // 1000
