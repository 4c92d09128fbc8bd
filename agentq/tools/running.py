"""One call on its way: on a thread of its own, until its time is over, and its result for the model."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from agentq.core.text import encodable
from agentq.tools.children import Children
from agentq.tools.context import CallContext
from agentq.tools.decorator import CONTEXT_FIELDS
from agentq.tools.endings import NotStartedError, OutOfTimeError, ToolFailedError
from agentq.tools.gates import Admitted
from agentq.tools.journal import Journal
from agentq.tools.processes import KILL_SECONDS
from agentq.tools.result import Excerpt, ToolResult, cut, described, excerpt_of
from agentq.tools.shelf import Shelf, spilled
from agentq.tools.spec import ToolSpec
from agentq.tools.threads import TOOL_THREADS

log = logging.getLogger("agentq.tools")

_HAND_OVER_SECONDS = 5.0
"""A thread that has its result passes it on within less."""


class Running:
    """A call on its way, on a thread of its own until its time is over."""

    def __init__(
        self,
        call: Admitted,
        started: float,
        children: Children | None,
        position: int,
        journal: Journal | None,
        *,
        shelf: Shelf | None = None,
        name: str = "",
    ) -> None:
        self.call = call
        self._shelf = shelf
        self._name = name  # tells it from all other calls of the run
        self.children = children
        self._started = started
        self._position = position
        self._journal = journal if call.spec.side_effect else None
        self._guard = threading.Lock()
        self._returned = False
        self._abandoned = False
        self._killed = False

    @property
    def elapsed_ms(self) -> float:
        """Since it began."""
        return (time.monotonic() - self._started) * 1000

    def start(self, invoke: Callable[[], Any]) -> None:
        """Have a thread do it.

        Raises:
            TooManyThreadsError: when there is none.
        """
        self._task = TOOL_THREADS.start(lambda: self._run(invoke))

    def _run(self, invoke: Callable[[], Any]) -> ToolResult:
        spec = self.call.spec
        try:
            value = invoke()
        except OutOfTimeError:
            self._killed = True
            result = timed_out(spec)
        except NotStartedError as error:
            code = "timeout" if error.is_late else "tool_error"
            result = ToolResult.failure(code, f"The tool was not started: {error}.", retryable=True)
        except BaseException as error:  # noqa: BLE001 - a tool may raise anything
            result = _failed(spec, error)
        else:
            result = ToolResult(True, self._content(excerpt_of(value)), raw=value)
        result = clean(result, self.elapsed_ms)
        with self._guard:
            self._returned = True
            late = self._abandoned
        if late and not self._killed:
            # Nobody waits for it any more, but it is a fact.
            self.note(result, late=True)
        return result

    def _content(self, shown: Excerpt) -> str:
        spec, content = self.call.spec, None
        if spec.spill and self._shelf is not None and shown.chars > spec.max_result_chars:
            try:
                content = spilled(shown.text, shown.chars, spec.max_result_chars, self._shelf, self._name)
            except Exception:
                # The tool has acted: that its result cannot be kept must not turn that into an error.
                log.exception("result_not_kept tool=%s", spec.name)
        return cut(shown.text, spec.max_result_chars, chars=shown.chars) if content is None else content

    def wait(self) -> ToolResult | None:
        """Its result, or None when its time is over before there is one."""
        spec = self.call.spec
        # A process is killed before its call is over, and only its own thread knows when it is.
        seconds = spec.timeout_s + (KILL_SECONDS if spec.isolation == "process" else 0.0)
        self._task.wait(self._started + seconds - time.monotonic())
        with self._guard:
            if not self._returned:
                self._abandoned = True
                return None
        self._task.wait(_HAND_OVER_SECONDS)
        result: ToolResult = self._task.result()
        return None if self._killed else result

    def note(self, result: ToolResult, *, late: bool) -> None:
        """Tell the journal, if it is a side effect."""
        if self._journal is not None:
            self._journal.done(self._position, self.call.spec, self.call.signature, result, late=late)


def invocation(call: Admitted, ctx: CallContext) -> Callable[[], Any]:
    """The function with its checked arguments and what the server fills in, ready for a thread."""
    spec = call.spec
    injected = {name: getattr(ctx, name) if name in CONTEXT_FIELDS else ctx for name in spec.context_params}

    def invoke() -> Any:
        value = spec.fn(**call.arguments, **injected)
        return asyncio.run(_within(value, spec.timeout_s)) if inspect.iscoroutine(value) else value

    return invoke


async def _within(work: Coroutine[Any, Any, Any], seconds: float) -> Any:
    """What it returns. It is cancelled when its time is over; what it returns all the same is a late fact."""
    try:
        async with asyncio.timeout(seconds) as limit:
            return await work
    except TimeoutError as error:
        if limit.expired():
            raise OutOfTimeError from error
        raise  # its own


def outcome_unknown(spec: ToolSpec, why: str) -> ToolResult:
    """The result of a call with a side effect of which nobody knows whether it has acted."""
    advice = "Do not call it again before you have verified with another tool whether it did."
    if spec.idempotent:
        advice = "To call it again with the same arguments is safe: it does not act twice."
    return ToolResult.failure("outcome_unknown", f"{why} It may have taken effect or not. {advice}")


def timed_out(spec: ToolSpec) -> ToolResult:
    """The result of a call whose time is over."""
    if spec.side_effect:
        return outcome_unknown(spec, f"No answer within {spec.timeout_s:g} s.")
    return ToolResult.failure(
        "timeout",
        f"No answer within {spec.timeout_s:g} s. Ask for less, use another tool, or go on without it.",
        retryable=True,
    )


def _failed(spec: ToolSpec, error: BaseException) -> ToolResult:
    text = str(error) if isinstance(error, ToolFailedError) else described(error)
    advice = "Correct the arguments, use another tool, or go on without it."
    if spec.side_effect:
        advice = "It may have taken effect in part: verify that before you call it again."
    return ToolResult.failure("tool_error", f"The tool failed with {text}. {advice}")


def clean(result: ToolResult, elapsed_ms: float) -> ToolResult:
    """The result with its time, in text that can be encoded: a lone surrogate cannot."""
    return dataclasses.replace(result, content=encodable(result.content), elapsed_ms=elapsed_ms)
