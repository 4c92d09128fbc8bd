"""The fleet-wide governor: calls that share a provider's rate limit ask Redis, and wait together."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import redis

from agentq.core.records import LaneRecord, Limit, Pace, Paced, Taken
from agentq.store.keys import Keys
from agentq.store.scripts import Arg, Scripts, unexpected

log = logging.getLogger("agentq.governor")

NAMED_SECONDS = 1.0
"""How often at most one process passes on the limits that come with every reply of a lane."""
MESSAGE_CHARS = 300

Limits = tuple[Limit | None, Limit | None]
"""Of requests and of tokens; None for one that is not named."""


class Governor:
    """The lanes of one namespace.

    Args:
        client: the server.
        keys: the namespace.
        scripts: its scripts.
        now: this process' clock, in seconds.
    """

    def __init__(
        self,
        client: redis.Redis,
        keys: Keys,
        scripts: Scripts,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._keys = keys
        self._scripts = scripts
        self._now = now
        self._guard = threading.Lock()
        self._named: dict[str, tuple[float, tuple[int | None, ...]]] = {}

    # ── callers that are no runs ─────────────────────────────────────────────────────────────────

    def take(self, caller: str, pace: Pace, output_tokens: int) -> Taken | Paced:
        """Room for one call that writes so many tokens at most, or how long to wait before asking again.

        Args:
            caller: who asks; the same name again is the same place in the line.
            pace: what is asked for.
            output_tokens: the cap on the answer.
        """
        reply = self._scripts.call(
            "governor_take", "take", pace.lane, caller, pace.input_tokens, output_tokens
        )
        match reply:
            case ["TAKEN", tokens]:
                return Taken(caller, pace.lane, int(tokens))
            case ["PACED", wait_ms, why]:
                return Paced(pace.lane, int(wait_ms), why)
            case _:
                raise unexpected("governor_take", reply)

    def settle(self, taken: Taken, *, tokens: int | None, output_tokens: int = 0) -> None:
        """What a call has used, so many tokens of it written by the model.

        0: it was not let in; None: nobody knows.
        """
        used = -1 if tokens is None else tokens
        reply = self._scripts.call(
            "governor_take", "settle", taken.lane, taken.caller, taken.tokens, used, output_tokens
        )
        if reply != ["OK"]:
            raise unexpected("governor_take", reply)

    # ── what providers say ───────────────────────────────────────────────────────────────────────

    def hear_limited(
        self, lane: str, *, taken: int, retry_after_s: float | None, limits: Limits = (None, None)
    ) -> None:
        """A call that had taken so many tokens was refused for its rate: the whole lane waits."""
        pause_ms: Arg = "" if retry_after_s is None else round(retry_after_s * 1000)
        self._hear(lane, "limited", pause_ms, taken, *_said(limits))

    def hear_limits(self, lane: str, limits: Limits) -> None:
        """The limits that came with a reply. They come with each: about one a second is passed on."""
        now = self._now()
        known = tuple(None if limit is None else limit.limit for limit in limits)
        with self._guard:
            last, before = self._named.get(lane, (float("-inf"), ()))
            if before == known and now - last < NAMED_SECONDS:
                return
            self._named[lane] = (now, known)
        self._hear(lane, "limits", "", 0, *_said(limits))

    def hear_quota(self, lane: str, message: str) -> None:
        """The account has no money or quota left: the fleet stops calling it, and one alert says so."""
        self._hear(lane, "quota", message[:MESSAGE_CHARS], 0, *_said((None, None)))

    def _hear(self, lane: str, what: str, *values: Arg) -> None:
        reply = self._scripts.call("governor_hear", lane, what, *values)
        if reply not in (["OK"], ["STOPPED"]):
            raise unexpected("governor_hear", reply)

    # ── people ───────────────────────────────────────────────────────────────────────────────────

    def lanes(self) -> list[LaneRecord]:
        """Every lane of the last day, sorted."""
        names = sorted(str(name) for name in self._client.zrange(self._keys.lanes, 0, -1))
        seconds, micros = self._client.time()
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        found = []
        for name in names:
            account = ":".join(name.split(":")[:2])
            pipeline = self._client.pipeline(transaction=False)
            pipeline.hgetall(self._keys.lane(name))
            pipeline.hgetall(self._keys.account(account))
            pipeline.zcard(self._keys.waits(name))
            found.append(_lane(name, account, now_ms, pipeline.execute()))
        return found

    def resume(self, account: str, *, by: str) -> bool:
        """Lift the stop of an account; whether there was one."""
        reply = self._scripts.call("governor_resume", account, by)
        match reply:
            case ["OK"]:
                return True
            case ["RUNNING"]:
                return False
            case _:
                raise unexpected("governor_resume", reply)


def _said(limits: Limits) -> list[Arg]:
    """Limit, remaining and ms until it is full, of requests and of tokens; empty where nothing is said."""
    flat: list[Arg] = []
    for limit in limits:
        values = (None, None, None) if limit is None else (limit.limit, limit.remaining, limit.reset_ms)
        flat += ["" if value is None else value for value in values]
    return flat


def _lane(name: str, account: str, now_ms: int, found: Sequence[Any]) -> LaneRecord:
    lane, stop, waiting = found

    def a_minute(field: str) -> int | None:
        return round(float(lane[field]) * 60) if field in lane else None

    return LaneRecord(
        name=name,
        account=account,
        model=name.removeprefix(f"{account}:"),
        # While none was refused, the rate is only how far it has been tried.
        requests_a_minute=a_minute("r_rate") if "t_rate" in lane or "r_cap" in lane else None,
        tokens_a_minute=a_minute("t_rate"),
        is_named="r_cap" in lane or "t_cap" in lane,
        waiting=waiting,
        wait_ms=max(0, round(float(lane.get("until", 0))) - now_ms),
        taken=int(float(lane.get("taken", 0))),
        refused=int(float(lane.get("refused", 0))),
        stopped=stop.get("why"),
        stopped_ms=int(stop["since"]) if "since" in stop else None,
    )
