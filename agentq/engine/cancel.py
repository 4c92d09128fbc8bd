"""Cancelling: a state and a raised fence, not a wish. What a call has cost is booked when it comes back."""

from __future__ import annotations

from agentq.store.connect import Store


def cancel_run(store: Store, run_id: str, *, by: str) -> bool:
    """Cancel a run; False when it had ended before or does not exist."""
    return store.runs.cancel(run_id, by) in {"CANCELLED", "CANCELLING"}


def cancel_batch(store: Store, name: str, *, by: str) -> int:
    """Cancel every live run of a batch; answers how many there were."""
    return sum(cancel_run(store, run_id, by=by) for run_id in store.batches.live(name))
