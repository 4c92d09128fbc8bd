"""Waiting for something in Redis, with a bound."""

from __future__ import annotations

import time
from collections.abc import Callable

_FIRST_SECONDS = 0.02
_LONGEST_SECONDS = 0.5


def wait_for(done: Callable[[], bool], timeout: float | None, what: str) -> None:
    """Look until `done`, at first often, then twice a second.

    Raises:
        TimeoutError: after `timeout` seconds; what was waited for goes on.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = _FIRST_SECONDS
    while not done():
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError(f"{what} has not ended after {timeout:g} s; it goes on")
        time.sleep(pause if deadline is None else max(0.0, min(pause, deadline - time.monotonic())))
        pause = min(pause * 1.5, _LONGEST_SECONDS)
