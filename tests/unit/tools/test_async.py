"""Async tools: their time, their cancellation, their context and their errors."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import Callable
from typing import Any

from agentq.tools import ToolExecutor, ToolRegistry, tool
from agentq.tools.threads import TOOL_THREADS
from tests.support.wait import wait_until

FOR_WHOM: contextvars.ContextVar[str] = contextvars.ContextVar("for_whom", default="nobody")


def executor(*tools: Callable[..., Any]) -> ToolExecutor:
    return ToolExecutor(ToolRegistry(tools))


def test_a_call_whose_time_is_over_is_cancelled_and_gives_its_thread_back() -> None:
    """It may clean up behind itself; a thread is not lost to it."""
    ended = threading.Event()
    threads: list[threading.Thread] = []

    @tool(timeout_s=0.05)
    async def hang() -> str:
        """Hang."""
        threads.append(threading.current_thread())
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    result = executor(hang).call("hang", "")
    assert (result.error_code, result.retryable) == ("timeout", True)
    assert ended.wait(10)
    wait_until(lambda: _comes_back(threads[0]), "its thread to come back")


def _comes_back(thread: threading.Thread) -> bool:
    """Whether the thread serves other calls: asked of all idle ones at once."""
    found: list[threading.Thread] = []
    barrier = threading.Event()

    def look() -> None:
        found.append(threading.current_thread())
        barrier.wait(5)

    tasks = [TOOL_THREADS.start(look) for _ in range(TOOL_THREADS.count)]
    wait_until(lambda: len(found) == len(tasks), "all of them to begin")
    barrier.set()
    return thread in found


def test_a_side_effect_whose_time_is_over_may_have_acted() -> None:
    @tool(side_effect=True, timeout_s=0.05)
    async def act() -> str:
        """Act."""
        await asyncio.Event().wait()
        return ""

    cache: dict[str, str] = {}
    result = executor(act).call("act", "", cache=cache)
    assert result.error_code == "outcome_unknown"
    assert cache == {}


def test_a_timeout_of_its_own_is_its_own_error() -> None:
    @tool
    async def impatient() -> str:
        """Wait not long."""
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()
        return ""

    @tool
    async def cancelled() -> str:
        """Cancel itself."""
        raise asyncio.CancelledError

    assert "The tool failed with TimeoutError" in executor(impatient).call("impatient", "").content
    assert "The tool failed with CancelledError" in executor(cancelled).call("cancelled", "").content


def test_it_sees_the_context_variables_of_the_caller_and_changes_only_its_own() -> None:
    @tool
    async def whose() -> str:
        """Say for whom."""
        seen = FOR_WHOM.get()
        FOR_WHOM.set("somebody else")
        return seen

    token = FOR_WHOM.set("ann")
    try:
        assert executor(whose).call("whose", "").content == "ann"
        assert FOR_WHOM.get() == "ann"
    finally:
        FOR_WHOM.reset(token)


def test_a_wrapped_async_function_is_awaited() -> None:
    """Whatever hides it: what it gives is a coroutine all the same."""

    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def inner(*args: Any, **named: Any) -> Any:
            return function(*args, **named)

        return inner

    @tool
    @logged
    async def add(a: int, b: int) -> int:
        """Add."""
        await asyncio.sleep(0)
        return a + b

    assert executor(add).call("add", '{"a": 1, "b": 2}').content == "3"


def test_tasks_that_it_leaves_behind_are_cancelled() -> None:
    ended = threading.Event()

    @tool
    async def leave() -> str:
        """Leave a task behind."""

        async def linger() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        leave.task = asyncio.create_task(linger())  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        return "left"

    assert executor(leave).call("leave", "").content == "left"
    assert ended.is_set()


def test_many_run_side_by_side_each_in_a_loop_of_its_own() -> None:
    barrier = threading.Barrier(3, timeout=10)

    @tool
    async def meet(n: int) -> int:
        """Wait for the others."""
        await asyncio.to_thread(barrier.wait)
        return n

    results = executor(meet).call_many([("meet", f'{{"n": {n}}}') for n in range(3)])
    assert [result.content for result in results] == ["0", "1", "2"]
