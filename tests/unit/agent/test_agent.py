"""Whole runs in one process."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal

import pytest

from agentq.agent import Agent, Budgets, LoopDetector, ScriptedClient, StopReason, Thread, TraceEvent
from agentq.agent.thread import pending_calls
from agentq.provider.errors import TransientError
from agentq.provider.pricing import ModelPricing
from agentq.provider.types import ChatRequest, ChatResult, Role, ToolCall, Usage
from agentq.tools import CallContext, call_signature, tool
from tests.unit.agent.helpers import Model, agent, look, reply, turn

PRICES = {"scripted-v1": ModelPricing("scripted-v1", "1", "5", 100_000)}
CALL_USD = Decimal("0.001")  # 500 input and 100 output tokens


def looking(times: int = 99) -> list[object]:
    return [[("look", f'{{"key":"{n}"}}')] for n in range(times)]


def scripted(*script: object) -> ScriptedClient:
    return ScriptedClient(script)  # type: ignore[arg-type]


class Clock:
    """Each look at the clock takes a second."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        self.time += 1.0
        return self.time


def test_a_run_looks_and_answers() -> None:
    """The model sees the result, the caller the answer."""
    client = scripted([("look", '{"key":"a"}')], "it is a")
    result = agent(client).run(Thread(), "what is a?")
    assert (result.ok, result.stop_reason, result.answer) == (True, StopReason.FINISHED, "it is a")
    assert "value of a" in client.requests[1].messages[-1].content
    assert client.requests[1].messages[-1].tool_call_id == client.requests[1].messages[-2].tool_calls[0].id


@pytest.mark.parametrize("ceiling", [1200, 1799, 1800, 2399, 5000])
def test_the_closing_turn_is_inside_the_token_ceiling(ceiling: int) -> None:
    """Whatever the ceiling, never a token over it; and the last call is the tool-free one."""
    client = scripted(*looking())
    run = agent(client, budgets=Budgets(max_tokens=ceiling, max_steps=None)).run(Thread(), "go")
    assert run.stop_reason is StopReason.TOKEN_BUDGET
    assert run.thread.spend.tokens == ceiling // 600 * 600
    assert [request.tool_choice for request in client.requests][-2:] == [None, "none"]


@pytest.mark.parametrize("calls", [2, 3, 7])
def test_the_closing_turn_is_inside_the_money_ceiling(calls: int) -> None:
    """To the nano-USD: exactly as many calls as can be paid, the last of them the closing turn."""
    client = scripted(*looking())
    budgets = Budgets(max_usd=calls * CALL_USD + Decimal("0.000999999"))
    run = agent(client, budgets=budgets, pricing=PRICES).run(Thread(), "go")
    assert run.stop_reason is StopReason.COST_BUDGET
    assert run.thread.spend.usd == calls * CALL_USD
    assert client.requests[-1].tool_choice == "none"


@pytest.mark.parametrize(
    "budgets, reason",
    [
        (Budgets(max_tokens=599), StopReason.TOKEN_BUDGET),
        (Budgets(max_usd="0.000999999"), StopReason.COST_BUDGET),
    ],
)
def test_if_not_even_the_closing_turn_fits_no_call_is_made(budgets: Budgets, reason: StopReason) -> None:
    """The run ends with that budget's reason, nothing spent, and says why."""
    client = scripted("x")
    run = agent(client, budgets=budgets, pricing=PRICES).run(Thread(), "go")
    assert (run.stop_reason, run.answer, client.call_count) == (reason, "", 0)
    assert (run.thread.spend.tokens, run.thread.spend.usd) == (0, Decimal(0))
    assert "does not fit" in run.thread.trace[-1].detail


def test_a_model_that_fills_its_context_stays_inside_the_ceiling() -> None:
    """Without a bound of its own: one token for each byte, long results, the general bound."""

    @tool
    def big(n: int) -> str:
        """Return much."""
        return "é" * 1000

    def answer(req: ChatRequest) -> ChatResult:
        size = sum(len(message.content.encode()) for message in req.messages) + 300
        calls = () if req.tool_choice == "none" else (ToolCall("", "big", f'{{"n":{turn(req)}}}'),)
        return reply("so far" if not calls else "", *calls, usage=Usage(size, 64))

    client = Model(answer)
    budgets = Budgets(max_tokens=60_000, max_steps=None)
    run = agent(
        client, big, budgets=budgets, max_output_tokens=64, max_calls_per_step=4, max_tool_bytes_per_step=3200
    )
    result = run.run(Thread(), "go")
    assert result.stop_reason is StopReason.TOKEN_BUDGET
    assert result.answer == "so far"
    assert result.thread.spend.tokens <= 60_000
    assert result.thread.spend.steps > 3


