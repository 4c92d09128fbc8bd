"""From what a provider reported to what the ledger books."""

from __future__ import annotations

from agentq.agent.agent import Agent
from agentq.agent.request import is_counted, reply_bill
from agentq.core.money import NanoUSD
from agentq.core.records import Granted, Settlement
from agentq.provider.types import ChatResult


def unpriced(agent: Agent) -> list[str]:
    """The models that may answer for this agent and have no price."""
    return [model for model in agent.models if agent.price(model) is None]


def settle(
    agent: Agent, result: ChatResult, granted: Granted
) -> tuple[ChatResult, NanoUSD | None, Settlement]:
    """The reply with a usage, what it cost (None: no price), and how its reservation closes."""
    # A provider that says nothing is taken at the worst case, and the books say that nobody counted.
    how = "settle" if is_counted(result) else "estimate"
    counted, cost = reply_bill(agent, result, usd=granted.usd, tokens=granted.tokens)
    used = counted.usage
    pace = f"{granted.lane} {granted.lane_tokens} {used.total_tokens} {used.output_tokens}"
    settlement = Settlement(
        granted.reservation, how, cost or 0, used.total_tokens, pace if granted.lane else ""
    )
    return counted, cost, settlement
