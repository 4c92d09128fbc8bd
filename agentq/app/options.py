"""How a batch is fed, as a person says it and as it is stored."""

from __future__ import annotations

from datetime import datetime

from agentq.core.errors import UsageError
from agentq.engine.rows import PRIORITY_MAX


def batch_options(
    max_in_flight: int | None, max_open: int | None, priority: int | None, at: datetime | None
) -> dict[str, int]:
    """How a batch is fed, as it is stored.

    Raises:
        UsageError: for a number out of its range, or a time without a time zone.
    """
    options: dict[str, int] = {}
    for name, value, least, most in (
        ("max_in_flight", max_in_flight, 1, 1_000_000),
        ("max_open", max_open, 1, 100_000_000),
        ("priority", priority, 0, PRIORITY_MAX),
    ):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise UsageError(f"{name}={value!r} must be a whole number from {least} to {most}")
        options[name] = value
    if at is not None:
        if not isinstance(at, datetime):
            raise UsageError(f"at={at!r} is no datetime", hint="at=datetime(…, tzinfo=UTC)")
        if at.tzinfo is None:
            raise UsageError(f"at={at!s} has no time zone", hint="at=datetime(…, tzinfo=UTC)")
        options["at"] = round(at.timestamp() * 1000)
    return options
