"""The official SDKs of OpenAI and Anthropic as clients of the fake provider: their content makes it fair."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from anthropic.types import Message, ModelInfo, RawMessageStreamEvent
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from agentq.testing import FakeProvider, Fault, Turn

KEY = "sk-test-0123456789abcdef"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 2}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
CHAT_TOOLS: Any = [
    {"type": "function", "function": {"name": "forecast", "parameters": SCHEMA, "strict": True}}
]
RESPONSES_TOOLS: Any = [{"type": "function", "name": "forecast", "parameters": SCHEMA, "strict": True}]
MESSAGES_TOOLS: Any = [{"name": "forecast", "description": "The weather.", "input_schema": SCHEMA}]
CALLS = [["forecast", {"city": "Oslo", "days": 2}], ["forecast", {"city": "Rome", "days": 3}]]
SCRIPT = [CALLS, [["forecast", {"city": "Bern", "days": 4}]], "Take an umbrella."]


class Plan(BaseModel):
    city: str
    nights: int


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with FakeProvider(keys={KEY}) as provider:
        yield provider


@pytest.fixture
def gpt(provider) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=provider.url, api_key=KEY, max_retries=0, timeout=10) as client:
        yield client


@pytest.fixture
def claude(provider) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=provider.url, api_key=KEY, max_retries=0, timeout=10) as client:
        yield client


def hello(text: str = "hello") -> Any:
    return [{"role": "user", "content": text}]


# ---- chat completions


def test_chat_answers_a_plain_question_and_counts_its_tokens(gpt):
    done = gpt.chat.completions.create(model="gpt-5", messages=hello("How are you?"))
    assert done.choices[0].message.content == 'You said: "How are you?".'
    assert done.choices[0].finish_reason == "stop"
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (3, 7)
    assert done._request_id.startswith("req_")


def test_chat_with_tools_goes_over_several_turns(gpt, provider):
    provider.script = SCRIPT
    messages = hello("Where does it rain?")
    names = []
    for _ in range(3):
        done = gpt.chat.completions.create(model="gpt-5", messages=messages, tools=CHAT_TOOLS)
        message = done.choices[0].message
        messages.append(message)
        for call in message.tool_calls or ():
            names.append(json.loads(call.function.arguments)["city"])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "rain"})
    assert names == ["Oslo", "Rome", "Bern"]
    assert message.content == "Take an umbrella."
    assert (
        len({call.id for message in messages[1:] for call in getattr(message, "tool_calls", None) or ()}) == 3
    )


def test_chat_calls_the_first_tool_with_arguments_that_fit_its_schema(gpt):
    done = gpt.chat.completions.create(model="gpt-5", messages=hello(), tools=CHAT_TOOLS)
    call = done.choices[0].message.tool_calls[0]
    assert (call.function.name, json.loads(call.function.arguments)) == (
        "forecast",
        {"city": "text", "days": 2},
    )
    assert done.choices[0].finish_reason == "tool_calls"


def test_chat_parses_into_a_model(gpt):
    done = gpt.chat.completions.parse(model="gpt-5", messages=hello(), response_format=Plan)
    assert isinstance(done.choices[0].message.parsed, Plan)


def test_chat_streams_text_calls_and_usage(gpt, provider):
    provider.script = SCRIPT
    asked: Any = {"model": "gpt-5", "messages": hello(), "tools": CHAT_TOOLS}
    with gpt.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
        done = stream.get_final_completion()
    calls = done.choices[0].message.tool_calls
    assert [json.loads(call.function.arguments)["city"] for call in calls] == ["Oslo", "Rome"]
    assert done.usage.prompt_tokens > 0
    provider.script = ["A text that is long enough for several pieces of a stream."]
    chunks = list(gpt.chat.completions.create(model="gpt-5", messages=hello(), stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks).startswith("A text that is long")
    assert all(chunk.usage is None for chunk in chunks)


def test_chat_refuses_a_history_with_a_call_that_has_no_result(gpt, provider):
    provider.script = SCRIPT
    first = gpt.chat.completions.create(model="gpt-5", messages=hello(), tools=CHAT_TOOLS).choices[0].message
    answer = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "rain"}
    with pytest.raises(openai.BadRequestError, match="did not have response messages"):
        gpt.chat.completions.create(model="gpt-5", messages=[*hello(), first, answer], tools=CHAT_TOOLS)


# ---- responses


def test_responses_answers_a_plain_question(gpt):
    done = gpt.responses.create(model="gpt-5", input="How are you?")
    assert done.output_text == 'You said: "How are you?".'
    assert (done.status, done.usage.input_tokens) == ("completed", 3)


@pytest.mark.parametrize("store", [True, False])
def test_responses_with_reasoning_and_tools_goes_over_several_turns(gpt, provider, store):
    provider.script, provider.faults = SCRIPT, "thinking"
    items: list[Any] = hello("Where does it rain?")
    for _ in range(3):
        done = gpt.responses.create(
            model="gpt-5",
            input=items,
            tools=RESPONSES_TOOLS,
            store=store,
            include=["reasoning.encrypted_content"],
        )
        assert done.output[0].type == "reasoning"
        items += done.output
        items += [
            {"type": "function_call_output", "call_id": item.call_id, "output": "rain"}
            for item in done.output
            if item.type == "function_call"
        ]
    assert done.output_text == "Take an umbrella."
    assert len(provider.requests) == 3


def test_responses_that_are_not_stored_need_their_encrypted_content(gpt, provider):
    provider.faults = "thinking"
    asked: Any = {"model": "gpt-5", "store": False}
    first = gpt.responses.create(input="hello", **asked)
    with pytest.raises(openai.NotFoundError, match="Items are not persisted"):
        gpt.responses.create(input=[*hello(), *first.output, *hello("and?")], **asked)


@pytest.mark.parametrize(
    "kept, reason",
    [
        (slice(0, 1), "without its required following item"),
        (slice(1, 2), "without its required 'reasoning' item"),
    ],
)
def test_reasoning_and_what_it_led_to_go_together(gpt, provider, kept, reason):
    provider.faults = "thinking"
    first = gpt.responses.create(model="gpt-5", input="hello")
    with pytest.raises(openai.BadRequestError, match=reason):
        gpt.responses.create(model="gpt-5", input=[*hello(), *first.output[kept], *hello("and?")])


def test_responses_parses_into_a_model(gpt):
    done = gpt.responses.parse(model="gpt-5", input="hello", text_format=Plan)
    assert isinstance(done.output_parsed, Plan)


def test_responses_streams_reasoning_text_and_calls(gpt, provider):
    provider.script = [Turn(text="I look it up.", calls=CALLS, thinking="Rain, where?")]
    asked: Any = {
        "model": "gpt-5",
        "input": "hello",
        "tools": RESPONSES_TOOLS,
        "reasoning": {"summary": "auto"},
    }
    with gpt.responses.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        done = stream.get_final_response()
    assert [item.type for item in done.output] == ["reasoning", "message", "function_call", "function_call"]
    assert done.output[0].summary[0].text == "Rain, where?"
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"


def test_a_response_that_is_cut_is_incomplete(gpt, provider):
    provider.script = ["word " * 100]
    done = gpt.responses.create(model="gpt-5", input="hello", max_output_tokens=16)
    assert (done.status, done.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert done.usage.output_tokens == 16


# ---- messages


def test_messages_answers_a_plain_question(claude):
    done = claude.messages.create(model="claude-x", max_tokens=100, messages=hello("How are you?"))
    assert done.content[0].text == 'You said: "How are you?".'
    assert (done.stop_reason, done.usage.input_tokens) == ("end_turn", 3)
    assert done._request_id.startswith("req_")


THINK: Any = {"type": "enabled", "budget_tokens": 1024}


def test_messages_with_thinking_and_tools_goes_over_several_turns(claude, provider):
    provider.script = SCRIPT
    messages = hello("Where does it rain?")
    for _ in range(3):
        done = claude.messages.create(
            model="claude-x", max_tokens=2_000, messages=messages, tools=MESSAGES_TOOLS, thinking=THINK
        )
        assert done.content[0].type == "thinking"
        messages.append({"role": "assistant", "content": done.content})
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": "rain"}
            for block in done.content
            if block.type == "tool_use"
        ]
        messages.append({"role": "user", "content": results})
    assert done.content[1].text == "Take an umbrella."
    assert done.stop_reason == "end_turn"


def changed_text(block: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**block, "thinking": block["thinking"] + "!"}]


def without_text(block: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**block, "thinking": ""}]


def left_out(block: dict[str, Any]) -> list[dict[str, Any]]:
    return []


@pytest.mark.parametrize(
    "change, reason",
    [
        (changed_text, "Invalid `signature`"),
        (without_text, "Invalid `signature`"),
        (left_out, "Expected `thinking`"),
    ],
)
def test_thinking_that_was_tampered_with_is_refused(claude, provider, change, reason):
    provider.script = SCRIPT
    asked: Any = {"model": "claude-x", "max_tokens": 2_000, "tools": MESSAGES_TOOLS, "thinking": THINK}
    first = claude.messages.create(messages=hello(), **asked)
    thinking, *rest = [block.to_dict() for block in first.content]
    results = [{"type": "tool_result", "tool_use_id": block["id"], "content": "rain"} for block in rest]
    said = {"role": "assistant", "content": [*change(thinking), *rest]}
    with pytest.raises(anthropic.BadRequestError, match=reason):
        claude.messages.create(messages=[*hello(), said, {"role": "user", "content": results}], **asked)


def test_thinking_of_another_model_is_refused(claude):
    asked: Any = {"max_tokens": 2_000, "thinking": THINK}
    first = claude.messages.create(model="claude-x", messages=hello(), **asked)
    said = {"role": "assistant", "content": first.content}
    with pytest.raises(anthropic.BadRequestError, match="Invalid `signature`"):
        claude.messages.create(model="claude-y", messages=[*hello(), said, *hello("and?")], **asked)


def test_messages_parses_into_a_model(claude):
    done = claude.messages.parse(model="claude-x", max_tokens=100, messages=hello(), output_format=Plan)
    assert isinstance(done.parsed_output, Plan)


def test_messages_streams_thinking_text_and_calls(claude, provider):
    provider.script = [Turn(text="I look it up.", calls=CALLS)]
    with claude.messages.stream(
        model="claude-x", max_tokens=2_000, messages=hello(), tools=MESSAGES_TOOLS, thinking=THINK
    ) as stream:
        text = "".join(stream.text_stream)
        done = stream.get_final_message()
    assert text == "I look it up."
    assert [block.type for block in done.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert done.content[2].input == {"city": "Oslo", "days": 2}
    assert done.stop_reason == "tool_use"
    assert done.usage.output_tokens > 10


def test_what_was_streamed_can_be_sent_back(claude, provider):
    provider.script = SCRIPT
    asked: Any = {"model": "claude-x", "max_tokens": 2_000, "tools": MESSAGES_TOOLS, "thinking": THINK}
    with claude.messages.stream(messages=hello(), **asked) as stream:
        first = stream.get_final_message()
    calls = [block for block in first.content if block.type == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": block.id, "content": "rain"} for block in calls]
    said = [*hello(), {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    assert claude.messages.create(messages=said, **asked).stop_reason == "tool_use"


# ---- both services


def test_the_models_are_listed_in_either_form(gpt, claude, provider):
    provider.service.models = {"gpt-5", "claude-x"}
    assert [model.id for model in gpt.models.list()] == ["claude-x", "gpt-5"]
    assert [model.id for model in claude.models.list()] == ["claude-x", "gpt-5"]
    assert claude.models.retrieve("claude-x").id == "claude-x"
    with pytest.raises(openai.NotFoundError):
        gpt.models.retrieve("gpt-6")


ERRORS = [
    ("rate_limited", openai.RateLimitError, anthropic.RateLimitError),
    ("payment_required", openai.APIStatusError, anthropic.PaymentRequiredError),
    ("context_overflow", openai.BadRequestError, anthropic.BadRequestError),
    ("overflow_413", openai.APIStatusError, anthropic.ContentTooLargeError),
    ("server_error", openai.InternalServerError, anthropic.InternalServerError),
    ("overloaded", openai.InternalServerError, anthropic.OverloadedError),
    ("unavailable", openai.InternalServerError, anthropic.ServiceUnavailableError),
    ("html_page", openai.InternalServerError, anthropic.InternalServerError),
    ("closed", openai.APIConnectionError, anthropic.APIConnectionError),
    ("half_body", openai.APIConnectionError, anthropic.APIConnectionError),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error[0])
def test_an_error_becomes_the_sdk_s_own(gpt, claude, provider, error):
    provider.faults, of_openai, of_anthropic = error
    with pytest.raises(of_openai):
        gpt.chat.completions.create(model="gpt-5", messages=hello())
    with pytest.raises(of_openai):
        gpt.responses.create(model="gpt-5", input="hello")
    with pytest.raises(of_anthropic):
        claude.messages.create(model="claude-x", max_tokens=100, messages=hello())


def test_a_wrong_key_is_refused_by_both_services(provider):
    with (
        openai.OpenAI(base_url=provider.url, api_key="sk-wrong", max_retries=0) as wrong,
        pytest.raises(openai.AuthenticationError) as of_openai,
    ):
        wrong.chat.completions.create(model="gpt-5", messages=hello())
    assert of_openai.value.code == "invalid_api_key"
    with (
        anthropic.Anthropic(base_url=provider.url, api_key="sk-wrong", max_retries=0) as other,
        pytest.raises(anthropic.AuthenticationError, match="invalid x-api-key"),
    ):
        other.messages.create(model="claude-x", max_tokens=100, messages=hello())


def test_a_model_that_is_not_there_is_a_404(gpt, claude, provider):
    provider.service.models = {"gpt-5"}
    with pytest.raises(openai.NotFoundError) as of_openai:
        gpt.responses.create(model="gpt-6", input="hello")
    assert of_openai.value.code == "model_not_found"
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="claude-y", max_tokens=100, messages=hello())


def test_an_error_inside_a_stream_is_raised_by_the_sdks(gpt, claude, provider):
    provider.faults = "error_in_stream"
    with pytest.raises(openai.APIError, match="Overloaded"):
        list(gpt.chat.completions.create(model="gpt-5", messages=hello(), stream=True))
    kinds = [event.type for event in gpt.responses.create(model="gpt-5", input="hello", stream=True)]
    assert kinds[-1] == "error"
    with pytest.raises(anthropic.APIStatusError) as of_anthropic:
        list(claude.messages.create(model="claude-x", max_tokens=99, messages=hello(), stream=True))
    assert of_anthropic.value.type == "overloaded_error"


def test_the_sdks_own_retries_get_through_and_are_in_the_bill(provider):
    provider.faults = Fault("retry_after_ms", first=2, seconds=0.01)
    with openai.OpenAI(base_url=provider.url, api_key=KEY, max_retries=3) as patient:
        patient.chat.completions.create(model="gpt-5", messages=hello())
    assert [entry.status for entry in provider.bill.entries] == [429, 429, 200]


# ---- nothing is missing, and nothing of another type


ASKED: list[tuple[str, dict[str, Any], type]] = [
    ("chat/completions", {"messages": hello()}, ChatCompletion),
    ("chat/completions", {"messages": hello(), "tools": CHAT_TOOLS}, ChatCompletion),
    ("responses", {"input": "hello"}, Response),
    ("responses", {"input": "hello", "tools": RESPONSES_TOOLS, "reasoning": {"summary": "auto"}}, Response),
    ("messages", {"messages": hello(), "max_tokens": 2_000}, Message),
    (
        "messages",
        {"messages": hello(), "max_tokens": 2_000, "tools": MESSAGES_TOOLS, "thinking": THINK},
        Message,
    ),
]
STREAMED: dict[type, Any] = {
    ChatCompletion: ChatCompletionChunk,
    Response: ResponseStreamEvent,
    Message: RawMessageStreamEvent,
}


def post(provider: FakeProvider, path: str, body: dict[str, Any]) -> httpx.Response:
    headers = {"authorization": f"Bearer {KEY}", "anthropic-version": "2023-06-01"}
    return httpx.post(f"{provider.url}/{path}", json={"model": "m", **body}, headers=headers, timeout=10)


@pytest.mark.parametrize("path, body, kind", ASKED)
def test_an_answer_is_valid_by_the_sdk_s_own_types(provider, path, body, kind):
    reply = post(provider, path, body)
    assert reply.status_code == 200
    kind.model_validate_json(reply.content, strict=True)


@pytest.mark.parametrize("path, body, kind", ASKED)
def test_each_event_of_a_stream_is_valid_by_the_sdk_s_own_types(provider, path, body, kind):
    options = {"stream_options": {"include_usage": True}} if path.startswith("chat") else {}
    reply = post(provider, path, {**body, **options, "stream": True})
    lines = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
    adapter = TypeAdapter(STREAMED[kind])
    events = [
        adapter.validate_json(line, strict=True)
        for line in lines
        if line not in ("[DONE]", '{"type": "ping"}')
    ]
    assert len(events) > 3


def test_a_model_is_valid_by_the_sdk_s_own_types(provider):
    headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
    reply = httpx.get(f"{provider.url}/models/claude-x", headers=headers)
    ModelInfo.model_validate_json(reply.content)


@pytest.mark.parametrize("path", ["", "/v1", "/v1/v1"])
def test_the_version_may_be_doubled_or_missing(provider, path):
    url = provider.url.removesuffix("/v1") + path
    headers = {"authorization": f"Bearer {KEY}"}
    body = {"model": "m", "messages": hello()}
    assert httpx.post(f"{url}/chat/completions", json=body, headers=headers).status_code == 200
