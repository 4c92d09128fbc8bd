"""Many callers behind one hidden rate limit: the governor, beside back-off in each caller.

320 callers in 4 processes ask a provider of its own process, which allows 600 requests and 200,000 tokens a
minute (continuous refill, a burst of one second) and refuses the rest with 429 and Retry-After. Nothing is
configured.

  found    30 s after the start, over 60 s: how much of what is allowed is used, how many are refused
  halved   then the limit is halved: the same, 30 s later
  named    the provider names its limits in headers
  backoff  the same load with exponential back-off and jitter in each caller, as people have it today

Two loads: `requests` (all calls alike, so that requests bind) and `tokens` (sizes vary, tokens bind).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from agentq.core.records import Limit, Pace, Paced, Taken
from agentq.provider.errors import RateLimited
from agentq.provider.openai_chat import OpenAIChat
from agentq.provider.types import Allowance, ChatRequest, Message, Role
from agentq.store import connect
from agentq.testing import FakeProvider
from agentq.testing.provider import Limits, lognormal
from agentq.worker.embedded import EmbeddedServer

PROCESSES, THREADS = 4, 80
REQUESTS, TOKENS = 600, 200_000
WARM, MEASURED = 30, 60
WARM_BACKOFF = 10
"""It learns nothing: its refusals are the same from the start."""
OUTPUT_TOKENS = 64
THROUGHPUT, REFUSED, REFUSED_WHEN_NAMED = 0.90, 0.02, 0.005
LANE_KEY = "sk-benchmark"


@dataclass(frozen=True)
class Window:
    """What the provider's own books say of one minute."""

    name: str
    used: float
    refused: float
    requests: int

    def __str__(self) -> str:
        return (
            f"{self.name:<28} {self.used:7.1%} of what is allowed, "
            f"{self.refused:6.2%} of {self.requests} requests refused"
        )


def provider(conn, bill: str, headers: bool) -> None:
    """The provider, in a process of its own; it is told of new limits through the pipe."""
    limits = Limits(requests_per_minute=REQUESTS, tokens_per_minute=TOKENS, burst_s=1.0, headers=headers)
    with FakeProvider(["done"], limits=limits, latency=lognormal(1.0, 0.4), bill_file=bill) as server:
        conn.send(server.url)
        while True:
            share = conn.recv()
            if share is None:
                return
            server.limits = Limits(
                requests_per_minute=REQUESTS * share,
                tokens_per_minute=TOKENS * share,
                burst_s=1.0,
                headers=headers,
            )
            conn.send("ok")


def caller(  # noqa: PLR0917 - a thread's arguments
    client: OpenAIChat, governor, name: str, sizes: random.Random, load: str, until: float, governed: bool
) -> None:
    """Call as often as it may, until the time is over."""
    failures = 0
    while time.monotonic() < until:
        size = 40 if load == "requests" else max(50, min(3_000, round(sizes.lognormvariate(6.2, 0.7))))
        request = ChatRequest(messages=(Message(Role.USER, "word" * size),), max_output_tokens=OUTPUT_TOKENS)
        pace = Pace(client.lane, size)
        taken = None
        if governed:
            answer = governor.take(name, pace, OUTPUT_TOKENS)
            if isinstance(answer, Paced):
                time.sleep(min(answer.wait_ms / 1000, max(0.0, until - time.monotonic())))
                continue
            taken = answer
        try:
            result = client.complete(request)
        except RateLimited as error:
            failures += 1
            if isinstance(taken, Taken):
                limits = error.limits
                governor.hear_limited(
                    taken.lane,
                    taken=taken.tokens,
                    retry_after_s=error.retry_after_s,
                    limits=(said(limits.requests), said(limits.tokens)) if limits else (None, None),
                )
            else:
                wait = min(60.0, 1.0 * 2**failures) * sizes.random()  # full jitter
                time.sleep(min(wait, max(0.0, until - time.monotonic())))
            continue
        failures = 0
        if isinstance(taken, Taken):
            governor.settle(taken, tokens=result.usage.total_tokens, output_tokens=result.usage.output_tokens)
            if result.limits is not None:
                governor.hear_limits(taken.lane, (said(result.limits.requests), said(result.limits.tokens)))


