"""The model of a case: it plays a script, and its invoice is a file."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from agentq.provider.pricing import ModelPricing
from agentq.provider.scripted import ScriptedModel
from agentq.provider.types import ChatRequest, ChatResult
from agentq.testing.files import append
from agentq.testing.script import ANSWER

PRICE = ModelPricing("scripted-v1", input_per_mtok="1", output_per_mtok="10", context_window=128_000)


@dataclass
class BilledModel(ScriptedModel):
    """Bills each call before it answers, whoever lives to hear it. A run without a script answers at once."""

    bill: Path = field(default_factory=lambda: Path("bill"))
    pace: float = 0.0
    """Seconds from the bill to the answer."""

    def complete(self, req: ChatRequest) -> ChatResult:
        """The turn that this request is at.

        Raises:
            InvalidRequest: when the script is none; nothing is billed.
        """
        if req.metadata.get("script") is None:
            req = replace(req, metadata={"script": [ANSWER]})
        result = super().complete(req)
        append(self.bill, PRICE.cost_nano(result.usage))
        time.sleep(self.pace)
        return result
