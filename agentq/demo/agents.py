"""The demo's app: one agent twice, with loop detection and without. Start it with `agentq demo`."""

from __future__ import annotations

from agentq import AgentQ
from agentq.agent import LoopDetector
from agentq.demo.orders import TOOLS
from agentq.provider.pricing import ModelPricing

SYSTEM = (
    "You work at the orders desk of a furniture shop. Answer from what the tools return, in one or two "
    "sentences. When something is not found, say so; never guess an order number."
)

PRICES = {
    "scripted-v1": ModelPricing(
        "scripted-v1", input_per_mtok="1", output_per_mtok="10", context_window=128_000
    ),
}

app = AgentQ("demo", pricing=PRICES)
app.agent("orders", model="scripted", system=SYSTEM, tools=TOOLS, loop_detector=LoopDetector())
app.agent("orders-no-detection", model="scripted", system=SYSTEM, tools=TOOLS, loop_detector=None)

celery = app.celery
