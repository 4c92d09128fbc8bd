"""An agent: configuration only, and the loop that carries out its decisions in one process."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal, get_args

from agentq.agent import loop
from agentq.agent.budgets import Budgets, Rung, first_fitting
from agentq.agent.context import summary_request
from agentq.agent.deadline import complete
from agentq.agent.loopdetect import LoopDetector
from agentq.agent.output import Output
from agentq.agent.request import (
    call_rungs,
    capped,
    closing_request,
    closing_rungs,
    model_request,
    repair_request,
    reply_bill,
)
from agentq.agent.shelf import ThreadShelf
from agentq.agent.thread import Thread, TraceEvent
from agentq.agent.toolmessage import MIN_BYTES_PER_CALL
from agentq.core.lifecycle import StopReason
from agentq.core.money import NanoUSD
from agentq.provider.bounds import TokenBounds
from agentq.provider.catalogue import catalogue_hash, price_of
from agentq.provider.client import LLMClient
from agentq.provider.pricing import ModelPricing, Pricing
from agentq.provider.types import ChatRequest, ChatResult
from agentq.tools import CallContext, PlannedCall, ToolExecutor, ToolSpec
from agentq.tools.spec import OnUnknown

OnAnswer = Literal["tell", "stop"]
OnChange = Literal["continue", "pin", "finish"]
OnOverflow = Literal["stop", "compact"]

_DEFINITION_DIGITS = 12
_BUDGETS = Budgets()
_DETECTOR = LoopDetector()
_LEAST_OUTPUT_TOKENS = 256
"""Less is seldom an answer or a whole tool call."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended. `ok` says whether the work is done; the thread has everything else.

    `output` is the answer as an instance of the agent's output model; None without one, or where the answer
    does not fit it.
    """

    thread: Thread
    stop_reason: StopReason
    answer: str
    output: Any = None

    @property
    def ok(self) -> bool:
        """Whether the run finished."""
        return self.stop_reason.is_success


class Agent:
    """A model, its tools and its limits. It holds no state of a run: many runs may share it at once.

    `loop_detector` gives the thresholds of distributed runs; in process the thread's own detector decides.
    `pricing` maps exact model ids to prices; without it money stays at zero. `min_output_tokens` is the least
    output that a step may be cut to when money is short; None: an eighth of `max_output_tokens`, but not
    under 256; equal to it: never cut. `max_tool_bytes_per_step` bounds all results of a step together,
    `closing_seconds` the time of the closing turn. `on_event` is called for each new trace event.

    `on_denied` and `on_expired`: a call that a person refuses, or that nobody decides on in time, is told to
    the model (`tell`) or ends the run (`stop`). `on_unknown`: of tools that do not say it themselves.
    `on_change`: what a worker does with a run that has met another definition of this agent: go on
    (`continue`), leave it to workers that have the old one (`pin`), or make its closing turn (`finish`). In
    one process these four change nothing.

    `output` is a pydantic model: a final answer must be JSON of it, and has one repair call to become that.
    `context_window` is how many tokens the model takes, input and output together; None: as its price says,
    and not checked where that does not. `on_overflow`: when the next call would be longer, end the run
    (`stop`), or have the oldest turns summed up (`compact`).

    `one_call` is for runs that are one call and no other: without a second step, and without a closing turn.

    Raises:
        ValueError: for a limit that leaves no room, or a word that is none of these.
        UsageError: for an output that is no pydantic model of an object.
    """

    def __init__(
        self,
        client: LLMClient,
        executor: ToolExecutor,
        *,
        system: str = "",
        budgets: Budgets = _BUDGETS,
        pricing: Pricing | None = None,
        allowlist: Sequence[str] | None = None,
        max_tool_errors: int = 4,
        max_output_tokens: int = 2048,
        on_event: Callable[[TraceEvent], None] | None = None,
        now: Callable[[], float] = time.monotonic,
        name: str = "agent",
        loop_detector: LoopDetector | None = _DETECTOR,
        max_calls_per_step: int = 16,
        max_tool_bytes_per_step: int = 16_000,
        closing_seconds: float = 30.0,
        min_output_tokens: int | None = None,
        on_exhausted: str | None = None,
        key: str | None = None,
        token_bounds: TokenBounds = "strict",  # noqa: S107 - of words, not of access
        on_denied: OnAnswer = "tell",
        on_expired: OnAnswer = "stop",
        on_unknown: OnUnknown = "tell",
        on_change: OnChange = "continue",
        output: Any = None,
        context_window: int | None = None,
        on_overflow: OnOverflow = "stop",
        one_call: bool = False,
    ) -> None:
        for limit in ("max_tool_errors", "max_output_tokens", "max_calls_per_step", "closing_seconds"):
            if locals()[limit] <= 0:
                raise ValueError(f"{limit} must be more than 0")
        if max_tool_bytes_per_step < MIN_BYTES_PER_CALL * max_calls_per_step:
            raise ValueError(
                f"max_tool_bytes_per_step={max_tool_bytes_per_step} is too little for {max_calls_per_step} "
                f"calls: allow {MIN_BYTES_PER_CALL} bytes for each, or lower max_calls_per_step"
            )
        self.client = client
        self.executor = executor
        self.system = system
        self.budgets = budgets
        self.pricing = pricing
        self.models: tuple[str, ...] = getattr(client, "models", (client.model,))
        self.allowlist = allowlist
        self.max_tool_errors = max_tool_errors
        self.max_output_tokens = max_output_tokens
        self.min_output_tokens = _least_output(min_output_tokens, max_output_tokens)
        self.on_event = on_event
        self.now = now
        self.name = name
        self.loop_detector = loop_detector
        self.max_calls_per_step = max_calls_per_step
        self.max_tool_bytes_per_step = max_tool_bytes_per_step
        self.closing_seconds = closing_seconds
        self.on_exhausted = on_exhausted
        self.key = key
        self.token_bounds = token_bounds
        self.on_denied: OnAnswer = _one_of("on_denied", on_denied, OnAnswer)
        self.on_expired: OnAnswer = _one_of("on_expired", on_expired, OnAnswer)
        self.on_unknown: OnUnknown = _one_of("on_unknown", on_unknown, OnUnknown)
        self.on_change: OnChange = _one_of("on_change", on_change, OnChange)
        self.output = None if output is None else Output(output)
        if context_window is not None and (isinstance(context_window, bool) or context_window <= 0):
            raise ValueError(f"context_window={context_window!r} must be a number of tokens, or None")
        self.context_window = context_window
        self.on_overflow: OnOverflow = _one_of("on_overflow", on_overflow, OnOverflow)
        self.one_call = one_call
        self._hashed: tuple[Any, str] | None = None
        # Tells its model from others: what another model has counted bounds nothing here.
        self.tokenizer = zlib.crc32(client.model.encode()) & 0xFFFF

    @property
    def window(self) -> int | None:
        """How many tokens a call may have: the least of its models, None where none is known."""
        if self.context_window is not None:
            return self.context_window
        prices = (self.price(model) for model in self.models)
        windows = [price.context_window for price in prices if price is not None and price.context_window]
        return min(windows, default=None)

    @property
    def json_schema(self) -> dict[str, Any] | None:
        """The schema that its answers must fit."""
        return None if self.output is None else self.output.schema

    @property
    def instructions(self) -> str:
        """What its model is told first: its own, and the schema where its provider does not know one."""
        if self.output is None or getattr(self.client, "native_schema", False):
            return self.system
        return "\n\n".join(filter(None, (self.system, self.output.instructions)))

    @cached_property
    def catalogue(self) -> str:
        """The hash of the prices by which its calls are reserved and booked; empty without prices."""
        prices = {model: self.price(model) for model in self.models}
        known = {model: price for model, price in prices.items() if price is not None}
        return catalogue_hash(known) if known else ""

    @property
    def known_definition(self) -> str:
        """`definition`, or empty where that is not known without asking a server for its tools."""
        return self.definition if self.executor.registry.is_known else ""

    @property
    def definition(self) -> str:
        """A hash of what the model is told and may do: model, instructions, tools, output cap and schema.

        Limits are not in it: a run has its own from the day it was submitted.

        Raises:
            UnavailableError: when a server of its tools cannot be reached, and never was.
        """
        # Kept as long as the parts are the same: the tools of a server may change.
        parts = (self.executor.registry.visible(self.allowlist), self.models, self.system)
        if self._hashed is None or self._hashed[0] != parts:
            self._hashed = (parts, self._hash_of(parts[0]))
        return self._hashed[1]

    def _hash_of(self, specs: Sequence[ToolSpec]) -> str:
        tools = [
            [
                spec.name,
                spec.description,
                spec.parameters,
                [spec.side_effect, spec.requires_approval, spec.idempotent, spec.repeatable],
            ]
            for spec in specs
        ]
        parts: list[Any] = [self.models, self.system, tools, self.max_output_tokens]
        parts += [] if self.output is None else [self.json_schema]
        text = json.dumps(parts, sort_keys=True, ensure_ascii=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:_DEFINITION_DIGITS]

    def price(self, model: str) -> ModelPricing | None:
        """The price of a model that answers for this agent, or None when none is known."""
        return price_of(self.pricing, model, self.client.provider) if self.pricing else None

    def run(self, thread: Thread, task: str | None = None, *, ctx: CallContext | None = None) -> RunResult:
        """Work on the thread until it is done, stopped, or waits for a person.

        A failing model ends the run with `model_error`; it does not raise. A call that was interrupted
        after its tool acted and before the caller saved the thread will act again when an older snapshot
        is resumed, unless the tool is idempotent.

        Args:
            thread: the state; it is changed in place and can be saved at any time between calls.
            task: what to do; None goes on with a thread that is not done.
            ctx: for whom the tools act, and the calls that a person has approved.

        Raises:
            ValueError: for a new thread without a task.
        """
        ctx = ctx or CallContext()
        if ctx.shelf is None:
            ctx = dataclasses.replace(ctx, shelf=ThreadShelf(thread))
        loop.begin(self, thread, task)
        before, started = thread.spend.seconds, self.now()
        while True:
            events = len(thread.trace)
            action = loop.next_action(self, thread, self.budgets, ctx.approved_calls)
            if isinstance(action, loop.End):
                return self._result(thread, action.reason)
            self._act(thread, action, ctx)
            thread.spend.seconds = before + self.now() - started
            self._announce(thread, events)

    def _result(self, thread: Thread, reason: StopReason) -> RunResult:
        known = self.output if loop.has_output(self, thread) else None
        return RunResult(thread, reason, thread.answer, known and known.read(thread.answer))

    def _act(self, thread: Thread, action: loop.Action, ctx: CallContext) -> None:
        match action:
            case loop.Wait(signatures):
                loop.wait(thread, signatures)
            case loop.Close(reason):
                self._close(thread, reason)
            case loop.CallModel():
                self._step(thread, ctx)
            case loop.Repair(problem):
                self._repair(thread, problem)
            case loop.Compact(start):
                self._compact(thread, start)
            case loop.Overflow(detail):
                loop.end(thread, StopReason.CONTEXT_OVERFLOW, detail, kind="context_overflow")
            case loop.RunTools(calls):
                planned = [PlannedCall(call.name, call.arguments, id=call.id) for call in calls]
                results = self.executor.call_many(
                    planned, ctx, allowlist=self.allowlist, cache=thread.tool_results
                )
                loop.apply_results(self, thread, calls, results)

    def _step(self, thread: Thread, ctx: CallContext) -> None:
        request = model_request(self, thread, {})
        made = self._call(thread, request, call_rungs(self, thread, request, {}))
        if made is not None:
            result, cost = made
            loop.apply_reply(self, thread, result, cost=cost, approved=ctx.approved_calls)

    def _repair(self, thread: Thread, problem: str) -> None:
        request = repair_request(self, thread, problem, {})
        made = self._call(thread, request, call_rungs(self, thread, request, {}))
        if made is not None:
            result, cost = made
            loop.apply_repair(self, thread, result, cost=cost)

    def _compact(self, thread: Thread, start: int) -> None:
        request = summary_request(self, thread, start, {})
        rungs = call_rungs(self, thread, request, {}, anchored=False)
        made = self._call(thread, request, rungs)
        if made is not None:
            result, cost = made
            loop.apply_summary(self, thread, start, result, cost=cost)

    def _call(
        self, thread: Thread, request: ChatRequest, rungs: Sequence[Rung]
    ) -> tuple[ChatResult, NanoUSD | None] | None:
        """Make one call: the reply and its cost, or None when there is none and the thread says why."""
        rung = first_fitting(self.budgets, thread.spend, rungs)
        if isinstance(rung, StopReason):
            thread.closing = rung
            return None
        try:
            result = self.client.complete(capped(request, rung.output_tokens))
        except Exception as error:  # noqa: BLE001 - whatever a client raises, the run must come back with its thread
            self._failed(thread, request, error)
            return None
        return reply_bill(self, result, usd=rung.need.usd, tokens=rung.need.tokens)

    def _failed(self, thread: Thread, request: ChatRequest, error: Exception) -> None:
        detail = _describe(error)
        if loop.refused_as_too_long(self, thread, request, error, detail):
            return
        reason = StopReason.CONTEXT_OVERFLOW if loop.is_overflow(error) else StopReason.MODEL_ERROR
        loop.end(thread, reason, detail, kind=reason.value)

    def _close(self, thread: Thread, reason: StopReason) -> None:
        if self.one_call:
            loop.end_without_closing(thread, reason)
            return
        request = closing_request(self, thread, reason, {})
        rung = first_fitting(self.budgets, thread.spend, closing_rungs(self, thread, request))
        if isinstance(rung, StopReason):
            loop.end(thread, reason, f"the closing turn does not fit: {rung.value}", kind="final_turn")
            return
        try:
            result = complete(self.client, capped(request, rung.output_tokens), self.closing_seconds)
        except Exception as error:  # noqa: BLE001 - the run ends for its own reason, only without an answer
            loop.end(thread, reason, _describe(error), kind="final_turn")
            return
        result, cost = reply_bill(self, result, usd=rung.need.usd, tokens=rung.need.tokens)
        loop.apply_closing(self, thread, reason, result, cost=cost)

    def _announce(self, thread: Thread, since: int) -> None:
        """Date the new events, and show them to who wants to see them."""
        for i in range(since, len(thread.trace)):
            event = dataclasses.replace(thread.trace[i], at=_utc_now())
            thread.trace[i] = event
            if self.on_event is not None:
                self.on_event(event)


def _least_output(least: int | None, most: int) -> int:
    if least is None:
        return min(most, max(most // 8, _LEAST_OUTPUT_TOKENS))
    if isinstance(least, bool) or not isinstance(least, int) or not 0 < least <= most:
        raise ValueError(
            f"min_output_tokens={least!r} must be a whole number from 1 to max_output_tokens={most}: "
            "lower it, or leave it out"
        )
    return least


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")  # noqa: TID251 - a label; nothing is decided by it


def _one_of(name: str, word: Any, words: Any) -> Any:
    if word not in get_args(words):
        raise ValueError(f"{name} is one of {', '.join(get_args(words))}, not {word!r}")
    return word
