"""A hammer on the ledger: can many processes, killed all the time, spend more than a limit?

    python benchmarks/hammer.py [--seconds 60] [--workers 8] [--seed N] [--json]

Worker processes do real steps and are killed with -9 throughout, or frozen past their lease and thawed. A
provider bills each call in a file before it answers. Every run is in five scopes: global, its tenant, the
account at the provider (`key:`), its batch, itself. One tenant is kept short of money by small top-ups. All
along, accounts are read in one transaction and looked at: none above its limit, no whole unlike the sum of
its parts. Then the workers are left alone until their leases are over, and the books are held against the
bill and against their own log.

Ends with 1 when anything was wrong, when no worker was killed, or when the short scope was never used up.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from support import WORKERS, cpu_seconds, embedded_server, machine, stack

SHORT, AMPLE = "tenant:short", "tenant:ample"
TENANTS = (SHORT, AMPLE)
KEY = "key:shared"
FIRST_USD, TOPUP_USD = 20_000_000, 30_000_000
"""Nano-USD: what the short tenant begins with, and each top-up: some calls at their worst, so that a slow
machine uses it up, too."""
TOPUP_SECONDS = 0.4
"""The least time between two top-ups; each comes only when the money is used up."""
ROWS = 40
LIVE = 60
"""Runs that each tenant has under way, about."""
KILL_SECONDS = 0.3
FROZEN_SHARE = 0.2
"""Of the victims: these are stopped for two leases and then go on, unaware."""
SNAPSHOT_SECONDS = 0.01
DRAIN_SECONDS = 60.0
MONEY = ("us", "ur", "ue", "ts", "tr", "te")
"""Fields that a scope shares with all scopes around it: spent, reserved, escrowed, in nano-USD and tokens."""
NUMBERS = {*MONEY, "ul", "ui", "uf", "uo", "tl", "ti"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="how long workers are killed (default 60)")
    parser.add_argument("--workers", type=int, default=8, help="processes at work (default 8)")
    parser.add_argument(
        "--seed", type=int, default=secrets.randbelow(10**6), help="of all that is drawn by lot"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON only")
    args = parser.parse_args()
    if not args.json:
        print(f"seed {args.seed}", flush=True)
    with stack() as opened:
        server, client = opened.enter_context(embedded_server())
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="agentq-hammer-")))
        os.environ |= {"BENCH_URL": server.url, "BENCH_BILL": str(folder / "bill")}
        sys.path.insert(0, str(WORKERS))
        about = machine(server)
        figures = hammer(opened, client, folder, args, server_pid=server.pid)
    figures = {"machine": about, "seed": args.seed, "workers": args.workers, **figures}
    passed = not figures["violations"] and figures["kills"] > 0 and figures["dry_samples"] > 0
    if args.json:
        print(json.dumps(figures, indent=2))
    else:
        show(figures)
    return 0 if passed else 1


def hammer(
    opened: ExitStack, client: redis.Redis, folder: Path, args: argparse.Namespace, *, server_pid: int
) -> dict[str, Any]:
    """All of it; the figures."""
    lot = random.Random(args.seed)
    work = Work(lot)
    books = Books(client, work)
    gang = Gang(args.workers, seed=args.seed, folder=folder, lot=lot)
    opened.callback(gang.end)
    began, cpu = time.monotonic(), cpu_seconds(server_pid)
    topups, next_topup = 0, began + TOPUP_SECONDS
    while (now := time.monotonic()) < began + args.seconds:
        work.fill()
        gang.turn(now)
        if now >= next_topup and books.used_up:
            topups, next_topup = topups + 1, now + TOPUP_SECONDS
            work.topup(TOPUP_USD, f"topup-{topups}")
        books.look(lot)
        time.sleep(SNAPSHOT_SECONDS)
    hammered = {"seconds": now - began, "server_cpu_seconds": cpu_seconds(server_pid) - cpu}
    at_rest(work, books, gang)
    # Everybody gets what is missing: what was parked is not lost.
    work.topup(10**12, "the rest")
    wait(lambda: not any(work.live().values()), books, "all runs to end")
    gang.end()
    books.close(folder / "bill", verify(os.environ["BENCH_URL"]))
    return {
        **hammered,
        "samples": books.samples,
        "kills": gang.kills,
        "frozen": gang.freezes,
        "denials": gang.count("run_parked"),
        "topups": topups,
        "highest_use": books.highest_use,
        "dry_samples": books.dry,
        "runs": work.ended(),
        "calls_billed": books.bills,
        "operations": books.operations(),
        "violations": books.violations,
    }


# ── the work ─────────────────────────────────────────────────────────────────────────────────────────


class Work:
    """Batches of runs, for a tenant that is short of money and one that is not."""

    def __init__(self, lot: random.Random) -> None:
        from hammer_app import app

        self.app = app
        self.ledger = app.store.ledger
        self.batches: dict[str, list[str]] = {}
        self._lot = lot
        self._full_until = 0.0
        for scope in ("global", AMPLE, KEY):
            self.ledger.set_limit(scope, usd=10**13, tokens=10**12)
        self.ledger.set_limit(SHORT, usd=FIRST_USD, tokens=10**12, on_exhausted="park")

    def fill(self) -> None:
        """Submit a batch for each tenant that has few runs under way; looked at four times a second."""
        if time.monotonic() < self._full_until:
            return
        self._full_until = time.monotonic() + 0.25
        live = self.live()
        for tenant in TENANTS:
            name = f"{tenant.partition(':')[2]}-{len(self.batches)}"
            if sum(count for batch, count in live.items() if self.tenant_of(batch) == tenant) < LIVE:
                self._submit(name, tenant)

    def _submit(self, name: str, tenant: str) -> None:
        from agentq import Budgets

        rows = []
        for row in range(ROWS):
            steps = self._lot.randint(1, 6)
            rows.append(
                {
                    "input": "Read every page.",
                    "custom_id": f"{name}/{row}",
                    "metadata": {"row": f"{name}/{row}", "steps": steps},
                }
            )
        # Some have too little for all their steps, and end with their closing turn.
        most = self._lot.choice(("0.02", "0.03", "1"))
        budgets = Budgets(max_steps=20, max_tokens=100_000, max_usd=most, max_seconds=None)
        batch = self.app.submit_many(
            "hammered",
            rows,
            batch=name,
            tenant=tenant.partition(":")[2],
            budgets=budgets,
            max_usd="10",
            max_tokens=10**9,
        )
        self.batches[name] = [run.id for run in batch.runs()]

    def tenant_of(self, batch: str) -> str:
        return f"tenant:{batch.partition('-')[0]}"

    def live(self) -> dict[str, int]:
        """How many rows of each batch have not ended."""
        pipeline = self.app.store.client.pipeline(transaction=False)
        for name in self.batches:
            pipeline.hmget(self.app.store.keys.batch(name), ["total", "ended"])
        counts = (int(total) - int(ended) for total, ended in pipeline.execute())
        return dict(zip(self.batches, counts, strict=True))

    def topup(self, usd: int, operation: str) -> None:
        from agentq.core.records import Actor

        self.ledger.topup(SHORT, usd=usd, actor=Actor(operation, "hammer", "little by little"))

    def states(self) -> Counter[str]:
        """How many runs are in each state, by what is stored; None: rows that are no runs yet."""
        pipeline = self.app.store.client.pipeline(transaction=False)
        for runs in self.batches.values():
            for run in runs:
                pipeline.hget(self.app.store.keys.run(run), "state")
        return Counter(pipeline.execute())

    def ended(self) -> dict[str, int]:
        """How many runs ended for each reason."""
        reasons: Counter[str] = Counter()
        for name in self.batches:
            reasons.update(self.app.batch(name).stop_reasons())
        return dict(reasons.most_common())


def at_rest(work: Work, books: Books, gang: Gang) -> None:
    """Nobody is killed any more: soon nothing is reserved, and nobody waits who need not."""
    gang.rest()

    def idle() -> bool:
        states = work.states()
        return not states["queued"] and not states["running"]

    # Twice: who goes on while the parked are looked at may bring back money for another.
    wait(
        lambda: idle() and not books.overlooked() and idle(),
        books,
        "no run to be queued, running, or parked although there is money for it",
    )
    books.rest()


def wait(condition: Callable[[], bool], books: Books, what: str) -> None:
    """Until the condition holds, or it is a violation that it does not."""
    deadline = time.monotonic() + DRAIN_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            books.violations.append(f"waited {DRAIN_SECONDS:.0f} s for {what}: {dict(books.work.states())}")
            return
        time.sleep(0.1)


# ── the workers ──────────────────────────────────────────────────────────────────────────────────────


class Gang:
    """Worker processes, forked from this one, which has no threads."""

    def __init__(self, size: int, *, seed: int, folder: Path, lot: random.Random) -> None:
        self.size = size
        self.kills = self.freezes = 0
        self._seed = seed
        self._log = folder / "workers.log"
        self._lot = lot
        self._context = multiprocessing.get_context("fork")
        self._started = 0
        self._next_kill = 0.0
        self._workers: list[Any] = []
        self._frozen: list[tuple[float, Any]] = []

    def turn(self, now: float) -> None:
        """Kill or freeze one when it is time, thaw those whose time has come, and replace who is missing."""
        for until, process in [each for each in self._frozen if each[0] <= now]:
            self._frozen.remove((until, process))
            os.kill(process.pid, signal.SIGCONT)
            self._workers.append(process)
        if self._workers and now >= self._next_kill:
            self._next_kill = now + self._lot.uniform(0.5, 1.5) * KILL_SECONDS
            self._hit(now, self._workers.pop(self._lot.randrange(len(self._workers))))
        while len(self._workers) < self.size:
            self._workers.append(self._start())

    def _hit(self, now: float, victim: Any) -> None:
        from hammer_app import app

        if self._lot.random() < FROZEN_SHARE:
            self.freezes += 1
            os.kill(victim.pid, signal.SIGSTOP)
            self._frozen.append((now + 2 * app.settings.lease_seconds, victim))
        else:
            self.kills += 1
            victim.kill()
            victim.join()

    def _start(self) -> Any:
        from hammer_app import work

        self._started += 1
        seed = f"{self._seed}:{self._started}"
        process = self._context.Process(target=work, args=(seed, str(self._log), os.getpid()), daemon=True)
        process.start()
        return process

    def rest(self) -> None:
        """Thaw the frozen; from now on nobody is killed."""
        for _, process in self._frozen:
            os.kill(process.pid, signal.SIGCONT)
            self._workers.append(process)
        self._frozen.clear()

    def count(self, word: str) -> int:
        """How often the workers have said a word."""
        return len(re.findall(rf"\b{word}\b", self._log.read_text()))

    def end(self) -> None:
        self.rest()
        for process in self._workers:
            process.kill()
            process.join()
        self._workers.clear()


# ── the books ────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Books:
    """What the accounts say, and what is wrong with it. They are read raw: not by what is tested."""

    client: redis.Redis
    work: Work
    samples: int = 0
    dry: int = 0
    """Samples at which somebody waited for the short scope's money."""
    bills: int = 0
    highest_use: float = 0.0
    used_up: bool = False
    """Whether somebody waited for the short scope's money at the last look."""
    violations: list[str] = field(default_factory=list)

    def read(self, scopes: Sequence[str]) -> dict[str, Counter[str]]:
        """The numbers of these accounts at one instant."""
        pipeline = self.client.pipeline(transaction=True)
        for scope in scopes:
            pipeline.hgetall(self.work.app.store.keys.scope(scope))
        return {
            scope: Counter({name: int(value) for name, value in fields.items() if name in NUMBERS})
            for scope, fields in zip(scopes, pipeline.execute(), strict=True)
        }

    def look(self, lot: random.Random) -> None:
        """One sample: all wide scopes, all batches, and the runs of one batch."""
        batches = list(self.work.batches)
        chosen = lot.choice(batches)
        runs = [f"run:{run}" for run in self.work.batches[chosen]]
        now = self.read(["global", *TENANTS, KEY, *(f"batch:{name}" for name in batches), *runs])
        self.samples += 1
        for scope, account in now.items():
            self._check(scope, account)
        self._compare("global", ["global"], TENANTS, now)
        self._compare("global", ["global"], [KEY], now)
        for tenant in TENANTS:
            own = [f"batch:{name}" for name in batches if self.work.tenant_of(name) == tenant]
            self._compare(tenant, [tenant], own, now)
        self._compare(chosen, [f"batch:{chosen}"], runs, now)
        short = now[SHORT]
        use = (short["us"] + short["ur"] + short["ue"]) / short["ul"]
        self.highest_use = max(self.highest_use, use)
        # Of each batch one finds out that there is nothing left; its other rows wait behind it.
        self.used_up = self.client.exists(self.work.app.store.keys.parked(SHORT)) == 1
        self.dry += self.used_up

    def _check(self, scope: str, account: Mapping[str, int]) -> None:
        for unit in ("u", "t"):
            spent, reserved, escrowed = (account[unit + part] for part in "sre")
            if spent + reserved + escrowed > account[unit + "l"]:
                self._wrong(f"{scope} is above its limit: {dict(account)}")
        if (
            min(account.values(), default=0) < 0
            or account["ui"] > account["ue"]
            or account["ti"] > account["te"]
        ):
            self._wrong(f"{scope} holds what cannot be: {dict(account)}")
        if account["uo"]:
            self._wrong(f"{scope} has paid {account['uo']} nano-USD more than was reserved")

    def _compare(
        self, what: str, whole: Iterable[str], parts: Iterable[str], now: Mapping[str, Mapping[str, int]]
    ) -> None:
        for name in MONEY:
            left, right = (sum(now[scope][name] for scope in side) for side in (whole, parts))
            if left != right:
                self._wrong(f"{what}: {name} is {left}, that of its parts {right}")

    def _wrong(self, what: str) -> None:
        self.violations.append(f"sample {self.samples}: {what}")

    def rest(self) -> None:
        """No step is under way: nothing is reserved, and who is parked has no room in some scope."""
        store = self.work.app.store
        for scope in ("global", *TENANTS, KEY):
            account = store.ledger.account(scope)
            if account.reserved_nano or account.tokens_reserved:
                self._wrong(f"at rest {scope} has something reserved: {account}")
        for run in self.overlooked():
            self._wrong(f"{run} is parked although there is money for it")

    def overlooked(self) -> list[str]:
        """Runs that are parked although what they need at least fits into all their scopes."""
        store = self.work.app.store
        return [run for tenant in TENANTS for run in store.ledger.parked(tenant) if self._fits(run)]

    def _fits(self, run: str) -> bool:
        store = self.work.app.store
        need, scopes = store.client.hmget(store.keys.run(run), ["park_need", "scopes"])
        if need is None:  # it goes on, at this very moment
            return True
        usd, tokens = map(int, need.split()[-2:])  # of its smallest size
        own_usd, own_tokens = store.ledger.open_reservations(run).get("escrow", (0, 0))
        return all(
            (account.left_nano is None or usd - own_usd <= account.left_nano)
            and (account.tokens_left is None or tokens - own_tokens <= account.tokens_left)
            for account in store.ledger.accounts(scopes.split())
        )

    def close(self, bill: Path, verified: int) -> None:
        """All has ended: nothing is held, what was billed is booked, and the log adds up to the accounts."""
        billed: dict[str, Counter[str]] = {}
        names = {}
        store = self.work.app.store
        for batch, runs in self.work.batches.items():
            for row, run in enumerate(runs):
                names[f"{batch}/{row}"] = (
                    "global",
                    self.work.tenant_of(batch),
                    KEY,
                    f"batch:{batch}",
                    f"run:{run}",
                )
        for line in bill.read_text().splitlines():
            row, _, nano, tokens = line.split()
            self.bills += 1
            for scope in names[row]:
                billed.setdefault(scope, Counter()).update({"us": int(nano), "ts": int(tokens)})
        scopes = list(dict.fromkeys(scope for each in names.values() for scope in each))
        for scope, account in self.read(scopes).items():
            self._check(scope, account)
            if any(account[name] for name in ("ur", "tr", "ue", "te", "ui", "ti")):
                self._wrong(f"at the end {scope} still holds something: {dict(account)}")
            for name, amount in billed.get(scope, {}).items():
                if account[name] < amount:
                    self._wrong(f"{scope}: {name} is {account[name]}, the provider has billed {amount}")
        if verified:
            self._wrong(f"`agentq ledger verify` ends with {verified}")
        if store.client.llen(store.keys.incidents):
            self._wrong("a rollback was noticed where none was")

    def operations(self) -> dict[str, int]:
        """How often each operation stands in the ledger's log."""
        counted: Counter[str] = Counter()
        first = "-"
        while entries := self.client.xrange(self.work.app.store.keys.log, first, "+", count=5000):
            counted.update(entry["o"] for _, entry in entries)
            first = f"({entries[-1][0]}"
        return dict(counted.most_common())


