"""Results that are too long for a conversation: kept whole beside it, under a reference."""

from __future__ import annotations

import hashlib
from typing import Protocol

MAX_KEPT_BYTES = 1_000_000
"""Of one result; of a longer one, its beginning."""
MAX_KEPT_RESULTS = 32
"""Of one run; when there are more, the new ones are cut."""
MAX_KEPT_TOTAL_BYTES = 8_000_000
"""Of all kept results of one run."""
PREFIX = "result:"
_DIGITS = 10


class Shelf(Protocol):
    """The kept results of one run. Methods are called from the threads of tools."""

    def keep(self, reference: str, text: str) -> bool:
        """Keep a text; the same reference again takes its place. False: there is no room for it."""
        ...

    def read(self, reference: str) -> str | None:
        """The text that this run has kept under the reference."""
        ...


def reference_of(call: str) -> str:
    """The reference of a call's result: the same whoever makes the call again."""
    return f"r{hashlib.sha256(call.encode('utf-8', 'surrogatepass')).hexdigest()[:_DIGITS]}"


def spilled(text: str, chars: int, limit: int, shelf: Shelf, call: str) -> str | None:
    """Keep a result; answers what the model reads in its place, or None when it could not be kept.

    Args:
        text: the result, perhaps without its end.
        chars: how long all of it was.
        limit: how many characters the model reads at once.
        shelf: where it is kept.
        call: what tells the call from all others of its run.
    """
    whole = text.encode("utf-8", "replace")[:MAX_KEPT_BYTES].decode("utf-8", "ignore")
    reference = reference_of(call)
    if not shelf.keep(reference, whole):
        return None
    kept = f"{chars:,}" if len(whole) == chars else f"the first {len(whole):,} of {chars:,}"
    # In front: what a step has no room for is cut at the end.
    return (
        f"[kept: {kept} characters as {PREFIX}{reference}. This is how it begins; "
        f"read_result reads the rest of it, or finds something in it]\n{whole[:limit]}"
    )
