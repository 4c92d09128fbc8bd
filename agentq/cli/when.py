"""Times that lie ahead, as people type them: `2026-12-01T08:00`, `08:00`, `in 2h`."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from itertools import pairwise

from agentq.core.errors import UsageError
from agentq.core.timespan import parse_span
from agentq.core.zones import zone_of

EXAMPLES = "for example 2026-12-01T08:00, 2026-12-01T08:00+01:00, 08:00 or 'in 2h'"
YEARS_MAX = 10
"""Whoever means a later time has mistyped it."""
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")


def parse_when(text: str, now_ms: int, zone: str | None = None) -> datetime:
    """A time that lies ahead.

    Args:
        text: a date with or without a time, a time of day (the next one), or `in` and a span.
        now_ms: the server's clock, in milliseconds since 1970.
        zone: of a text that has none itself, as `Europe/Berlin`; None for that of this machine.

    Returns:
        The time in this zone.

    Raises:
        UsageError: when it is no time, or over, or further away than ten years.
    """
    wanted = None if zone is None else zone_of(zone)
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    moment = _moment(text, now, wanted)
    if moment <= now:
        raise UsageError(f"{text!r} is over: that was {say_when(moment, now_ms)}", hint=EXAMPLES)
    if moment > now + timedelta(days=366 * YEARS_MAX):
        raise UsageError(f"{text!r} is more than {YEARS_MAX} years away", hint=EXAMPLES)
    return moment


def say_when(moment: datetime, now_ms: int) -> str:
    """A time with its zone, and how far away it is: `Tue 2026-12-01 08:00 CET, in 3 h 20 min`."""
    seconds = round(moment.timestamp() - now_ms / 1000)
    away = f"in {_away(seconds)}" if seconds >= 0 else f"{_away(-seconds)} ago"
    precise = "%H:%M:%S" if moment.second else "%H:%M"
    return f"{moment.strftime(f'%a %Y-%m-%d {precise} %Z').strip()}, {away}"


def _moment(text: str, now: datetime, zone: tzinfo | None) -> datetime:
    word = " ".join(text.split())
    if word.startswith("in "):
        try:
            return (now + timedelta(milliseconds=parse_span(word[3:]))).astimezone(zone)
        except OverflowError:
            raise UsageError(f"{text!r} is too far away", hint=EXAMPLES) from None
    try:
        if found := _CLOCK.fullmatch(word):
            hour, minute, second = (int(part or 0) for part in found.groups())
            return _next(time(hour, minute, second), now, zone)
        moment = datetime.fromisoformat(word)
        return moment.astimezone(zone) if moment.tzinfo else _placed(moment, zone)
    except (ValueError, OverflowError):
        raise UsageError(f"{text!r} is no time", hint=EXAMPLES) from None


def _next(clock: time, now: datetime, zone: tzinfo | None) -> datetime:
    """The next moment at which clocks of the zone show this time."""
    today: date = now.astimezone(zone).date()
    first = _placed(datetime.combine(today, clock), zone)
    return first if first > now else _placed(datetime.combine(today + timedelta(days=1), clock), zone)


def _placed(moment: datetime, zone: tzinfo | None) -> datetime:
    """A time of this zone (None: the machine's); one that a change of clocks leaves out is moved on."""
    placed = moment.astimezone() if zone is None else moment.replace(tzinfo=zone)
    return placed.astimezone(UTC).astimezone(zone)


def _away(seconds: int) -> str:
    """A span in its largest unit and the next smaller one: `3 h 20 min`."""
    sizes = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    for (name, size), (smaller, part) in pairwise(sizes):
        if seconds >= size:
            rest = seconds % size // part
            return f"{seconds // size} {name}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds} s"
