"""The governor's scripts with a clock of their own, and callers behind a provider's hidden limits."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentq.store import Store
from agentq.store.scripts import source

LANE = "p:k:m"
BEGIN_MS = 1_700_000_000_000
CAP = 500

Draw = Callable[[random.Random], int]


class Clocked:
    """The governor, at the time that a test says."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.seconds = 0.0
        self._hashes = {name: self._load(name) for name in ("governor_take", "governor_hear")}

    def _load(self, name: str) -> str:
        text = source(name)
        first, rest = text.index("local clock\n"), text.index("-- A whole number as text")
        clock = "local function now_ms() return tonumber(ARGV[#ARGV]) end\n"
        return str(self._store.client.script_load(text[:first] + clock + text[rest:]))

    def call(self, name: str, *args: str | int) -> Any:
        """The reply of one script."""
        now = BEGIN_MS + round(self.seconds * 1000)
        return self._store.client.evalsha(self._hashes[name], 1, self._store.keys.prefix, *args, now)


class Buckets:
    """What a provider lets in: requests and tokens a minute, a burst of one second."""

    def __init__(self, requests: float, tokens: float) -> None:
        self.rates = [requests / 60, tokens / 60]
        self._levels = [max(1.0, rate) for rate in self.rates]
        self._at = 0.0

    def wait(self, now: float, tokens: int) -> float:
        """0 when the call is let in, else the seconds until it would be."""
        amounts = (1, tokens)
        sizes = [max(1.0, rate) for rate in self.rates]
        grown = [
            level + (now - self._at) * rate for level, rate in zip(self._levels, self.rates, strict=True)
        ]
        self._levels, self._at = [min(pair) for pair in zip(sizes, grown, strict=True)], now
        late = max(
            (min(amount, size) - level) / rate
            for amount, size, level, rate in zip(amounts, sizes, self._levels, self.rates, strict=True)
        )
        if late <= 0:
            self._levels = [level - amount for level, amount in zip(self._levels, amounts, strict=True)]
        return max(0.0, late)


@dataclass
class Load:
    """So many callers that call again and again; answers take about a second."""

    callers: int
    reads: Draw
    writes: Draw


@dataclass
class Seen:
    """What was let in (when, tokens), when others were refused, and what each waited (until, seconds)."""

    let_in: list[tuple[float, int]]
    refused: list[float]
    waits: list[tuple[float, float]]

    def used(self, limits: Buckets, start: float, end: float) -> float:
        """The share of what was allowed, of requests or of tokens, whichever is more."""
        inside = [tokens for at, tokens in self.let_in if start <= at < end]
        counts = (len(inside), sum(inside))
        return max(count / rate for count, rate in zip(counts, limits.rates, strict=True)) / (end - start)

    def refusals(self, start: float, end: float) -> float:
        """The share of requests that was refused."""
        bad = sum(start <= at < end for at in self.refused)
        return bad / (bad + sum(start <= at < end for at, _ in self.let_in))

    def longest_wait(self, start: float, end: float) -> float:
        """Of those that went in this time, in seconds."""
        return max(wait for at, wait in self.waits if start <= at < end)


def play(
    store: Store,
    load: Load,
    limits: Buckets,
    *,
    seconds: float,
    changes: Callable[[float], None] = lambda now: None,
    seed: int = 1,
) -> Seen:
    """Let the callers call, by a clock that does not wait. `changes` hears the time before each event."""
    rng, governor, seen = random.Random(seed), Clocked(store), Seen([], [], [])
    events: list[tuple[float, int, Callable[[float], None]]] = []
    count = itertools.count()

    def at(when: float, what: Callable[[float], None]) -> None:
        heapq.heappush(events, (when, next(count), what))

    def begin(who: str, now: float) -> None:
        reads, writes = load.reads(rng), load.writes(rng)

        def ask(now: float, since: float) -> None:
            word, number, *_ = governor.call("governor_take", "take", LANE, who, reads, CAP)
            if word == "PACED":
                at(now + int(number) / 1000, lambda then: ask(then, since))
                return
            seen.waits.append((now, now - since))
            at(now + rng.expovariate(50), lambda then: arrive(then, int(number)))

        def arrive(now: float, taken: int) -> None:
            late = limits.wait(now, reads + writes)
            if late:
                seen.refused.append(now)
                at(now + 0.02, lambda then: refused(then, taken, late))
                return
            seen.let_in.append((now, reads + writes))
            at(now + rng.lognormvariate(0, 0.5), lambda then: answered(then, taken))

        def refused(now: float, taken: int, late: float) -> None:
            governor.call(
                "governor_hear", LANE, "limited", int(late * 1000) + 1, taken, "", "", "", "", "", ""
            )
            ask(now, now)

        def answered(now: float, taken: int) -> None:
            governor.call("governor_take", "settle", LANE, who, taken, reads + writes, writes)
            begin(who, now)

        ask(now, now)

    for number in range(load.callers):
        at(rng.random() * 0.05, lambda now, who=f"c{number}": begin(who, now))  # type: ignore[misc]
    while events and events[0][0] < seconds:
        governor.seconds, _, event = heapq.heappop(events)
        changes(governor.seconds)
        event(governor.seconds)
    return seen
