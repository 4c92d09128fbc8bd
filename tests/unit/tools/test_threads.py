"""Threads are reused, bounded, abandoned when they hang, and never keep a process alive."""

from __future__ import annotations

import contextvars
import multiprocessing
import subprocess
import sys
import threading

import pytest

from agentq.tools.threads import DaemonThreads, TooManyThreadsError

PATIENCE_S = 10.0
NAME: contextvars.ContextVar[str] = contextvars.ContextVar("NAME")


def test_an_idle_thread_is_used_again() -> None:
    """One call after the other needs one thread."""
    threads = DaemonThreads()
    seen = set()
    for _ in range(20):
        task = threads.start(threading.get_ident)
        assert task.wait(PATIENCE_S)
        seen.add(task.result())
    assert len(seen) == threads.count == 1


def test_a_hanging_call_is_left_alone_and_its_thread_returns_when_it_ends() -> None:
    """While it hangs another thread does the work."""
    threads, release = DaemonThreads(), threading.Event()
    hanging = threads.start(release.wait)
    assert not hanging.wait(0.01)
    other = threads.start(lambda: "done")
    assert other.wait(PATIENCE_S)
    assert other.result() == "done"
    assert threads.count == 2
    release.set()
    assert hanging.wait(PATIENCE_S)
    again = threads.start(lambda: 1)
    assert again.wait(PATIENCE_S)
    assert threads.count == 2


def test_over_the_bound_a_call_is_refused() -> None:
    """Not queued: nobody knows when a hanging tool ends."""
    threads, release = DaemonThreads(limit=1), threading.Event()
    hanging = threads.start(release.wait)
    with pytest.raises(TooManyThreadsError, match="all 1 tool threads"):
        threads.start(lambda: 1)
    release.set()
    assert hanging.wait(PATIENCE_S)


def test_whatever_a_call_raises_is_handed_over() -> None:
    """Also what would end a thread."""
    threads = DaemonThreads()
    task = threads.start(sys.exit)
    assert task.wait(PATIENCE_S)
    with pytest.raises(SystemExit):
        task.result()
    assert threads.start(lambda: 1).wait(PATIENCE_S)


def test_context_variables_go_along() -> None:
    """So that a log line in a tool knows the run."""
    token = NAME.set("run_1")
    task = DaemonThreads().start(NAME.get)
    NAME.reset(token)
    assert task.wait(PATIENCE_S)
    assert task.result() == "run_1"


def _in_child(threads: DaemonThreads, out: multiprocessing.SimpleQueue[bool]) -> None:
    out.put(threads.start(lambda: 1).wait(PATIENCE_S))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_starts_anew() -> None:
    """A prefork worker must not wait for threads that stayed in the parent."""
    threads = DaemonThreads()
    assert threads.start(lambda: 1).wait(PATIENCE_S)
    context = multiprocessing.get_context("fork")
    out: multiprocessing.SimpleQueue[bool] = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(threads, out))
    child.start()
    child.join(2 * PATIENCE_S)
    assert child.exitcode == 0
    assert out.get()


def test_a_hanging_tool_does_not_keep_the_process_alive() -> None:
    """The interpreter exits at once."""
    program = (
        "import threading\n"
        "from agentq.tools.threads import TOOL_THREADS\n"
        "TOOL_THREADS.start(threading.Event().wait)\n"
        "print('end')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "end\n"
