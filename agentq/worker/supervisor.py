"""One parent for the processes of `agentq up`: start in order, restart, drain, and never leave one behind.

A child is a process in a session of its own, so that Ctrl-C reaches only the parent. It writes to one
log with all others and holds the parent's lifeline (`agentq.worker.lifeline`). It is stopped by SIGTERM, by
another one when the parent gets a second signal, and, when it is still there after its time, by SIGKILL for
it and all in its group. The embedded server is no child: it lives longer than all of them and is stopped by
the caller, last.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from agentq.core.errors import UnavailableError
from agentq.worker.lifeline import LIFELINE_FD
from agentq.worker.merged_log import MergedLog

HURRIED_SECONDS = 3.0
"""How long a child may take to leave after the second signal."""

_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Child:
    """A process to keep running."""

    name: str
    """Stands before each of its log lines."""
    argv: Sequence[str]
    env: Mapping[str, str] | None = None
    """Added to the parent's environment."""
    cwd: Path | None = None
    restart: bool = True
    """False: it is expected to end, and everything ends with it and with its success."""
    ready: Callable[[], bool] | None = None
    """Asked, in a thread, until it is true; then the next child is started. Short; an exception is a no."""
    stop_last: bool = False
    """Stopped after the others are gone, because they need it or are watched by it."""


@dataclass(frozen=True, slots=True)
class Restarts:
    """How patient the parent is with a child that dies. Times in seconds."""

    first_delay: float = 0.5
    """Doubled with each quick crash in a row …"""
    longest_delay: float = 10.0
    """… up to this."""
    quick_seconds: float = 10.0
    """A child that lived shorter than this crashed quickly."""
    quick_crashes: int = 5
    """More of them in a row, and the parent gives up."""

    def delay(self, crashes: int) -> float:
        """The pause after that many quick crashes in a row."""
        return min(self.first_delay * 2.0 ** (crashes - 1), self.longest_delay)


def supervise(
    children: Sequence[Child],
    *,
    drain_seconds: float,
    say: Callable[[str], None] | None = None,
    stop: threading.Event | None = None,
    on_ready: Callable[[], None] | None = None,
    ready_seconds: float = 60.0,
    restarts: Restarts | None = None,
) -> int:
    """Run the children until a signal, `stop`, or a failure, and return when all of them are gone.

    Args:
        children: started in this order, each when the one before is ready.
        drain_seconds: how long they may go on after SIGTERM. A second signal to the parent is passed on, and
            leaves them `HURRIED_SECONDS`.
        say: takes each line of the merged log; stderr when None.
        stop: set it, from any thread, to stop in order.
        on_ready: called once when all are ready.
        ready_seconds: how long one child may take to be ready.
        restarts: the patience with children that die.

    Returns:
        The exit code: 0 after SIGTERM, SIGHUP or `stop`, 130 after Ctrl-C, 1 when a child could not
        be kept running; for a child with `restart=False` 0 or 1 by its own.
    """
    supervisor = _Supervisor(children, drain_seconds, say or _to_stderr, restarts or Restarts())
    return asyncio.run(supervisor.run(stop or threading.Event(), on_ready or _nothing, ready_seconds))


@contextmanager
def supervised(
    children: Sequence[Child],
    *,
    drain_seconds: float,
    say: Callable[[str], None] | None = None,
    ready_seconds: float = 60.0,
    restarts: Restarts | None = None,
) -> Iterator[threading.Event]:
    """The children run while the block does: they are ready when it begins and gone when it has ended.

    Yields an event that is set when they are gone, which within the block means that they failed. A
    Ctrl-C in the block drains; another one meanwhile hurries them.

    Raises:
        UnavailableError: when they cannot be brought up.
    """
    supervisor = _Supervisor(children, drain_seconds, say or _to_stderr, restarts or Restarts())
    stop, ready, gone = threading.Event(), threading.Event(), threading.Event()

    def run() -> None:
        try:
            asyncio.run(supervisor.run(stop, ready.set, ready_seconds))
        finally:
            gone.set()

    thread = threading.Thread(target=run, name="agentq-supervisor")
    thread.start()
    try:
        while not ready.wait(_POLL_SECONDS) and not gone.is_set():
            pass
        if gone.is_set():
            raise UnavailableError(
                f"{', '.join(child.name for child in children)} could not be started",
                hint="the reason is in the log above",
            )
        yield gone
    finally:
        stop.set()
        try:
            thread.join()
        except KeyboardInterrupt:
            supervisor.hurry.set()
            thread.join()
            raise


