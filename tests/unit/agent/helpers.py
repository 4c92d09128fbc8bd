"""Agents and models for the tests of the loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentq.agent import Agent
from agentq.provider.client import LLMClient
from agentq.provider.types import ChatRequest, ChatResult, Role, ToolCall, Usage
from agentq.tools import ToolExecutor, ToolRegistry, tool


@tool
def look(key: str = "k") -> str:
    """Look something up."""
    return f"value of {key}"


@tool
def fail(key: str = "k") -> str:
    """Fail."""
    raise RuntimeError(key)


@tool(side_effect=True, requires_approval=True)
def cancel(order: str) -> str:
    """Cancel an order."""
    return f"cancelled {order}"


class Model:
    """Answers by a function of the request; uses what it is told, and knows no bound."""

    provider = "test"
    model = "model-1"

    def __init__(self, answer: Callable[[ChatRequest], ChatResult]) -> None:
        self.answer = answer
        self.requests: list[ChatRequest] = []

    def complete(self, req: ChatRequest) -> ChatResult:
        self.requests.append(req)
        return self.answer(req)


def reply(text: str = "", *calls: ToolCall, usage: Usage | None = None) -> ChatResult:
    return ChatResult(text, usage or Usage(500, 100), "test", "model-1", tool_calls=calls)


def turn(req: ChatRequest) -> int:
    return sum(message.role is Role.ASSISTANT for message in req.messages)


def agent(client: LLMClient, *tools: Callable[..., Any], **options: Any) -> Agent:
    return Agent(client, ToolExecutor(ToolRegistry(tools or (look, fail, cancel))), **options)
