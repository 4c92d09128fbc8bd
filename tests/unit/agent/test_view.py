"""What is sent of a thread after compactions: of any thread, a call keeps its result, and the task stays."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentq.agent import Agent, Thread
from agentq.agent.context import compact_from, overflow, summary_request
from agentq.agent.loop import CallModel, Compact, Overflow, apply_summary, begin, next_action
from agentq.agent.view import Summary, dropped, sent, turns
from agentq.provider.scripted import ScriptedClient
from agentq.provider.types import Message, Role, ToolCall
from agentq.tools import ToolResult
from tests.unit.agent.helpers import agent, look, reply

TASK = "the task"


def compacting(window: int | None, **options: Any) -> Agent:
    return agent(
        ScriptedClient(["x"]),
        look,
        context_window=window,
        max_output_tokens=50,
        on_overflow="compact",
        **options,
    )


def tool_turn(number: int, calls: int, size: int) -> list[Message]:
    ids = [f"c{number}_{n}" for n in range(calls)]
    asked = Message(Role.ASSISTANT, "", tuple(ToolCall(name, "look", "{}") for name in ids))
    answers = [
        Message(
            Role.TOOL,
            json.dumps(
                {"tool_call_id": i, "tool": "look", "ok": True, "error_code": None, "content": "w" * size}
            ),
            tool_call_id=i,
        )
        for i in ids
    ]
    return [asked, *answers]


@st.composite
def threads(draw: st.DrawFn) -> Thread:
    """A conversation of tool turns, now and then with an answer and the next task."""
    thread = Thread()
    thread.messages = [Message(Role.SYSTEM, "s")] if draw(st.booleans()) else []
    thread.add(Role.USER, TASK)
    for number in range(draw(st.integers(0, 12))):
        if draw(st.integers(0, 5)) == 0:
            thread.add(Role.ASSISTANT, "an answer")
            thread.add(Role.USER, f"task {number}")
        else:
            thread.messages += tool_turn(number, draw(st.integers(1, 4)), draw(st.integers(0, 3000)))
        thread.step += 1
    return thread


def check(messages: list[Message]) -> None:
    waiting: list[str] = []
    for message in messages:
        if message.role is Role.TOOL:
            assert message.tool_call_id == waiting.pop(0)
        else:
            assert not waiting
            waiting = [call.id for call in message.tool_calls]
    assert not waiting


@given(threads(), st.integers(200, 8_000) | st.none(), st.data())
def test_a_call_is_never_parted_from_its_result_and_the_task_is_kept(
    thread: Thread, window: int | None, data: st.DataObject
):
    runs = compacting(window)
    everything = list(thread.messages)
    for again in range(6):
        start = compact_from(runs, thread)
        if start is None:
            break
        request = summary_request(runs, thread, start, {})
        before = thread.sent
        apply_summary(
            runs, thread, start, reply(data.draw(st.sampled_from(["so far", "x" * 300]))), cost=None
        )
        # At most once after each step.
        assert compact_from(runs, thread) is None
        check(thread.sent)
        user = next(m for m in thread.sent if m.role is Role.USER)
        assert user.content == TASK
        latest = [m for m in everything if m.role is Role.USER][-1]
        assert latest in thread.sent
        assert thread.sent[-1] == before[-1]
        assert request.messages[0].content.count("summary of the work") == bool(again)
        thread.messages += tool_turn(100 + again, 2, data.draw(st.integers(0, 3000)))
        everything += thread.messages[-3:]
        thread.step += 1
        check(thread.sent)
        written = sum(m.role is Role.ASSISTANT for m in thread.messages)
        assert dropped(thread.messages, thread.summaries) == written - sum(
            m.role is Role.ASSISTANT for m in thread.sent
        )
    # Nothing was taken out of what is stored.
    hidden = {summary.message for summary in thread.summaries}
    assert [m for i, m in enumerate(thread.messages) if i not in hidden] == everything
    assert Thread.from_json(thread.to_json()) == thread


@given(threads(), st.integers(100, 8_000))
def test_what_follows_of_a_thread_that_does_not_fit_is_a_summary_or_the_end(thread: Thread, window: int):
    """Whatever is decided, after one summary the call fits, or the run is over."""
    runs = compacting(window)
    if any(call.id for call in thread.messages[-1].tool_calls):
        return
    action = next_action(runs, thread, runs.budgets, frozenset())
    if isinstance(action, Compact):
        request = summary_request(runs, thread, action.start, {})
        size = sum(len(m.content.encode()) for m in request.messages) + len(request.system or "")
        assert size / 3 + request.max_output_tokens <= window + 50
        apply_summary(runs, thread, action.start, reply("s" * 100), cost=None)
        assert next_action(runs, thread, runs.budgets, frozenset()) == CallModel()
    elif overflow(runs, thread):
        assert isinstance(action, Overflow)


def test_without_a_summary_all_is_sent():
    messages = [Message(Role.USER, "u"), *tool_turn(1, 2, 5)]
    assert sent(messages, []) == messages
    assert dropped(messages, []) == 0
    assert turns(messages, []) == [1]


def test_a_summary_that_stands_among_later_turns_is_not_sent_a_second_time():
    """The second compaction keeps turns from before the first summary was written."""
    messages = [Message(Role.USER, "u")]
    for number in (1, 2, 3):
        messages += tool_turn(number, 1, 5)
    messages.append(Message(Role.USER, "first summary"))
    messages += tool_turn(4, 1, 5)
    messages.append(Message(Role.USER, "second summary"))
    summaries = [Summary(7, 3, 3), Summary(10, 5, 4)]
    said = [message.content or message.tool_calls[0].id for message in sent(messages, summaries)]
    assert said[:3] == ["u", "second summary", "c3_0"]
    assert "first summary" not in said
    assert turns(messages, summaries) == [5, 8]


def test_a_stop_says_how_much_is_needed_and_what_to_do():
    runs = agent(ScriptedClient(["x"]), look, context_window=300, max_output_tokens=50)
    thread = Thread()
    begin(runs, thread, "w" * 3_000)
    action = next_action(runs, thread, runs.budgets, frozenset())
    assert isinstance(action, Overflow)
    assert "the window of scripted-v1 has 300" in action.detail
    assert "context_window=" in action.detail


def test_where_the_window_is_not_known_nothing_is_checked():
    runs = agent(ScriptedClient(["x"]), look)
    thread = Thread()
    begin(runs, thread, "w" * 10**6)
    assert next_action(runs, thread, runs.budgets, frozenset()) == CallModel()


def test_one_turn_alone_is_never_summed_up():
    runs = compacting(800)
    thread = Thread()
    begin(runs, thread, TASK)
    thread.messages += tool_turn(1, 1, 4_000)
    assert isinstance(next_action(runs, thread, runs.budgets, frozenset()), Overflow)


def test_a_long_result_is_cut_where_the_summary_has_no_room_for_it():
    runs = compacting(1_500)
    thread = Thread()
    begin(runs, thread, TASK)
    for number in range(3):
        thread.messages += tool_turn(number, 1, 9_000 if number == 0 else 300)
    action = next_action(runs, thread, runs.budgets, frozenset())
    assert isinstance(action, Compact)
    text = summary_request(runs, thread, action.start, {}).messages[0].content
    assert TASK in text
    assert "Result of look: www" in text
    assert "[cut]" in text
    assert len(text) < 4_500


def test_what_a_person_has_refused_reads_as_that_in_a_record():
    runs = compacting(8_000)
    thread = Thread()
    begin(runs, thread, TASK)
    refused = ToolResult.failure("needs_approval", "not now")
    thread.messages += tool_turn(1, 1, 900)
    thread.messages[-1] = Message(
        Role.TOOL,
        json.dumps(
            {"tool_call_id": "c1_0", "tool": "look", "ok": False, "error_code": "needs_approval",
             "content": refused.content}
        ),
        tool_call_id="c1_0",
    )  # fmt: skip
    thread.messages += tool_turn(2, 1, 9_000)
    text = summary_request(runs, thread, 3, {}).messages[0].content
    assert "Result of look: needs_approval: not now" in text