def verify(url: str) -> int:
    """The exit code of `agentq ledger verify`."""
    argv = [sys.executable, "-m", "agentq", "ledger", "verify"]
    env = {**os.environ, "AGENTQ_REDIS_URL": url, "AGENTQ_NAMESPACE": "hammer"}
    return subprocess.run(argv, env=env, stdout=subprocess.DEVNULL, check=False).returncode


# ── words ────────────────────────────────────────────────────────────────────────────────────────────


def show(figures: Mapping[str, Any]) -> None:
    print(figures["machine"])
    print(
        f"{figures['workers']} workers, {figures['seconds']:.0f} s; {figures['server_cpu_seconds']:.1f} s "
        f"of the server's CPU; {figures['calls_billed']:,} calls billed"
    )
    for title in ("runs", "operations"):
        print(f"{title}: " + ", ".join(f"{name} {count:,}" for name, count in figures[title].items()))
    print(f"samples = {figures['samples']:,}")
    print(f"kills = {figures['kills']}, and {figures['frozen']} frozen past their lease and thawed")
    print(f"denials = {figures['denials']:,} (parked)")
    print(f"topups = {figures['topups']}")
    print(
        f"highest use of {SHORT} = {figures['highest_use']:.3%} "
        f"({figures['dry_samples']:,} samples in which somebody waited for it)"
    )
    for violation in figures["violations"][:20]:
        print(f"  {violation}")
    print(f"violations = {len(figures['violations'])}")


if __name__ == "__main__":
    sys.exit(main())
