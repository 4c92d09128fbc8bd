"""What becomes of hints on their way: as it should be, twice, late, or lost."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Literal

from agentq.engine.workbench import Dispatch

Delivery = Literal["none", "duplicate", "late", "lost"]


class FaultyDispatch:
    """Sends hints through another dispatch, with one fault: `late` and `lost` are the first of each step.

    The first in whichever process: what was sent is remembered in a folder that they share.
    """

    def __init__(self, send: Dispatch, fault: Delivery, *, late_seconds: float, folder: Path) -> None:
        self._send = send
        self._fault = fault
        self._late_seconds = late_seconds
        self._folder = folder
        self._timers: list[threading.Timer] = []

    def __call__(self, run_id: str, step: int) -> None:
        """Send the hint of a step, or do to it what this fault does."""
        first = self._is_first(run_id, step)
        match self._fault:
            case "duplicate":
                self._send(run_id, step)
                self._send(run_id, step)
            case "late" if first:
                timer = threading.Timer(self._late_seconds, self._send, (run_id, step))
                timer.daemon = True
                self._timers.append(timer)
                timer.start()
            case "lost" if first:
                pass
            case _:
                self._send(run_id, step)

    def drain(self) -> None:
        """Return when all that is late was sent."""
        for timer in self._timers:
            timer.join()

    def _is_first(self, run_id: str, step: int) -> bool:
        try:
            (self._folder / f"hint.{run_id}.{step}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True
