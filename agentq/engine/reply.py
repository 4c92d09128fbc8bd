"""What a run keeps of the reply that became its answer, for whoever wants it in the form of its provider."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from agentq.agent.loop import CUT_OFF
from agentq.core.text import encodable

if TYPE_CHECKING:
    from agentq.core.records import RunSpec
    from agentq.provider.types import ChatResult

BODY_BYTES_MAX = 65_536
"""The longest body that is kept: a longer one (long answers with logprobs) is made again of the answer."""


def kept_of_reply(spec: RunSpec, result: ChatResult) -> dict[str, str]:
    """Fields of the run: which model answered, whether it was cut, and the body of a run of one call."""
    fields = {
        "model": encodable(result.model),
        "finish": "length" if result.finish_reason in CUT_OFF else "stop",
    }
    if "model" in spec.call and isinstance(result.raw, dict):
        body = encodable(json.dumps(result.raw, ensure_ascii=False, separators=(",", ":")))
        if len(body.encode()) <= BODY_BYTES_MAX:
            fields["body"] = body
    return fields
