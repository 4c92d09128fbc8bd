"""The time of day, as services name it in their replies. Nothing is decided by it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime


def now() -> datetime:
    """The time of day by this machine's clock."""
    return datetime.now(UTC)  # noqa: TID251 - replies carry the time of day of the machine that wrote them


def epoch_s() -> int:
    """The same in whole seconds since 1970."""
    return int(now().timestamp())


def http_date(seconds: float) -> str:
    """The time in so many seconds, as HTTP writes it: whole seconds."""
    return format_datetime(now() + timedelta(seconds=seconds), usegmt=True)


def rfc3339(seconds: float) -> str:
    """The time in so many seconds, as Anthropic writes it."""
    return (now() + timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def go_duration(seconds: float) -> str:
    """A duration as OpenAI writes it: `6m0s`, `1.57s`, `12ms`."""
    if seconds < 1:
        return f"{max(0, round(seconds * 1000))}ms"
    minutes, rest = divmod(round(seconds, 2), 60)
    hours, minutes = divmod(int(minutes), 60)
    text = f"{rest:g}s"
    if minutes or hours:
        text = f"{minutes}m{text}"
    return f"{hours}h{text}" if hours else text
