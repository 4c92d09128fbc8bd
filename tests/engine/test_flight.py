"""What a step notes of its money, for whoever has to cut it: right at each point at which that may happen."""

from __future__ import annotations

import pytest

from agentq.agent import Budgets
from agentq.engine import acting, closing
from agentq.engine import step as steps
from agentq.engine.leases import Leases
from agentq.engine.step import execute_step
from agentq.provider.scripted import ScriptedClient
from agentq.provider.types import ChatRequest, ChatResult
from agentq.tools import tool
from tests.support.harness import Rig

Noted = list[tuple[str, str, str]]


class Watched(ScriptedClient):
    """Looks at the leases of its process in the middle of each call."""

    noted: Noted
    leases: Leases

    def complete(self, req: ChatRequest) -> ChatResult:
        note(self.noted, self.leases, "in the call")
        return super().complete(req)


def note(noted: Noted, leases: Leases, point: str) -> None:
    """What the one lease that is held says: the point, what the step is in, how its reservation closes."""
    for hold in leases.held():
        noted.append((point, hold.doing, hold.flight.how if hold.flight else ""))


@tool
def look() -> str:
    """Look."""
    return "seen"


def noted_in(rig: Rig, monkeypatch: pytest.MonkeyPatch, *, budgets: Budgets, executions: int) -> Noted:
    client = Watched([[("look", "{}")], "done"])
    bench = rig.bench
    client.noted, client.leases = [], bench.leases
    for module in (steps, acting, closing):
        monkeypatch.setattr(module, "failpoint", lambda point: note(client.noted, bench.leases, point))
    rig.agent(client, look)
    rig.submit(budgets=budgets)
    for _ in range(executions):
        execute_step(*rig.queue.pop(0), bench=bench)
    return client.noted


def test_a_step_s_reservation_is_released_before_its_call_and_in_full_during_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    assert noted_in(rig, monkeypatch, budgets=Budgets(), executions=1) == [
        ("step.after_reserve", "start", "release"),
        ("in the call", "its model call", "forfeit"),
        ("step.after_model", "its model call", "settle"),
        ("step.after_model_commit", "its model call", "settle"),
        ("step.after_tools", "its tools", ""),
        ("step.after_commit", "its tools", ""),
    ]


def test_the_escrow_is_given_back_to_itself_until_the_closing_turn_is_sent(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    noted = noted_in(rig, monkeypatch, budgets=Budgets(max_steps=1), executions=2)
    assert noted[noted.index(("step.after_convert", "start", "restore")) :] == [
        ("step.after_convert", "start", "restore"),
        ("in the call", "its model call", "forfeit"),
        ("step.after_closing", "its model call", "settle"),
    ]
