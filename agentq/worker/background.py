"""What runs beside the steps in every worker process: the heartbeat, the tick and the chores, a thread each.

They are started by a boot step of the worker, so that `celery -A module:celery worker` has them as
much as `agentq worker` does. All go on when a round fails: the next one is soon. Chores are what may take
long, as the batch of a schedule does; nothing waits for them.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from celery import Celery, bootsteps
from celery.concurrency.thread import TaskPool
from celery.signals import worker_shutdown, worker_shutting_down

from agentq.core.errors import SchemaError, UsageError
from agentq.core.failpoints import check_failpoints, failpoint
from agentq.engine.pilot import decide_pilot
from agentq.engine.rescue import rescue_due
from agentq.engine.workbench import Workbench
from agentq.worker.drain import Drain
from agentq.worker.hints import hint_template
from agentq.worker.transport import wake, wake_when_done

log = logging.getLogger("agentq.worker")

HEARTBEATS_A_LEASE = 3
HINTS_A_FREE_SLOT = 4
"""How many lost messages a tick sends again for each step that this process could take on now."""

JOIN_SECONDS = 2.0
"""How long a stopping process waits for the heartbeat at hand."""


class Background:
    """The threads of one worker process.

    Args:
        bench: what it works with.
        tick_seconds: how often it ticks; chores likewise.
        slots: how many steps the process takes at once.
        heartbeat_file: touched with each heartbeat.
        chores: what else is done now and then, by name.
    """

    def __init__(
        self,
        bench: Workbench,
        *,
        tick_seconds: float,
        slots: int,
        heartbeat_file: Path | None = None,
        chores: Mapping[str, Callable[[], None]] | None = None,
    ) -> None:
        self.bench = bench
        self.heartbeat_file = heartbeat_file
        self.slots = slots
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.lease_seconds = bench.lease_ms / 1000
        self.tick_seconds = tick_seconds
        self._told_to_stop = False
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._every, args=(work, seconds), name=name, daemon=True)
            for name, work, seconds in (
                ("agentq-heartbeat", self.heartbeat, self.lease_seconds / HEARTBEATS_A_LEASE),
                ("agentq-tick", self.tick, tick_seconds),
                *((f"agentq-{name}", chore, tick_seconds) for name, chore in (chores or {}).items()),
            )
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End after the rounds at hand, and sign off."""
        self._stop.set()
        # A heartbeat on its way would sign on again. It may also be waiting for a server that is gone.
        self._threads[0].join(JOIN_SECONDS)
        if self.heartbeat_file:
            with suppress(OSError):  # it grows old as well
                self.heartbeat_file.unlink()
        try:
            self.bench.store.watch.sign_off(self.name)
        except Exception as error:  # noqa: BLE001 - Redis may be gone already; the entry ends by itself
            log.info("sign_off_failed error=%r", error)

    def stop_worker(self, why: str) -> None:
        """Stop this process as SIGTERM does: the steps at hand are finished or given back. Once is enough."""
        if self._told_to_stop:
            return
        self._told_to_stop = True
        log.error("this worker stops by itself: %s", why)
        os.kill(os.getpid(), signal.SIGTERM)

    def heartbeat(self) -> None:
        """Renew all leases of this process and count it as alive, here and for who looks at the file."""
        failpoint("heartbeat.before")
        self.bench.leases.renew()
        try:
            self.bench.store.watch.sign_on(
                self.name,
                2 * self.lease_seconds,
                slots=self.slots,
                hint=hint_template(self.bench.make_hint),
            )
        except SchemaError as error:
            self.stop_worker(f"{error}; {error.hint}")
            return
        if self.heartbeat_file and not self._stop.is_set():
            self.heartbeat_file.touch()

    def tick(self) -> None:
        """Look at the runs that are due."""
        room = HINTS_A_FREE_SLOT * max(0, self.slots - len(self.bench.leases))
        bench = self.bench
        store = bench.store
        for rescue in rescue_due(
            store.watch,
            store.ledger,
            bench.dispatch,
            lease_ms=bench.lease_ms,
            room=room,
            decide=partial(decide_pilot, store),
        ):
            if rescue.verdict in {"RESCUED", "SUSPECT", "ENDED"}:
                log.warning(
                    "tick verdict=%s run=%s step=%s reason=%s",
                    rescue.verdict,
                    rescue.run_id,
                    rescue.step,
                    rescue.reason,
                )

    def _every(self, work: Callable[[], None], seconds: float) -> None:
        wait = 0.0
        while not self._stop.wait(wait):
            try:
                work()
            except Exception as error:  # noqa: BLE001 - an outage; the next round is soon
                log.warning("background_failed work=%s error=%r", work.__name__, error)
            wait = seconds * random.uniform(0.8, 1.0)  # noqa: S311 - jitter: workers must not march in step


