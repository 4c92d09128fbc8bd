"""The whole state goes through JSON and back."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentq.agent import LoopDetector, Spend, StopReason, Thread, TraceEvent
from agentq.agent.thread import pending_calls
from agentq.provider.bounds import Anchor
from agentq.provider.types import Message, Role, ToolCall

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
COUNT = st.integers(0, 10**6)
CALLS = st.builds(ToolCall, TEXT, TEXT, TEXT)
MESSAGES = st.builds(
    Message, st.sampled_from(Role), TEXT, st.lists(CALLS, max_size=3).map(tuple), st.none() | TEXT
)
SPENDS = st.builds(
    Spend, COUNT, COUNT, COUNT.map(lambda nano: Decimal(nano).scaleb(-9)), st.floats(0, 1e6), COUNT
)
EVENTS = st.builds(TraceEvent, TEXT, TEXT, st.booleans(), COUNT, TEXT, st.none() | TEXT, st.none() | TEXT)


@st.composite
def detectors(draw: st.DrawFn) -> LoopDetector:
    detector = LoopDetector(*draw(st.tuples(*[st.integers(2, 99)] * 3)))
    for call, result in draw(st.lists(st.tuples(TEXT, TEXT), max_size=5)):
        detector.observe(call, result)
    return detector


THREADS = st.builds(
    Thread,
    goal=TEXT,
    messages=st.lists(MESSAGES, max_size=4),
    step=COUNT,
    spend=SPENDS,
    trace=st.lists(EVENTS, max_size=4),
    tool_results=st.dictionaries(TEXT, TEXT, max_size=3),
    detector=st.none() | detectors(),
    stop_reason=st.none() | st.sampled_from(StopReason).map(lambda reason: reason.value),
    answer=TEXT,
    pending_approvals=st.lists(TEXT, max_size=3),
    closing=st.none() | st.sampled_from(StopReason),
    anchor=st.none() | st.builds(Anchor, COUNT, COUNT),
    unpriced_calls=COUNT,
)


@given(THREADS, st.sampled_from([None, 2]))
def test_a_thread_survives_json_whole(thread: Thread, indent: int | None) -> None:
    """Every field, in both forms."""
    assert Thread.from_json(thread.to_json(indent)) == thread


def test_json_says_its_version_and_another_is_refused() -> None:
    """A newer thread is not half read."""
    data = json.loads(Thread().to_json())
    assert data["version"] == 1
    for version in (2, None):
        with pytest.raises(ValueError, match="reads version 1 only"):
            Thread.from_dict({**data, "version": version})
    with pytest.raises(ValueError, match="is no thread"):
        Thread.from_json("[]")


def test_an_event_without_a_call_has_no_call_in_json() -> None:
    """The trace is long; it is kept short."""
    assert TraceEvent("step").as_dict() == {"kind": "step", "detail": "", "ok": True, "step": 0, "at": ""}


def test_calls_are_pending_until_each_has_its_message() -> None:
    """Only those of the last assistant message, in order."""
    thread = Thread()
    assert pending_calls(thread) == []
    calls = (ToolCall("1", "a", "{}"), ToolCall("2", "b", "{}"))
    thread.messages.append(Message(Role.ASSISTANT, "", tool_calls=calls))
    assert pending_calls(thread) == list(calls)
    thread.messages.append(Message(Role.TOOL, "{}", tool_call_id="2"))
    assert pending_calls(thread) == [calls[0]]
    thread.add(Role.ASSISTANT, "never mind")
    assert pending_calls(thread) == []


def test_the_first_undecided_call_is_the_pending_approval() -> None:
    """None when there is none."""
    thread = Thread(pending_approvals=["a:1", "b:2"])
    assert thread.pending_approval == "a:1"
    assert Thread().pending_approval is None
