"""Why a run is not retried, in words."""

from __future__ import annotations

from dataclasses import dataclass

FINISHED = "have finished"
"""The group of runs that ended as they should."""
NEVER_STARTED = "were never started"
"""The group of rows that ended without becoming runs: they are retried with their batch."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a run is not retried: `why` after its id is a sentence, in `group` it is counted among many."""

    why: str
    group: str
    hint: str = ""


def refused(word: str, what: str) -> Refusal:
    """What a person reads of an answer of the script, and of what it names: a state, a batch, a part."""
    match word:
        case "LIVE":
            return Refusal(f"is {what}: only a run that has ended is retried", "have not ended")
        case "CANCELLING":
            return Refusal(
                f"is of batch {what}, whose cancel has not come to all of its runs: these would go on too",
                "are of a batch whose cancel has not come to all runs",
                f"agentq cancel {what} ends the others",
            )
        case "CHANGED":
            return Refusal("was retried by somebody else meanwhile", "were retried by somebody else")
        case "GONE":
            return Refusal(
                f"is kept no longer in full (its {what}): it cannot be retried",
                "are kept no longer in full",
                "submit it anew",
            )
        case "ORPHAN":
            return Refusal(
                f"is a child, and its parent is {what or 'gone'}",
                "are children of runs that are over",
                "retry the parent",
            )
        case _:
            return Refusal("does not exist", "do not exist", "it may be older than the retention")
