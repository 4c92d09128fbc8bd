"""What a reservation costs the server.

Pairs of reserve and settle over one to five scopes, in USD and tokens with an escrow, against an empty script
with the same arguments, an empty script and INCRBY; all cases take turns in one run. Each is sent in two ways
over one connection: one at a time, as a worker does, and in pipelines of 100, so that the server is measured.

    python benchmarks/ledger.py [--rounds N] [--pairs N] [--json]

Ends with 1 when a worker waits more than three times as long for a reserve over five scopes as for an empty
script with the same arguments.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import redis
from support import embedded_server, machine, spread, table

from agentq.core.records import Lease, RunSpec
from agentq.store import Store, connect
from agentq.store.scripts import digest, source

AIM = 3.0
PIPELINE = 100
EMPTY = "#!lua\nreturn {'OK'}"
"""What the server does for any script: find it, hand it its arguments, turn its answer into a reply."""
SCOPES = {
    1: (),
    2: ("tenant:acme",),
    3: ("tenant:acme", "agent:a"),
    4: ("tenant:acme", "agent:a", "batch:b"),
    5: ("global", "tenant:acme", "agent:a", "batch:b"),
}
"""Around the run's own."""


@dataclass
class Case:
    """Something that is sent again and again, and what each round has measured for one of it.

    Seconds when sent one at a time, seconds in a pipeline, and the CPU of the server then.
    """

    name: str
    commands: Callable[[int], Iterator[list[Any]]]
    after: Callable[[Sequence[list[Any]]], list[list[Any]]] | None = None
    alone: list[float] = field(default_factory=list)
    piped: list[float] = field(default_factory=list)
    server_us: list[float] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, metavar="N")
    parser.add_argument("--pairs", type=int, default=4000, metavar="N", help="for each case and round")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON only")
    args = parser.parse_args()
    with embedded_server() as (server, client):
        about = machine(server)
        store = connect(server.url, "bench")
        cases = make_cases(store, client)
        for at in range(args.rounds + 1):
            for case in cases[at % len(cases) :] + cases[: at % len(cases)]:
                measure(client, server.pid, case, args.pairs, counted=at > 0)
        store.client.close()
    figures = judge(cases)
    if args.json:
        print(json.dumps({"machine": about, **figures}, indent=2))
    else:
        show(about, figures)
    return 0 if figures["passed"] else 1


def make_cases(store: Store, client: redis.Redis) -> list[Case]:
    """The yardsticks, and a reserve, a settle for each number of scopes."""
    key = store.keys.prefix
    empty = client.script_load(EMPTY)
    cases = [
        Case("INCRBY", lambda n: (["INCRBY", "counter", 7] for _ in range(n))),
        Case("empty script", lambda n: (["EVALSHA", empty, 1, key] for _ in range(n))),
    ]
    for name in ("budget_reserve", "step_commit"):
        client.script_load(source(name))
    for scopes in SCOPES:
        lease = claimed(store, scopes)
        numbers = count(1)

        def pairs(n: int, lease: Lease = lease, numbers: Any = numbers):
            for _ in range(n):
                number = next(numbers)
                yield ["EVALSHA", digest("budget_reserve"), 1, key, *reserve_args(lease, number)]
                yield ["EVALSHA", digest("step_commit"), 1, key, *settle_args(lease, number)]

        cases.append(Case(f"pair, {scopes} scopes", pairs))
    # The reserve alone, beside the empty script with the very same arguments. What it has reserved is settled
    # before the next, by commands that are not counted.
    leases = [claimed(store, 5, run=f"alone{n}-") for n in range(PIPELINE)]
    numbers = dict.fromkeys(leases, 0)

    def reserves(n: int) -> Iterator[list[Any]]:
        for at in range(n):
            lease = leases[at % PIPELINE]
            numbers[lease] += 1
            yield ["EVALSHA", digest("budget_reserve"), 1, key, *reserve_args(lease, numbers[lease])]

    def settled(commands: Sequence[list[Any]]) -> list[list[Any]]:
        taken = [(Lease(command[4], command[5], 0), command[6]) for command in commands]
        return [["EVALSHA", digest("step_commit"), 1, key, *settle_args(*each)] for each in taken]

    same = "empty script, the same arguments"
    cases.append(
        Case(same, lambda n: (["EVALSHA", empty, 1, key, *reserve_args(lease, 1)] for _ in range(n)))
    )
    cases.append(Case("reserve, 5 scopes", reserves, after=settled))
    return cases


