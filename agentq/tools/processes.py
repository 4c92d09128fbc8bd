"""Processes for tools that must be killable: started when needed, used again, killed at a timeout."""

from __future__ import annotations

import atexit
import inspect
import json
import os
import pickle
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from signal import Signals
from typing import Any

from agentq.tools.context import CallContext
from agentq.tools.endings import NotStartedError, OutOfTimeError, ToolFailedError
from agentq.tools.isolated import Call, Context, Home, MessageTooLongError, receive, send
from agentq.tools.result import Excerpt

MAX_PROCESSES = 16
"""At work at once. A call beyond waits for a place, within its time."""
MAX_IDLE = 4
MAX_RESULT_CHARS = 1_000_000
"""What comes back of a result; of the rest, only how much it was."""
START_SECONDS = 60.0
"""A process that has not imported its module by then never will."""
KILL_SECONDS = 6.0
"""Within less, a process and all that it has started are gone."""
_ROOT = str(Path(__file__).parents[2])
_START = "import sys; sys.path.insert(0, sys.argv[3]); from agentq.tools.isolated import main; main()"


class Isolated:
    """A function that runs in another process. Called like the function; answers an `Excerpt` of its text.

    Raises:
        ValueError: for a function that no other process could import.
    """

    def __init__(self, name: str, function: Callable[..., Any], timeout_s: float) -> None:
        self.function = function
        self.timeout_s = timeout_s
        self._home = _home(name, function)

    def __call__(self, **given: Any) -> Excerpt:
        """Make one call.

        Raises:
            OutOfTimeError: when its time was over; nothing of it is left.
            NotStartedError: when it was over before the call began.
            ToolFailedError: when the tool failed.
        """
        deadline = time.monotonic() + self.timeout_s
        try:
            arguments = pickle.dumps({name: _departing(value) for name, value in given.items()})
        except Exception as error:
            raise ToolFailedError(f"arguments that cannot be sent to its process ({error})") from error
        call = Call(self._home, self.function.__qualname__, arguments, MAX_RESULT_CHARS)
        said = PROCESSES.call(call, deadline)
        if "error" in said:
            raise ToolFailedError(said["error"])
        return Excerpt(said["text"], said["chars"])


def _departing(value: Any) -> Any:
    if not isinstance(value, CallContext):
        return value
    return Context(
        value.user_id,
        value.tenant_id,
        value.approved_calls,
        dict(value.extra),
        value.run_id,
        value.idempotency_key,
    )


def _home(name: str, function: Callable[..., Any]) -> Home:
    if "<" in function.__qualname__:
        raise ValueError(
            f"the tool {name}: with isolation='process' it must be a function of a module, "
            "not a lambda or one that is made inside another function"
        )
    module = function.__module__
    file = inspect.getsourcefile(function) or ""
    if module == "__main__":
        program = sys.modules["__main__"]
        spec = getattr(program, "__spec__", None)  # `python -m …` has one
        module = "__main__" if spec is None else spec.name
        if spec is None and not Path(file).is_file():
            raise ValueError(
                f"the tool {name}: with isolation='process' it must be in a file, "
                "which another process can import"
            )
    return Home(module, file and str(Path(file).resolve()), ())


