"""The tick's work: look at the runs that are due and put each one right."""

from __future__ import annotations

from agentq.engine.bench import Dispatch
from agentq.store.watch import Rescue, Watch

RESCUES_A_TICK = 100


def rescue_due(
    watch: Watch, dispatch: Dispatch, *, lease_ms: int, limit: int = RESCUES_A_TICK
) -> list[Rescue]:
    """Send lost messages again, take steps back from dead workers, end what has waited too long.

    Any number of workers may do this at once: each run is decided by one script. Answers what was done.
    """
    done: list[Rescue] = []
    for run_id in watch.due(lease_ms, limit):
        rescue = watch.rescue(run_id, lease_ms)
        if rescue.step is not None:
            dispatch(run_id, rescue.step)
        done.append(rescue)
    return done
