"""Ten turns with tools and thoughts through JSON and Redis' form of it: each goes back as it came."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from agentq.agent.loop import apply_reply, apply_results, begin
from agentq.agent.request import model_request
from agentq.agent.thread import Thread, pending_calls
from agentq.engine.snapshot import encode_message
from agentq.provider.openai_responses import OpenAIResponses
from agentq.provider.types import Message
from tests.support.provider import CTX, KEY, Played, agent
from tests.support.responses import asked, phased, reasoning, response

TURNS = 10
MODEL = "gpt-5-mini"
LOCAL = "http://localhost:1/v1"


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def output_of(i: int) -> list[dict[str, Any]]:
    """An output: thoughts between calls, remarks, what is new; keys in the service's order."""
    thought = reasoning(f"rs_{i}", summary=f'Thought {i}: \ud83c "quoted"\n\t…', status=None, content=None)
    if i == TURNS - 1:
        return [thought, phased("Rain in Köln ☔, everywhere.", "final_answer")]
    written = f'{{"city": "Köln {i} \\u2603",  "days":{i + 1}}}'
    calls = [asked(f"call_{i}a", "forecast", written)]
    if i % 3 == 1:  # two thoughts, two calls, and words between them
        calls += [
            phased("I look further.", "commentary"),
            reasoning(f"rs_{i}b"),
            asked(f"call_{i}b", "today"),
        ]
    if i % 3 == 2:  # fields of tomorrow
        calls[0] |= {"namespace": "weather", "caller": {"type": "direct"}, "x_score": 1.0, "x_big": 2**60}
    return [thought, *calls]


def answers() -> Iterator[dict[str, Any]]:
    for i in range(TURNS):
        yield response(*output_of(i))


def stored(thread: Thread) -> Thread:
    """The thread as a user keeps it, with each message as Redis keeps it."""
    thread = Thread.from_json(thread.to_json())
    messages = [Message.from_dict(json.loads(encode_message(one).encode())) for one in thread.messages]
    return replace(thread, messages=messages)


@pytest.fixture
def conversation() -> Iterator[tuple[Thread, Played, OpenAIResponses]]:
    """The run by the loop's own decisions, its thread stored and read again between any two of them."""
    played = Played(*answers())
    model = OpenAIResponses(MODEL, base_url=LOCAL, transport=played)
    its = agent(model)
    thread = Thread()
    begin(its, thread, "Where does it rain?")
    for _ in range(TURNS):
        thread = stored(thread)
        apply_reply(its, thread, model.complete(model_request(its, thread, {})), cost=None)
        thread = stored(thread)
        calls = pending_calls(thread)
        apply_results(its, thread, calls, [its.executor.call(c.name, c.arguments, CTX) for c in calls])
    yield thread, played, model
    model.close()


def test_each_turn_goes_back_byte_for_byte(conversation) -> None:
    thread, played, model = conversation
    assert thread.answer == "Rain in Köln ☔, everywhere."
    model.complete(replace(model_request(agent(model), stored(thread), {}), tools=()))
    sent = [item for item in played.body["input"] if item.get("type") not in {None, "function_call_output"}]
    assert [json.dumps(item) for item in sent] == [
        json.dumps(item) for i in range(TURNS) for item in output_of(i)
    ]
    # In the bytes of the request, too: keys in their order, numbers as they were.
    raw = played.requests[-1].content.decode()
    for i in range(TURNS):
        for item in output_of(i):
            forms = (
                json.dumps(item, separators=(",", ":"), ensure_ascii=ascii_only)
                for ascii_only in (True, False)
            )
            assert any(form in raw for form in forms)


def test_each_output_stands_right_after_its_turn(conversation) -> None:
    thread, _, model = conversation
    items = model.body(model_request(agent(model), thread, {}))["input"]
    at = 1
    for i in range(TURNS):
        turn = output_of(i)
        assert items[at : at + len(turn)] == turn
        at += len(turn)
        asked_for = [item["call_id"] for item in turn if item["type"] == "function_call"]
        results = items[at : at + len(asked_for)]
        assert [item["call_id"] for item in results] == asked_for
        assert all(item["type"] == "function_call_output" for item in results)
        at += len(asked_for)
    assert at == len(items)
    outputs = {item["call_id"]: item["output"] for item in items if "output" in item}
    assert outputs["call_3a"] == "Köln 3 ☃, 4 days: rain"


def test_each_request_begins_with_all_of_the_one_before(conversation) -> None:
    _, played, _ = conversation
    assert len(played.bodies) == TURNS
    for before, after in pairwise(played.bodies):
        # What a cache of prompts needs.
        assert after["input"][: len(before["input"])] == before["input"]
        assert (after["tools"], after["instructions"]) == (before["tools"], before["instructions"])


def test_the_same_thread_is_the_same_request_in_another_process(conversation) -> None:
    thread, _, model = conversation
    other = OpenAIResponses(MODEL, base_url=LOCAL)
    request = model_request(agent(model), thread, {})
    assert json.dumps(model.body(request)) == json.dumps(
        other.body(replace(request, messages=stored(thread).messages))
    )


def test_another_model_reads_text_and_calls_and_no_thoughts(conversation) -> None:
    thread, _, model = conversation
    items = OpenAIResponses("gpt-5", base_url=LOCAL).body(model_request(agent(model), thread, {}))["input"]
    for item in items:
        assert item.get("type") in {None, "function_call", "function_call_output"}
        assert not {"id", "status", "phase", "namespace", "encrypted_content"} & item.keys()
    said = [item["content"] for item in items if item.get("role") == "assistant"]
    assert said == ["I look further."] * 3 + [thread.answer]
