"""The tick's work: look at the runs that are due and put each one right."""

from __future__ import annotations

from agentq.engine.workbench import Dispatch
from agentq.store.watch import Rescue, Watch

RESCUES_A_TICK = 100


def rescue_due(watch: Watch, dispatch: Dispatch, *, lease_ms: int, room: int) -> list[Rescue]:
    """Send lost messages again, take steps back from dead workers, end what has waited too long.

    Any number of workers may do this at once: each run is decided by one script.

    Args:
        room: how many hints to send at most. A worker that is full sends none: its messages are not
            lost but late, and doubles would only make the queue longer.

    Returns:
        What was done about the runs that were not merely queued.
    """
    due = watch.due(lease_ms, room=room, rescues=RESCUES_A_TICK)
    for run_id, step in due.hints:
        dispatch(run_id, step)
    done: list[Rescue] = []
    for run_id in due.runs:
        rescue = watch.rescue(run_id, lease_ms)
        if rescue.step is not None:
            dispatch(run_id, rescue.step)
        done.append(rescue)
    return done
