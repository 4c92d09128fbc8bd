"""Waiting for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], description: str, timeout: float = 10.0) -> T:
    """Ask again until `condition` gives something true, and return that.

    `description` completes "waited for …"; an AssertionError with it is raised after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:g} s for {description}; last answer: {answer!r}")
        time.sleep(0.02)
