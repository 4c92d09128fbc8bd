"""Ten turns with tools and thoughts through JSON and Redis' form of it: each goes back as it came."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from agentq.agent.loop import apply_reply, apply_results, begin
from agentq.agent.request import model_request
from agentq.agent.thread import Thread, pending_calls
from agentq.engine.snapshot import encode_message
from agentq.provider.openai_chat import OpenAIChat
from agentq.provider.types import Message
from tests.support.provider import CTX, KEY, Played, agent

TURNS = 10
NAMES = ("deepseek", "gemini", "openrouter", "mistral")


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def message_of(name: str, i: int) -> dict[str, Any]:
    """An assistant's message as that service gives it, with keys in its order and spaces in its arguments."""
    call_id = {"mistral": f"D681Pev{i:02d}", "gemini": f"function-call-{i}"}.get(name, f"call_{i}_Zß")
    call: dict[str, Any] = {
        "index": 0,
        "id": call_id if name != "openrouter" else f"call_{i}",
        "type": "function",
        "function": {"name": "forecast", "arguments": f'{{"city": "Köln {i} \\u2603",  "days":{i + 1}}}'},
    }
    last = i == TURNS - 1
    said = "Rain in Köln ☔, everywhere." if last else ""
    match name:
        case "deepseek":
            own: dict[str, Any] = {"content": said, "reasoning_content": f'Thought {i}: \ud83c "quoted"\n\t…'}
        case "gemini":
            call["extra_content"] = {"google": {"thought_signature": f"EiQKIgFyyqo{i}+/=="}}
            own = {"content": said or None, "extra_content": {"google": {"thought": True}}}
        case "openrouter":
            own = {
                "content": said,
                "refusal": None,
                "reasoning": f"I look {i}.",
                "reasoning_details": [
                    {"type": "reasoning.text", "text": f"I look {i}.", "signature": "sig==", "index": 0},
                    {
                        "type": "reasoning.encrypted",
                        "data": "gAAAAA",
                        "id": None,
                        "format": "x",
                        "index": 1.5,
                    },
                ],
            }
        case _:
            thought = {"type": "thinking", "thinking": [{"type": "text", "text": f"Hm {i}."}], "closed": True}
            own = {"content": [thought, {"type": "text", "text": said}] if said else [thought]}
    return {"role": "assistant", **own, **({} if last else {"tool_calls": [call]})}


def answers(name: str) -> Iterator[dict[str, Any]]:
    for i in range(TURNS):
        finish = "stop" if i == TURNS - 1 else "tool_calls"
        usage = {"prompt_tokens": 100 + i, "completion_tokens": 10, "total_tokens": 110 + i}
        choice = {"index": 0, "message": message_of(name, i), "finish_reason": finish}
        yield {"id": f"c{i}", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}


def stored(thread: Thread) -> Thread:
    """The thread as a user keeps it, with each message as Redis keeps it."""
    thread = Thread.from_json(thread.to_json())
    messages = [Message.from_dict(json.loads(encode_message(one).encode())) for one in thread.messages]
    return replace(thread, messages=messages)


def conversation(name: str, **options: Any) -> tuple[Thread, Played, OpenAIChat]:
    """The run by the loop's own decisions, its thread stored and read again between any two of them."""
    played = Played(*answers(name))
    model = OpenAIChat("m", base_url="http://localhost:1/v1", transport=played, **options)
    its = agent(model)
    thread = Thread()
    begin(its, thread, "Where does it rain?")
    for _ in range(TURNS):
        thread = stored(thread)
        apply_reply(its, thread, model.complete(model_request(its, thread, {})), cost=None)
        thread = stored(thread)
        calls = pending_calls(thread)
        apply_results(its, thread, calls, [its.executor.call(c.name, c.arguments, CTX) for c in calls])
    return thread, played, model


@pytest.mark.parametrize("name", NAMES)
def test_each_turn_goes_back_byte_for_byte(name) -> None:
    thread, played, model = conversation(name)
    assert thread.answer == "Rain in Köln ☔, everywhere."
    model.complete(replace(model_request(agent(model), stored(thread), {}), tools=()))
    model.close()
    sent = [message for message in played.body["messages"] if message["role"] == "assistant"]
    assert [json.dumps(message) for message in sent] == [
        json.dumps(message_of(name, i)) for i in range(TURNS)
    ]
    results = [message for message in played.body["messages"] if message["role"] == "tool"]
    assert [one["tool_call_id"] for one in results] == [
        call["id"] for message in sent for call in message.get("tool_calls", ())
    ]
    assert results[3]["content"] == "Köln 3 ☃, 4 days: rain"


@pytest.mark.parametrize("name", NAMES)
def test_each_request_begins_with_all_of_the_one_before(name) -> None:
    _, played, model = conversation(name)
    model.close()
    for before, after in zip(played.bodies, played.bodies[1:], strict=False):
        assert (
            after["messages"][: len(before["messages"])] == before["messages"]
        )  # what a cache of prompts needs


@pytest.mark.parametrize("name", NAMES)
def test_the_same_thread_is_the_same_request_in_another_process(name) -> None:
    thread, _, model = conversation(name)
    other = OpenAIChat("m", base_url="http://localhost:1/v1")
    request = model_request(agent(model), thread, {})
    assert json.dumps(model.body(request)) == json.dumps(
        other.body(replace(request, messages=stored(thread).messages))
    )
    model.close()


@pytest.mark.parametrize("name", NAMES)
def test_another_model_reads_text_and_calls_and_no_thoughts(name) -> None:
    thread, _, model = conversation(name)
    model.close()
    other = OpenAIChat("another", base_url="http://localhost:1/v1")
    sent = other.body(model_request(agent(model), thread, {}))["messages"]
    for message in sent:
        assert message.keys() <= {"role", "content", "tool_calls", "tool_call_id"}
        assert all(call.keys() == {"id", "type", "function"} for call in message.get("tool_calls", ()))
    assert [message["content"] for message in sent if message["role"] == "assistant"][-1] == thread.answer


def test_half_a_character_in_a_thought_is_no_trouble() -> None:
    thread, played, model = conversation("deepseek")
    model.close()
    turn = thread.messages[1].turn
    assert turn is not None
    assert "\ud83c" in turn.body["reasoning_content"]
    assert "\ud83c" in played.body["messages"][2]["reasoning_content"]
