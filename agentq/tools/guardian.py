"""The parent of a tool's process: it does nothing but wait, so that it can always kill.

It runs nothing of the user's. When its lifeline is closed, because the tool's time is over or its worker has
died, however that died, it kills the tool's process and all that this has started, and ends itself.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

_KILL_SECONDS = 5.0
_ROUND_SECONDS = 0.002
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def guarded(lifeline: int, channel: int, work: Callable[[], None]) -> NoReturn:
    """Do the work in a child process, and kill whatever is left of it once the lifeline is closed.

    Only for a process that has a single thread. It ends with 0, or with 128 and the number of the signal, or
    with the exit code, that ended the work.

    Args:
        lifeline: the open read end of a pipe, whose write end the one holds for whom this works.
        channel: an open file of the work alone, so that the other side sees when the work has ended.
        work: what to do; its process is the leader of a group of its own.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what its children leave behind comes to it, and not to init
    guardian = os.getpid()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.close(lifeline)
        # If the guardian itself is killed. It has one thread, so the signal comes when the process ends.
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guardian:
            os._exit(1)
        _leave(work)
    os.close(channel)
    with suppress(OSError):
        while os.read(lifeline, 1):  # nothing is ever written
            pass
    os._exit(_kill_all(child))


def _leave(work: Callable[[], None]) -> NoReturn:
    try:
        work()
    finally:
        os._exit(0)


def _kill_all(child: int) -> int:
    """Kill and reap every descendant; the exit code says how the first of them ended."""
    code = 0
    deadline = time.monotonic() + _KILL_SECONDS
    while time.monotonic() < deadline:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid == child:
            how = os.waitstatus_to_exitcode(status)
            code = 128 - how if how < 0 else how
        if pid:
            continue
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        for orphan in _children(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(orphan, signal.SIGKILL)
        time.sleep(_ROUND_SECONDS)
    return code


def _children(parent: int) -> list[int]:
    """Its children, where the system shows them. Those of a dead child have come to it by then."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
