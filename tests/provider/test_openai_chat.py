"""What is sent to chat completions for each kind of request, and what is made of answers of every shape."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from agentq.core.errors import UsageError
from agentq.provider.errors import InvalidRequest, LLMError, TransientError
from agentq.provider.openai_chat import OpenAIChat
from agentq.provider.types import ChatRequest, Message, Role, ToolCall, Usage
from tests.support.provider import KEY, Played

TOOL = {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}}
REQUEST = ChatRequest([Message(Role.USER, "hi")], max_output_tokens=100)
LOCAL = "http://localhost:1/v1"


class Plan(BaseModel):
    city: str


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


def says(message: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A body with one choice; `finish` and `choice` change it, the rest is beside it."""
    finish = more.pop("finish", "stop")
    choice = {"message": message or {"content": "ho"}, "finish_reason": finish, **more.pop("choice", {})}
    return {"choices": [choice], **more}


def asks(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return says({"content": None, "tool_calls": list(calls)}, finish="tool_calls", **more)


def call(arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "look", "arguments": arguments}, **more}


def complete(body: Any, request: ChatRequest = REQUEST, **options: Any) -> Any:
    client = OpenAIChat("m", transport=Played(body), base_url=LOCAL, **options)
    try:
        return client.complete(request)
    finally:
        client.close()


def failure(body: Any, request: ChatRequest = REQUEST) -> LLMError:
    with pytest.raises(LLMError) as caught:
        complete(body, request)
    return caught.value


def body(request: ChatRequest = REQUEST, model: str = "m", **options: Any) -> dict[str, Any]:
    return OpenAIChat(model, base_url=LOCAL, **options).body(request)


# ── what is sent ─────────────────────────────────────────────────────────────────────────────────


def test_the_smallest_request() -> None:
    assert body() == {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 100}


def test_the_key_is_a_bearer_token_and_a_server_without_keys_gets_none(monkeypatch) -> None:
    played = Played(says())
    client = OpenAIChat("m", base_url=LOCAL, transport=played)
    client.complete(REQUEST)
    monkeypatch.delenv("OPENAI_API_KEY")
    client.complete(REQUEST)
    client.close()
    assert str(played.requests[0].url) == f"{LOCAL}/chat/completions"
    assert played.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert "authorization" not in played.requests[1].headers


@pytest.mark.parametrize(
    "name", ["max_tokens", "max_completion_tokens", "stream", "n", "tools", "messages", "model"]
)
def test_an_option_that_would_undo_a_reservation_is_refused_at_the_definition(name) -> None:
    with pytest.raises(UsageError, match=f"the option '{name}' is not to be set"):
        OpenAIChat("m", options={name: 1})


def test_other_options_are_sent_as_they_are() -> None:
    played = Played(says())
    client = OpenAIChat(
        "m", base_url=LOCAL, transport=played, options={"top_p": 0.5, "provider": {"order": ["x"]}}
    )
    client.complete(replace(REQUEST, extra={"seed": 7}))
    client.close()
    assert (played.body["top_p"], played.body["provider"], played.body["seed"]) == (0.5, {"order": ["x"]}, 7)


@pytest.mark.parametrize(
    "choice, sent",
    [
        (None, None),
        ("auto", "auto"),
        ("required", "required"),
        ("look", {"type": "function", "function": {"name": "look"}}),
    ],
)
def test_the_choice_of_a_tool(choice, sent) -> None:
    made = body(replace(REQUEST, tools=[TOOL], tool_choice=choice))
    assert made.get("tool_choice") == sent
    assert made["tools"] == [{"type": "function", "function": TOOL}]


def test_a_tool_without_words_or_arguments() -> None:
    made = body(replace(REQUEST, tools=[{"name": "go", "description": "", "parameters": {}}]))
    empty = {"type": "object", "properties": {}}
    assert made["tools"][0]["function"] == {"name": "go", "parameters": empty}


