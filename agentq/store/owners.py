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
_GROUP = "group"
"""In a rule: the key that the pattern's group finds."""

_RULES = tuple(
    (re.compile(pattern), owner)
    for pattern, owner in (
        (r"(?:run|batch|schedule):[^:]+", STAYS),
        (r"(run:[^:]+):(?:msgs|trace|cache|open|forfeits|children|gathers|awaits)", _GROUP),
        (r"(run:[^:]+):(?:effects|decisions|kept)", _GROUP),
        (r"(batch:[^:]+):(?:ids|runs|open|delayed|done|rows|templates|feed|loading|dropped:[a-z_]+)", _GROUP),
        (r"(schedule:[^:]+):rows:[0-9a-f]+", _GROUP),
        (r"(?:scope|checkpoint):.+@(?:day|month):[0-9-]+", NOBODY),
        (r"(?:scope|checkpoint):(run:[^:]+)", _GROUP),
        (r"(?:scope|checkpoint):(batch:[^:]+?)(?:@day|@month)?", _GROUP),
        (r"(?:scope|checkpoint|parked):.+", STAYS),
        (r"ids:.+", NAMED),
        (
            r"serial:.+|turns(?::.+)?|slots(?::.+)?|flying|pilots",
            STAYS,
        ),  # gone with their batch, or when empty
        (r"op:.+|reasserted|lanes|(?:lane|line|waits|account):.+", NOBODY),
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
            return found[1] if owner == _GROUP else owner
    return None
