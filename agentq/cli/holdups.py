"""What keeps runs of a batch that look as if they were under way: no worker can do them, or a pause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from agentq.cli.console import plural
from agentq.core.lifecycle import RunState

if TYPE_CHECKING:
    from agentq.app import Batch
    from agentq.cli.tally import Tally

LOOKED_AT = 1_000
"""So many live runs of a batch are looked at."""
_LEFT = ("waits for a worker", "waits for the rate limit", "waits until there is quota")
"""How the last error of a run begins that was left to other workers, or has no room at its provider."""
_PAUSED = "waits for a person, paused: once decided it goes on by agentq resume only"


def holdups(batch: Batch, tally: Tally) -> Mapping[str, int]:
    """What runs wait for, each in words that follow `1 run`, and how many do."""
    if not tally.queued - tally.rows + tally.waiting:
        return {}
    found: Counter[str] = Counter()
    for record in batch.live(LOOKED_AT):
        if record.state is RunState.QUEUED and (record.last_error or "").startswith(_LEFT):
            found[str(record.last_error)] += 1
        elif record.state is RunState.WAITING and record.paused is not None:
            found[_PAUSED] += 1
    return found


def holdup_lines(found: Mapping[str, int]) -> list[str]:
    """A line for each."""
    lines = []
    for words, count in found.items():
        lines.append(f"{plural(count, 'run')} {words if count == 1 else words.replace('waits', 'wait', 1)}")
    return lines
