"""The tick's work: put right each run that is due, and let go on who has money again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from agentq.core.failpoints import failpoint
from agentq.engine.workbench import Dispatch
from agentq.store.ledger import FOLD, Ledger
from agentq.store.watch import Rescue, Watch

log = logging.getLogger("agentq.ledger")

RESCUES_A_TICK = 100
SWEEPS_A_TICK = 16
"""How often at most a tick goes on with the sweep of one scope's parked runs."""
FOLDS_A_TICK = 50
"""How often at most a tick folds some of the log: more than one worker's steps write in a second."""


def rescue_due(
    watch: Watch,
    ledger: Ledger,
    dispatch: Dispatch,
    *,
    lease_ms: int,
    room: int,
    decide: Callable[[str], None] | None = None,
) -> list[Rescue]:
    """Send lost messages again, take steps back from dead workers, end what has waited too long.

    Any number of workers may do this at once: each run is decided by one script.

    Args:
        room: how many hints to send at most. A worker that is full sends none: its messages are not
            lost but late, and doubles would only make the queue longer.
        decide: called with each batch whose pilot is over.

    Returns:
        What was done about the runs that were not merely queued.
    """
    failpoint("tick.before")
    due = watch.due(lease_ms, room=room, rescues=RESCUES_A_TICK)
    failpoint("tick.after_due")
    for run_id, step in due.hints:
        dispatch(run_id, step)
    sweep(ledger, due.parked)
    fold(ledger)
    for event in due.events:
        fields = " ".join(f"{name}={value}" for name, value in event.items() if name != "event")
        log.warning("%s %s", event["event"], fields)
    done: list[Rescue] = []
    for run_id in due.runs:
        failpoint("rescue.before")
        rescue = watch.rescue(run_id, lease_ms)
        failpoint("rescue.after")
        if rescue.step is not None:
            dispatch(run_id, rescue.step)
        done.append(rescue)
    if decide is not None:
        for batch in due.pilots:
            decide(batch)
    return done


def sweep(ledger: Ledger, scopes: Iterable[str]) -> None:
    """Let the parked runs of these scopes go on for which there is money; the next tick sends hints."""
    for scope in scopes:
        for _ in range(SWEEPS_A_TICK):
            _, over = ledger.sweep(scope)
            if over:
                break


def fold(ledger: Ledger) -> None:
    """Bring the log back to the length that is kept, or a good way towards it."""
    for _ in range(FOLDS_A_TICK):
        if ledger.fold() < FOLD:
            break
