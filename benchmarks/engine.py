"""The speed of a step, beside two yardsticks on the same server, in one interleaved run.

    python benchmarks/engine.py [--rounds 5] [--json]

Steps per second of a shared machine mean little on another day. So each round measures all three cases
one after the other, in turning order, and what counts is the ratio within the round.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import redis
from support import (
    WORKERS,
    aof_size,
    await_true,
    await_worker,
    cpu_seconds,
    embedded_server,
    machine,
    shrink_aof,
    spread,
    stack,
    table,
    worker,
)

SHAPES = ((200, 10), (20, 100))
"""Runs, and the steps of each."""
WARM_UP = (32, 5)
CASES = ("agentq", "bare", "obvious")
METERS = ("steps_s", "cpu_ms", "worker_ms", "server_ms", "aof_bytes")
TIMEOUT = 60.0
"""Seconds after which one measurement has failed."""

WHAT = """\
agentq   one step = one claim, one reservation, one scripted model call, one commit, one tool call that
         returns 1 kB, one commit with the next message; the last step only answers, with 1 kB. All is on:
         lease, fence, heartbeat, tick, trace, loop detector, the checks of the call, limits in USD on the run
         and on its batch. A killed worker's step is done again, and each is committed once. With one worker
         process, the process that committed a thread is also the next to work on it and need not read it.
bare     one step = one Celery task with two arguments that sends itself again. Stock settings (early
         acknowledgement, prefetch 4). No thread, no model, no tool, no state: what Celery alone costs.
obvious  one step = one Celery task that GETs the thread as JSON, appends one message of 1 kB, SETs it and
         sends itself again. Stock settings. No tool, no budget, no lease: a killed worker's runs are lost,
         and a message that comes twice makes a step twice."""


@dataclass(frozen=True)
class Case:
    """One kind of step: the process that does it, and how runs of it are started and watched."""

    process: subprocess.Popen[bytes]
    start: Callable[[int, int, str], None]
    done: Callable[[int, str], bool]
    check: Callable[[int, int, str], None]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often each case is measured (default 5)")
    parser.add_argument("--concurrency", type=int, default=16, help="threads of each worker (default 16)")
    parser.add_argument("--limit", type=float, default=600, help="seconds after which no round is begun")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON only")
    args = parser.parse_args()
    began = time.monotonic()
    with stack() as opened:
        server, client = opened.enter_context(embedded_server())
        about = machine(server)
        cases = start_cases(opened, server.url, args.concurrency)

        def one(name: str, runs: int, steps: int, label: str) -> dict[str, float]:
            shrink_aof(client)
            return measure(cases[name], client, server.pid, runs=runs, steps=steps, name=f"{name}-{label}")

        for name in CASES:
            one(name, *WARM_UP, "warm")
        measured = collect(one, args.rounds, until=began + args.limit, quiet=args.json)
    summary = [summarise(measured, runs, steps) for runs, steps in SHAPES]
    verdict = "; ".join(sentence(each) for each in summary)
    if args.json:
        figures = {"concurrency": args.concurrency, "measured": measured, "summary": summary}
        print(json.dumps({"machine": about, **figures, "verdict": verdict}, indent=2))
    else:
        show(about, args.concurrency, summary, time.monotonic() - began)
        print(verdict)
    return 0


def collect(
    one: Callable[[str, int, int, str], dict[str, float]], rounds: int, *, until: float, quiet: bool
) -> list[dict[str, Any]]:
    """Measure each case once a round, in turning order; no round begins that would not end in time."""
    measured: list[dict[str, Any]] = []
    longest = 0.0
    for number in range(rounds):
        began = time.monotonic()
        if number and began + longest > until:
            print(f"stopped after {number} rounds: the time is up", file=sys.stderr)
            break
        for position, (runs, steps) in enumerate(SHAPES):
            turn = (number + position) % len(CASES)
            for name in CASES[turn:] + CASES[:turn]:
                figures = one(name, runs, steps, f"{number}-{runs}")
                measured.append({"round": number, "runs": runs, "steps": steps, "case": name, **figures})
                progress(measured[-1], quiet=quiet)
        longest = max(longest, time.monotonic() - began)
    return measured


# ── the three cases ──────────────────────────────────────────────────────────────────────────────────


def start_cases(opened: ExitStack, url: str, concurrency: int) -> dict[str, Case]:
    """Start a worker process of each kind, each on its own database; return when all three listen."""
    sys.path.insert(0, str(WORKERS))
    logs = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="agentq-bench-logs-")))
    os.environ["BENCH_POOL_LIMIT"] = str(max(10, concurrency))
    cases = {}
    for database, name in enumerate(CASES):
        from agentq.core.urls import broker_url_for
        from agentq.worker.command import worker_argv

        os.environ["BENCH_URL"] = url.replace("?db=0", f"?db={database}")
        os.environ["BENCH_BROKER_URL"] = broker_url_for(os.environ["BENCH_URL"])
        module = f"{'chain' if name == 'bare' else name}_app"
        program = import_module(module)
        argv = (
            worker_argv(f"{module}:app", concurrency=concurrency, pool="threads")
            if name == "agentq"
            else stock_argv(module, concurrency)
        )
        log = logs / f"{name}.log"
        process = opened.enter_context(worker(argv, log))
        await_worker(program.celery, process, log)
        cases[name] = agentq_case(program, process) if name == "agentq" else celery_case(program, process)
    return cases


def stock_argv(module: str, concurrency: int) -> list[str]:
    """Celery's own command, with the options that agentq gives it."""
    return [
        *(sys.executable, "-m", "celery", "--app", f"{module}:celery", "worker"),
        *("--pool", "threads", "--concurrency", str(concurrency), "--hostname", f"{module}@%h"),
        *("--loglevel", "WARNING", "--without-gossip", "--without-mingle"),
    ]


