"""Decisions and their effects, without any model or clock."""

from __future__ import annotations

import dataclasses
import json

import pytest

from agentq.agent import REPEAT_WARNING, Budgets, LoopDetector, ScriptedClient, StopReason, Thread
from agentq.agent.loop import (
    PAUSES_MAX,
    CallModel,
    Close,
    End,
    RunTools,
    Wait,
    apply_closing,
    apply_reply,
    apply_results,
    begin,
    end,
    next_action,
)
from agentq.agent.thread import pending_calls
from agentq.core.money import NanoUSD
from agentq.provider.bounds import Anchor
from agentq.provider.types import Message, Role, ToolCall, Usage
from agentq.tools import ToolResult, call_signature
from tests.unit.agent.helpers import agent, reply

AGENT = agent(ScriptedClient(["x"]))
BUDGETS = Budgets()
NOBODY: frozenset[str] = frozenset()
CANCEL = '{"order":"1"}'
SIGNATURE = call_signature("cancel", CANCEL)


def started(task: str = "task") -> Thread:
    thread = Thread()
    begin(AGENT, thread, task)
    return thread


def call(name: str, arguments: str = "{}", id: str = "") -> ToolCall:
    return ToolCall(id, name, arguments)


def asked(*calls: ToolCall, thread: Thread | None = None) -> Thread:
    thread = thread or started()
    apply_reply(AGENT, thread, reply("", *calls), cost=None)
    return thread


def answered(thread: Thread, *results: ToolResult) -> Thread:
    apply_results(AGENT, thread, pending_calls(thread), results)
    return thread


def kinds(thread: Thread) -> list[str]:
    return [event.kind for event in thread.trace]


def test_a_new_thread_calls_the_model_and_a_thread_without_task_is_refused() -> None:
    """The task is the first message and the goal."""
    thread = started()
    assert (thread.goal, thread.messages) == ("task", [Message(Role.USER, "task")])
    assert next_action(AGENT, thread, BUDGETS, NOBODY) == CallModel()
    with pytest.raises(ValueError, match="needs a task"):
        begin(AGENT, Thread(), None)


def test_a_reply_without_calls_finishes() -> None:
    """With its text as the answer, and the step, tokens and money booked."""
    thread = started()
    apply_reply(AGENT, thread, reply("done"), cost=NanoUSD(5))
    assert next_action(AGENT, thread, BUDGETS, NOBODY) == End(StopReason.FINISHED)
    assert (thread.answer, thread.step, thread.spend.steps, thread.spend.tokens) == ("done", 1, 1, 600)
    assert f"{thread.spend.usd:f}" == "0.000000005"
    assert thread.unpriced_calls == 0
    assert thread.anchor == Anchor(2, 600)
    assert kinds(thread) == ["step", "finished"]


def test_a_reply_without_price_or_usage_is_counted_as_such() -> None:
    """The next bound then takes the whole context."""
    thread = started()
    apply_reply(AGENT, thread, reply("done", usage=Usage()), cost=None)
    assert (thread.unpriced_calls, thread.anchor) == (1, None)


def test_a_reply_with_calls_runs_the_tools_and_then_the_model_again() -> None:
    """Each call has one message with its id; the message says what the seed's says."""
    thread = asked(call("look", id="a"), call("look", '{"key":"z"}', id="b"))
    action = next_action(AGENT, thread, BUDGETS, NOBODY)
    assert isinstance(action, RunTools)
    assert [c.id for c in action.calls] == ["a", "b"]
    answered(thread, ToolResult(True, "1"), ToolResult.failure("timeout", "2"))
    assert [message.tool_call_id for message in thread.messages[-2:]] == ["a", "b"]
    assert json.loads(thread.messages[-1].content) == {
        "tool_call_id": "b",
        "tool": "look",
        "ok": False,
        "error_code": "timeout",
        "content": "2",
    }
    assert thread.spend.tool_errors == 1
    event = thread.trace[-1]
    assert (event.kind, event.detail, event.ok, event.call) == (
        "tool_result",
        "look:timeout",
        False,
        call_signature("look", '{"key":"z"}'),
    )
    assert next_action(AGENT, thread, BUDGETS, NOBODY) == CallModel()


