"""The one Celery task, and how its messages are sent. Both carry ids only."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from celery import Celery

from agentq.core.errors import SchemaError
from agentq.engine.step import execute_step
from agentq.engine.workbench import Dispatch, Workbench
from agentq.worker.celery_app import TASK
from agentq.worker.hints import shown_arguments, task_id

log = logging.getLogger("agentq.worker")

PAUSE_SECONDS = 5.0
"""How long a broker that failed is left alone: the tick sends a lost hint again after as long."""


def register_step(celery: Celery, bench: Callable[[], Workbench]) -> None:
    """Give the app its task. `bench` is asked for at the first message, in the worker."""

    @celery.task(name=TASK, shared=False)  # two apps in one process are two installations
    def step(run_id: str, step: int) -> None:
        try:
            with bench().leases.admit() as admitted:
                if admitted:
                    execute_step(run_id, step, bench=bench())
                else:  # this process stops: another may have it at once
                    bench().dispatch(run_id, step)
        except SchemaError as error:  # nothing was claimed, and the heartbeat stops this worker
            log.warning("step_left run=%s step=%d why=%s", run_id, step, error)
        except BaseException:
            # Nothing may escape into Celery: on the threads pool it would cost a slot for ever. The run
            # is safe: its lease ends and another claim follows.
            log.exception("step_crashed run=%s step=%s", run_id, step)


def make_dispatch(celery: Celery, *, now: Callable[[], float] = time.monotonic) -> Dispatch:
    """Send hints through this app. One that cannot be sent is logged: the tick sends it again.

    After one that failed, none is tried for `PAUSE_SECONDS`: each try may cost the seconds of a time-out,
    and whoever submits thousands of runs to a dead broker would pay them thousands of times.
    """
    paused_until = 0.0

    def dispatch(run_id: str, step: int) -> None:
        nonlocal paused_until
        if now() < paused_until:
            return
        try:
            celery.tasks[TASK].apply_async(  # type: ignore[call-arg]
                kwargs={"run_id": run_id, "step": step},
                task_id=task_id(run_id, step),
                argsrepr="()",
                kwargsrepr=shown_arguments(run_id, step),
            )
        except Exception as error:  # noqa: BLE001 - any trouble of any broker
            paused_until = now() + PAUSE_SECONDS
            log.warning("dispatch_failed run=%s step=%d error=%r", run_id, step, error)

    return dispatch
