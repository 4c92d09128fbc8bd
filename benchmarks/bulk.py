"""Bulk: how fast rows are submitted, how little memory and queue that takes, and who waits for whom.

    python benchmarks/bulk.py [--rows 100000] [--rounds 3] [--flood 20000] [--json]

Everything is measured beside the raw thing in one run: submitting beside a loop of `apply_async` on the same
server, one tenant's single run behind another's flood beside an idle system and beside a plain Celery queue.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import redis
from support import WORKERS, await_true, await_worker, embedded_server, machine, spread, stack, table, worker

MEMORY_MB = 150
TIMES = 5.0
"""How many times faster than a loop of `apply_async` rows are submitted."""
SLOWER = 2.0
"""How much longer one run may take behind another tenant's flood."""
COMMAND_SECONDS = 1.0
PUBLISHED = 20_000
NAP_SECONDS = 0.02
CONCURRENCY = 16
SINGLES = 15
PYCACHE = Path(tempfile.gettempdir()) / "agentq-bulk-pycache"
BATCHES = 200


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the file (default 100000)")
    parser.add_argument("--rounds", type=int, default=3, help="how often the file is submitted (default 3)")
    parser.add_argument("--flood", type=int, default=20_000, help="rows of the tenant that floods")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON only")
    args = parser.parse_args()
    with stack() as opened:
        server, client = opened.enter_context(embedded_server())
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="agentq-bulk-")))
        about = machine(server)
        figures: dict[str, Any] = {}
        with on_database(server.url, 0):
            figures |= loading(folder, client, rows=args.rows, rounds=args.rounds)
        with on_database(server.url, 1):
            figures |= fairness(opened, folder, flood=args.flood)
        with on_database(server.url, 2):
            figures |= plain_queue(opened, folder, flood=args.flood)
    aims = judge(figures)
    met = sum(reached for _, _, reached in aims)
    if args.json:
        print(json.dumps({"machine": about, **figures, "met": met, "of": len(aims)}, indent=2))
    else:
        print(about)
        lines = [(what, found, "" if ok else "MISSED") for what, found, ok in aims]
        print(table([("", "", ""), *lines]))
        print(
            f"for comparison, behind {args.flood:,} tasks in a plain Celery queue: "
            f"{figures['plain_seconds']:.1f} s"
        )
    print(f"{met} of {len(aims)} aims met")
    return 0 if met == len(aims) else 1


@contextmanager
def on_database(url: str, number: int) -> Iterator[None]:
    """The environment of the worker modules, on one database of the server; they are imported afresh."""
    from agentq.core.urls import broker_url_for

    chosen = url.replace("?db=0", f"?db={number}")
    os.environ["BENCH_URL"], os.environ["BENCH_BROKER_URL"] = chosen, broker_url_for(chosen)
    if str(WORKERS) not in sys.path:
        sys.path.insert(0, str(WORKERS))
    for name in ("bulk_app", "plain_app"):
        sys.modules.pop(name, None)
    yield


# ── submitting ───────────────────────────────────────────────────────────────────────────────────────


def loading(folder: Path, client: redis.Redis, *, rows: int, rounds: int) -> dict[str, Any]:
    """Submit a file again and again, each time beside a loop of `apply_async`; then pause and look at it."""
    file = folder / "rows.jsonl"
    with file.open("w", encoding="utf-8") as lines:
        for number in range(rows):
            text = f"Ticket {number}: the printer on floor {number % 50} has not printed since this morning."
            lines.write(
                json.dumps({"custom_id": f"t-{number}", "input": text, "metadata": {"lang": "en"}}) + "\n"
            )
    rates, published, memory = [], [], []
    command("batches")  # compiles
    for number in range(rounds):
        client.flushdb()
        seconds, peak = command("submit", str(file), "--agent", "one", "--batch", f"b{number}")
        rates.append(rows / seconds)
        memory.append(peak)
        published.append(PUBLISHED / publish())
    last = f"b{rounds - 1}"
    # The least of three: on a shared machine the others measure who else is at work.
    pause = min(command(verb, last, "-y")[0] for verb in ("pause", "resume", "pause"))
    status = min(command("status", last)[0] for _ in range(3))
    return {
        "rows": rows,
        "rows_per_second": rates,
        "apply_async_per_second": published,
        "ratios": [rate / plain for rate, plain in zip(rates, published, strict=True)],
        "memory_mb": max(memory),
        "pause_seconds": pause,
        "status_seconds": status,
    }


def command(*words: str) -> tuple[float, float]:
    """`agentq …` as a process of its own: seconds from start to end, and its largest memory in MB."""
    env = {**os.environ, "AGENTQ_REDIS_URL": os.environ["BENCH_URL"], "AGENTQ_APP": "bulk_app:app"}
    # As installed, with modules that were compiled before: in a folder of its own, whatever the shell says.
    env |= {"PYTHONPYCACHEPREFIX": str(PYCACHE), "PYTHONDONTWRITEBYTECODE": ""}
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "agentq", *words],
        cwd=WORKERS,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"agentq {' '.join(words)} ended with {process.returncode}:\n{said}")
    return seconds, usage.ru_maxrss / 1024


def publish() -> float:
    """Seconds of a loop that sends messages with Celery."""
    done = subprocess.run(
        [sys.executable, "plain_app.py", str(PUBLISHED)],
        cwd=WORKERS,
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout)


