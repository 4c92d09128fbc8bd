"""A long quiet load with everything going wrong but the loss of data: does anybody raise a false alarm?

    python benchmarks/soak.py [--minutes 60] [--every 20] [--freeze 30] [--lease 15] [--seed N] [--json]

Workers are asked to leave, killed with -9 and frozen past their lease; connections are cut; the server is
stopped, and killed with -9 while it writes each change to its disk before it answers. Nothing acknowledged
is ever lost, so no process may say that the server was rolled back. In the end every run has finished, the
books are at least the bill, and the audit agrees.

Ends with 1 when anything of this is not so.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import redis
from support import WORKERS, await_true, machine, stack, table, worker

from agentq.worker.command import worker_argv
from agentq.worker.embedded import EmbeddedServer

ROWS, STEPS = 12, 5
LIVE = 24
"""Runs that are under way, about."""
PROCESSES = 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=20.0, help="seconds between two troubles")
    parser.add_argument("--freeze", type=float, default=30.0, help="seconds that a frozen worker is frozen")
    parser.add_argument("--lease", type=float, default=15.0, help="the workers' lease_seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON only")
    args = parser.parse_args()
    with stack() as opened:
        home = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="agentq-soak-")))
        soak = Soak(home, args, opened)
        opened.callback(soak.stop)
        soak.run()
        figures = soak.figures()
    if args.json:
        print(json.dumps(figures, indent=2))
    else:
        print(figures["machine"])
        print(
            table([["", ""], *[[name, str(value)] for name, value in figures.items() if name != "machine"]])
        )
    return 0 if figures["passed"] else 1


class Soak:
    """A server, two workers, and what is done to them."""

    def __init__(self, home: Path, args: argparse.Namespace, opened: Any) -> None:
        self.home, self.args, self.opened = home, args, opened
        self.random = random.Random(args.seed)
        self.troubles: Counter[str] = Counter()
        self.batches = 0
        self.going: list[Any] = []
        self.workers: list[Any] = []
        self.logs: list[Path] = []
        self.server = self._server()
        os.environ |= {
            "BENCH_BILL": str(home / "bill"),
            "AGENTQ_REDIS_URL": self.server.url,
            "AGENTQ_BROKER_URL": self.server.broker_url,
            "AGENTQ_LEASE_SECONDS": str(args.lease),
        }
        sys.path.insert(0, str(WORKERS))
        from soak_app import app

        self.app = app
        self.about = machine(self.server)

    def _server(self) -> EmbeddedServer:
        server = EmbeddedServer.start(self.home / "server")
        with redis.Redis.from_url(server.url) as client:
            # Then what is acknowledged is on the disk, also when the server is killed.
            client.config_set("appendfsync", "always")
        return server

    def stop(self) -> None:
        """Stop the server that runs now."""
        self.server.stop()

    def start_worker(self) -> None:
        name = f"w{len(self.logs)}"
        self.logs.append(self.home / f"{name}.log")
        argv = worker_argv("soak_app:app", concurrency=4, name=name)
        self.workers.append(self.opened.enter_context(worker(argv, self.logs[-1])))

    # ── load and trouble ─────────────────────────────────────────────────────────────────────────

    def run(self) -> None:
        for _ in range(PROCESSES):
            self.start_worker()
        end = time.monotonic() + self.args.minutes * 60
        deeds = [self.leave, self.kill, self.freeze, self.cut, self.restart, self.crash]
        self.random.shuffle(deeds)
        due = time.monotonic() + self.args.every
        while time.monotonic() < end:
            self.feed()
            if time.monotonic() >= due:
                deed = deeds[sum(self.troubles.values()) % len(deeds)]
                self.troubles[deed.__name__] += 1
                deed()
                due = time.monotonic() + self.args.every * self.random.uniform(0.5, 1.5)
            time.sleep(0.5)
        await_true(self.is_done, 600, "the last runs")

    def feed(self) -> None:
        """Submit some more when there is room."""
        if self._unfinished() < LIVE:
            self.batches += 1
            rows = [
                {"input": f"row {row}", "custom_id": str(row), "metadata": {"steps": STEPS}}
                for row in range(ROWS)
            ]
            self.going.append(self.app.submit_many("worker", rows, batch=f"b{self.batches}"))

    def _unfinished(self) -> int:
        """Rows and runs that have not ended."""
        records = [(batch, batch.record()) for batch in self.going]
        self.going = [batch for batch, record in records if record.ended < record.total]
        return sum(record.total - record.ended for _, record in records)

    def is_done(self) -> bool:
        time.sleep(0.2)
        return not self._unfinished()

    def leave(self) -> None:
        """A worker is asked to stop, and another takes its place."""
        gone = self.workers.pop(0)
        gone.send_signal(signal.SIGTERM)
        self.start_worker()
        gone.wait(60)

    def kill(self) -> None:
        gone = self.workers.pop(0)
        os.killpg(gone.pid, signal.SIGKILL)
        gone.wait()
        self.start_worker()

    def freeze(self) -> None:
        """One is frozen past its lease, and goes on as if nothing had been."""
        os.killpg(self.workers[0].pid, signal.SIGSTOP)
        end = time.monotonic() + self.args.freeze
        while time.monotonic() < end:
            self.feed()
            time.sleep(0.5)
        os.killpg(self.workers[0].pid, signal.SIGCONT)

    def cut(self) -> None:
        """All connections break."""
        self.app.store.client.client_kill_filter(skipme=True, _type="normal")

    def restart(self) -> None:
        self.server.stop()
        self.server = self._server()

    def crash(self) -> None:
        os.kill(self.server.pid, signal.SIGKILL)
        self.server.stop()
        self.server = self._server()

    # ── what came of it ──────────────────────────────────────────────────────────────────────────

    def figures(self) -> dict[str, Any]:
        store = self.app.store
        billed = sum(map(int, (self.home / "bill").read_text().split()))
        reasons: Counter[str] = Counter()
        for n in range(1, self.batches + 1):
            reasons.update(self.app.batch(f"b{n}").stop_reasons())
        verdict = store.audit.verify()
        account = store.ledger.account("global")
        alarms = sum(log.read_text().count("ledger_rolled_back") for log in self.logs)
        incidents = store.client.llen(store.keys.incidents)
        return {
            "machine": self.about,
            "minutes": self.args.minutes,
            "runs": sum(reasons.values()),
            "reasons": dict(reasons),
            "troubles": dict(self.troubles),
            "billed": billed,
            "spent": account.spent_nano,
            "forfeited": account.forfeited_nano,
            "differences": verdict.found,
            "incidents": incidents,
            "alarms": alarms,
            "passed": not (incidents or alarms or verdict.found)
            and account.spent_nano >= billed
            and set(reasons) == {"finished"},
        }


if __name__ == "__main__":
    raise SystemExit(main())