def test_forbidden_tools_are_not_declared_where_nothing_was_called() -> None:
    request = replace(REQUEST, tools=[TOOL], tool_choice="none")
    assert not {"tools", "tool_choice"} & body(request, quirks={"forbidden_tools": "declared"}).keys()


@pytest.mark.parametrize(
    "quirks, sent, told",
    [
        ({}, "json_schema", False),
        ({"native_schema": "object"}, "json_object", True),
        ({"native_schema": "none"}, None, True),
    ],
)
def test_the_form_of_an_answer(quirks, sent, told) -> None:
    request = replace(REQUEST, json_schema=Plan.model_json_schema())
    assert (body(request, quirks=quirks).get("response_format") or {}).get("type") == sent
    assert OpenAIChat("m", base_url=LOCAL, quirks=quirks).native_schema is not told


def test_where_a_form_and_tools_do_not_go_together_the_model_is_told_and_held_only_without_tools() -> None:
    request = replace(REQUEST, json_schema=Plan.model_json_schema())
    quirks = {"schema_with_tools": False}
    assert not OpenAIChat("m", base_url=LOCAL, quirks=quirks).native_schema
    assert "response_format" in body(request, quirks=quirks)
    assert "response_format" not in body(replace(request, tools=[TOOL]), quirks=quirks)


def test_a_form_for_gemini_has_no_key_that_it_refuses() -> None:
    schema = {**Plan.model_json_schema(), "additionalProperties": False}
    held = body(replace(REQUEST, json_schema=schema), provider="google")["response_format"]["json_schema"]
    assert held["schema"] == {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    }


@pytest.mark.parametrize("title", ["Naïve Plan <x>", "x" * 100, ""])
def test_the_name_of_a_form_is_one_that_is_taken(title) -> None:
    made = body(replace(REQUEST, json_schema={**Plan.model_json_schema(), "title": title}))
    name = made["response_format"]["json_schema"]["name"]
    assert name
    assert len(name) <= 64
    assert name.replace("_", "a").isalnum()
    assert name.isascii()


# ── what comes back ──────────────────────────────────────────────────────────────────────────────


def test_the_model_that_answered_is_named_or_is_the_one_that_was_asked() -> None:
    assert complete(says(model="m-2026")).model == "m-2026"
    assert [complete(says(model=name)).model for name in (None, "", 3)] == ["m", "m", "m"]


@pytest.mark.parametrize("finish", ["stop", None, "", "STOP", "end_turn", "eos", "tool_calls"])
def test_a_whole_answer_ends_in_many_words(finish) -> None:
    assert complete(says(finish=finish)).finish_reason == "stop"


@pytest.mark.parametrize("finish", ["length", "max_tokens", "model_length", "MAX_TOKENS"])
def test_so_does_one_that_was_cut(finish) -> None:
    assert complete(says(finish=finish)).finish_reason == "length"
    assert complete(says({"tool_calls": [call()]}, finish=finish)).finish_reason == "length"


@pytest.mark.parametrize("finish", ["error", "abort", "insufficient_system_resource"])
def test_a_reply_that_the_server_broke_off_is_no_answer_with_calls_or_without(finish) -> None:
    for message in ({"content": "Once"}, {"tool_calls": [call()]}):
        error = failure(says(message, finish=finish))
        assert (type(error), error.billed) == (TransientError, None)
        assert finish in error.message


def test_calls_of_a_reply_that_a_filter_ended_may_be_half_and_are_not_made() -> None:
    assert complete(says({"tool_calls": [call()]}, finish="content_filter")).finish_reason == "length"
    assert type(failure(says(finish="content_filter"))) is InvalidRequest


def test_a_reply_as_long_as_its_cap_was_cut_whatever_it_says() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 100, "total_tokens": 105}
    result = complete(asks(call(), usage=usage))
    assert (result.finish_reason, len(result.tool_calls)) == ("length", 1)


@pytest.mark.parametrize(
    "arguments, text", [('{"a": 1}', '{"a": 1}'), ({"a": "ß"}, '{"a": "ß"}'), (None, ""), ("", "")]
)
def test_arguments_are_text_an_object_or_nothing(arguments, text) -> None:
    assert complete(asks(call(arguments))).tool_calls == (ToolCall("c1", "look", text),)


