"""Runs tool calls: through the gates, under a time limit, reads side by side, writes one by one."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, MutableMapping, Sequence

from agentq.core.failpoints import failpoint
from agentq.tools.context import CallContext
from agentq.tools.gates import Admitted, admit
from agentq.tools.idempotency import call_signature
from agentq.tools.journal import Journal, PlannedCall
from agentq.tools.registry import ToolRegistry
from agentq.tools.result import ToolResult
from agentq.tools.running import Running, clean, invocation, timed_out
from agentq.tools.spec import ToolSpec
from agentq.tools.threads import TooManyThreadsError

Cache = MutableMapping[str, str]
"""The good results of the calls of one run that act once, by signature."""

_SUSPENDED = ToolResult(ok=False, content="", suspended=True)


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
        return self.call_many([(name, arguments)], ctx, allowlist=allowlist, cache=cache)[0]

    def call_many(
        self,
        calls: Sequence[tuple[str, str] | PlannedCall],
        ctx: CallContext | None = None,
        *,
        allowlist: Sequence[str] | None = None,
        cache: Cache | None = None,
        journal: Journal | None = None,
    ) -> list[ToolResult]:
        """Make several calls, given as (name, arguments); the results are in the same order.

        Reads that follow each other run side by side. A call with a side effect waits for everything
        before it and runs alone. A call that waits for children is `suspended`, and so is each call that
        has to wait for it.

        Args:
            calls: what to call.
            ctx: for whom, and what is approved.
            allowlist: the only tools that may be used; None is all of them.
            cache: good results of this run; read, and written when a tool that acts once has acted.
            journal: side effects are noted in it before and after; what it raises is raised.
        """
        step = _StepCalls(self.registry, ctx or CallContext(), allowlist, cache, journal)
        for call in calls:
            step.add(call if isinstance(call, PlannedCall) else PlannedCall(*call))
        step.finish()
        return step.results


class _StepCalls:
    """The calls of one step, one after the other: `results` and then `reads` are those so far."""

    def __init__(
        self,
        registry: ToolRegistry,
        ctx: CallContext,
        allowlist: Sequence[str] | None,
        cache: Cache | None,
        journal: Journal | None,
    ) -> None:
        self.registry = registry
        self.ctx = ctx
        self.allowlist = allowlist
        self.cache = cache
        self.journal = journal
        self.results: list[ToolResult] = []
        self.reads: list[Running | ToolResult] = []
        self.unkept: dict[int, ToolResult] = {}  # results of reads that are not in the journal yet
        self.held = False

    def add(self, call: PlannedCall) -> None:
        """Make one more call, or start it."""
        spec = self.registry.get(call.name)
        acts = spec is not None and spec.side_effect
        if acts:
            self.finish()
        if self.held:
            self.reads.append(_SUSPENDED)
            return
        if self.journal is not None:
            self.journal.check()
        started = self._start(call)
        if not acts:
            self.reads.append(started)
            return
        self.results.append(self._ended(started))
        self.held = self.results[-1].suspended

    def finish(self) -> None:
        """Wait for the reads that run."""
        for running in self.reads:
            result = self._ended(running)
            self.unkept[len(self.results)] = result
            self.results.append(result)
            self.held = self.held or result.suspended
        self.reads = []

    def _start(self, planned: PlannedCall) -> Running | ToolResult:
        if planned.answer is not None:
            self._keep(planned)
            return planned.answer
        call = admit(
            self.registry,
            planned.name,
            planned.arguments,
            self.ctx,
            allowlist=self.allowlist,
            cache=self.cache,
            approved=planned.approved,
        )
        if isinstance(call, ToolResult):
            return call
        ctx = self.ctx
        if not ctx.idempotency_key and ctx.run_id:
            # What may act again in the run is told apart by its call.
            which = f":{planned.id}" if call.spec.repeatable and planned.id else ""
            ctx = dataclasses.replace(ctx, idempotency_key=f"{ctx.run_id}:{call.signature}{which}")
        if ctx.children is not None:
            ctx = dataclasses.replace(ctx, children=ctx.children.of(call.signature))
        known = self._begin(call)
        if known is not None:
            return known
        if call.spec.side_effect:
            failpoint("effect.after_begin")
        started = time.monotonic()
        running = Running(
            call,
            started,
            ctx.children,
            len(self.results),
            self.journal,
            shelf=ctx.shelf,
            name=planned.id or call.signature,
        )
        try:
            running.start(invocation(call, ctx))
        except TooManyThreadsError as error:
            refusal = ToolResult.failure("tool_error", f"The tool was not started: {error}.", retryable=True)
            running.note(refusal, late=False)
            return refusal
        return running

    def _keep(self, planned: PlannedCall) -> None:
        """What is known of a call that acts once answers equal ones too, as if it had just been made."""
        spec, answer = self.registry.get(planned.name), planned.answer
        if spec is None or answer is None or self.cache is None or not (spec.acts_once and answer.ok):
            return
        self.cache.setdefault(call_signature(planned.name, planned.arguments), answer.content)

    def _begin(self, call: Admitted) -> ToolResult | None:
        """Note that a side effect begins; what answers in its place, if it may not be made."""
        if self.journal is None or not call.spec.side_effect:
            return None
        answer = self.journal.begin(len(self.results), call.spec, call.signature, self.unkept)
        self.unkept = {}
        if answer is None:
            return None
        if answer.ok and self.cache is not None and call.spec.acts_once:
            self.cache.setdefault(call.signature, answer.content)
        return self._asked(call.spec, answer)

    def _asked(self, spec: ToolSpec, result: ToolResult) -> ToolResult:
        """The result, or that a person is to be asked for it."""
        unknown = result.error_code == "outcome_unknown"
        if unknown and self.journal is not None and self.journal.asks(spec):
            return dataclasses.replace(_SUSPENDED, asks=True)
        return result

    def _ended(self, running: Running | ToolResult) -> ToolResult:
        if isinstance(running, ToolResult):
            return clean(running, running.elapsed_ms)
        spec = running.call.spec
        result = running.wait()
        if result is None:
            return self._asked(spec, clean(timed_out(spec), running.elapsed_ms))
        if running.children is not None and running.children.suspended:
            running.note(_SUSPENDED, late=False)
            return _SUSPENDED  # whatever the tool has made of it
        if spec.side_effect:
            failpoint("effect.after_tool")
        running.note(result, late=False)
        if spec.side_effect:
            failpoint("effect.after_done")
        if result.ok and self.cache is not None and spec.acts_once:
            self.cache[running.call.signature] = result.content
        return result
