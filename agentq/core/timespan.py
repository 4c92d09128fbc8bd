"""Spans and moments as people type and read them: `2h`, `7d`, `2026-11-30T08:00`."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal

from agentq.core.errors import UsageError

_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([smhdw])")
EXAMPLES = "for example 90s, 15m, 2h, 7d or 1w"


def parse_span(text: str) -> int:
    """A span of time in milliseconds: a number and s, m, h, d or w.

    Raises:
        UsageError: when it is none, with examples.
    """
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{text!r} is no span of time", hint=EXAMPLES)
    return int(Decimal(found[1]) * _UNITS_MS[found[2]])


def format_span(seconds: float) -> str:
    """A span for people, in its two largest units at most: `40s`, `2m`, `1h 5m`, `3d 4h`."""
    left = max(0, round(seconds))
    for unit, size, part, small in (("d", 86_400, "h", 3_600), ("h", 3_600, "m", 60)):
        if left >= size:
            rest = left % size // small
            return f"{left // size}{unit} {rest}{part}" if rest else f"{left // size}{unit}"
    return f"{left // 60}m" if left >= 60 else f"{left}s"


def parse_moment(text: str, now_ms: int) -> int:
    """A moment in milliseconds since 1970: a span before `now_ms`, or a date, with a time if you like.

    A time without a zone is in UTC.

    Raises:
        UsageError: when it is neither, with examples.
    """
    word = text.strip()
    if _SPAN.fullmatch(word):
        return now_ms - parse_span(word)
    try:
        moment = datetime.fromisoformat(word)
    except ValueError:
        raise UsageError(
            f"{text!r} is no moment", hint="for example 2h, 1d, 2026-11-30 or 2026-11-30T08:00 (UTC)"
        ) from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
