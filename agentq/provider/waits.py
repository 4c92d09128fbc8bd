"""How long a provider asks to be left alone, and what it says of its limits, in each form that is in use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from agentq.provider.types import Allowance, RateLimits

LONGEST_S = 86_400.0
"""A wait is never taken for longer than a day: what says more is a mistake, or a quota."""

_UNITS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|[dhms])")
_IN_TEXT = re.compile(
    r"(?:try again|retry) (?:in|after) ((?:\d+(?:\.\d+)?\s?(?:ms|[dhms])\s*)+)", re.IGNORECASE
)


def retry_after_s(headers: Mapping[str, str], text: str = "") -> float | None:
    """The least to wait in seconds, or None when nothing says so.

    Args:
        headers: by lower-case names.
        text: the provider's message: Groq and OpenAI write the exact wait there.
    """
    wait = _number(headers.get("retry-after-ms"))
    if wait is not None:
        return _bounded(wait / 1000)
    named = headers.get("retry-after")
    if named is not None:
        wait = duration_s(named)
        if wait is None:
            wait = _until(named, headers)
        if wait is not None:
            return _bounded(wait)
    said = _IN_TEXT.search(text)
    return _bounded(duration_s(said.group(1)) or 0.0) if said else None


def rate_limits(headers: Mapping[str, str]) -> RateLimits | None:
    """The limits that came with a reply: `x-ratelimit-*`, or Anthropic's; None without any."""
    requests = _anthropic(headers, "requests")
    tokens = _tightest([_anthropic(headers, kind) for kind in ("tokens", "input-tokens", "output-tokens")])
    if requests is None and tokens is None:
        requests, tokens = _openai(headers, "requests"), _openai(headers, "tokens")
    return RateLimits(requests, tokens) if requests or tokens else None


def duration_s(text: str) -> float | None:
    """Seconds of a Go duration (`6m0s`, `1.57s`, `12ms`) or of a plain number; None for anything else."""
    text = "".join(text.split())
    plain = _number(text)
    if plain is not None:
        return plain
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def _openai(headers: Mapping[str, str], kind: str) -> Allowance | None:
    limit = _whole(headers.get(f"x-ratelimit-limit-{kind}"))
    remaining = _whole(headers.get(f"x-ratelimit-remaining-{kind}"))
    reset = headers.get(f"x-ratelimit-reset-{kind}")
    if limit is None and remaining is None:
        return None
    return Allowance(limit, remaining, _reset(None if reset is None else duration_s(reset)))


def _anthropic(headers: Mapping[str, str], kind: str) -> Allowance | None:
    name = f"anthropic-ratelimit-{kind}"
    limit, remaining = _whole(headers.get(f"{name}-limit")), _whole(headers.get(f"{name}-remaining"))
    if limit is None and remaining is None:
        return None
    reset = headers.get(f"{name}-reset")
    return Allowance(limit, remaining, _reset(None if reset is None else _until(reset, headers)))


def _tightest(found: list[Allowance | None]) -> Allowance | None:
    """The one of which the least share is left; of equals the first."""
    named = [allowance for allowance in found if allowance is not None]
    return min(named, key=_share_left, default=None)


def _share_left(allowance: Allowance) -> float:
    if allowance.remaining is None or not allowance.limit:
        return 1.0
    return allowance.remaining / allowance.limit


def _until(text: str, headers: Mapping[str, str]) -> float | None:
    """Seconds until a time that is named. The server's own clock, in `date`, says what time it is now."""
    when, now = _time(text), _time(headers.get("date", ""))
    if when is None:
        return None
    if now is None:
        now = datetime.now(UTC)  # noqa: TID251 - the provider named a time of day and not its own clock
    return max(0.0, (when - now).total_seconds())


def _time(text: str) -> datetime | None:
    try:
        return _aware(datetime.fromisoformat(text.replace("Z", "+00:00")))
    except ValueError:
        pass
    try:
        return _aware(parsedate_to_datetime(text))
    except (TypeError, ValueError, IndexError, OverflowError):
        return None


def _aware(when: datetime) -> datetime:
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)


def _number(text: str | None) -> float | None:
    if text is None or not re.fullmatch(r"\s*\d+(\.\d+)?\s*", text):
        return None
    return float(text)


def _whole(text: str | None) -> int | None:
    value = _number(text)
    return None if value is None or value > 1e15 else int(value)


def _bounded(wait: float) -> float:
    return min(max(0.0, wait), LONGEST_S)


def _reset(wait: float | None) -> float | None:
    return None if wait is None else _bounded(wait)
