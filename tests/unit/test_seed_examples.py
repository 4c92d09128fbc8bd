"""The seed page's code, block by block, in lines of our own: the same names, arguments and printed values."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from decimal import Decimal

from agentq.agent import Agent, Budgets, ScriptedClient, StopReason, Thread, run_metrics
from agentq.agent.loopdetect import REPEAT_WARNING, LoopDetector
from agentq.provider.scripted import Turn
from agentq.provider.types import Role
from agentq.tools import CallContext, ToolExecutor, ToolRegistry, tool

CTX = CallContext(user_id="u1", tenant_id="t1")
LOOK = [("get_order", '{"order_id": "1002"}')]


@tool
def get_order(ctx: CallContext, order_id: str) -> dict[str, str]:
    """Fetch one order."""
    return {"order_id": order_id, "status": "paid", "owner": ctx.user_id}


@tool
def find_nothing(order_id: str) -> str:
    """Fail to find an order."""
    raise LookupError(order_id)


@tool(side_effect=True, requires_approval=True)
def cancel_order(order_id: str) -> str:
    """Cancel an order."""
    return f"order {order_id} cancelled"


EXECUTOR = ToolExecutor(ToolRegistry([get_order, find_nothing, cancel_order]))


def printed(*values: object) -> list[str]:
    out = io.StringIO()
    with redirect_stdout(out):
        for value in values:
            print(value)  # noqa: T201 - what `print` shows is the point
    return out.getvalue().splitlines()


def test_block_1_a_stateless_agent_and_a_thread_that_goes_through_json() -> None:
    """The whole run in one JSON object, and back."""
    agent = Agent(ScriptedClient([LOOK, "Order 1002 is paid."]), EXECUTOR, budgets=Budgets(max_steps=8))
    thread = Thread()
    run = agent.run(thread, "What is the status of order 1002?", ctx=CTX)
    assert run.answer == thread.answer == "Order 1002 is paid."
    resumed = Thread.from_json(thread.to_json())
    assert resumed == thread
    assert '"owner":"u1"' in json.loads(resumed.messages[2].content)["content"]


def test_block_2_four_budgets_and_one_stop_reason() -> None:
    """Printed as the seed prints them."""
    budgets = Budgets(max_steps=12, max_tokens=120_000, max_usd=Decimal("0.50"), max_seconds=120.0)
    script = [[("get_order", f'{{"order_id": "{n}"}}')] for n in range(20)]
    run = Agent(ScriptedClient(script), EXECUTOR, budgets=budgets).run(Thread(), "Check them all", ctx=CTX)
    shown = printed(run.stop_reason, run.stop_reason.is_budget, run.stop_reason.is_success)
    assert shown == ["StopReason.STEP_BUDGET", "True", "False"]
    assert run.thread.spend.steps == 12


def test_block_3_the_final_turn_is_asked_for_without_tools() -> None:
    """One message that names the reason; and it is inside the ceiling."""
    client = ScriptedClient([LOOK, "Paid; the carrier is still missing."])
    run = Agent(client, EXECUTOR, budgets=Budgets(max_steps=1)).run(Thread(), "Where is it?", ctx=CTX)
    assert run.thread.messages[-2].role is Role.USER
    assert run.thread.messages[-2].content == (
        "You have reached the limit for this task (step_budget). Do not call any more tools. "
        "Answer with what you already have, and state explicitly what is still missing."
    )
    assert client.requests[-1].tool_choice == "none"
    assert run.answer == "Paid; the carrier is still missing."


def test_block_4_every_call_gets_a_result() -> None:
    """Refused ones too, in the seed's JSON, one for each call."""
    pairs = [LOOK[0], ("no_tool", "{}"), ("find_nothing", '{"order_id": "9"}')]
    results = EXECUTOR.call_many(pairs, CTX, allowlist=None)
    assert [result.error_code for result in results] == [None, "no_such_tool", "tool_error"]
    thread = Thread()
    Agent(ScriptedClient([pairs, "ok"]), EXECUTOR).run(thread, "go", ctx=CTX)
    tool_messages = [json.loads(message.content) for message in thread.messages if message.role is Role.TOOL]
    assert [message["content"] for message in tool_messages] == [result.content for result in results]
    assert all(
        list(message) == ["tool_call_id", "tool", "ok", "error_code", "content"] for message in tool_messages
    )


