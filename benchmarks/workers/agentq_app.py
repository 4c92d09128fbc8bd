"""agentq as it is measured: one agent with one tool, and a model that answers at once.

Everything is on that a run has by default: the lease, the fence, the ledger with limits in USD on the run
and its batch, the loop detector, the trace, the checks of a tool call. BENCH_URL names the server.
"""

from __future__ import annotations

import os

from filler import text

from agentq import AgentQ, tool
from agentq.provider.pricing import ModelPricing
from agentq.provider.types import ChatRequest, ChatResult, ToolCall, Usage

USAGE = Usage(input_tokens=500, output_tokens=100)


class BenchModel:
    """Asks for one call a step, and answers at the last of `metadata["steps"]`; it keeps nothing.

    Like a provider's client it has no bound of its own: the general worst case is reserved. With
    `metadata["says"]` it also says that many characters beside each call.
    """

    provider = "bench"
    model = "bench-v1"

    def complete(self, req: ChatRequest) -> ChatResult:
        # The thread is the task, then a reply and a result for each step.
        step = (len(req.messages) + 1) // 2
        if step >= req.metadata["steps"]:
            return ChatResult(text(step), USAGE, self.provider, self.model)
        call = ToolCall(f"call_{step}", "look_up", f'{{"page": {step}}}')
        says = text(step, req.metadata.get("says", 0))
        return ChatResult(
            says, USAGE, self.provider, self.model, finish_reason="tool_calls", tool_calls=(call,)
        )


@tool
def look_up(page: int) -> str:
    """Read one page."""
    return text(page + 1_000)


app = AgentQ(
    "bench",
    redis_url=os.environ["BENCH_URL"],
    broker_url=os.environ.get("BENCH_BROKER_URL"),
    pricing={"bench-v1": ModelPricing("bench-v1", "1", "10", 200_000)},
)
app.agent("reader", model=BenchModel(), tools=[look_up])
celery = app.celery
