"""A thread comes back from its stored pieces as it was, and a commit carries only what is new."""

from __future__ import annotations

import json

from agentq.agent import LoopDetector, Thread
from agentq.agent.loopdetect import digest
from agentq.core.lifecycle import StopReason
from agentq.core.money import to_usd
from agentq.core.records import Delta, ThreadParts
from agentq.engine.snapshot import Snapshot, decode_event, load
from agentq.provider.bounds import Anchor
from agentq.provider.types import Message, Role, ToolCall, Usage

NOW = 1_700_000_000_123
THRESHOLDS = LoopDetector(warn_at=3, stop_at=5, changing_stop_at=7)


def stored(*deltas: Delta) -> ThreadParts:
    """What Redis has after these commits."""
    messages = [json.loads(text) for delta in deltas for text in delta.messages]
    trace = [json.loads(text) for delta in deltas for text in delta.trace]
    results = {k: v for delta in deltas for k, v in delta.tool_results.items()}
    return ThreadParts(deltas[-1].head, json.dumps(messages), json.dumps(trace), results)


def call(thread: Thread, signature: str, content: str) -> None:
    """A tool's result, in the trace and in the detector."""
    thread.record("tool_result", "t:ok", call=signature, digest=digest(content))
    assert thread.detector is not None
    thread.detector.observe(signature, content)


def busy() -> Thread:
    """A thread in which every part is used. Its goal is the first thing that a user said."""
    thread = Thread(goal="hé ☃", detector=THRESHOLDS.fresh())
    thread.add(Role.USER, "hé ☃")
    calls = (ToolCall("c1", "t", '{"a": "ü"}'), ToolCall("c2", "t", "{}"))
    thread.messages.append(Message(Role.ASSISTANT, "", tool_calls=calls))
    thread.messages.append(Message(Role.TOOL, '{"ok": true}', tool_call_id="c1"))
    thread.step = 3
    thread.record("step", "step 3")
    for content in ("x", "x", "y"):
        call(thread, "t:1", content)
    thread.record("oops", "", ok=False)
    thread.tool_results = {"pay:1": "paid ☃"}
    thread.anchor = Anchor(2, 777)
    thread.closing = StopReason.LOOP_DETECTED
    thread.pending_approvals = ["t:2"]
    thread.unpriced_calls = 2
    thread.spend.tool_errors = 1
    return thread


def comparable(thread: Thread) -> dict:
    return {k: v for k, v in thread.as_dict().items() if k not in {"spend", "trace"}}


def test_a_stored_thread_is_the_thread():
    thread = busy()
    usage = Usage(input_tokens=500, output_tokens=100)
    loaded = load(stored(Snapshot(thread, usage).delta(NOW)), THRESHOLDS.as_dict(), spent_ms=2_500)
    assert comparable(loaded.thread) == comparable(thread)
    assert loaded.thread.detector == thread.detector
    assert loaded.usage == usage
    spend = loaded.thread.spend
    assert (spend.steps, spend.tokens, spend.seconds, spend.tool_errors) == (3, 600, 2.5, 1)
    assert [(e.kind, e.detail, e.ok, e.step, e.call, e.digest) for e in loaded.thread.trace] == [
        (e.kind, e.detail, e.ok, e.step, e.call, e.digest) for e in thread.trace
    ]
    assert {event.at for event in loaded.thread.trace} == {"2023-11-14T22:13:20.123+00:00"}


def test_money_is_stored_to_the_nano():
    thread = busy()
    for nano in (1, 999_999_999, 2**53 - 1):
        thread.spend.usd = to_usd(nano)
        loaded = load(stored(Snapshot(thread).delta(NOW)), None)
        assert loaded.thread.spend.usd == to_usd(nano)


def test_without_thresholds_there_is_no_detector():
    assert load(stored(Snapshot(busy()).delta(NOW)), None).thread.detector is None


def test_an_empty_thread_has_an_empty_head():
    delta = Snapshot(Thread()).delta(NOW)
    assert delta == Delta("{}")
    loaded = load(ThreadParts(), None)
    assert (loaded.thread.messages, loaded.thread.step, loaded.thread.goal) == ([], 0, "")


def test_a_commit_carries_only_what_is_new():
    snapshot = Snapshot(busy())
    first = snapshot.delta(NOW)
    assert (len(first.messages), len(first.trace), dict(first.tool_results)) == (3, 5, {"pay:1": "paid ☃"})
    assert snapshot.delta(NOW) == first
    snapshot.mark()
    assert snapshot.delta(NOW) == Delta(first.head)
    snapshot.thread.add(Role.USER, "more")
    snapshot.thread.record("more")
    snapshot.thread.tool_results["pay:2"] = "paid"
    second = snapshot.delta(NOW + 1)
    assert [json.loads(text)["content"] for text in second.messages] == ["more"]
    assert [json.loads(text)[0] for text in second.trace] == ["more"]
    assert second.tool_results == {"pay:2": "paid"}
    whole = load(stored(first, second), THRESHOLDS.as_dict())
    assert comparable(whole.thread) == comparable(snapshot.thread)


def test_what_was_loaded_is_not_written_again():
    snapshot = load(stored(Snapshot(busy()).delta(NOW)), THRESHOLDS.as_dict())
    again = snapshot.delta(NOW)
    assert (again.messages, again.trace, again.tool_results) == ((), (), {})


def test_an_ended_thread_has_its_last_words_as_answer():
    thread = busy()
    thread.messages.append(Message(Role.ASSISTANT, "the end"))
    thread.stop_reason = "finished"
    loaded = load(stored(Snapshot(thread).delta(NOW)), None)
    assert (loaded.thread.answer, loaded.thread.stop_reason) == ("the end", "finished")


def test_a_stored_event_can_be_read_alone():
    thread = Thread()
    thread.record("tool_result", "pay:ok", call="pay:1", digest="abcd")
    thread.record("note", ok=False)
    events = [decode_event(text) for text in Snapshot(thread).delta(NOW).trace]
    assert [(e.kind, e.ok, e.call, e.digest) for e in events] == [
        ("tool_result", True, "pay:1", "abcd"),
        ("note", False, None, None),
    ]
    assert events[0].at == "2023-11-14T22:13:20.123+00:00"
