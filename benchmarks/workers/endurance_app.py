"""An agent whose steps act: on a file that takes every line, and on a service that takes each key once.

BENCH_FOLDER names the folder of their files, and of the provider's bill.
"""

import fcntl
import json
import os
import time
from pathlib import Path

from agentq import AgentQ, Budgets, CallContext, tool
from agentq.provider.pricing import ModelPricing
from agentq.provider.types import ChatResult, Role, ToolCall, Usage

PRICE = ModelPricing("endurance-1", "1", "10", 128_000)
FOLDER = Path(os.environ["BENCH_FOLDER"])
ANSWER_SECONDS = 0.1
"""How long a tool takes to answer when it has acted: who is killed meanwhile has acted and not said so."""


def append(name, line):
    """Add a line to a file, whole or not at all."""
    opened = os.open(FOLDER / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(opened, f"{line}\n".encode())
    finally:
        os.close(opened)


class Provider:
    """Bills, takes its time, and asks for two calls; it goes on whatever became of them."""

    provider, model = "test", "endurance-1"

    def complete(self, req):
        turn = sum(message.role is Role.ASSISTANT for message in req.messages)
        usage = Usage(400 + turn, 90)
        append("bill", PRICE.cost_nano(usage))
        time.sleep(req.metadata["seconds"])
        if req.tool_choice == "none" or turn == req.metadata["steps"] - 1:
            return ChatResult("done", usage, "test", "endurance-1")
        arguments = json.dumps({"row": req.metadata["row"], "turn": turn})
        calls = (ToolCall("", "act", arguments), ToolCall("", "act_once", arguments))
        return ChatResult("", usage, "test", "endurance-1", tool_calls=calls)


@tool(side_effect=True)
def act(row: int, turn: int) -> str:
    """Append a line, as often as this is called."""
    append("acts", f"{row} {turn}")
    time.sleep(ANSWER_SECONDS)
    return "appended"


@tool(side_effect=True, idempotent=True)
def act_once(ctx: CallContext, row: int, turn: int) -> str:
    """Append a line, once for each key."""
    with (FOLDER / "acts_once").open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if f"{ctx.idempotency_key}\n".encode() in file.read():
            return "appended before"
        file.write(f"{row} {turn} {ctx.idempotency_key}\n".encode())
    time.sleep(ANSWER_SECONDS)
    return "appended"


app = AgentQ("endurance", pricing={"endurance-1": PRICE})
celery = app.celery
app.agent(
    "worker",
    model=Provider(),
    tools=[act, act_once],
    budgets=Budgets(max_steps=100, max_tokens=None, max_usd="5", max_seconds=None),
)
