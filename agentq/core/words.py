"""Words for people: what they may have meant."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches


def nearest(word: str, known: Collection[str]) -> str:
    """` (did you mean 'x'?)` for a word that resembles one of the known, or nothing."""
    close = get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