def test_block_5_the_warning_stands_in_the_tool_result() -> None:
    """Where the model is already looking."""
    assert REPEAT_WARNING.startswith("\n\n[note: this exact call was already made earlier in this run")
    assert REPEAT_WARNING.endswith("or answer with what you have.]")
    thread = Thread()
    Agent(ScriptedClient([LOOK, LOOK, "ok"]), EXECUTOR).run(thread, "go", ctx=CTX)
    first, second = (json.loads(m.content)["content"] for m in thread.messages if m.role is Role.TOOL)
    assert second == first + REPEAT_WARNING


def test_block_6_the_thresholds_are_a_dial() -> None:
    """The default stops at the third, this one at the fourth."""
    thread = Thread()
    thread.detector = LoopDetector(warn_at=2, stop_at=4)
    run = Agent(ScriptedClient([LOOK]), EXECUTOR).run(thread, "go", ctx=CTX)
    assert run.stop_reason is StopReason.LOOP_DETECTED
    assert run.thread.spend.steps == 4
    assert Agent(ScriptedClient([LOOK]), EXECUTOR).run(Thread(), "go", ctx=CTX).thread.spend.steps == 3


def test_block_7_the_metrics_of_twenty_runs() -> None:
    """Five stuck, three that met an error and recovered: the seed's numbers, with detection and without."""

    def measure(detect: bool) -> dict[str, object]:
        stuck: list[Turn] = [*[LOOK] * 6, "ok"]
        lost: list[Turn] = [[("find_nothing", '{"order_id": "9"}')], LOOK, "ok"]
        scripts: list[list[Turn]] = [stuck] * 5 + [lost] * 3 + [[LOOK, "ok"]] * 12
        threads = []
        for script in scripts:
            thread = Thread()
            thread.detector = LoopDetector() if detect else None
            Agent(ScriptedClient(script), EXECUTOR).run(thread, "go", ctx=CTX)
            threads.append(thread)
        return run_metrics(threads).as_dict()

    on, off = measure(True), measure(False)
    assert list(on)[:9] == [
        "runs",
        "completion_rate",
        "steps_p50",
        "steps_p95",
        "tool_error_rate",
        "loop_rate",
        "budget_stop_rate",
        "recovery_rate",
        "mean_usd",
    ]
    assert on == {
        "runs": 20,
        "completion_rate": 0.75,
        "steps_p50": 2.0,
        "steps_p95": 3.0,
        "tool_error_rate": 0.091,
        "loop_rate": 0.25,
        "budget_stop_rate": 0.0,
        "recovery_rate": 1.0,
        "mean_usd": "0.000000",
        "unpriced_calls": 53,
    }
    assert (off["completion_rate"], off["steps_p50"], off["steps_p95"], off["loop_rate"]) == (
        1.0,
        2.0,
        7.0,
        0.0,
    )


def test_blocks_8_and_9_a_run_waits_for_approval_and_goes_on() -> None:
    """The approved call is made without asking the model again."""
    client = ScriptedClient([[("cancel_order", '{"order_id": "1002"}')], "Cancelled."])
    agent = Agent(client, EXECUTOR)
    thread = Thread()
    run = agent.run(thread, "cancel order 1002", ctx=CTX)
    assert run.stop_reason is StopReason.NEEDS_APPROVAL
    assert thread.pending_approval is not None
    assert thread.pending_approval.startswith("cancel_order:")
    approved = CallContext(approved_calls=frozenset({thread.pending_approval}))
    run = agent.run(thread, ctx=approved)
    assert run.stop_reason is StopReason.FINISHED
    assert (client.call_count, run.answer) == (2, "Cancelled.")