@pytest.mark.parametrize("code", ["approval_denied", "approval_expired"])
def test_a_person_s_refusal_or_silence_is_no_error_of_a_tool(code: str) -> None:
    """However often people say no, the run goes on; the trace says what became of each call."""
    thread = asked(*(call("cancel", f'{{"order":"{n}"}}', id=str(n)) for n in range(5)))
    answered(thread, *(ToolResult.failure(code, "no") for _ in range(5)))
    assert thread.spend.tool_errors == 0
    assert (thread.trace[-1].detail, thread.trace[-1].ok) == (f"cancel:{code}", False)
    assert next_action(AGENT, thread, BUDGETS, NOBODY) == CallModel()


@pytest.mark.parametrize("odd", ["\U0001f600", "\x01", '"', "\xe9"])
def test_ids_that_are_long_in_a_result_are_replaced(odd: str) -> None:
    """The room of a step's results, for which money is set aside, has 64 bytes for an id."""
    ids = [
        c.id for c in asked(*(call("look", id=f"{n}{odd * 63}") for n in range(3))).messages[-1].tool_calls
    ]
    assert ids == ["call_1_0", "call_1_1", "call_1_2"]


def test_ids_that_cannot_be_encoded_stay_apart() -> None:
    """Half of a character is replaced before ids are compared, or two calls would have one result."""
    thread = asked(call("look", id="\ud800"), call("look", id="\udc01"))
    assert [c.id for c in pending_calls(thread)] == ["?", "call_1_1"]


def test_ids_are_made_unique_over_the_whole_thread() -> None:
    """Missing ones, repeated ones, those of an earlier step, and ones of unbearable length."""
    thread = asked(call("look"), call("look", id="x"), call("look", id="x"))
    answered(thread, *[ToolResult(True, str(n)) for n in range(3)])
    asked(call("look", id="x"), call("look", id="call_1_0"), call("look", id="y" * 65), thread=thread)
    ids = [c.id for message in thread.messages for c in message.tool_calls]
    assert ids[:3] == ["call_1_0", "x", "call_1_2"]
    assert len(set(ids)) == 6
    assert all(0 < len(i) <= 64 for i in ids)


def test_calls_over_the_limit_are_answered_but_not_made() -> None:
    """One step more is refused by message; what is beyond is not kept."""
    small = agent(ScriptedClient(["x"]), max_calls_per_step=2)
    thread = started()
    apply_reply(small, thread, reply("", *[call("look", f'{{"key":"{n}"}}') for n in range(9)]), cost=None)
    action = next_action(small, thread, BUDGETS, NOBODY)
    assert isinstance(action, RunTools)
    assert len(action.calls) == 2
    assert len(thread.messages[1].tool_calls) == 4
    refused = [json.loads(message.content) for message in thread.messages[2:]]
    assert [(body["ok"], body["tool_call_id"]) for body in refused] == [
        (False, "call_1_2"),
        (False, "call_1_3"),
    ]
    apply_results(small, thread, action.calls, [ToolResult(True, "1"), ToolResult(True, "2")])
    assert pending_calls(thread) == []
    assert thread.spend.tool_errors == 0


def test_a_steps_results_are_cut_to_its_room() -> None:
    """Including the refusals that it already has."""
    small = agent(ScriptedClient(["x"]), max_calls_per_step=2, max_tool_bytes_per_step=1600)
    thread = started()
    apply_reply(small, thread, reply("", *[call("look", f'{{"key":"{n}"}}') for n in range(4)]), cost=None)
    apply_results(
        small, thread, pending_calls(thread), [ToolResult(True, "é" * 5000), ToolResult(True, "ok")]
    )
    results = [message.content for message in thread.messages if message.role is Role.TOOL]
    assert sum(len(content.encode()) for content in results) <= 1600
    assert "more characters omitted" in json.loads(results[-2])["content"]
    assert json.loads(results[-1])["content"] == "ok"


def test_a_half_turn_cannot_be_made() -> None:
    """One result for each call, or an error and an unchanged conversation."""
    thread = asked(call("look"), call("look", '{"key":"z"}'))
    messages = list(thread.messages)
    with pytest.raises(ValueError, match="zip"):
        apply_results(AGENT, thread, pending_calls(thread), [ToolResult(True, "1")])
    assert thread.messages == messages


def test_a_repeat_is_warned_about_in_the_result_then_closes_the_run() -> None:
    """The call that reaches the limit is answered like any other."""
    thread = started()
    for expected in ("", REPEAT_WARNING, ""):
        asked(call("look"), thread=thread)
        answered(thread, ToolResult(True, "same"))
        assert json.loads(thread.messages[-1].content)["content"] == "same" + expected
    assert kinds(thread).count("repeat_warning") == kinds(thread).count("loop_detected") == 1
    assert next_action(AGENT, thread, BUDGETS, NOBODY) == Close(StopReason.LOOP_DETECTED)


