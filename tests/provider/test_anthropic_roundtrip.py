"""Ten turns with tools and thoughts through JSON and Redis' form of it: each goes back as it came."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from agentq.agent.loop import apply_reply, apply_results, begin
from agentq.agent.request import model_request
from agentq.agent.thread import Thread, pending_calls
from agentq.engine.snapshot import encode_message
from agentq.provider.anthropic import Anthropic
from agentq.provider.openai_chat import OpenAIChat
from agentq.provider.types import Message
from tests.support.provider import CTX, KEY, Played, agent

TURNS = 10
MODEL = "claude-sonnet-4-6"
NAMES = ("shown", "hidden", "redacted", "interleaved", "searching", "deepseek")


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def call(i: int, part: str = "a") -> dict[str, Any]:
    return {
        "type": "tool_use",
        "id": f"toolu_01{part}{i:02d}q90qw90lq917835lq9",
        "name": "forecast",
        "input": {"days": i + 1, "city": f"Köln {i} ☃"},
        "caller": {"type": "direct"},
    }


def content_of(name: str, i: int) -> list[dict[str, Any]]:
    """The blocks of a turn as that service gives them, with keys in its order."""
    last = i == TURNS - 1
    words = {"citations": None, "text": "Rain in Köln ☔." if last else "Let me look.\n", "type": "text"}
    then = [words] if last else [words, call(i)]
    thought = {
        "signature": f"EqoBCkgIARABGAIiQL8Q+/{i}==",
        "thinking": f'{i}: "q" \\ \u2028 \x07 ß',
        "type": "thinking",
    }
    match name:
        case "shown":
            return [thought, *then]
        case "hidden":
            return [{**thought, "thinking": ""}, *then]
        case "redacted":
            return [{"type": "redacted_thinking", "data": f"EmwKAhgBEgy3va3p{i}="}, thought, *then]
        case "interleaved":
            return [thought, words] if last else [thought, call(i), thought, words, call(i, "b")]
        case "searching":
            used = {
                "id": f"srvtoolu_{i}",
                "input": {"query": "ß"},
                "name": "web_search",
                "type": "server_tool_use",
            }
            found = {"content": [], "tool_use_id": f"srvtoolu_{i}", "type": "web_search_tool_result"}
            return [used, found, *then]
    # DeepSeek signs with the id of the answer, and has numbers and keys of its own.
    return [{**thought, "signature": f"0x{i}", "tokens": 1.5, "big": 2**60, "none": None}, *then]


def answers(name: str) -> Iterator[dict[str, Any]]:
    for i in range(TURNS):
        yield {
            "id": f"msg_{i}",
            "type": "message",
            "role": "assistant",
            "model": MODEL,
            "content": content_of(name, i),
            "stop_reason": "end_turn" if i == TURNS - 1 else "tool_use",
            "usage": {"input_tokens": 100 + i, "output_tokens": 10},
        }


def stored(thread: Thread) -> Thread:
    """The thread as a user keeps it, with each message as Redis keeps it."""
    thread = Thread.from_json(thread.to_json())
    messages = [Message.from_dict(json.loads(encode_message(one).encode())) for one in thread.messages]
    return replace(thread, messages=messages)


def conversation(name: str) -> tuple[Thread, Played, Anthropic]:
    """The run by the loop's own decisions, its thread stored and read again between any two of them."""
    played = Played(*answers(name))
    model = Anthropic(MODEL, transport=played)
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
    assert thread.answer == "Rain in Köln ☔."
    begin(agent(model), thread, "And tomorrow?")
    model.complete(model_request(agent(model), stored(thread), {}))
    model.close()
    sent = [message["content"] for message in played.body["messages"] if message["role"] == "assistant"]
    assert [json.dumps(blocks) for blocks in sent] == [json.dumps(content_of(name, i)) for i in range(TURNS)]
    # And in the very bytes of the request, each as this one writes JSON.
    raw = played.requests[-1].content.decode()
    for i in range(TURNS):
        assert json.dumps(content_of(name, i), ensure_ascii=False, separators=(",", ":")) in raw
    assert [message["role"] for message in played.body["messages"]] == ["user", "assistant"] * TURNS + [
        "user"
    ]
    for turn, results in zip(sent[:-1], played.body["messages"][2::2], strict=False):
        assert [block["tool_use_id"] for block in results["content"]] == [
            block["id"] for block in turn if block["type"] == "tool_use"
        ]


@pytest.mark.parametrize("name", NAMES)
def test_each_request_begins_with_all_of_the_one_before(name) -> None:
    _, played, model = conversation(name)
    model.close()
    bodies = [unmarked(body) for body in played.bodies]
    for before, after in itertools.pairwise(bodies):
        assert (after["system"], after["tools"]) == (before["system"], before["tools"])
        assert after["messages"][: len(before["messages"])] == before["messages"]


def unmarked(body: Any) -> Any:
    """The body without marks of the cache, which are no part of what is cached."""
    if isinstance(body, list):
        return [unmarked(one) for one in body]
    if not isinstance(body, dict):
        return body
    return {key: unmarked(value) for key, value in body.items() if key != "cache_control"}


@pytest.mark.parametrize("name", NAMES)
def test_the_same_thread_is_the_same_request_in_another_process(name) -> None:
    thread, _, model = conversation(name)
    other = Anthropic(MODEL)
    begin(agent(model), thread, "And tomorrow?")
    request = model_request(agent(model), thread, {})
    again = replace(request, messages=stored(thread).messages)
    assert json.dumps(model.body(request)) == json.dumps(other.body(again))
    model.close()


@pytest.mark.parametrize("name", NAMES)
def test_another_model_reads_text_and_calls_and_no_thoughts(name) -> None:
    thread, _, model = conversation(name)
    model.close()
    begin(agent(model), thread, "And tomorrow?")
    request = model_request(agent(model), thread, {})
    sent = Anthropic("claude-opus-4-6").body(request)["messages"]
    blocks = [block for message in sent for block in message["content"]]
    assert {block["type"] for block in blocks} == {"text", "tool_use", "tool_result"}
    assert all("caller" not in block and "citations" not in block for block in blocks)
    elsewhere = OpenAIChat("m").body(request)["messages"]
    assert {message["role"] for message in elsewhere} == {"system", "user", "assistant", "tool"}
    assert len([one for one in elsewhere if one["role"] == "tool"]) == len(
        [block for block in blocks if block["type"] == "tool_result"]
    )


def test_half_a_character_in_a_thought_is_no_trouble() -> None:
    half = {"type": "thinking", "thinking": "Hm \ud83c", "signature": "EqoB"}
    first = {**next(answers("shown")), "content": [half, call(0)]}
    played = Played(first, list(answers("shown"))[-1])
    model = Anthropic(MODEL, transport=played)
    its, thread = agent(model), Thread()
    begin(its, thread, "Where does it rain?")
    apply_reply(its, thread, model.complete(model_request(its, thread, {})), cost=None)
    thread = stored(thread)
    calls = pending_calls(thread)
    apply_results(its, thread, calls, [its.executor.call(c.name, c.arguments, CTX) for c in calls])
    model.complete(model_request(its, stored(thread), {}))
    model.close()
    assert played.body["messages"][1]["content"] == [half, call(0)]
