"""Threads for tool calls: with a time limit, reused, bounded, and never in the way of an exit.

`concurrent.futures` joins its threads when the process ends, so one hanging tool would keep it alive.
These are daemons. A call that exceeds its time is left alone with its thread, which comes back to the
others if the tool ever returns; until then it counts against the bound.
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

MAX_THREADS = 256


class TooManyThreadsError(Exception):
    """Every thread is taken, most likely by tools that hang."""


class Task:
    """One call that runs or has run."""

    def __init__(self, fn: Callable[[], Any]) -> None:
        self._fn = fn
        self._context = contextvars.copy_context()
        self._done = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None

    def wait(self, timeout_s: float) -> bool:
        """Whether the call ended within the time, in seconds."""
        return self._done.wait(max(0.0, timeout_s))

    def result(self) -> Any:
        """What the call returned. Only after `wait` said yes.

        Raises:
            BaseException: whatever the call raised.
        """
        if self._error is not None:
            raise self._error
        return self._value

    def execute(self) -> None:
        """Run the call and keep what it returns or raises."""
        try:
            self._value = self._context.run(self._fn)
        except BaseException as error:  # noqa: BLE001 - a tool may raise anything
            self._error = error

    def finish(self) -> None:
        """Wake who waits."""
        self._done.set()


class DaemonThreads:
    """At most `limit` daemon threads that run tasks one after the other."""

    def __init__(self, limit: int = MAX_THREADS) -> None:
        self._limit = limit
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Start anew without any thread. A child process has none, and must not inherit a held lock."""
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[Task]] = []
        self._count = 0

    @property
    def count(self) -> int:
        """How many threads there are, idle or not."""
        return self._count

    def start(self, fn: Callable[[], Any]) -> Task:
        """Run the call on an idle thread, or on a new one.

        Raises:
            TooManyThreadsError: when the bound is reached and none is idle.
        """
        task = Task(fn)
        self._inbox().put(task)
        return task

    def _inbox(self) -> SimpleQueue[Task]:
        with self._lock:
            if self._idle:
                return self._idle.pop()
            if self._count >= self._limit:
                raise TooManyThreadsError(f"all {self._limit} tool threads are taken")
            self._count += 1
        inbox: SimpleQueue[Task] = SimpleQueue()
        threading.Thread(target=self._serve, args=(inbox,), name="agentq-tool", daemon=True).start()
        return inbox

    def _serve(self, inbox: SimpleQueue[Task]) -> None:
        while True:
            task = inbox.get()
            task.execute()
            # Idle before the waiter wakes: its next call finds this thread.
            with self._lock:
                self._idle.append(inbox)
            task.finish()
            del task


TOOL_THREADS = DaemonThreads()
"""The threads of this process."""
