"""Runs whose steps act, on workers that are killed all the time: is anything lost, or done twice?

    python benchmarks/endurance.py [--runs 1000] [--steps 8] [--every 3] [--lease 15] [--json]

Every step calls a tool that appends a line to a file each time it is called, and one that passes its
idempotency key on to a service that takes each key once. The load is done twice on three worker processes:
undisturbed, and with the oldest of them killed with -9 every few seconds, once the one that took the place
of the last is up, and the server restarted twice, once in order and once with -9. Every run must finish with
each of its steps once. The file may have no line twice, and the service each line exactly once; the books
are at least the provider's bill and agree with their log; and the check of all runs, batches and keys finds
nothing.

Ends with 1 when anything was wrong, or when too little was killed to have tried.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from support import WORKERS, await_true, machine, stack, table, worker

from agentq.store.checkup import examine
from agentq.worker.command import worker_argv
from agentq.worker.embedded import EmbeddedServer

PROCESSES, THREADS = 3, 16
RESTARTS = (1 / 3, 2 / 3)
"""How much of the calls has been made when the server is restarted."""
LONGEST_SECONDS = 600.0
SHOWN = 20
"""Violations that are printed; the others are only counted."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=8, help="model calls of a run")
    parser.add_argument("--every", type=float, default=3.0, help="seconds between two kills")
    parser.add_argument("--lease", type=float, default=15.0, help="the workers' lease_seconds")
    parser.add_argument("--seconds", type=float, default=0.1, help="what a model call takes")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON only")
    args = parser.parse_args()
    with stack() as opened:
        # A folder of its own for each load, and one app for both: it finds its server by its environment.
        calm = opened.enter_context(load(args))
        calm.run(disturbed=False)
    with stack() as opened:
        rough = opened.enter_context(load(args))
        rough.run(disturbed=True)
        figures = {
            "machine": rough.about,
            "runs": args.runs,
            "steps": args.steps,
            **rough.figures(),
            "seconds": round(rough.seconds, 1),
            "seconds undisturbed": round(calm.seconds, 1),
        }
        tried = figures["steps taken from the dead"] > 0 and rough.restarts == len(RESTARTS)
    violations = calm.violations + rough.violations
    if args.json:
        print(json.dumps({**figures, "violations": violations}, indent=2))
    else:
        print(figures.pop("machine"))
        print(table([[name, str(value)] for name, value in figures.items()]))
        for violation in violations[:SHOWN]:
            print(violation)
        print(f"violations = {len(violations)}")
    return 0 if tried and not violations else 1