def test_the_step_budget_counts_steps_and_then_closes() -> None:
    """Two steps, and one turn without tools."""
    client = scripted(*looking(2), "what I have")
    run = agent(client, budgets=Budgets(max_steps=2)).run(Thread(), "go")
    assert (run.stop_reason, run.answer, client.call_count) == (StopReason.STEP_BUDGET, "what I have", 3)
    assert "step_budget" in client.requests[-1].messages[-1].content
    assert run.thread.trace[-1].ok


def test_a_provider_that_ignores_the_ban_on_tools_is_not_taken_for_an_answer() -> None:
    """The trace says so, the run keeps its reason, the conversation stays valid."""
    run = agent(scripted(*looking()), budgets=Budgets(max_steps=1)).run(Thread(), "go")
    assert (run.stop_reason, run.answer) == (StopReason.STEP_BUDGET, "")
    assert (run.thread.trace[-1].kind, run.thread.trace[-1].ok) == ("final_turn", False)
    assert pending_calls(run.thread) == []


def test_the_time_budget_survives_a_resume() -> None:
    """The seconds of all parts of a run count, the pause between them does not."""
    thread = Thread()
    script = [[("cancel", '{"order":"1"}')], *looking()]
    budgets = Budgets(max_seconds=10.0, max_steps=None)
    first = agent(scripted(*script), budgets=budgets, now=Clock()).run(thread, "go")
    assert first.stop_reason is StopReason.NEEDS_APPROVAL
    spent = thread.spend.seconds
    assert spent > 0
    resumed = Thread.from_json(thread.to_json())
    ctx = CallContext(approved_calls=frozenset(resumed.pending_approvals))
    run = agent(scripted(*script), budgets=budgets, now=Clock()).run(resumed, ctx=ctx)
    assert run.stop_reason is StopReason.TIME_BUDGET
    assert resumed.spend.seconds >= 10.0
    fresh = agent(scripted(*script[1:]), budgets=budgets, now=Clock()).run(Thread(), "go")
    assert resumed.spend.steps < fresh.thread.spend.steps + 1


def test_a_failing_model_ends_the_run_with_its_text_and_can_be_resumed() -> None:
    """Nothing is raised, nothing is lost."""
    broken = True

    def answer(req: ChatRequest) -> ChatResult:
        if broken:
            raise TransientError("overloaded", provider="test")
        return reply("done")

    thread = Thread()
    failing = agent(Model(answer))
    run = failing.run(thread, "go")
    assert (run.ok, run.stop_reason) == (False, StopReason.MODEL_ERROR)
    assert (thread.trace[-1].kind, thread.trace[-1].detail) == (
        "model_error",
        "TransientError: test: overloaded",
    )
    broken = False
    assert failing.run(Thread.from_json(thread.to_json())).answer == "done"


def test_a_failing_closing_turn_keeps_the_reason_of_the_stop() -> None:
    """The run was stopped by its budget, not by the model."""

    def answer(req: ChatRequest) -> ChatResult:
        if req.tool_choice == "none":
            raise RuntimeError("gone")
        return reply("", ToolCall("", "look", "{}"))

    run = agent(Model(answer), budgets=Budgets(max_steps=1)).run(Thread(), "go")
    assert run.stop_reason is StopReason.STEP_BUDGET
    assert (run.thread.trace[-1].detail, run.thread.trace[-1].ok) == ("RuntimeError: gone", False)


def test_a_stuck_run_is_stopped_and_the_thresholds_survive_json() -> None:
    """The thread's own detector decides, also after a resume."""
    thread = Thread()
    thread.detector = LoopDetector(warn_at=2, stop_at=4)
    stuck = [[("look", "{}")], [("look", "{}")], [("cancel", '{"order":"1"}')], [("look", "{}")]]
    run = agent(scripted(*stuck)).run(thread, "go")
    assert run.stop_reason is StopReason.NEEDS_APPROVAL
    resumed = Thread.from_json(thread.to_json())
    ctx = CallContext(approved_calls=frozenset(resumed.pending_approvals))
    run = agent(scripted(*stuck)).run(resumed, ctx=ctx)
    assert run.stop_reason is StopReason.LOOP_DETECTED
    looks = [event for event in resumed.trace if event.detail == "look:ok"]
    assert len(looks) == 4


