"""Runs tool calls: through the gates, under a time limit, reads side by side, writes one by one."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from agentq.core.text import encodable
from agentq.tools.children import Children
from agentq.tools.context import CallContext
from agentq.tools.decorator import CONTEXT_FIELDS
from agentq.tools.gates import Admitted, admit
from agentq.tools.registry import ToolRegistry
from agentq.tools.result import ToolResult
from agentq.tools.spec import ToolSpec
from agentq.tools.threads import TOOL_THREADS, Task, TooManyThreadsError

Cache = MutableMapping[str, str]
"""The good results of the calls of one run that act once, by signature."""

_ERROR_CHARS = 500
_SUSPENDED = ToolResult(ok=False, content="", suspended=True)


@dataclass(frozen=True, slots=True)
class _Running:
    call: Admitted
    task: Task
    started: float
    children: Children | None = None


class ToolExecutor:
    """Makes the calls of a model. Each has exactly one result; no method raises at what a tool does."""

    def __init__(self, registry: ToolRegistry) -> None:
        self.registry = registry

    def check(
        self,
        name: str,
        arguments: str,
        ctx: CallContext | None = None,
        allowlist: Sequence[str] | None = None,
        cache: Mapping[str, str] | None = None,
    ) -> ToolResult | None:
        """What would refuse this call now, or None when it would be made or is answered by the cache."""
        found = admit(self.registry, name, arguments, ctx or CallContext(), allowlist=allowlist, cache=cache)
        return None if isinstance(found, Admitted) or found.cached else found

    def call(
        self,
        name: str,
        arguments: str,
        ctx: CallContext | None = None,
        *,
        allowlist: Sequence[str] | None = None,
        cache: Cache | None = None,
    ) -> ToolResult:
        """Make one call and wait for it.

        Args:
            name: the tool.
            arguments: its arguments as JSON text; empty means none.
            ctx: for whom, and what is approved.
            allowlist: the only tools that may be used; None is all of them.
            cache: good results of this run; read, and written when a tool that acts once has acted.
        """
        started = self._start(name, arguments, ctx or CallContext(), allowlist, cache)
        return self._finish(started, cache)

    def call_many(
        self,
        calls: Sequence[tuple[str, str]],
        ctx: CallContext | None = None,
        *,
        allowlist: Sequence[str] | None = None,
        cache: Cache | None = None,
    ) -> list[ToolResult]:
        """Make several calls, given as (name, arguments); the results are in the same order.

        Reads that follow each other run side by side. A call with a side effect waits for everything
        before it and runs alone. A call that waits for children is `suspended`, and so is each call that
        has to wait for it.
        """
        ctx = ctx or CallContext()
        results: list[ToolResult] = []
        reads: list[_Running | ToolResult] = []
        held = False
        for name, arguments in calls:
            spec = self.registry.get(name)
            if spec is not None and spec.side_effect:
                results += [self._finish(read, cache) for read in reads]
                reads = []
                held = held or any(result.suspended for result in results)
                if not held:
                    results.append(self.call(name, arguments, ctx, allowlist=allowlist, cache=cache))
                    held = results[-1].suspended
                    continue
            if held:
                results.append(_SUSPENDED)
            else:
                reads.append(self._start(name, arguments, ctx, allowlist, cache))
        return results + [self._finish(read, cache) for read in reads]

    def _start(
        self,
        name: str,
        arguments: str,
        ctx: CallContext,
        allowlist: Sequence[str] | None,
        cache: Cache | None,
    ) -> _Running | ToolResult:
        call = admit(self.registry, name, arguments, ctx, allowlist=allowlist, cache=cache)
        if isinstance(call, ToolResult):
            return call
        if not ctx.idempotency_key and ctx.run_id:
            ctx = dataclasses.replace(ctx, idempotency_key=f"{ctx.run_id}:{call.signature}")
        if ctx.children is not None:
            ctx = dataclasses.replace(ctx, children=ctx.children.of(call.signature))
        started = time.monotonic()
        try:
            task = TOOL_THREADS.start(_invocation(call, ctx))
        except TooManyThreadsError as error:
            return ToolResult.failure("tool_error", f"The tool was not started: {error}.", retryable=True)
        return _Running(call, task, started, ctx.children)

    def _finish(self, running: _Running | ToolResult, cache: Cache | None) -> ToolResult:
        if isinstance(running, ToolResult):
            return _clean(running, 0.0)
        spec = running.call.spec
        in_time = running.task.wait(running.started + spec.timeout_s - time.monotonic())
        elapsed_ms = (time.monotonic() - running.started) * 1000
        if not in_time:
            return _clean(_timed_out(spec), elapsed_ms)
        if running.children is not None and running.children.suspended:
            return _SUSPENDED  # whatever the tool has made of it
        try:
            value = running.task.result()
        except BaseException as error:  # noqa: BLE001 - a tool may raise anything
            return _clean(_failed(spec, error), elapsed_ms)
        result = _clean(ToolResult(True, _cut(_text(value), spec.max_result_chars), raw=value), elapsed_ms)
        if cache is not None and spec.acts_once:
            cache[running.call.signature] = result.content
        return result


def _invocation(call: Admitted, ctx: CallContext) -> Callable[[], Any]:
    """The function with its checked arguments and what the server fills in, ready for a thread."""
    spec = call.spec
    injected = {name: getattr(ctx, name) if name in CONTEXT_FIELDS else ctx for name in spec.context_params}

    def invoke() -> Any:
        if inspect.iscoroutinefunction(spec.fn):
            return asyncio.run(spec.fn(**call.arguments, **injected))
        return spec.fn(**call.arguments, **injected)

    return invoke


def _timed_out(spec: ToolSpec) -> ToolResult:
    if spec.side_effect:
        return ToolResult.failure(
            "outcome_unknown",
            f"No answer within {spec.timeout_s:g} s. It may have taken effect or not. "
            "Do not call it again before you have verified with another tool whether it did.",
        )
    return ToolResult.failure(
        "timeout",
        f"No answer within {spec.timeout_s:g} s. Ask for less, use another tool, or go on without it.",
        retryable=True,
    )


def _failed(spec: ToolSpec, error: BaseException) -> ToolResult:
    text = _cut(f"{type(error).__name__}: {error}", _ERROR_CHARS)
    advice = "Correct the arguments, use another tool, or go on without it."
    if spec.side_effect:
        advice = "It may have taken effect in part: verify that before you call it again."
    return ToolResult.failure("tool_error", f"The tool failed with {text}. {advice}")


def _clean(result: ToolResult, elapsed_ms: float) -> ToolResult:
    """The result with its time, in text that can be encoded: a lone surrogate cannot."""
    return dataclasses.replace(result, content=encodable(result.content), elapsed_ms=elapsed_ms)


def _cut(text: str, limit: int) -> str:
    omitted = len(text) - limit
    return text if omitted <= 0 else f"{text[:limit]}\n[cut: {omitted} more characters omitted]"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)
    except (TypeError, ValueError, RecursionError):
        # The tool has acted: what it returned must not turn that into an error.
        return str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return str(value)
