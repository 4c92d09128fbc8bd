"""Text that can be stored and sent, and times for people."""

from __future__ import annotations

from datetime import UTC, datetime


def encodable(text: str) -> str:
    """The text with a `?` for each lone surrogate: JSON can carry one, UTF-8 cannot."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def clock(milliseconds: int | None) -> str:
    """The server's milliseconds as a time for people, in UTC."""
    if milliseconds is None:
        return "not yet"
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
