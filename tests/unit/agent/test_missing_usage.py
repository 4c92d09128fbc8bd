from typing import Any

from agentq.agent import Agent, Budgets, ScriptedClient, Thread
from agentq.provider.pricing import ModelPricing
from agentq.provider.types import ChatRequest, ChatResult
from agentq.tools import ToolExecutor, ToolRegistry

PRICING = {"scripted-v1": ModelPricing("scripted-v1", "1", "10", 128_000)}


class Silent(ScriptedClient):
    """Answers without saying what it used, and without a text."""

    def complete(self, req: ChatRequest) -> ChatResult:
        nothing: Any = None
        return ChatResult(nothing, nothing, "scripted", "scripted-v1")


def test_a_reply_without_usage_is_booked_at_the_worst_case():
    agent = Agent(Silent(["x"]), ToolExecutor(ToolRegistry()), pricing=PRICING, budgets=Budgets(max_usd="1"))
    run = agent.run(Thread(), "hello")
    assert run.ok
    assert run.answer == ""
    assert run.thread.spend.tokens == 600
    assert str(run.thread.spend.usd) == "0.0015"
