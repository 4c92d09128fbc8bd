"""What is sent to the model, what that can cost at most, and what it did cost. All pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from agentq.agent.budgets import Need
from agentq.agent.thread import Thread
from agentq.agent.toolmessage import MIN_BYTES_PER_CALL
from agentq.core.lifecycle import StopReason
from agentq.core.money import NanoUSD
from agentq.provider.bounds import call_bound, closing_bound
from agentq.provider.pricing import ModelPricing
from agentq.provider.types import ChatRequest, ChatResult, Message, Role, Usage

if TYPE_CHECKING:
    from agentq.agent.agent import Agent

_LONGEST_REASON = max(StopReason, key=lambda reason: len(reason.value))


@dataclass(frozen=True, slots=True)
class StepLimits:
    """How many calls one step may make, and how many bytes all its tool messages may have."""

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
        messages=tuple(thread.messages),
        system=agent.system or None,
        max_output_tokens=agent.max_output_tokens,
        tools=tuple(tools),
        operation="agent",
        metadata=metadata,
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
    return ChatRequest(
        messages=(*thread.messages, *closing_messages(reason)),
        system=agent.system or None,
        max_output_tokens=agent.max_output_tokens,
        tools=(),
        tool_choice="none",
        operation="agent_closing",
        metadata=metadata,
    )


def call_need(agent: Agent, thread: Thread, request: ChatRequest, metadata: Mapping[str, Any]) -> Need:
    """The worst case of this step's call, and as escrow that of a closing turn right after the step.

    Args:
        agent: whose client and prices count.
        thread: the conversation as it is now.
        request: the call; its `max_output_tokens` is the output that is granted.
        metadata: the row's label, for the closing turn.

    Raises:
        ValueError: when the request has no output cap.
    """
    limits = step_limits(agent)
    call = call_bound(agent.client, request, thread.anchor)
    closing = closing_bound(
        agent.client,
        closing_request(agent, thread, _LONGEST_REASON, metadata),
        thread.anchor,
        output_tokens=request.max_output_tokens,
        tool_bytes=limits.tool_bytes,
        tool_messages=2 * limits.calls,
    )
    return Need(_worst_usd(agent, call), call.total_tokens, _worst_usd(agent, closing), closing.total_tokens)


def closing_need(agent: Agent, thread: Thread, request: ChatRequest) -> Need:
    """The worst case of the closing turn as it is sent now; nothing follows it.

    Raises:
        ValueError: when the request has no output cap.
    """
    usage = call_bound(agent.client, request, thread.anchor)
    return Need(_worst_usd(agent, usage), usage.total_tokens, 0, 0)


def reply_bill(
    agent: Agent, result: ChatResult, *, usd: int, tokens: int
) -> tuple[ChatResult, NanoUSD | None]:
    """The reply with a usage, and what it cost in nano-USD (None: no price is known).

    A reply without usage is taken at the worst case, `usd` and `tokens`: unknown is never taken for nothing.
    """
    usage: Usage | None = result.usage
    if usage is None:
        return replace(result, usage=Usage(input_tokens=tokens)), NanoUSD(usd)
    return result, reply_cost(agent, result)


def reply_cost(agent: Agent, result: ChatResult) -> NanoUSD | None:
    """What the reply cost in nano-USD, or None when no price is known for the model that gave it."""
    pricing = agent.pricing or {}
    price = pricing.get(result.model)
    # A provider may name a dated variant of what was asked for; with fallbacks it may be another model.
    if price is None and len(_models(agent)) == 1:
        price = pricing.get(agent.client.model)
    if price is None:
        return None
    cached = min(result.usage.cached_input_tokens, result.usage.input_tokens)
    return price.cost_nano(Usage(result.usage.input_tokens, result.usage.output_tokens, cached))


def _models(agent: Agent) -> tuple[str, ...]:
    models: tuple[str, ...] = getattr(agent.client, "models", (agent.client.model,))
    return models


def _worst_usd(agent: Agent, usage: Usage) -> int:
    """The dearest price of any model that may answer; 0 when none is known."""
    prices: list[ModelPricing] = [
        agent.pricing[model] for model in _models(agent) if agent.pricing and model in agent.pricing
    ]
    return max((price.worst_nano(usage) for price in prices), default=0)
