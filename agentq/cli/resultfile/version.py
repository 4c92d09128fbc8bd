"""Which of a run's results a line has: a run that was retried has one for each end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentq.store.rows import DROPPED

if TYPE_CHECKING:
    from agentq.app import Result


def version_of(result: Result) -> int:
    """How often the run was retried before; negative for a row that ended without being started."""
    return version(result.generation, result.stop_reason.value, has_end=result.ended_ms is not None)


def version(generation: int, stop_reason: str, *, has_end: bool = True) -> int:
    """The same, of a line: only a run that has begun has a time at which it ended.

    A row that was never started may end again, with another reason, before it is.
    """
    if has_end:
        return generation
    reasons = [reason.value for reason in DROPPED]
    return -1 - (reasons.index(stop_reason) if stop_reason in reasons else len(reasons))


def is_newer(version: int, known: int | None) -> bool:
    """Whether a result of this version has to be written where one of that version is there."""
    if known is None:
        return True
    return version > known if version >= 0 else known < 0 and version != known
