"""How the state server's append-only file grows with the length of a run.

One run of 100 steps and one of 200, each message of 1 kB (what the model says, and what its tool returns).
If a step wrote the whole thread again, the second would write four times as much; it must write about
twice as much, and little more than the messages themselves.

    python benchmarks/growth.py [--json]

Ends with 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import redis
from support import WORKERS, aof_file, aof_size, embedded_server, machine, stack, table

RATIO_MAX = 2.1
OVERHEAD_MAX = 2.2
SHORT, LONG = 100, 200
LOG = "log"
_NO_KEY = {"MULTI", "EXEC", "SELECT"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the figures as JSON only")
    args = parser.parse_args()
    with stack() as opened:
        server, client = opened.enter_context(embedded_server())
        os.environ["BENCH_URL"] = server.url
        # Hints go nowhere near this server: its file holds the state and nothing of the broker.
        os.environ["BENCH_BROKER_URL"] = "memory://"
        sys.path.insert(0, str(WORKERS))
        from agentq_app import app

        about = machine(server)
        measure(app, client, 3)  # scripts are loaded, connections made
        runs = [measure(app, client, steps) for steps in (SHORT, LONG)]
    verdict = judge(*runs)
    if args.json:
        print(json.dumps({"machine": about, "runs": runs, **verdict}, indent=2))
    else:
        show(about, runs, verdict)
    return 0 if verdict["passed"] else 1


def measure(app: Any, client: redis.Redis, steps: int) -> dict[str, Any]:
    """Make one run of so many steps, one after the other, in this process; what it wrote."""
    from agentq import Budgets
    from agentq.engine.step import execute_step

    before = aof_size(client)
    run = app.submit(
        "reader",
        "Read every page.",
        batch=f"of-{steps}",
        metadata={"steps": steps, "says": 1000},
        budgets=Budgets(max_steps=steps + 1, max_tokens=None, max_usd="1000", max_seconds=600),
    )
    for step in range(steps):
        execute_step(run.id, step, bench=app.bench)
    record = run.record()
    if record.stop_reason != "finished" or record.steps != steps:
        raise RuntimeError(f"the run ended as {record.stop_reason} after {record.steps} steps of {steps}")
    after = aof_size(client)
    messages = client.lrange(app.store.keys.run(run.id, "msgs"), 0, -1)
    prefix = app.store.keys.prefix
    count, size = by_class(aof_file(client), before, after, prefix)
    stored = sum(len(message.encode()) for message in messages)
    return {
        "steps": steps,
        "messages": len(messages),
        "message_bytes": stored,
        "aof_bytes": after - before,
        "log_bytes": size[LOG],
        "state_bytes": after - before - size[LOG],
        "overhead": (after - before - size[LOG]) / stored,
        "classes": {name: {"commands": count[name], "bytes": size[name]} for name, _ in size.most_common()},
    }


def by_class(file: Path, start: int, end: int, prefix: str) -> tuple[Counter[str], Counter[str]]:
    """Commands and bytes between two offsets of an append-only file, by the kind of key they write."""
    with file.open("rb") as opened:
        opened.seek(start)
        data = opened.read(end - start)
    count: Counter[str] = Counter()
    size: Counter[str] = Counter()
    at = 0
    while at < len(data):
        begin = at
        arguments, at = _command(data, at)
        name = _class(arguments, prefix)
        count[name] += 1
        size[name] += at - begin
    return count, size


def _command(data: bytes, at: int) -> tuple[list[bytes], int]:
    """One command, `*<n>` and n times `$<length>` and the bytes; and where the next begins."""
    line_end = data.index(b"\r\n", at)
    if data[at : at + 1] != b"*":
        raise ValueError(f"no command at byte {at}: {data[at : at + 20]!r}")
    arguments = []
    number, at = int(data[at + 1 : line_end]), line_end + 2
    for _ in range(number):
        line_end = data.index(b"\r\n", at)
        length, at = int(data[at + 1 : line_end]), line_end + 2
        arguments.append(data[at : at + length])
        at += length + 2
    return arguments, at


def _class(arguments: list[bytes], prefix: str) -> str:
    name = arguments[0].decode().upper()
    if name in _NO_KEY:
        return "(multi, exec)"
    key = arguments[1].decode().removeprefix(prefix)
    noun, _, rest = key.partition(":")
    part = rest.partition(":")[2] if noun in {"run", "batch"} else ""
    return f"{noun} {part}".strip()


def judge(short: dict[str, Any], long: dict[str, Any]) -> dict[str, Any]:
    ratio = long["aof_bytes"] / short["aof_bytes"]
    overhead = max(short["overhead"], long["overhead"])
    return {
        "ratio": ratio,
        "ratio_max": RATIO_MAX,
        "overhead": overhead,
        "overhead_max": OVERHEAD_MAX,
        "passed": ratio <= RATIO_MAX and overhead <= OVERHEAD_MAX,
    }


def show(about: str, runs: list[dict[str, Any]], verdict: dict[str, Any]) -> None:
    print(f"Growth of the append-only file. {about}")
    print("One run in one process, no broker, the file never rewritten; messages of 1 kB.\n")
    rows = [["", *(f"{run['steps']} steps" for run in runs), "ratio"]]
    for label, name in (
        ("messages", "messages"),
        ("bytes of the messages (stored JSON)", "message_bytes"),
        ("bytes of the append-only file", "aof_bytes"),
        ("  of which the ledger's log", "log_bytes"),
        ("  all but the log", "state_bytes"),
    ):
        short, long = (run[name] for run in runs)
        rows.append([label, f"{short:,}", f"{long:,}", f"{long / short:.3f}"])
    rows.append(["all but the log / messages", *(f"{run['overhead']:.3f}" for run in runs), ""])
    print(table(rows))
    print("\nWhere the bytes go, by kind of key (per step of the longer run):")
    steps = runs[-1]["steps"]
    rows = [["key", "commands", "bytes", "bytes/step", "share", "of messages"]]
    for name, found in runs[-1]["classes"].items():
        rows.append(
            [
                name,
                f"{found['commands']:,}",
                f"{found['bytes']:,}",
                f"{found['bytes'] / steps:,.0f}",
                f"{found['bytes'] / runs[-1]['aof_bytes']:.1%}",
                f"{found['bytes'] / runs[-1]['message_bytes']:.3f}",
            ]
        )
    print(table(rows))
    print(
        f"\n{'met' if verdict['passed'] else 'MISSED'}: {LONG} steps write {verdict['ratio']:.3f} times what "
        f"{SHORT} write (at most {RATIO_MAX}), and without the log {verdict['overhead']:.3f} bytes for each "
        f"byte of a message (at most {OVERHEAD_MAX})"
    )


if __name__ == "__main__":
    sys.exit(main())