def test_without_a_detector_nothing_is_a_loop() -> None:
    """Only the budget ends such a run."""
    thread = started()
    thread.detector = None
    for _ in range(5):
        answered(asked(call("look"), thread=thread), ToolResult(True, "same"))
    assert next_action(AGENT, thread, BUDGETS, NOBODY) == CallModel()


def test_the_detector_can_be_folded_from_the_trace() -> None:
    """Signature and digest of each event give the same counts."""
    thread = started()
    for content in ("a", "a", "b"):
        answered(asked(call("look"), call("fail"), thread=thread), *[ToolResult(True, content)] * 2)
    folded = LoopDetector()
    for event in thread.trace:
        if event.kind == "tool_result":
            folded.observe_digest(event.call or "", event.digest or "")
    assert folded == thread.detector


def test_too_many_tool_errors_close_the_run() -> None:
    """At the ceiling, counted over the whole run."""
    thread = started()
    for n in range(4):
        assert next_action(AGENT, thread, BUDGETS, NOBODY) == CallModel()
        answered(
            asked(call("fail", f'{{"key":"{n}"}}'), thread=thread), ToolResult.failure("tool_error", str(n))
        )
    assert next_action(AGENT, thread, BUDGETS, NOBODY) == Close(StopReason.TOOL_ERROR_CEILING)


def test_nothing_of_a_step_runs_before_all_its_gated_calls_are_decided() -> None:
    """Neither the reads nor what is approved; each signature is asked for once."""
    other = '{"order":"2"}'
    thread = asked(call("look"), call("cancel", CANCEL), call("cancel", other), call("cancel", other))
    second = call_signature("cancel", other)
    assert thread.pending_approvals == [SIGNATURE, second]
    assert next_action(AGENT, thread, BUDGETS, NOBODY) == Wait((SIGNATURE, second))
    assert next_action(AGENT, thread, BUDGETS, frozenset({SIGNATURE})) == Wait((second,))
    action = next_action(AGENT, thread, BUDGETS, frozenset({SIGNATURE, second}))
    assert isinstance(action, RunTools)
    assert [c.name for c in action.calls] == ["look", "cancel", "cancel", "cancel"]
    answered(thread, *[ToolResult(True, str(n)) for n in range(4)])
    assert thread.pending_approvals == []


def test_what_was_done_in_the_run_is_not_asked_for_again() -> None:
    """The stored result answers it."""
    thread = started()
    thread.tool_results[SIGNATURE] = "cancelled 1"
    asked(call("cancel", CANCEL), thread=thread)
    assert thread.pending_approvals == []
    assert isinstance(next_action(AGENT, thread, BUDGETS, NOBODY), RunTools)


def test_a_budget_closes_the_run_only_between_steps() -> None:
    """Calls that the model was paid for are made first."""
    one = Budgets(max_steps=1)
    thread = asked(call("look"))
    assert isinstance(next_action(AGENT, thread, one, NOBODY), RunTools)
    answered(thread, ToolResult(True, "1"))
    assert next_action(AGENT, thread, one, NOBODY) == Close(StopReason.STEP_BUDGET)


def test_the_closing_turn_ends_the_run_and_is_no_step() -> None:
    """Its answer is the run's, its tokens are booked, and the conversation stays whole."""
    thread = asked(call("look"))
    answered(thread, ToolResult(True, "1"))
    thread.closing = StopReason.LOOP_DETECTED
    apply_closing(AGENT, thread, StopReason.LOOP_DETECTED, reply("partly"), cost=NanoUSD(7))
    assert next_action(AGENT, thread, BUDGETS, NOBODY) == End(StopReason.LOOP_DETECTED)
    assert (thread.answer, thread.spend.steps, thread.spend.tokens) == ("partly", 1, 1200)
    assert [message.role for message in thread.messages[-2:]] == [Role.USER, Role.ASSISTANT]
    assert (thread.trace[-1].kind, thread.trace[-1].ok) == ("final_turn", True)


@pytest.mark.parametrize("text", ["", "text too"])
def test_a_closing_turn_that_asks_for_tools_is_not_a_good_one(text: str) -> None:
    """Its calls are dropped, so that no call is left without a result."""
    thread = started()
    apply_closing(AGENT, thread, StopReason.STEP_BUDGET, reply(text, call("look", id="a")), cost=None)
    assert not thread.trace[-1].ok
    assert all(not message.tool_calls for message in thread.messages)
    assert all(message.content for message in thread.messages)
    assert thread.answer == text