def agentq_case(program: Any, process: subprocess.Popen[bytes]) -> Case:
    from agentq import Budgets

    app = program.app

    def start(runs: int, steps: int, name: str) -> None:
        rows = [{"input": f"Read every page for {run}.", "metadata": {"steps": steps}} for run in range(runs)]
        budgets = Budgets(max_steps=steps + 1, max_tokens=None, max_usd="1000", max_seconds=600)
        app.submit_many("reader", rows, batch=name, budgets=budgets, max_usd="1000000")

    def done(runs: int, name: str) -> bool:
        return int(app.store.client.hget(app.store.keys.batch(name), "ended") or 0) >= runs

    def check(runs: int, steps: int, name: str) -> None:
        batch = app.submit_many("reader", [], batch=name)
        if batch.stop_reasons() != {"finished": runs}:
            raise RuntimeError(f"{name}: the runs ended as {batch.stop_reasons()}")
        if wrong := [result.run_id for result in batch.results() if result.steps != steps]:
            raise RuntimeError(f"{name}: {len(wrong)} runs have not {steps} steps")

    return Case(process, start, done, check)


def celery_case(program: Any, process: subprocess.Popen[bytes]) -> Case:
    def start(runs: int, steps: int, name: str) -> None:  # noqa: ARG001
        program.state.delete("done", *(f"thread:{run}" for run in range(runs)))
        for run in range(runs):
            program.step.apply_async((run, steps))

    def done(runs: int, name: str) -> bool:  # noqa: ARG001
        return int(program.state.get("done") or 0) >= runs

    def check(runs: int, steps: int, name: str) -> None:
        if int(program.state.get("done")) != runs:
            raise RuntimeError(f"{name}: {program.state.get('done')} runs ended, not {runs}")
        threads = [program.state.get(f"thread:{run}") for run in range(runs)]
        if any(thread and len(json.loads(thread)["messages"]) != steps for thread in threads):
            raise RuntimeError(f"{name}: a thread has not {steps} messages")

    return Case(process, start, done, check)