def claimed(store: Store, scopes: int, run: str = "run") -> Lease:
    """A claimed run in so many scopes, its own included, each with limits that are never reached."""
    run_id = f"{run}{scopes}"
    store.runs.submit(
        [(run_id, RunSpec(agent="a"), ['{"role":"user","content":"x"}'])], heads=["{}"], retention_ms=1000
    )
    store.client.hset(store.keys.run(run_id), "scopes", " ".join([*SCOPES[scopes], f"run:{run_id}"]))
    for scope in (*SCOPES[scopes], f"run:{run_id}"):
        store.ledger.set_limit(scope, usd=9 * 10**15, tokens=9 * 10**15)
    claim = store.runs.claim(run_id, None, 3_600_000)
    if claim is None:
        raise RuntimeError("the run could not be claimed")
    return claim.lease


def reserve_args(lease: Lease, number: int) -> list[Any]:
    size = [2048, 31_415_926, 27_182, 14_142_135, 17_320]
    return [lease.run_id, lease.fence, number, "process", 0, "park", "0123456789ab", 604800000, 0, 5, *size]


def settle_args(lease: Lease, number: int) -> list[Any]:
    """A commit that books the bill and has nothing else to write."""
    reservation, operation = f"{lease.fence}:{number}", f"{lease.fence}t{number}"
    bill = [reservation, "settle", 16_180_339, 5_772]
    return [lease.run_id, lease.fence, operation, "tools", "", 5000, *bill, 0, 0, 0, 0, 0]


def measure(client: redis.Redis, pid: int, case: Case, n: int, *, counted: bool) -> None:
    alone, _ = send(client, pid, case, n // 4, at_once=1)
    piped, server_us = send(client, pid, case, n, at_once=PIPELINE)
    if counted:
        case.alone.append(alone)
        case.piped.append(piped)
        case.server_us.append(server_us)


def send(client: redis.Redis, pid: int, case: Case, n: int, *, at_once: int) -> tuple[float, float]:
    """Seconds for one of n, and microseconds of the server's CPU."""
    commands = list(case.commands(n))
    connection = client.connection_pool.get_connection()

    def answered(text: Any, count: int) -> None:
        connection.send_packed_command(text, check_health=False)
        for _ in range(count):
            reply = connection.read_response()
            if isinstance(reply, list) and reply[0] != "OK":
                raise RuntimeError(f"{case.name}: {reply}")

    seconds, cpu = 0.0, 0
    for at in range(0, len(commands), at_once):
        chunk = commands[at : at + at_once]
        text = connection.pack_commands(chunk)
        cpu -= cpu_ns(pid)
        started = time.perf_counter()
        answered(text, len(chunk))
        seconds += time.perf_counter() - started
        cpu += cpu_ns(pid)
        if case.after is not None:
            follow = case.after(chunk)
            answered(connection.pack_commands(follow), len(follow))
    client.connection_pool.release(connection)
    return seconds / n, cpu / n / 1000


def cpu_ns(pid: int) -> int:
    """Nanoseconds that the server has run, all its threads together: without other work on the machine."""
    return sum(int(each.read_text().split()[0]) for each in Path(f"/proc/{pid}/task").glob("*/schedstat"))


def judge(cases: list[Case]) -> dict[str, Any]:
    named = {case.name: case for case in cases}
    empty, reserve = named["empty script, the same arguments"], named["reserve, 5 scopes"]
    alone = [a / b for a, b in zip(reserve.alone, empty.alone, strict=True)]
    piped = [a / b for a, b in zip(reserve.piped, empty.piped, strict=True)]
    return {
        "ratio": spread(alone),
        "ratio_in_pipelines": spread(piped),
        "aim": AIM,
        "passed": statistics.median(alone) <= AIM,
        "cases": {
            case.name: {
                "per_second": round(1 / statistics.median(case.alone)),
                "per_second_in_pipelines": round(1 / statistics.median(case.piped)),
                "server_us": round(statistics.median(case.server_us), 1),
            }
            for case in cases
        },
    }


def show(about: str, figures: dict[str, Any]) -> None:
    print(about)
    rows = [[name, *(f"{value:,}" for value in case.values())] for name, case in figures["cases"].items()]
    print(table([["", "one at a time, a second", "in pipelines, a second", "server CPU, µs"], *rows]))
    print(f"reserve over 5 scopes / empty script, in pipelines: {figures['ratio_in_pipelines']}")
    verdict = "met" if figures["passed"] else "missed"
    print(
        f"reserve over 5 scopes / empty script, one at a time: {figures['ratio']}, aim ≤ {AIM:g}: {verdict}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