def test_a_new_task_answers_what_was_pending_and_starts_afresh() -> None:
    """The old calls get a refusal; old questions are no loop."""
    thread = asked(call("look", id="a"), call("cancel", CANCEL, id="b"))
    end(thread, StopReason.NEEDS_APPROVAL)
    begin(AGENT, thread, "something else")
    assert [json.loads(m.content)["error_code"] for m in thread.messages[2:4]] == ["needs_approval"] * 2
    assert thread.messages[-1] == Message(Role.USER, "something else")
    assert (thread.pending_approvals, thread.stop_reason, thread.goal) == ([], None, "something else")
    answered(asked(call("look"), thread=thread), ToolResult(True, "same"))
    apply_reply(AGENT, thread, reply("done"), cost=None)
    assert thread.detector is not None
    assert thread.detector.counts
    begin(AGENT, thread, "again")
    assert (thread.detector.counts, thread.answer) == ({}, "")


@pytest.mark.parametrize("reason", list(StopReason))
def test_only_a_waiting_or_failed_run_goes_on_without_a_task(reason: StopReason) -> None:
    """All others have ended, whatever they have left of their budget."""
    thread = started()
    end(thread, reason, "why", kind="end")
    begin(AGENT, thread, None)
    action = next_action(AGENT, thread, BUDGETS, NOBODY)
    resumable = reason in (StopReason.NEEDS_APPROVAL, StopReason.MODEL_ERROR, StopReason.CONTEXT_OVERFLOW)
    assert action == (CallModel() if resumable else End(reason))


def test_none_of_the_calls_of_a_reply_that_was_cut_off_is_made() -> None:
    """The last one may be half of a call that parses all the same: it would act with other arguments."""
    thread = started()
    cut = dataclasses.replace(reply("", call("cancel", CANCEL), call("cancel", "{}")), finish_reason="length")
    apply_reply(AGENT, thread, cut, cost=None)
    assert next_action(AGENT, thread, BUDGETS, NOBODY) == CallModel()
    answers = [json.loads(message.content) for message in thread.messages if message.role is Role.TOOL]
    assert [answer["error_code"] for answer in answers] == ["bad_json", "bad_json"]
    assert thread.spend.tool_errors == 1


def test_a_model_that_is_cut_off_again_and_again_is_asked_to_answer() -> None:
    strict = agent(ScriptedClient(["x"]), max_tool_errors=2)
    thread = started()
    for n in range(2):
        cut = dataclasses.replace(reply("", call("look", f'{{"n":{n}}}')), finish_reason="max_tokens")
        apply_reply(strict, thread, cut, cost=None)
    assert next_action(strict, thread, BUDGETS, NOBODY) == Close(StopReason.TOOL_ERROR_CEILING)


def test_a_turn_that_is_paused_is_gone_on_with_and_takes_a_step_each_time() -> None:
    thread = started()
    paused = dataclasses.replace(reply("let me see"), finish_reason="pause_turn")
    apply_reply(AGENT, thread, paused, cost=None)
    assert next_action(AGENT, thread, BUDGETS, NOBODY) == CallModel()
    assert next_action(AGENT, thread, Budgets(max_steps=1), NOBODY) == Close(StopReason.STEP_BUDGET)
    apply_reply(AGENT, thread, reply("done"), cost=None)
    assert next_action(AGENT, thread, BUDGETS, NOBODY) == End(StopReason.FINISHED)
    assert [message.content for message in thread.messages] == ["task", "let me see", "done"]
    assert (thread.answer, kinds(thread)) == ("done", ["step", "turn_paused", "step", "finished"])


def test_a_turn_that_is_paused_without_end_ends_the_run() -> None:
    thread = started()
    paused = dataclasses.replace(reply(""), finish_reason="pause_turn")
    for _ in range(PAUSES_MAX):
        assert next_action(AGENT, thread, BUDGETS, NOBODY) == CallModel()
        apply_reply(AGENT, thread, paused, cost=None)
    assert next_action(AGENT, thread, BUDGETS, NOBODY) == End(StopReason.MODEL_ERROR)
    assert thread.trace[-1].detail == "the provider paused its turn 8 times and did not end it"


def test_a_paused_turn_that_asks_for_tools_has_them() -> None:
    thread = started()
    paused = dataclasses.replace(reply("", call("look")), finish_reason="pause_turn")
    apply_reply(AGENT, thread, paused, cost=None)
    assert isinstance(next_action(AGENT, thread, BUDGETS, NOBODY), RunTools)
