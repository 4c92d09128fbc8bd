"""A context that is too long, in the words of the official services."""

from __future__ import annotations

from agentq.testing.provider.refusal import Refusal, invalid
from agentq.testing.provider.request import Request


def overflow(request: Request, window: int) -> Refusal:
    """The refusal of a request that does not fit into so many tokens."""
    if request.dialect == "responses":
        return invalid(
            "Your input exceeds the context window of this model. Please adjust your input and try again.",
            param="input",
            code="context_length_exceeded",
        )
    used, cap = request.input_tokens, request.output_cap or 0
    if request.dialect == "messages":
        if used > window:
            return invalid(f"prompt is too long: {used} tokens > {window} maximum")
        return invalid(
            f"input length and `max_tokens` exceed context limit: {used} + {cap} > {window}, decrease "
            "input length "
            "or `max_tokens` and try again"
        )
    return invalid(
        f"This model's maximum context length is {window} tokens. However, you requested {used + cap} "
        "tokens "
        f"({used} in the messages, {cap} in the completion). Please reduce the length of the messages or "
        "completion.",
        param="messages",
        code="context_length_exceeded",
    )
