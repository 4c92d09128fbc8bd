"""Agents that have one of everything that a crash could spoil. `python -m tests.chaos` plays them all."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from pydantic import BaseModel

from agentq import AgentQ, Budgets, CallContext, tool

WINDOW = 2_200
"""Of the reader: a call, which is billed at 600 tokens, and what it reads do not fit; what it reads does."""


@tool
def look(order_id: int) -> dict[str, Any]:
    """Look at an order. Read-only."""
    return {"order_id": order_id, "status": "processing"}


@tool
def look_again(order_id: int) -> dict[str, Any]:
    """Look at an order's history, which cannot be had. Read-only."""
    raise LookupError(f"no history of {order_id}")


@tool
def read(order_id: int) -> str:
    """Read all that was written about an order: too much for the window of its reader. Read-only."""
    return f"order {order_id}: " + "word " * 900


@tool(side_effect=True)
def note(order_id: int, text: str) -> dict[str, Any]:
    """Add a note to an order. Changes data."""
    return {"order_id": order_id, "noted": text}


@tool(side_effect=True, idempotent=True)
def refund(ctx: CallContext, order_id: int, cents: int) -> dict[str, Any]:
    """Refund some of an order, once for each key. Changes data."""
    return {"order_id": order_id, "cents": cents, "key": ctx.idempotency_key}


@tool(side_effect=True, repeatable=True)
async def remind(order_id: int) -> dict[str, Any]:
    """Send a reminder, each time that it is asked for. Changes data."""
    await asyncio.sleep(0)
    return {"order_id": order_id, "reminded": True}


@tool(side_effect=True)
def reroute(order_id: int, city: str) -> dict[str, Any]:
    """Send an order elsewhere, which the carrier refuses. Changes data."""
    raise PermissionError(f"the carrier does not send {order_id} to {city}")


@tool(side_effect=True, timeout_s=0.2)
def recall(order_id: int) -> dict[str, Any]:
    """Call an order back; the carrier answers too late. Changes data."""
    time.sleep(0.4)
    return {"order_id": order_id, "recalled": True}


@tool(side_effect=True, requires_approval=True)
def cancel(order_id: int) -> dict[str, Any]:
    """Cancel an order. Changes data, so a person is asked first."""
    return {"order_id": order_id, "cancelled": True}


@tool(side_effect=True, requires_approval=True, on_unknown="ask")
def destroy(order_id: int) -> dict[str, Any]:
    """Have an order destroyed. A person is asked before, and again when nobody knows whether it was done."""
    return {"order_id": order_id, "destroyed": True}


@tool
def delegate(ctx: CallContext, orders: int) -> list[str]:
    """Have each of so many orders looked after by an agent of its own, and wait for them."""
    ids = [ctx.spawn("clerk", f"order {number}", custom_id=f"o{number}") for number in range(orders)]
    return [child.answer for child in ctx.gather(ids)]


class Report(BaseModel):
    """What an answer must be."""

    done: bool
    orders: list[int]


NOTE = ["note", '{"order_id": 1, "text": "call back"}']
REMIND = ["remind", '{"order_id": 1}']
LOOK = ["look", '{"order_id": 1}']
SCRIPTS: dict[str, list[Any]] = {
    "writer": [
        [LOOK, NOTE, REMIND, REMIND, ["refund", '{"order_id": 1, "cents": 5}']],
        [NOTE, ["reroute", '{"order_id": 1, "city": "Ulm"}'], ["recall", '{"order_id": 1}']],
        "All is done.",
    ],
    "asker": [
        [LOOK, NOTE, ["cancel", '{"order_id": 2}'], ["destroy", '{"order_id": 3}']],
        "It was cancelled.",
    ],
    "stopped": [[LOOK, ["look_again", '{"order_id": 1}']], [NOTE], [REMIND], "Never said."],
    "reporter": [[LOOK], "All is done.", '{"done": true, "orders": [1]}'],
    "reader": [[NOTE], [["read", '{"order_id": 1}']], [REMIND], "All is read."],
    "parent": [[NOTE, ["delegate", '{"orders": 2}']], "Both are looked after."],
}
"""What the model of each agent does."""

app = AgentQ("chaos")
app.agent("writer", model="scripted", tools=[look, note, remind, refund, reroute, recall])
app.agent("asker", model="scripted", tools=[look, note, cancel, destroy])
app.agent("stopped", model="scripted", tools=[look, look_again, note, remind], budgets=Budgets(max_steps=2))
app.agent("parent", model="scripted", tools=[note, delegate])
app.agent("reporter", model="scripted", tools=[look], output=Report)
app.agent(
    "reader",
    model="scripted",
    tools=[note, read, remind],
    max_output_tokens=100,
    context_window=WINDOW,
    on_overflow="compact",
)
app.agent("clerk", model="scripted")
