"""Rate limits that a client is not told of: token buckets that fill all the time."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass

from agentq.testing.provider.clock import go_duration, rfc3339
from agentq.testing.provider.refusal import Refusal
from agentq.testing.provider.request import Dialect

_BUCKETS_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What each key may use of each model.

    A bucket holds what comes in `burst_s` seconds, at least one request. A call takes one request and its
    input and output tokens, counted, as soon as it is let in. None: no limit. With `headers` every answer
    says what the limits are.
    """

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    burst_s: float = 1.0
    headers: bool = False

    def __post_init__(self) -> None:
        for name in ("requests_per_minute", "tokens_per_minute"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be more than 0, or None for no limit")
        if self.burst_s < 0:
            raise ValueError("burst_s must not be negative")


class Bucket:
    """A bucket that fills at a steady rate. Its level follows when the rate changes."""

    def __init__(self, now: float) -> None:
        self._level: float | None = None
        self._at = now

    def fill(self, now: float, per_minute: float, size: float) -> float:
        """What is in it now."""
        if self._level is None:
            self._level = size
        grown = self._level + max(0.0, now - self._at) * per_minute / 60
        self._level, self._at = min(size, grown), max(now, self._at)
        return self._level

    def take(self, amount: float) -> None:
        """Take out what `fill` has said is there."""
        self._level = (self._level or 0.0) - amount


@dataclass(frozen=True, slots=True)
class _State:
    """One limit at this moment: for the headers, and for whoever is refused."""

    name: str
    limit: float
    left: float
    size: float

    def wait_s(self, amount: float) -> float:
        """Seconds until so much is there."""
        return max(0.0, amount - self.left) * 60 / self.limit

    @property
    def reset_s(self) -> float:
        """Seconds until the bucket is full again."""
        return max(0.0, self.size - self.left) * 60 / self.limit


class Gate:
    """Lets calls in, by key and model."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buckets: dict[tuple[str, str, str], Bucket] = {}

    def admit(self, limits: Limits, dialect: Dialect, key: str, model: str, tokens: int) -> dict[str, str]:
        """Take what the call uses, all or nothing. Returns the headers of its answer.

        A call of more tokens than the bucket ever holds is let in when the bucket is full, and leaves it in
        debt.

        Raises:
            Refusal: 429 with the time until the same call would be let in.
        """
        with self._lock:
            now = time.monotonic()
            states = []
            for name, rate, amount in (
                ("requests", limits.requests_per_minute, 1.0),
                ("tokens", limits.tokens_per_minute, float(tokens)),
            ):
                if rate is not None:
                    states.append((self._state(now, limits, name, rate, of=(key, model)), amount))
            wait_s, late = max(
                ((state.wait_s(min(amount, state.size)), state) for state, amount in states),
                key=lambda pair: pair[0],
                default=(0.0, None),
            )
            if wait_s <= 0:
                for state, amount in states:
                    self._buckets[key, model, state.name].take(amount)
                states = [
                    (_State(state.name, state.limit, state.left - amount, state.size), amount)
                    for state, amount in states
                ]
        told = _headers(dialect, [state for state, _ in states]) if limits.headers else {}
        if wait_s > 0 and late is not None:
            raise _refusal(dialect, model, late, tokens, wait_s=wait_s, told=told)
        return told

    def _state(self, now: float, limits: Limits, name: str, rate: float, *, of: tuple[str, str]) -> _State:
        size = max(1.0, rate / 60 * limits.burst_s)
        bucket = self._buckets.get((*of, name))
        if bucket is None:
            while len(self._buckets) >= _BUCKETS_MAX:
                del self._buckets[next(iter(self._buckets))]
            bucket = self._buckets[*of, name] = Bucket(now)
        return _State(name, rate, bucket.fill(now, rate, size), size)


def _refusal(
    dialect: Dialect, model: str, late: _State, tokens: int, *, wait_s: float, told: dict[str, str]
) -> Refusal:
    # Rounded up: whoever waits as told is let in.
    wait_ms = math.ceil(wait_s * 1000)
    headers = {"retry-after": str(math.ceil(wait_s)), "retry-after-ms": str(wait_ms), **told}
    if dialect == "messages":
        message = (
            f"This request would exceed your account's rate limit of {late.limit:g} {late.name} per minute."
        )
        return Refusal(429, message, headers=headers)
    short = "RPM" if late.name == "requests" else "TPM"
    used = max(0, round(late.size - late.left))
    message = (
        f"Rate limit reached for {model} on {late.name} per min ({short}): Limit {late.limit:g}, Used "
        f"{used}, "
        f"Requested {1 if late.name == 'requests' else tokens}. Please try again in "
        f"{go_duration(wait_ms / 1000)}."
    )
    return Refusal(429, message, kind=late.name, code="rate_limit_exceeded", headers=headers)


def _headers(dialect: Dialect, states: list[_State]) -> dict[str, str]:
    told: dict[str, str] = {}
    for state in states:
        left = str(max(0, math.floor(state.left)))
        if dialect == "messages":
            name = f"anthropic-ratelimit-{state.name}"
            told |= {
                f"{name}-limit": f"{state.limit:.0f}",
                f"{name}-remaining": left,
                f"{name}-reset": rfc3339(state.reset_s),
            }
        else:
            told |= {
                f"x-ratelimit-limit-{state.name}": f"{state.limit:.0f}",
                f"x-ratelimit-remaining-{state.name}": left,
                f"x-ratelimit-reset-{state.name}": go_duration(state.reset_s),
            }
    return told