def test_an_answer_in_parts_is_its_texts_and_its_thoughts_are_kept() -> None:
    content = [
        {"type": "thinking", "thinking": []},
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
    ]
    result = complete(says({"content": content}))
    assert (result.text, result.turn.body) == ("ab", {"role": "assistant", "content": content})


def test_an_index_and_what_is_empty_are_no_reason_to_keep_a_turn() -> None:
    message = {"content": "", "tool_calls": [call(index=0)], "reasoning_content": None, "function_call": None}
    assert complete(says(message)).turn is None


def test_a_thought_without_words_is_taken_back_by_no_server_as_null() -> None:
    result = complete(says({"content": None, "reasoning": "Hm.", "tool_calls": []}))
    sent = body(replace(REQUEST, messages=[Message(Role.ASSISTANT, "", turn=result.turn)]))["messages"]
    assert sent == [{"role": "assistant", "content": "", "reasoning": "Hm."}]


def test_a_turn_with_a_call_without_a_name_is_not_kept() -> None:
    bad = {"id": "c2", "type": "function", "function": {"name": "", "arguments": ""}}
    result = complete(says({"content": "x", "reasoning": "Hm.", "tool_calls": [call(), bad]}))
    assert (len(result.tool_calls), result.turn) == (1, None)


@pytest.mark.parametrize(
    "usage, read",
    [
        # DeepSeek's own names beside OpenAI's.
        (
            {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11, "prompt_cache_hit_tokens": 8},
            Usage(9, 2, 8),
        ),
        # Gemini and xAI leave thoughts out of the completion, and have them in the total.
        ({"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 31}, Usage(9, 22, 0, 20)),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 2,
                "total_tokens": 31,
                "completion_tokens_details": {"reasoning_tokens": 20},
            },
            Usage(9, 22, 0, 20),
        ),
        # LiteLLM's name of what Anthropic wrote into its cache.
        (
            {"prompt_tokens": 9, "completion_tokens": 2, "cache_creation_input_tokens": 4},
            Usage(9, 2, 0, 0, 4),
        ),
        # More than there is cannot be cached.
        (
            {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 99}},
            Usage(9, 2, 9),
        ),
        ({"prompt_tokens": None, "completion_tokens": "2", "total_tokens": True}, Usage()),
        ({"prompt_tokens": -1, "completion_tokens": 2.0, "prompt_tokens_details": None}, Usage(0, 2)),
        ({"prompt_tokens": math.inf, "completion_tokens": math.nan}, Usage()),
        ([], Usage()),
        ("many", Usage()),
    ],
)
def test_usage_in_every_form_that_is_known(usage, read) -> None:
    result = complete(says(usage=usage))
    assert result.usage == read
    assert all(isinstance(n, int) for n in (result.usage.input_tokens, result.usage.output_tokens))


@pytest.mark.parametrize(
    "answer",
    [
        {},
        [],
        "ho",
        None,
        {"choices": {}},
        {"choices": [None]},
        {"choices": [{}]},
        says({"content": 7}),
        {"choices": [{"message": "ho"}]},
        says({"tool_calls": "look"}),
        says({"tool_calls": [{"id": "c1"}]}),
        says({"tool_calls": [{"function": None}]}),
        says({"tool_calls": [None]}),
        says({"content": [{"type": "text"}]}),
        httpx.Response(200, text='{"choices": [{"message": {}}], "usage": {"prompt_tokens": 1e999}}'),
    ],
)
def test_a_shape_that_is_none_is_a_failure_and_may_have_been_billed(answer) -> None:
    error = failure(answer)
    assert (type(error), error.billed) == (TransientError, None)


def test_an_error_in_a_choice_is_of_its_own_class() -> None:
    choice = {"error": {"code": 400, "message": "no such parameter"}}
    error = failure(says({"content": "Once"}, finish="error", choice=choice))
    assert (type(error), error.billed, error.message) == (InvalidRequest, None, "no such parameter")
