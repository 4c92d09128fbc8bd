"""What is sent to the model, what that can cost at most, and what it did cost. All pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from agentq.agent.budgets import Need, Rung
from agentq.agent.thread import Thread
from agentq.agent.toolmessage import MIN_BYTES_PER_CALL
from agentq.agent.view import dropped
from agentq.core.lifecycle import StopReason
from agentq.core.money import NanoUSD
from agentq.provider.bounds import Anchor, call_bound, closing_bound, input_estimate
from agentq.provider.scripted import SUMMARY_OPERATION
from agentq.provider.types import ChatRequest, ChatResult, Message, Role, Usage

if TYPE_CHECKING:
    from agentq.agent.agent import Agent

ID_BYTES = 64
"""The longest id of a call in a thread. A tool message has it beside its content."""
RUNGS = 4
"""How many sizes a call has at most."""
# An admitted run has room for its closing turn whichever reason it will name to the model.
_LONGEST_REASON = max(StopReason, key=lambda reason: len(reason.value))


@dataclass(frozen=True, slots=True)
class StepLimits:
    """How many calls one step may make, and how many bytes the contents of its tool messages may have."""

    calls: int
    tool_bytes: int


def step_limits(agent: Agent) -> StepLimits:
    """The agent's limits. Without tools every call is a mistake: one short refusal is room enough."""
    if not agent.executor.registry.visible(agent.allowlist):
        return StepLimits(1, MIN_BYTES_PER_CALL)
    return StepLimits(agent.max_calls_per_step, agent.max_tool_bytes_per_step)


