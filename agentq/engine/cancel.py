"""Cancelling: a state and a raised fence, not a wish. What a call has cost is booked when it comes back."""

from __future__ import annotations

from agentq.store.connect import Store


def cancel_run(store: Store, run_id: str, *, by: str) -> bool:
    """Cancel a run and all that it has started, the nearest first; False when nothing of that was live.

    A run that is cancelled starts nothing more, so what it has started by then is all. Where this does not
    come to its end, what is left ends when a worker claims it.
    """
    found, level = False, [run_id]
    while level:
        below: list[str] = []
        for member in level:
            found |= store.runs.cancel(member, by) in {"CANCELLED", "CANCELLING"}
            below += store.runs.children(member)
        level = below
    return found


def cancel_batch(store: Store, name: str, *, by: str) -> int:
    """Cancel every live run of a batch, with all that these have started; answers how many rows were live.

    First all at once: what one of them gives back must not let another go on that waited for it.
    """
    store.batches.cancel(name, by)
    cancelled = sum(cancel_run(store, run_id, by=by) for run_id in store.batches.live(name))
    for run_id in store.batches.with_descendants(name):
        cancel_run(store, run_id, by=by)
    return cancelled
