"""With whom a key ends: the run, or the batch, without which nobody would ever remove it."""

from __future__ import annotations

import re

from agentq.store.keys import PERMANENT

STAYS = "*"
"""It may stay for ever, or it is a run or a batch itself."""
NOBODY = ""
"""It belongs to none, so it must have an end of its own."""
NAMED = "="
"""The run that its value names."""

_RULES = tuple(
    (re.compile(pattern), owner)
    for pattern, owner in (
        (r"(?:run|batch):[^:]+", STAYS),
        (r"(run:[^:]+):(?:msgs|trace|cache|open|forfeits|children|gathers|awaits|effects|decisions)", r"\1"),
        (r"(batch:[^:]+):(?:ids|runs|open)", r"\1"),
        (r"(?:scope|checkpoint):.+@(?:day|month):[0-9-]+", NOBODY),
        (r"(?:scope|checkpoint):(run:[^:]+)", r"\1"),
        (r"(?:scope|checkpoint):(batch:[^:]+?)(?:@day|@month)?", r"\1"),
        (r"(?:scope|checkpoint|parked):.+", STAYS),
        (r"ids:.+", NAMED),
        (r"op:.+|reasserted", NOBODY),
        (r"mq:.+", STAYS),  # Celery's: see Keys.broker_prefix
    )
)


def owner_of(name: str) -> str | None:
    """The key with which this one ends, both without the prefix; or STAYS, NOBODY, NAMED.

    None: no key of this name is written by this release.
    """
    if name in PERMANENT:
        return STAYS
    for pattern, owner in _RULES:
        found = pattern.fullmatch(name)
        if found:
            return found.expand(owner)
    return None
