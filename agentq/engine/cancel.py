"""Cancelling: a state and a raised fence, not a wish. What a call has cost is booked when it comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agentq.store.connect import Store

_CHUNK = 500


@dataclass
class Cancelled:
    """What a cancel has found: how many of the runs that it was asked for were live."""

    live: int = 0
    children: int = 0
    """Live runs that these, or those that had ended, have started."""
    stopped_at: dict[str, str] = field(default_factory=dict)
    """Each run that a worker held, children too, to where it was."""

    def __bool__(self) -> bool:
        return self.live + self.children > 0


def cancel_run(store: Store, run_id: str, *, by: str) -> Cancelled:
    """Cancel a run and all that it has started, the nearest first.

    A run that is cancelled starts nothing more, so what it has started by then is all. Where this does not
    come to its end, what is left ends when a worker claims it.
    """
    return cancel_runs(store, [run_id], by=by)


def cancel_batch(store: Store, name: str, *, by: str) -> Cancelled:
    """Cancel every live run of a batch, with all that these have started.

    First all at once: what one of them gives back must not let another go on that waited for it.
    """
    rows = store.batches.cancel(name, by)
    cancelled = cancel_runs(store, store.batches.live(name), by=by)
    cancelled.live += rows
    below = cancel_runs(store, store.batches.with_descendants(name), by=by)
    cancelled.children += below.children
    cancelled.stopped_at |= below.stopped_at
    return cancelled


def cancel_runs(store: Store, run_ids: Sequence[str], *, by: str) -> Cancelled:
    """Cancel runs, each as `cancel_run` does."""
    found, level, is_child = Cancelled(), list(run_ids), False
    while level:
        below: list[str] = []
        for start in range(0, len(level), _CHUNK):
            chunk = level[start : start + _CHUNK]
            for run_id, (word, where) in zip(chunk, store.runs.cancel_many(chunk, by), strict=True):
                is_live = word in {"CANCELLED", "CANCELLING"}
                found.children += is_live and is_child
                found.live += is_live and not is_child
                if word == "CANCELLING":
                    found.stopped_at[run_id] = where
            below += store.runs.children_of(chunk)
        level, is_child = below, True
    return found
