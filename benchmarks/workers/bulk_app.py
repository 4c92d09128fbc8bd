"""One call a run, by a model that takes its time. BENCH_URL names the server."""

from __future__ import annotations

import os
import time

from agentq import AgentQ, Budgets
from agentq.provider.pricing import ModelPricing
from agentq.provider.types import ChatRequest, ChatResult, Usage

USAGE = Usage(input_tokens=500, output_tokens=100)


class SlowModel:
    """Answers after `metadata["seconds"]`. Like a provider's client it has no bound of its own."""

    provider = "bench"
    model = "bench-v1"

    def complete(self, req: ChatRequest) -> ChatResult:
        time.sleep(float(req.metadata.get("seconds", 0)))
        return ChatResult("done", USAGE, self.provider, self.model)


app = AgentQ(
    "bulk",
    redis_url=os.environ["BENCH_URL"],
    pricing={"bench-v1": ModelPricing("bench-v1", "1", "10", 200_000)},
)
app.agent("one", model=SlowModel(), system="Classify the ticket.", budgets=Budgets(max_steps=2, max_usd="1"))
celery = app.celery