@contextmanager
def load(args: argparse.Namespace) -> Iterator[Load]:
    """A server, its workers and what they have to do, on a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="aqe-", dir="/tmp") as folder, ExitStack() as opened:
        one = Load(Path(folder), args, opened)
        opened.callback(one.stop)
        yield one


@dataclass
class Load:
    """One load, from its submit to its verdict."""

    home: Path
    args: argparse.Namespace
    opened: ExitStack
    seconds: float = 0.0
    kills: int = 0
    restarts: int = 0
    violations: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.server = EmbeddedServer.start(self.home / "server")
        self.about = machine(self.server)
        os.environ |= {
            "BENCH_FOLDER": str(self.home),
            "AGENTQ_REDIS_URL": self.server.url,
            "AGENTQ_BROKER_URL": self.server.broker_url,
            "AGENTQ_LEASE_SECONDS": str(self.args.lease),
        }
        sys.path.insert(0, str(WORKERS))
        sys.modules.pop("endurance_app", None)
        from endurance_app import app

        self.app = app
        self.workers: list[subprocess.Popen[bytes]] = []
        self.started = 0

    def stop(self) -> None:
        """Stop the server that runs now."""
        self.app.celery.close()
        self.server.stop()

    # ── load and trouble ─────────────────────────────────────────────────────────────────────────

    def run(self, *, disturbed: bool) -> None:
        """Submit everything, wait until it has ended, and look at what has come of it."""
        for _ in range(PROCESSES):
            self.start_worker()
        await_true(self.is_up, 60, "the workers")
        began = time.monotonic()
        batch = self.app.submit_many(
            "worker",
            [
                {
                    "input": f"row {row}",
                    "custom_id": str(row),
                    "metadata": {"row": row, "steps": self.args.steps, "seconds": self.args.seconds},
                }
                for row in range(self.args.runs)
            ],
            batch="b",
        )
        next_kill = time.monotonic() + self.args.every
        while not batch.done():
            if time.monotonic() > began + LONGEST_SECONDS:
                self.violations.append(f"not done after {LONGEST_SECONDS:g} s: {batch.counts()}")
                return
            if disturbed and time.monotonic() > next_kill and self.is_up():
                next_kill = time.monotonic() + self.args.every
                self.kill()
            if disturbed and self.restarts < len(RESTARTS) and self.progress() > RESTARTS[self.restarts]:
                self.restart()
            time.sleep(0.1)
        self.seconds = time.monotonic() - began
        self.judge()

    def start_worker(self) -> None:
        """One more process."""
        name = f"w{self.started}"
        self.started += 1
        argv = worker_argv("endurance_app:app", concurrency=THREADS, name=name)
        self.workers.append(self.opened.enter_context(worker(argv, self.home / f"{name}.log")))

    def is_up(self) -> bool:
        """Whether all of them take steps: who is killed at its start shows nothing, and can do nothing."""
        try:
            signed_on = {name.rpartition(":")[2] for name in self.app.workers()}
        except redis.exceptions.ConnectionError:
            return False
        return all(str(process.pid) in signed_on for process in self.workers)

    def kill(self) -> None:
        """The oldest of them dies, and another takes its place."""
        gone = self.workers.pop(0)
        os.killpg(gone.pid, signal.SIGKILL)
        gone.wait()
        self.kills += 1
        self.start_worker()

    def progress(self) -> float:
        """The share of the calls that was made, those that were made again included."""
        return len(self.lines("bill")) / (self.args.runs * self.args.steps)

    def restart(self) -> None:
        """The server goes and comes back on its data: in order at first, then as by `kill -9`."""
        self.restarts += 1
        if self.restarts > 1:
            os.kill(self.server.pid, signal.SIGKILL)
        self.server.stop()
        self.server = EmbeddedServer.start(self.home / "server")

    # ── what came of it ──────────────────────────────────────────────────────────────────────────

    def lines(self, name: str) -> list[str]:
        """The lines of a file so far."""
        path = self.home / name
        return path.read_text().splitlines() if path.exists() else []

    def judge(self) -> None:
        """Note everything that is not as it must be."""
        said = self.violations.append
        store, steps = self.app.store, self.args.steps
        for run in self.app.batch("b").runs():
            record, trace = run.record(), run.thread().trace
            if record.stop_reason is None or record.stop_reason.value != "finished":
                said(f"run {run.id} ended as {record.stop_reason}: {record.stop_detail}")
            elif [e.detail for e in trace if e.kind == "step"] != [f"step {n + 1}" for n in range(steps)]:
                said(f"run {run.id} has not each step once: {record.steps}")
        wanted = {f"{row} {turn}" for row in range(self.args.runs) for turn in range(steps - 1)}
        acts = Counter(self.lines("acts"))
        once = Counter(line.rpartition(" ")[0] for line in self.lines("acts_once"))
        for line, count in acts.items():
            if count > 1 or line not in wanted:
                said(f"the file has the line {line!r} {count} times")
        for line in wanted | once.keys():
            if once[line] != 1 or line not in wanted:
                said(f"the service has the line {line!r} {once[line]} times")
        if self.spent() < self.billed():
            said(f"{self.billed()} nano-USD were billed and {self.spent()} are in the books")
        account = store.ledger.account("global")
        if account.reserved_nano or account.escrowed_nano:
            said(f"held by nobody: {account}")
        self.violations += [f"the books: {difference}" for difference in store.audit.verify().differences]
        self.violations += [f"{found.subject}: {found.sentence}" for found in examine(store).findings]

    def billed(self) -> int:
        """All that the provider billed, in nano-USD."""
        return sum(map(int, self.lines("bill")))

    def spent(self) -> int:
        """What the books say."""
        return int(self.app.store.ledger.account("global").spent_nano)

    def figures(self) -> dict[str, Any]:
        """What was done, and what it cost."""
        records = [run.record() for run in self.app.batch("b").runs()]
        acted = len(self.lines("acts"))
        return {
            "kills": self.kills,
            "restarts of the server": self.restarts,
            "steps taken from the dead": sum(record.attempts - 1 for record in records),
            "calls billed": len(self.lines("bill")),
            "billed, nano-USD": self.billed(),
            "spent, nano-USD": self.spent(),
            "acts": acted,
            "acts that are missing, as their outcome was unknown": self.args.runs * (self.args.steps - 1)
            - acted,
        }


if __name__ == "__main__":
    raise SystemExit(main())