def test_several_approvals_of_one_step_and_the_order_of_its_writes() -> None:
    """Nothing runs before the last is decided; then all run in order and the model is not asked again."""
    done: list[str] = []

    @tool(side_effect=True, requires_approval=True)
    def move(to: str) -> str:
        """Move."""
        done.append(to)
        return f"moved to {to}"

    @tool(side_effect=True)
    def log(text: str) -> str:
        """Log."""
        done.append(text)
        return "logged"

    calls = [
        ("log", '{"text":"begin"}'),
        ("move", '{"to":"a"}'),
        ("log", '{"text":"mid"}'),
        ("move", '{"to":"b"}'),
    ]
    client = scripted(calls, "moved")
    mover = agent(client, move, log)
    thread = Thread()
    first, second = call_signature("move", {"to": "a"}), call_signature("move", {"to": "b"})
    assert mover.run(thread, "go").stop_reason is StopReason.NEEDS_APPROVAL
    assert (thread.pending_approvals, done) == ([first, second], [])
    half = mover.run(thread, ctx=CallContext(approved_calls=frozenset({first})))
    assert half.stop_reason is StopReason.NEEDS_APPROVAL
    assert (thread.pending_approval, done, client.call_count) == (second, [], 1)
    run = mover.run(thread, ctx=CallContext(approved_calls=frozenset({first, second})))
    assert (run.stop_reason, run.answer, client.call_count) == (StopReason.FINISHED, "moved", 2)
    assert done == ["begin", "a", "mid", "b"]
    ids = [call.id for call in client.requests[1].messages[1].tool_calls]
    assert [message.tool_call_id for message in client.requests[1].messages[2:]] == ids


def test_a_resumed_run_does_not_act_twice() -> None:
    """A replayed side effect gets the stored result, marked as such."""
    done: list[int] = []

    @tool(side_effect=True)
    def charge(amount: int) -> str:
        """Charge."""
        done.append(amount)
        return f"charged {amount}"

    script = [[("charge", '{"amount":5}')], [("charge", '{"amount": 5}')], "ok"]
    thread = Thread()
    assert agent(scripted(*script), charge).run(thread, "go").ok
    assert done == [5]
    assert '"cached": true' in thread.messages[-2].content
    assert thread.tool_results == {call_signature("charge", {"amount": 5}): "charged 5"}


def test_events_are_dated_and_shown_as_they_happen() -> None:
    """Each event of the trace once, in order."""
    seen: list[TraceEvent] = []
    run = agent(scripted([("look", "{}")], "ok"), on_event=seen.append).run(Thread(), "go")
    assert seen == run.thread.trace
    assert [event.kind for event in seen] == ["step", "tool_result", "step", "finished"]
    assert all(event.at.endswith("+00:00") for event in seen)


def test_an_unpriced_call_spends_nothing_and_is_counted() -> None:
    """The budget never fires, visibly."""
    run = agent(scripted("ok"), budgets=Budgets(max_usd="0.000000001")).run(Thread(), "go")
    assert run.ok
    assert (run.thread.spend.usd, run.thread.unpriced_calls) == (Decimal(0), 1)


def test_an_ended_run_stays_ended_until_a_new_task() -> None:
    """Running it again changes nothing; a task goes on in the same conversation."""
    client = scripted("first", "second")
    chatty = agent(client)
    thread = Thread()
    chatty.run(thread, "one")
    before = thread.to_json()
    assert chatty.run(thread).answer == "first"
    assert (thread.to_json(), client.call_count) == (before, 1)
    assert chatty.run(thread, "two").answer == "second"
    assert [message.role for message in thread.messages] == [Role.USER, Role.ASSISTANT] * 2


def test_one_agent_serves_many_threads() -> None:
    """It keeps nothing of a run."""
    shared = agent(scripted([("look", "{}")], "ok"), look)
    before = {name: value for name, value in vars(shared).items() if name != "client"}
    runs = [shared.run(Thread(), f"task {n}") for n in range(3)]
    assert [run.thread.goal for run in runs] == ["task 0", "task 1", "task 2"]
    assert {name: value for name, value in vars(shared).items() if name != "client"} == before
    assert isinstance(shared, Agent)


def test_importing_the_agent_brings_neither_celery_nor_redis() -> None:
    """The loop runs where neither is installed."""
    program = "import sys, agentq.agent; print([m for m in ('celery', 'redis', 'kombu') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
