"""An agent whose provider writes each bill into a file before it answers. BENCH_BILL names the file."""

import json
import os
import time

from agentq import AgentQ, Budgets, tool
from agentq.provider.pricing import ModelPricing
from agentq.provider.types import ChatResult, Role, ToolCall, Usage

PRICE = ModelPricing("soak-1", "1", "10", 128_000)


class Provider:
    """Takes its time; a run is `steps` calls long."""

    provider, model = "test", "soak-1"

    def complete(self, req):
        turn = sum(message.role is Role.ASSISTANT for message in req.messages)
        usage = Usage(400 + turn, 90)
        opened = os.open(os.environ["BENCH_BILL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(opened, f"{PRICE.cost_nano(usage)}\n".encode())
        os.close(opened)
        time.sleep(0.4)
        if req.tool_choice == "none" or turn == req.metadata["steps"] - 1:
            return ChatResult("done", usage, "test", "soak-1")
        calls = (ToolCall("", "look", json.dumps({"turn": turn})),)
        return ChatResult("", usage, "test", "soak-1", tool_calls=calls)


@tool
def look(turn: int) -> str:
    """Look."""
    return f"seen {turn}"


app = AgentQ("soak", pricing={"soak-1": PRICE})
celery = app.celery
app.agent(
    "worker",
    model=Provider(),
    tools=[look],
    budgets=Budgets(max_steps=100, max_tokens=None, max_usd="5", max_seconds=None),
)