# ── fairness ─────────────────────────────────────────────────────────────────────────────────────────


def fairness(opened: ExitStack, folder: Path, *, flood: int) -> dict[str, Any]:
    """How long one run of a tenant takes: alone, behind a flood in one batch, and in 200 batches."""
    from agentq.worker.command import worker_argv

    program = import_module("bulk_app")
    app = program.app
    log = folder / "worker.log"
    process = opened.enter_context(
        worker(worker_argv("bulk_app:app", concurrency=CONCURRENCY, pool="threads"), log)
    )
    await_worker(program.celery, process, log)
    await_true(lambda: app.store.feeder.window() > 0, 30, "the worker's window")

    def row(name: str) -> dict[str, Any]:
        return {"input": f"Ticket {name}", "custom_id": name, "metadata": {"seconds": NAP_SECONDS}}

    def single(label: str, number: int) -> float:
        began = time.perf_counter()
        app.submit_many("one", [row(label)], batch=f"{label}-{number}", tenant="small").wait(timeout=120)
        return time.perf_counter() - began

    alone = [single("alone", number) for number in range(SINGLES)]
    peaks: list[int] = []

    def behind(label: str, batches: int) -> list[float]:
        each = flood // batches
        for number in range(batches):
            rows = (row(f"{number}-{k}") for k in range(each))
            app.submit_many("one", rows, batch=f"{label}-{number}", tenant="large")
        times = []
        for number in range(SINGLES):
            time.sleep(0.2)
            peaks.append(queued(app))
            times.append(single(label + "-s", number))
            peaks.append(queued(app))
        if app.store.batches.read(f"{label}-{batches - 1}").rows == 0 and batches == 1:
            raise RuntimeError("the flood was over before the measurement was: use --flood with more rows")
        for number in range(batches):
            app.batch(f"{label}-{number}").cancel()
        return times

    one, many = behind("one", 1), behind("many", BATCHES)
    return {
        "alone_seconds": alone,
        "behind_one_seconds": one,
        "behind_many_seconds": many,
        "queued_at_most": max(peaks),
        "window": app.store.feeder.window(),
    }


def queued(app: Any) -> int:
    """Messages in the broker's lists."""
    client, prefix = app.store.client, app.store.keys.broker_prefix
    return sum(client.llen(name) for name in (f"{prefix}steps", f"{prefix}steps\x06\x161"))


def plain_queue(opened: ExitStack, folder: Path, *, flood: int) -> dict[str, Any]:
    """How long one task takes that is sent behind a flood of the same into a plain queue."""
    program = import_module("plain_app")
    log = folder / "plain.log"
    argv = [
        *(sys.executable, "-m", "celery", "--app", "plain_app:celery", "worker"),
        *("--pool", "threads", "--concurrency", str(CONCURRENCY), "--loglevel", "WARNING"),
        *("--without-gossip", "--without-mingle", "--hostname", "plain@%h"),
    ]
    for number in range(flood):
        program.nap.apply_async((f"f{number}", NAP_SECONDS))
    opened.enter_context(worker(argv, log))
    await_true(lambda: program.state.exists("napped:f0") == 1, 60, "the first task of the flood")
    began = time.perf_counter()
    program.nap.apply_async(("one", NAP_SECONDS))
    await_true(lambda: program.state.exists("napped:one") == 1, 300, "the task behind the flood")
    return {"plain_seconds": time.perf_counter() - began}


# ── verdict ──────────────────────────────────────────────────────────────────────────────────────────


def judge(figures: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """What was aimed at, what was found, and whether that is reached."""
    alone = median(figures["alone_seconds"])
    slower: Callable[[str], list[float]] = lambda name: [seconds / alone for seconds in figures[name]]  # noqa: E731
    one, many = slower("behind_one_seconds"), slower("behind_many_seconds")
    ratio, pause, status = median(figures["ratios"]), figures["pause_seconds"], figures["status_seconds"]
    return [
        (
            f"submit of {figures['rows']:,} rows, times a loop of apply_async (≥ {TIMES:g})",
            f"{spread(figures['ratios'], 1)}: {median(figures['rows_per_second']):,.0f} and "
            f"{median(figures['apply_async_per_second']):,.0f} a second",
            ratio >= TIMES,
        ),
        (
            f"memory of the producer (≤ {MEMORY_MB} MB)",
            f"{figures['memory_mb']:.0f} MB",
            figures["memory_mb"] <= MEMORY_MB,
        ),
        (
            f"agentq pause of it, the whole command (< {COMMAND_SECONDS:g} s)",
            f"{pause:.2f} s",
            pause < COMMAND_SECONDS,
        ),
        (
            f"agentq status of it, likewise (< {COMMAND_SECONDS:g} s)",
            f"{status:.2f} s",
            status < COMMAND_SECONDS,
        ),
        (
            f"messages in the broker at most (≤ the window of {figures['window']} and one)",
            str(figures["queued_at_most"]),
            figures["queued_at_most"] <= figures["window"] + 1,
        ),
        (
            f"one run behind a flood in one batch, times alone (≤ {SLOWER:g})",
            spread(one),
            median(one) <= SLOWER,
        ),
        (f"one run behind a flood in {BATCHES} batches, likewise", spread(many), median(many) <= SLOWER),
    ]


if __name__ == "__main__":
    sys.exit(main())
