"""Removing batches that are over before their retention ends."""

from __future__ import annotations

from collections.abc import Sequence

from agentq.store.connect import Store
from agentq.store.scripts import Scripts, unexpected

CHUNK = 500
"""Runs that one script removes at most."""


def over_for_ms(store: Store, names: Sequence[str]) -> dict[str, int]:
    """Of these batches those that are over, with all that their runs have started, and for how long."""
    pipeline = store.client.pipeline(transaction=False)
    for name in names:
        pipeline.hget(store.keys.batch(name), "ttl")
        pipeline.pttl(store.keys.batch(name))
    replies = pipeline.execute()
    # What is over has an end, and had its whole retention before it when it was.
    return {
        name: max(0, int(ttl) - int(left))
        for name, ttl, left in zip(names, replies[::2], replies[1::2], strict=True)
        if ttl is not None and int(left) >= 0
    }


def purge_batch(store: Store, name: str, *, only_threads: bool = False) -> bool:
    """Remove a batch, its runs and their results; what they have spent stays booked on the scopes around it.

    With `only_threads` the batch and the results stay, and what goes are the conversations of its runs, their
    traces, and the results of their tools: they cannot be retried then.

    When it is interrupted, the batch stands as one whose oldest runs have expired, and can be purged again.

    Returns:
        Whether that is gone: not when rows were added to it, or runs of it retried, before or meanwhile.
    """
    scripts, done = Scripts(store.client, store.keys.prefix), 0
    while True:
        reply = scripts.call("batch_purge", name, done, CHUNK, int(only_threads))
        match reply:
            case ["MORE", rows]:
                done = int(rows)
            case ["DONE"] | ["MISSING"]:
                return True
            case ["LIVE"]:
                return False
            case _:
                raise unexpected("batch_purge", reply)
