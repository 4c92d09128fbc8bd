"""The one Celery task, and how its messages are sent. Both carry ids only."""

from __future__ import annotations

import logging
from collections.abc import Callable

from celery import Celery

from agentq.engine.bench import Bench, Dispatch
from agentq.engine.step import execute_step
from agentq.worker.celery_app import TASK
from agentq.worker.hints import shown_arguments, task_id

log = logging.getLogger("agentq.worker")


def register_step(celery: Celery, bench: Callable[[], Bench]) -> None:
    """Give the app its task. `bench` is asked for at the first message, in the worker."""

    @celery.task(name=TASK, shared=False)  # two apps in one process are two installations
    def step(run_id: str, step: int) -> None:
        try:
            execute_step(run_id, step, bench=bench())
        except BaseException:
            # Nothing may escape into Celery: on the threads pool it would cost a slot for ever. The run
            # is safe: its lease ends and another claim follows.
            log.exception("step_crashed run=%s step=%s", run_id, step)


def make_dispatch(celery: Celery) -> Dispatch:
    """Send hints through this app. One that cannot be sent is logged: the tick sends it again."""

    def dispatch(run_id: str, step: int) -> None:
        try:
            celery.tasks[TASK].apply_async(  # type: ignore[call-arg]
                kwargs={"run_id": run_id, "step": step},
                task_id=task_id(run_id, step),
                argsrepr="()",
                kwargsrepr=shown_arguments(run_id, step),
            )
        except Exception as error:  # noqa: BLE001 - any trouble of any broker
            log.warning("dispatch_failed run=%s step=%d error=%r", run_id, step, error)

    return dispatch
