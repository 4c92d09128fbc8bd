"""Your first agent. `agentq up -A agents:app` runs it; start that again after each change."""

import os

from agentq import AgentQ, Budgets, tool
from agentq.provider.pricing import ModelPricing

# The one line to change for another model, as "anthropic:claude-sonnet-4-5". "scripted" needs no key and
# costs nothing: it plays the script in a row's metadata, which a real model never sees.
MODEL = "openai:gpt-5-mini" if os.environ.get("OPENAI_API_KEY") else "scripted"

ORDERS = {"1001": "a walnut table, sent on Monday", "1002": "two oak chairs, still in the workshop"}


@tool
def get_order(order_id: str) -> str:
    """Fetch one order by its number. Read-only."""
    return ORDERS.get(order_id, f"there is no order {order_id}")


# What the scripted model would cost, in USD per million tokens: so that the budget has something to count.
app = AgentQ("shop", pricing={"scripted-v1": ModelPricing("scripted-v1", "1", "10", 128_000)})
app.agent(
    "orders",
    model=MODEL,
    system="You work at the orders desk of a shop. Answer in one sentence from what the tools return.",
    tools=[get_order],
    budgets=Budgets(max_steps=6, max_usd="0.10"),
)
