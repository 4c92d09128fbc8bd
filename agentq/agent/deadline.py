"""A model call under a deadline of ours, whatever the client does about its own."""

from __future__ import annotations

from agentq.provider.client import LLMClient
from agentq.provider.errors import TransientError
from agentq.provider.types import ChatRequest, ChatResult
from agentq.tools.threads import TOOL_THREADS, TooManyThreadsError


def complete(client: LLMClient, request: ChatRequest, seconds: float | None) -> ChatResult:
    """The client's answer. With a deadline the call is made on a thread that is left alone when it is over.

    Raises:
        TransientError: when there is no answer within `seconds`; what the call costs is unknown then.
        Exception: whatever the client raises.
    """
    if seconds is None:
        return client.complete(request)
    try:
        task = TOOL_THREADS.start(lambda: client.complete(request))
    except TooManyThreadsError as error:
        raise TransientError(str(error), model=client.model, billed=False) from error
    if not task.wait(seconds):
        raise TransientError(f"no answer within {seconds:g} s", model=client.model)
    result: ChatResult = task.result()
    return result