class Host:
    """One process that has imported a module, or is about to. It takes one call at a time."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.ready = False
        self._born = time.monotonic()
        self._channel, its = socket.socketpair()
        read_end, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(its.fileno()), str(read_end), _ROOT],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the worker
                pass_fds=(its.fileno(), read_end),
            )
        except BaseException:
            self.forget()
            raise
        finally:
            its.close()
            os.close(read_end)
        with suppress(OSError):  # already dead: whoever waits for it finds that
            send(self._channel, pickle.dumps(Home(home.module, home.file, tuple(sys.path))))

    @property
    def is_usable(self) -> bool:
        """Whether a call may be sent, or will be in time."""
        silent = not select.select([self._channel], [], [], 0)[0]
        # One that is ready has nothing to say: what can be read is its end.
        return silent if self.ready else not silent or time.monotonic() < self._born + START_SECONDS

    def wait_ready(self, deadline: float) -> bool:
        """Whether it has imported its module by then.

        Raises:
            ToolFailedError: when it cannot.
        """
        if self.ready:
            return True
        if not select.select([self._channel], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return False
        try:
            wrong = json.loads(receive(self._channel, time.monotonic() + KILL_SECONDS))["ready"]
        except (EOFError, TimeoutError) as error:
            raise ToolFailedError(f"no start: its process {self._end()} before the call") from error
        if wrong:
            raise ToolFailedError(f"no start: its module {self.home.module} cannot be imported: {wrong}")
        self.ready = True
        return True

    def call(self, call: Call, deadline: float) -> dict[str, Any]:
        """Make one call and wait for what comes of it.

        Raises:
            OutOfTimeError: when that took too long; the process is gone.
            ToolFailedError: when it could not be sent, or the process ended.
        """
        try:
            self._channel.settimeout(max(0.001, deadline - time.monotonic()))
            send(self._channel, pickle.dumps(call))
            said: dict[str, Any] = json.loads(receive(self._channel, deadline))
        except MessageTooLongError as error:
            raise ToolFailedError(f"arguments that are too long: {error}") from error
        except TimeoutError as error:
            self._end()
            raise OutOfTimeError from error
        except (EOFError, OSError) as error:
            raise ToolFailedError(f"no answer: its process {self._end()}") from error
        return said

    def _end(self) -> str:
        """Kill it with all that it has started, and say how it had ended."""
        code = self.kill()
        if code > 128:
            with suppress(ValueError):
                return f"was ended by {Signals(code - 128).name}"
        return f"ended with exit code {code}"

    def kill(self) -> int:
        """Kill it with all that it has started; the exit code, or 128 and the signal, with which it ended."""
        self.forget()
        try:
            return self._process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def forget(self) -> None:
        """Let go of it. The one who holds its lifeline last ends it."""
        self._channel.close()
        with suppress(OSError):
            if self._lifeline >= 0:
                os.close(self._lifeline)
        self._lifeline = -1

    def disown(self) -> None:
        """The same in a process that was forked from its owner, and must not wait for it."""
        self.forget()
        self._process.returncode = 0


class Processes:
    """At most `limit` processes at work, and a few idle ones, each for the module that it has imported."""

    def __init__(self, limit: int = MAX_PROCESSES, idle: int = MAX_IDLE) -> None:
        self._limit = limit
        self._most_idle = idle
        self._hosts: set[Host] = set()
        self._begin()
        os.register_at_fork(after_in_child=self._forked)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(self._limit)
        self._idle: list[Host] = []

    def _forked(self) -> None:
        for host in self._hosts:
            host.disown()
        self._hosts.clear()
        self._begin()

    def call(self, call: Call, deadline: float) -> dict[str, Any]:
        """Make a call in a process of its module.

        Raises:
            OutOfTimeError: when it took too long; its process is gone.
            NotStartedError: when there was no process for it in time.
            ToolFailedError: when the process has ended, or cannot import the module.
        """
        if not self._places.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise NotStartedError(f"{self._limit} others are at work", is_late=True)
        try:
            host = self._take(call.home)
            try:
                if not host.wait_ready(deadline):
                    self._give(host)  # for the next call
                    late = "its process needs longer than that to start, call it again"
                    raise NotStartedError(late, is_late=True)
                said = host.call(call, deadline)
            except (OutOfTimeError, ToolFailedError):
                self._drop(host)
                raise
            self._give(host)
            return said
        finally:
            self._places.release()

    def close(self) -> None:
        """End all of them."""
        with self._lock:
            hosts, self._hosts, self._idle = self._hosts, set(), []
        for host in hosts:
            host.forget()
        for host in hosts:
            host.kill()

    def _take(self, home: Home) -> Host:
        useless: list[Host] = []
        found: Host | None = None
        with self._lock:
            for host in [host for host in self._idle if host.home == home]:
                self._idle.remove(host)
                if host.is_usable:
                    found = host
                    break
                useless.append(host)
        for host in useless:
            self._drop(host)
        if found is None:
            found = Host(home)
            with self._lock:
                self._hosts.add(found)
        return found

    def _give(self, host: Host) -> None:
        with self._lock:
            self._idle.append(host)
            surplus = self._idle[: -self._most_idle]
            del self._idle[: -self._most_idle]
        for old in surplus:
            self._drop(old)

    def _drop(self, host: Host) -> None:
        with self._lock:
            self._hosts.discard(host)
        host.kill()


PROCESSES = Processes()
"""Those of this process."""
atexit.register(PROCESSES.close)