def said(allowance: Allowance | None) -> Limit | None:
    """What a header says, as the governor takes it."""
    if allowance is None:
        return None
    reset_ms = None if allowance.reset_s is None else round(allowance.reset_s * 1000)
    return Limit(allowance.limit, allowance.remaining, reset_ms)


def callers(  # noqa: PLR0917 - a process' arguments
    number: int, url: str, redis_url: str, load: str, seconds: float, governed: bool
) -> None:
    """One process of callers."""
    os.environ["OPENAI_API_KEY"] = LANE_KEY
    client = OpenAIChat("gpt-4o-mini", base_url=url, call_seconds=30)
    governor = connect(redis_url, "governor", retries=3, max_connections=2 * THREADS).governor
    until = time.monotonic() + seconds
    threads = [
        threading.Thread(
            target=caller,
            args=(client, governor, f"{number}-{i}", random.Random(number * 1000 + i), load, until, governed),
        )
        for i in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.close()


def window(name: str, entries: list[dict], start: float, share: float) -> Window:
    """The provider's books between `start` and a minute later."""
    inside = [entry for entry in entries if start <= entry["seconds"] < start + MEASURED]
    answered = [entry for entry in inside if entry["status"] == 200]
    tokens = sum(entry["input_tokens"] + entry["output_tokens"] for entry in answered)
    used = max(len(answered) / (REQUESTS * share), tokens / (TOKENS * share)) * 60 / MEASURED
    refused = sum(entry["status"] == 429 for entry in inside)
    return Window(name, used, refused / max(1, len(inside)), len(inside))


def play(load: str, *, governed: bool, headers: bool, halve: bool) -> list[Window]:
    """One provider, one load; its windows."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="aqg-", dir="/tmp") as home:
        bill = Path(home) / "bill.jsonl"
        server = EmbeddedServer.start(Path(home))
        ours, theirs = context.Pipe()
        fake = context.Process(target=provider, args=(theirs, str(bill), headers), daemon=True)
        fake.start()
        url = ours.recv()
        spans = 2 if halve else 1
        warm = WARM if governed else WARM_BACKOFF
        seconds = spans * (warm + MEASURED) + 3
        workers = [
            context.Process(target=callers, args=(i, url, server.url, load, seconds, governed))
            for i in range(PROCESSES)
        ]
        for worker in workers:
            worker.start()
        while not bill.exists() or not bill.stat().st_size:
            time.sleep(0.05)
        first = json.loads(bill.open().readline())["seconds"]
        if halve:
            time.sleep(WARM + MEASURED)
            ours.send(0.5)
            ours.recv()
        for worker in workers:
            worker.join()
        ours.send(None)
        fake.join(10)
        server.stop()
        entries = [json.loads(line) for line in bill.read_text().splitlines()]
    kind = "named" if headers else "found" if governed else "backoff"
    windows = [window(f"{load}: {kind}", entries, first + warm, 1)]
    if halve:
        windows.append(window(f"{load}: halved", entries, first + 2 * WARM + MEASURED, 0.5))
    return windows


def main() -> int:
    """Play all, print the table and the verdict."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one load only")
    quick = parser.parse_args().quick
    missed = 0
    for load in ("tokens",) if quick else ("requests", "tokens"):
        plays = [
            {"governed": True, "headers": False, "halve": True},
            {"governed": True, "headers": True, "halve": False},
            {"governed": False, "headers": False, "halve": False},
        ]
        for options in plays:
            for result in play(load, **options):
                aim = REFUSED_WHEN_NAMED if options["headers"] else REFUSED
                held = not options["governed"] or (result.used >= THROUGHPUT and result.refused < aim)
                missed += not held
                mark = "  " if not options["governed"] else "ok" if held else "NO"
                print(f"{mark} {result}", flush=True)
    print("all aims met" if not missed else f"aims missed = {missed}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