def add_background(
    celery: Celery,
    bench: Callable[[], Workbench],
    *,
    tick_seconds: float,
    drain_seconds: float,
    heartbeat_file: Path | None = None,
    chores: Callable[[], Mapping[str, Callable[[], None]]] = dict,
) -> None:
    """Have every worker of this app start its background with it, and drain when it stops."""

    class BackgroundStep(bootsteps.StartStopStep):
        """Starts after the pool and stops after it: leases are renewed until the last step is done."""

        requires = ("celery.worker.components:Pool",)

        def __init__(self, worker: Any, **options: Any) -> None:
            super().__init__(worker, **options)
            check_failpoints()
            # The heartbeat renews the leases of its own process: in a forked pool every step that is longer
            # than a lease would be paid for and lost, again and again. A solo pool does not return futures.
            if not issubclass(worker.pool_cls, TaskPool):
                raise UsageError(
                    f"agentq runs on the threads pool, not on {worker.pool_cls.__module__}",
                    hint="celery … worker --pool threads",
                )

        def start(self, worker: Any) -> None:
            # One line for each run that ends, also where the worker itself is quiet.
            logging.getLogger("agentq").setLevel(logging.INFO)
            hub = getattr(worker, "hub", None)
            background = Background(
                bench(),
                tick_seconds=tick_seconds,
                slots=worker.pool.num_processes,
                heartbeat_file=heartbeat_file,
                chores=chores(),
            )
            background.start()
            self.drain = Drain(
                bench(),
                seconds=drain_seconds,
                sign_off=background.stop,
                wake=(lambda: wake(hub)) if hub is not None else (lambda: None),
            )
            self.drain.start()
            if threading.current_thread() is threading.main_thread():
                _drain_on_signals(worker.hostname, self.drain)
            worker_shutdown.connect(self._ended, sender=worker, weak=False)
            if worker.app.conf.worker_disable_prefetch and hub is not None:
                wake_when_done(worker.pool, hub)

        def close(self, worker: Any) -> None:  # noqa: ARG002 - Celery's signature
            # Before the pool waits for its threads, whatever it is that stops the worker.
            self.drain.closing()

        def _ended(self, **_: Any) -> None:
            self.drain.closing()
            self.drain.done.wait()

    celery.steps["worker"].add(BackgroundStep)


def _drain_on_signals(hostname: str, drain: Drain) -> None:
    """Begin the drain when Celery is told to stop; from then on a signal is the drain's own."""
    # Celery cannot stop threads "cold": SIGQUIT would be a traceback.
    signal.signal(signal.SIGQUIT, signal.getsignal(signal.SIGTERM))

    def told(exitcode: int = 0, **_: Any) -> None:
        drain.signalled(exitcode)
        # Celery ignores a second SIGTERM, and tries the same at a second SIGINT.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, lambda *_: drain.signalled(exitcode))

    worker_shutting_down.connect(told, sender=hostname, weak=False)
