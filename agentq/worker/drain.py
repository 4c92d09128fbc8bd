"""The drain: how a worker process stops without losing or repeating anything that it can help.

Nothing more is claimed. The steps at hand have some time to end; what is left then is given back, so that
another worker takes it up at once, without waiting for a lease. A model call in a thread cannot be
interrupted, so the process leaves while it goes on: what was reserved for it is booked in full. Celery's
own shutdown has no end on the threads pool, and hears no second signal.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

from agentq.core.money import format_usd
from agentq.core.records import Lease, Settlement
from agentq.engine.leases import Hold
from agentq.engine.workbench import Workbench

log = logging.getLogger("agentq.worker")

HAND_BACK_SECONDS = 3.0
"""How long giving back and signing off may take, however the server is."""
HURRIED_SECONDS = 2.0
"""The same after a second signal."""
CELERY_SECONDS = 5.0
"""How long Celery may take to end a process in which nothing is at work any more."""
LEAVE_SECONDS = 10.0
"""How much longer than its drain a worker may take until it is gone; whoever kills it waits for so long."""

_POLL_SECONDS = 0.05
_WHY = "the worker stops"


class Drain:
    """The end of one worker process: asked for by a signal, or by Celery when it stops by itself."""

    def __init__(
        self,
        bench: Workbench,
        *,
        seconds: float,
        sign_off: Callable[[], None],
        wake: Callable[[], None],
        leave: Callable[[int], None] = os._exit,
    ) -> None:
        """Nothing happens before `start`.

        Args:
            bench: whose leases are drained.
            seconds: how long the steps at hand may go on.
            sign_off: ends the heartbeat and takes the process out of the list of workers.
            wake: has Celery's event loop look around, so that it takes no more messages.
            leave: ends the process at once, with this exit code.
        """
        self._bench = bench
        self._leases = bench.leases
        self._seconds = seconds
        self._sign_off = sign_off
        self._wake = wake
        self._leave = leave
        # A signal's handler may interrupt anything, also itself. Of all that threads can wait for, only
        # this queue may be used there.
        self._asked: SimpleQueue[tuple[bool, int]] = SimpleQueue()
        self._signals = 0
        self._seen: set[Hold] = set()
        self._tried: set[Hold] = set()
        self._failed = 0
        self._handed_back: list[Lease] = []
        self._booked_nano = 0
        self.done = threading.Event()
        """Set when all is given back and signed off, or the time for that is over."""

    def start(self) -> None:
        """Wait, in a thread, until somebody asks."""
        threading.Thread(target=self._run, name="agentq-drain", daemon=True).start()

    def signalled(self, code: int = 0) -> None:
        """The process was sent a signal and shall end with this exit code. The second one ends the patience.

        May be called from a signal's handler.
        """
        self._asked.put((True, code))

    def closing(self) -> None:
        """Celery stops by itself. It, too, decides when and how the process ends."""
        self._asked.put((False, 0))

    # ── the drain ────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        by_signal, code = self._asked.get()
        self._signals += by_signal
        try:
            idle = self._drain()
        finally:
            self.done.set()
        # Celery ends the process by itself once its threads are free and its broker answers.
        deadline = time.monotonic() + (CELERY_SECONDS if idle else 0)
        while time.monotonic() < deadline and not self._hurried:
            self._pause()
        if self._signals:
            with suppress(Exception):
                logging.shutdown()
                sys.stdout.flush()
                sys.stderr.flush()
            self._leave(code)

    def _drain(self) -> bool:
        """Let the steps end, give back the rest and sign off; whether nothing is at work or unanswered."""
        self._leases.close()
        self._seen |= self._leases.held()
        deadline = time.monotonic() + self._seconds
        while self._leases.at_work and time.monotonic() < deadline and not self._hurried:
            self._pause()
            self._seen |= self._leases.held()
        # Redis may not answer, and its client is patient.
        ending = threading.Thread(target=self._end, name="agentq-hand-back", daemon=True)
        ending.start()
        ending.join(HURRIED_SECONDS if self._hurried else HAND_BACK_SECONDS)
        self._sum_up()
        return not (ending.is_alive() or self._leases.at_work)

    @property
    def _hurried(self) -> bool:
        return self._signals > 1

    def _pause(self) -> None:
        self._wake()
        with suppress(Empty):
            by_signal, _ = self._asked.get(timeout=_POLL_SECONDS)
            self._signals += by_signal

    def _end(self) -> None:
        while True:
            held = self._leases.held()
            self._seen |= held
            # All of them before the first is given back: none may begin a call meanwhile.
            for hold, flight in [(hold, hold.cut(_WHY)) for hold in held - self._tried]:
                self._hand_back(hold, flight)
                self._tried.add(hold)
            # Of a step that is at its claim, or has just let go of its lease, there is more to come.
            if self._leases.at_work <= len(self._leases.held() & self._tried):
                break
            time.sleep(_POLL_SECONDS)
        for lease in self._handed_back:
            self._bench.dispatch(lease.run_id, lease.step)
        # Only now: leases are renewed until the last step is done or given back.
        self._sign_off()

    def _hand_back(self, hold: Hold, flight: Settlement | None) -> None:
        """Give one step back. Its thread may be ending it at this moment: the fence decides who was first."""
        lease = hold.lease
        try:
            answer = self._bench.store.runs.release(lease, delay_ms=0, settlement=flight)
        except Exception as error:  # noqa: BLE001 - the next one may go; this lease ends by itself
            self._failed += 1
            log.warning("hand_back_failed run=%s step=%d error=%r", lease.run_id, lease.step, error)
            return
        if answer in {"STALE", "MISSING"}:
            return
        booked_nano = flight.usd if flight is not None and flight.how == "forfeit" else 0
        self._handed_back.append(lease)
        self._booked_nano += booked_nano
        log.warning(
            "step_cut run=%s step=%d doing=%r booked_usd=%s",
            lease.run_id,
            lease.step,
            hold.doing,
            format_usd(booked_nano),
        )

    def _sum_up(self) -> None:
        back = len(self._handed_back)
        left = len(self._leases.held() - self._tried) + self._failed
        done = len(self._seen) - back - left
        said = [f"{done} {'step' if done == 1 else 'steps'} done", f"{back} handed back"]
        if left:
            said.append(f"{left} left to the end of their leases, since Redis did not answer")
        if self._booked_nano:
            said.append(
                f"{format_usd(self._booked_nano)} USD of cut calls booked in full until their bill is known"
            )
        log.info("drained: %s", ", ".join(said))
