"""Words for people: what they may have meant."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path

FILES_MAX = 10_000
"""So many names of a folder are looked at for the nearest."""


def nearest(word: str, known: Collection[str]) -> str:
    """` (did you mean 'x'?)` for a word that resembles one of the known, or nothing."""
    close = get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def nearest_file(path: str | Path) -> str:
    """` (did you mean 'rows.jsonl'?)` for a file that is not there, from what its folder has, or nothing."""
    wanted = Path(path)
    try:
        names = [entry.name for entry, _ in zip(wanted.parent.iterdir(), range(FILES_MAX), strict=False)]
    except OSError:
        return ""
    close = get_close_matches(wanted.name, names, n=1)
    return f" (did you mean {str(wanted.with_name(close[0]))!r}?)" if close else ""