class _Supervisor:
    def __init__(
        self, children: Sequence[Child], drain_seconds: float, say: Callable[[str], None], restarts: Restarts
    ) -> None:
        if len({child.name for child in children}) != len(children):
            raise ValueError("children need different names")
        self._children = children
        self._drain_seconds = drain_seconds
        self._restarts = restarts
        self._log = MergedLog(say, ["agentq", *(child.name for child in children)])
        self.hurry = threading.Event()
        """Set from any thread: tell them once more, and wait no longer than `HURRIED_SECONDS`."""
        self._end: int | None = None
        self._stopping = {False: asyncio.Event(), True: asyncio.Event()}
        """By `stop_last`: when set, the children of that kind are to go."""
        self._lifeline = -1

    # ------------------------------------------------------------------------------------ the whole

    async def run(self, stop: threading.Event, on_ready: Callable[[], None], ready_seconds: float) -> int:
        self._listen_to_signals()
        self._lifeline, held = os.pipe()
        kept: dict[asyncio.Task[None], bool] = {}
        starting = asyncio.create_task(self._start(kept, on_ready, ready_seconds))
        try:
            while self._end is None and not stop.is_set():
                await asyncio.sleep(_POLL_SECONDS)
                for task in (starting, *kept):
                    if task.done() and not task.cancelled():
                        task.result()
        finally:
            starting.cancel()
            for last in (False, True):
                self._stopping[last].set()
                await asyncio.gather(*(task for task in kept if kept[task] is last), return_exceptions=True)
            self._log.close()
            os.close(self._lifeline)
            os.close(held)
        return self._end or 0

    async def _start(
        self, kept: dict[asyncio.Task[None], bool], on_ready: Callable[[], None], ready_seconds: float
    ) -> None:
        for child in self._children:
            kept[asyncio.create_task(self._keep(child))] = child.stop_last
            if not await self._is_ready(child, ready_seconds):
                self._finish(1, f"{child.name} is not ready after {ready_seconds:g} s")
                return
        on_ready()

    async def _is_ready(self, child: Child, ready_seconds: float) -> bool:
        deadline = time.monotonic() + ready_seconds
        while child.ready is not None:
            with suppress(Exception):
                if await asyncio.to_thread(child.ready):
                    break
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(_POLL_SECONDS)
        return True

    def _finish(self, code: int, reason: str) -> None:
        if self._end is None:
            self._end = code
            self._say(reason)

    def _say(self, line: str) -> None:
        self._log.write("agentq", line)

    def _listen_to_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._on_signal, 130)
        loop.add_signal_handler(signal.SIGTERM, self._on_signal, 0)
        # Ignored under nohup, and then meant to be.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, self._on_signal, 0)

    def _on_signal(self, code: int) -> None:
        if self._end is None:
            self._finish(code, "stopping when the steps at hand are done; once more gives them back at once")
        else:
            self.hurry.set()

    # ------------------------------------------------------------------------------------ one child

    async def _keep(self, child: Child) -> None:
        """Run it, again and again, until it is to go."""
        stopping = self._stopping[child.stop_last]
        crashes = 0
        while not stopping.is_set():
            started = time.monotonic()
            try:
                code = await self._run(child, stopping)
            except OSError as error:
                self._finish(1, f"{child.name} cannot be started: {error.strerror}: {child.argv[0]}")
                return
            if stopping.is_set():
                return
            ended = f"{child.name} {_how(code)}"
            if not child.restart:
                self._finish(0 if code == 0 else 1, ended)
                return
            quick = time.monotonic() - started < self._restarts.quick_seconds
            crashes = crashes + 1 if quick else 1
            if crashes > self._restarts.quick_crashes:
                self._finish(1, f"{ended}, {crashes} times in a row: giving up")
                return
            delay = self._restarts.delay(crashes)
            self._say(f"{ended}; starting it again in {delay:g} s")
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), delay)

    async def _run(self, child: Child, stopping: asyncio.Event) -> int:
        """One life of it: the exit code, negative for a signal. None of its group is left afterwards."""
        with self._log.pipe(child.name) as output:
            process = await asyncio.create_subprocess_exec(
                *child.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=child.cwd,
                env={
                    **os.environ,
                    "PYTHONUNBUFFERED": "1",
                    **(child.env or {}),
                    LIFELINE_FD: str(self._lifeline),
                },
                start_new_session=True,
                pass_fds=(self._lifeline,),
            )
        self._say(f"{child.name} started, process {process.pid}")
        exited = asyncio.create_task(process.wait())
        told = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait({exited, told}, return_when=asyncio.FIRST_COMPLETED)
            if not exited.done():
                await self._drain(child, process, exited)
            return await exited
        finally:
            told.cancel()
            # What the child started in its group would work on without it, beside its successor.
            await _clear_group(process.pid)
            await self._log.drained(child.name)

    async def _drain(
        self, child: Child, process: asyncio.subprocess.Process, exited: asyncio.Task[int]
    ) -> None:
        _terminate(process)
        deadline = time.monotonic() + self._drain_seconds
        while not exited.done() and time.monotonic() < deadline and not self.hurry.is_set():
            await asyncio.wait({exited}, timeout=_POLL_SECONDS)
        why = f"after {self._drain_seconds:g} s"
        if not exited.done() and self.hurry.is_set():
            _terminate(process)
            await asyncio.wait({exited}, timeout=HURRIED_SECONDS)
            why = f"{HURRIED_SECONDS:g} s after the second signal"
        if not exited.done():
            self._say(f"{child.name} is killed {why}; others take over its steps when their leases end")
            _kill_group(process.pid)


def _terminate(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()


def _kill_group(leader: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


async def _clear_group(leader: int) -> None:
    """Kill what is left of the group and wait, briefly, until it is gone: a kill takes effect later."""
    deadline = time.monotonic() + 1.0
    _kill_group(leader)
    with suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < deadline:
            os.killpg(leader, 0)
            await asyncio.sleep(0.01)


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _to_stderr(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _nothing() -> None:
    pass