def model_request(agent: Agent, thread: Thread, metadata: Mapping[str, Any]) -> ChatRequest:
    """The next step's call, with the tools that the agent may use."""
    tools = [
        {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
        for spec in agent.executor.registry.visible(agent.allowlist)
    ]
    return ChatRequest(
        messages=tuple(thread.sent),
        system=agent.instructions or None,
        max_output_tokens=agent.max_output_tokens,
        tools=tuple(tools),
        json_schema=agent.json_schema,
        operation="agent",
        metadata=metadata,
        summarised=dropped(thread.messages, thread.summaries),
    )


def closing_messages(reason: StopReason) -> tuple[Message, ...]:
    """What tells the model that this is its last turn."""
    text = (
        f"You have reached the limit for this task ({reason.value}). Do not call any more tools. "
        "Answer with what you already have, and state explicitly what is still missing."
    )
    return (Message(Role.USER, text),)


def closing_request(
    agent: Agent, thread: Thread, reason: StopReason, metadata: Mapping[str, Any]
) -> ChatRequest:
    """The closing turn: the same conversation, the reason at its end, and no tools."""
    return _last_request(agent, thread, closing_messages(reason), "agent_closing", metadata)


def least_request(agent: Agent, thread: Thread) -> ChatRequest:
    """The call without which a run has no answer: its closing turn at the longest, or its only call."""
    if agent.one_call:
        return model_request(agent, thread, {})
    return closing_request(agent, thread, _LONGEST_REASON, {})


def repair_messages(problem: str) -> tuple[Message, ...]:
    """What tells the model that its answer does not have the form that was asked for."""
    text = (
        f"Your last reply is not the JSON object that was asked for: {problem}. "
        "Answer again, with the corrected JSON object and nothing else. Do not call any tools."
    )
    return (Message(Role.USER, text),)


def repair_request(agent: Agent, thread: Thread, problem: str, metadata: Mapping[str, Any]) -> ChatRequest:
    """The repair call: the same conversation, what is wrong with its last reply, and no tools."""
    return _last_request(agent, thread, repair_messages(problem), "agent_repair", metadata)


def _last_request(
    agent: Agent, thread: Thread, more: Sequence[Message], operation: str, metadata: Mapping[str, Any]
) -> ChatRequest:
    return ChatRequest(
        messages=(*thread.sent, *more),
        system=agent.instructions or None,
        max_output_tokens=agent.max_output_tokens,
        tools=(),
        tool_choice="none",
        json_schema=agent.json_schema,
        operation=operation,
        metadata=metadata,
        summarised=dropped(thread.messages, thread.summaries),
    )


def call_rungs(
    agent: Agent,
    thread: Thread,
    request: ChatRequest,
    metadata: Mapping[str, Any],
    *,
    most: int = RUNGS,
    anchored: bool = True,
) -> tuple[Rung, ...]:
    """The `most` largest of the one to four sizes of this step's call, the largest first.

    No two have the same need: a size that needs what a larger one needs is left out.

    A rung's escrow is the worst case of a closing turn right after the step, with the step's output and the
    closing turn's own both at this rung's cap. So a turn out of that escrow must be sent with that cap.

    Args:
        agent: whose client, prices and least output count.
        thread: the conversation as it is now.
        request: the call; its `max_output_tokens` is the largest rung's.
        metadata: the row's label, for the closing turn.
        most: how many sizes at most.
        anchored: the request begins with what was counted of the thread; a request for a summary does not.

    Raises:
        ValueError: when the request has no output cap.
    """
    if agent.one_call:
        return closing_rungs(agent, thread, request)
    calls = _call_bounds(agent, request, usable_anchor(agent, thread) if anchored else None, most)
    closing = closing_request(agent, thread, _LONGEST_REASON, metadata)
    if usable_anchor(agent, thread) is None and not _has_own_bound(agent):
        # The closing turn has no tools, but its bound will start from what is counted of this step.
        closing = replace(closing, tools=request.tools)
    closings = _closing_bounds(agent, thread, closing, tuple(calls))
    return tuple(
        Rung(
            cap,
            Need(
                _worst_usd(agent, call), call.total_tokens, _worst_usd(agent, closing), closing.total_tokens
            ),
        )
        for (cap, call), closing in zip(calls.items(), closings, strict=True)
    )


def closing_rungs(agent: Agent, thread: Thread, request: ChatRequest) -> tuple[Rung, ...]:
    """One to four sizes of a run's last call as it is sent now, the largest first; nothing follows it.

    Raises:
        ValueError: when the request has no output cap.
    """
    return tuple(
        Rung(cap, Need(_worst_usd(agent, usage), usage.total_tokens, 0, 0))
        for cap, usage in _call_bounds(agent, request, usable_anchor(agent, thread)).items()
    )


def expected_input(agent: Agent, thread: Thread, request: ChatRequest) -> int:
    """About how many tokens the model will read: what a rate limit is asked for before the call."""
    # A request for a summary does not begin with what was counted of the thread.
    counted = None if request.operation == SUMMARY_OPERATION else usable_anchor(agent, thread)
    return input_estimate(request, counted)


def capped(request: ChatRequest, output_tokens: int) -> ChatRequest:
    """The request with this output cap."""
    if output_tokens == request.max_output_tokens:
        return request
    return replace(request, max_output_tokens=output_tokens)


def reply_bill(
    agent: Agent, result: ChatResult, *, usd: int, tokens: int
) -> tuple[ChatResult, NanoUSD | None]:
    """The reply with a usage, and what it cost in nano-USD (None: no price is known).

    A reply that nobody counted is taken at the worst case, `usd` and `tokens`: unknown is never nothing.
    """
    if not is_counted(result):
        return replace(result, usage=Usage(input_tokens=tokens)), NanoUSD(usd)
    return result, reply_cost(agent, result)


def is_counted(result: ChatResult) -> bool:
    """Whether the provider has said what the call used. No call uses nothing: zeros say nothing, too."""
    usage: Usage | None = result.usage
    return usage is not None and usage.total_tokens > 0


def reply_cost(agent: Agent, result: ChatResult) -> NanoUSD | None:
    """What the reply cost in nano-USD, or None when no price is known for the model that gave it."""
    named = agent.price(result.model)
    prices = [] if named is None else [named]
    if named is None and result.model not in agent.models:
        # A provider may name a dated variant of what was asked for. With fallbacks it may be one of any of
        # them: the dearest is booked, because unknown is never nothing.
        prices = [price for model in agent.models if (price := agent.price(model)) is not None]
    if not prices:
        return None
    usage = result.usage
    cached = min(usage.cached_input_tokens, usage.input_tokens)
    written = min(usage.cache_write_tokens, usage.input_tokens - cached)
    counted = Usage(usage.input_tokens, usage.output_tokens, cached, cache_write_tokens=written)
    return max(price.cost_nano(counted) for price in prices)


def _call_bounds(
    agent: Agent, request: ChatRequest, anchor: Anchor | None, rungs: int = RUNGS
) -> dict[int, Usage]:
    """The bound of the request at each cap of the ladder, the largest first.

    A cap whose bound is that of a larger one is left out: the client takes no notice of it.
    """
    whole = call_bound(agent.client, request, anchor, policy=agent.token_bounds)
    most = request.max_output_tokens
    least = min(agent.min_output_tokens, most)
    bounds = {most: whole}
    caps = dict.fromkeys(max(most >> halvings, least) for halvings in range(rungs))
    for cap in list(caps)[1:]:
        if _has_own_bound(agent):
            usage = call_bound(agent.client, capped(request, cap), anchor, policy=agent.token_bounds)
        else:
            usage = replace(whole, output_tokens=cap)
        if usage not in bounds.values():
            bounds[cap] = usage
    return bounds


def _closing_bounds(agent: Agent, thread: Thread, closing: ChatRequest, caps: Sequence[int]) -> list[Usage]:
    """The bound of a closing turn after one more step, with the output of both at each of these caps."""
    limits = step_limits(agent)
    messages = 2 * limits.calls

    def at(cap: int) -> Usage:
        return closing_bound(
            agent.client,
            capped(closing, cap),
            usable_anchor(agent, thread),
            policy=agent.token_bounds,
            output_tokens=cap,
            tool_bytes=limits.tool_bytes + messages * ID_BYTES,
            tool_messages=messages,
        )

    if _has_own_bound(agent):
        return [at(cap) for cap in caps]
    # What the step writes is read once by the closing turn, token for token.
    whole = at(caps[0])
    return [
        replace(whole, input_tokens=whole.input_tokens - (caps[0] - cap), output_tokens=cap) for cap in caps
    ]


def _has_own_bound(agent: Agent) -> bool:
    """Whether the client must be asked at each cap. Of the general bound only the output terms change."""
    return getattr(agent.client, "bound", None) is not None


def _worst_usd(agent: Agent, usage: Usage) -> int:
    """The dearest price of any model that may answer; 0 when none is known."""
    prices = [price for model in agent.models if (price := agent.price(model)) is not None]
    return max((price.worst_nano(usage) for price in prices), default=0)


def usable_anchor(agent: Agent, thread: Thread) -> Anchor | None:
    """What the provider has counted of the thread; of use only where the same model will count the rest."""
    anchor = thread.anchor
    if anchor is None or len(agent.models) > 1 or anchor.tokenizer not in {0, agent.tokenizer}:
        return None
    return anchor
