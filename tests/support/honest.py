"""A scripted model that counts what it reads, so that a conversation fills its window."""

from __future__ import annotations

from dataclasses import dataclass, replace

from agentq.provider.bounds import input_estimate
from agentq.provider.types import ChatRequest, ChatResult, Usage
from tests.support.harness import Moody

OUTPUT_TOKENS = 20


def tokens_of(req: ChatRequest) -> int:
    """What the model counts: a token for three bytes."""
    return input_estimate(req, bytes_per_token=3)


@dataclass
class Honest(Moody):
    """Uses a token for three bytes that it reads, and always as much for its reply."""

    def bound(self, req: ChatRequest) -> Usage:
        return Usage(tokens_of(req), req.max_output_tokens)

    def _play(self, req: ChatRequest) -> ChatResult:
        return replace(super()._play(req), usage=Usage(tokens_of(req), OUTPUT_TOKENS))
