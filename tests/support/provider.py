"""What tests of the adapters share: an agent with tools on a model, and a transport that plays answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx

from agentq.agent import Agent, Budgets
from agentq.agent.agent import RunResult
from agentq.agent.thread import Thread
from agentq.provider.client import LLMClient
from agentq.tools import CallContext, ToolExecutor, ToolRegistry, tool

KEY = "sk-test-0123456789abcdef"
CTX = CallContext(user_id="u1", tenant_id="t1")


@tool
def forecast(city: str, days: int = 1) -> str:
    """Tell the weather of a city."""
    return f"{city}, {days} days: rain"


@tool
def today() -> str:
    """Tell which day it is."""
    return "Tuesday"


TOOLS = (forecast, today)


def agent(model: LLMClient, *, steps: int = 12, tools: Sequence[Any] = TOOLS, **options: Any) -> Agent:
    """An agent in this process, with two tools that only read."""
    return Agent(
        model,
        ToolExecutor(ToolRegistry(list(tools))),
        budgets=Budgets(max_steps=steps),
        system="Be brief.",
        **options,
    )


def run(model: LLMClient, task: str = "Where does it rain?", **options: Any) -> RunResult:
    """One task, to its end."""
    return agent(model, **options).run(Thread(), task, ctx=CTX)


class Played(httpx.MockTransport):
    """Plays answers in order, the last one again and again, and keeps the bodies of the requests."""

    def __init__(self, *answers: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.requests: list[httpx.Request] = []
        self._answers = answers

        def play(request: httpx.Request) -> httpx.Response:
            self.requests.append(request)
            self.bodies.append(json.loads(request.content))
            answer = self._answers[min(len(self.bodies), len(self._answers)) - 1]
            if isinstance(answer, httpx.Response):
                return answer
            # As ASCII: half of a character, too, can be in an answer.
            content = json.dumps(answer).encode()
            return httpx.Response(
                status, content=content, headers={"content-type": "application/json", **(headers or {})}
            )

        super().__init__(play)

    @property
    def body(self) -> dict[str, Any]:
        """The last request's."""
        return self.bodies[-1]
