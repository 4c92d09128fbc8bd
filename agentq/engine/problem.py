"""What is wrong with a row, as a person reads it."""

from __future__ import annotations

PROBLEM_CHARS_MAX = 300


def sentence(error: ValueError) -> str:
    """What is wrong with a row, on one line and not longer than a person reads: it may quote the row."""
    text = "".join(
        char if char.isprintable() else repr(char)[1:-1] for char in str(error)[:PROBLEM_CHARS_MAX]
    )
    return text if len(str(error)) <= PROBLEM_CHARS_MAX else f"{text}…"