# ── measuring ────────────────────────────────────────────────────────────────────────────────────────


def measure(
    case: Case, client: redis.Redis, server: int, *, runs: int, steps: int, name: str
) -> dict[str, float]:
    """Do so many runs while nothing else is busy: from before the first is submitted until all have ended."""
    worker_before, server_before, aof_before = (
        cpu_seconds(case.process.pid),
        cpu_seconds(server),
        aof_size(client),
    )
    started = time.perf_counter()
    case.start(runs, steps, name)
    await_true(lambda: case.done(runs, name), TIMEOUT, name)
    seconds = time.perf_counter() - started
    worker_ms = (cpu_seconds(case.process.pid) - worker_before) * 1000
    server_ms = (cpu_seconds(server) - server_before) * 1000
    aof_bytes = aof_size(client) - aof_before
    case.check(runs, steps, name)
    total = runs * steps
    return {
        "steps_s": total / seconds,
        "cpu_ms": (worker_ms + server_ms) / total,
        "worker_ms": worker_ms / total,
        "server_ms": server_ms / total,
        "aof_bytes": aof_bytes / total,
    }


def summarise(measured: list[dict[str, Any]], runs: int, steps: int) -> dict[str, Any]:
    """Each case's figures over the rounds, and the ratios within each round."""
    of = {
        (each["round"], each["case"]): each
        for each in measured
        if (each["runs"], each["steps"]) == (runs, steps)
    }
    rounds = sorted({number for number, _ in of})
    summary: dict[str, Any] = {"runs": runs, "steps": steps, "rounds": len(rounds)}
    for case in CASES:
        summary[case] = {meter: [of[number, case][meter] for number in rounds] for meter in METERS}
    for other in CASES[1:]:
        summary[f"agentq/{other}"] = {
            meter: [of[number, "agentq"][meter] / of[number, other][meter] for number in rounds]
            for meter in ("steps_s", "cpu_ms")
        }
    return summary


def progress(figures: dict[str, Any], *, quiet: bool) -> None:
    if not quiet:
        shape = f"{figures['runs']:>3} x {figures['steps']:<3}"
        speed = f"{figures['steps_s']:7.0f} steps/s  {figures['cpu_ms']:.2f} ms CPU/step"
        print(f"round {figures['round'] + 1}  {shape}  {figures['case']:<8}{speed}", flush=True)


def show(about: str, concurrency: int, summary: list[dict[str, Any]], seconds: float) -> None:
    print(f"\n{about}")
    print(f"One worker process of each kind, {concurrency} threads; one server, AOF everysec.\n\n{WHAT}")
    for each in summary:
        print(f"\n{each['runs']} runs x {each['steps']} steps, {each['rounds']} rounds: median (least–most)")
        rows = [["", "steps/s", "CPU ms/step", "of it worker", "of it server", "AOF bytes/step"]]
        digits = {"steps_s": 0, "aof_bytes": 0}
        rows += [
            [case, *(spread(each[case][meter], digits.get(meter, 2)) for meter in METERS)] for case in CASES
        ]
        rows += [
            [pair, *(spread(each[pair][meter]) for meter in ("steps_s", "cpu_ms")), "", "", ""]
            for pair in (f"agentq/{other}" for other in CASES[1:])
        ]
        print(table(rows))
    print(f"\nRatios are within a round. {seconds:.0f} s in all.")


def sentence(each: dict[str, Any]) -> str:
    def middle(other: str, meter: str) -> str:
        return f"{median(each[f'agentq/{other}'][meter]):.2f}"

    return (
        f"agentq is {middle('bare', 'steps_s')} of the bare chain and {middle('obvious', 'steps_s')} of the "
        f"obvious implementation in steps/s, {middle('bare', 'cpu_ms')} and {middle('obvious', 'cpu_ms')} "
        f"in CPU per step ({each['runs']} x {each['steps']})"
    )


if __name__ == "__main__":
    sys.exit(main())
