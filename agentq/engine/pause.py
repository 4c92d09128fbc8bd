"""Pausing: nothing of a run is started until somebody lets it go on. A step at work is finished first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from agentq.core.lifecycle import RunState
from agentq.store.connect import Store

_CHUNK = 500


def pause_runs(store: Store, run_ids: Sequence[str], *, by: str) -> Counter[str]:
    """Pause runs; how many are HELD, PAUSING (held when they could go on), CANCELLING, ENDED or MISSING."""
    words: Counter[str] = Counter()
    for start in range(0, len(run_ids), _CHUNK):
        words.update(store.control.pause_many(run_ids[start : start + _CHUNK], by))
    return words


def resume_runs(store: Store, run_ids: Sequence[str], *, own: bool = True) -> Counter[str]:
    """Let runs go on; how many are RESUMED, HELD (another pause holds them), ENDED or MISSING.

    Args:
        store: where they are.
        run_ids: the runs.
        own: take back the pause of each run itself; else that of their batch was taken back.
    """
    words: Counter[str] = Counter()
    for start in range(0, len(run_ids), _CHUNK):
        words.update(store.control.resume_many(run_ids[start : start + _CHUNK], own=own))
    return words


def resume_batch(store: Store, name: str) -> int:
    """Let a batch go on; how many runs were held by its pause. One that is paused itself stays so.

    Where this does not come to its end, the tick lets go what is left within five minutes.
    """
    store.batches.resume(name)
    live, resumed = store.batches.live(name), 0
    for start in range(0, len(live), _CHUNK):
        records = store.runs.read_many(live[start : start + _CHUNK])
        held = [record.id for record in records if record is not None and record.state is RunState.HELD]
        resumed += resume_runs(store, held, own=False)["RESUMED"]
    return resumed
