"""The official SDK is the measure: what it sends is what we send, what it takes for an answer we read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import openai
import pytest
from openai.lib._parsing._completions import type_to_response_format_param
from openai.types.chat import ChatCompletion
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from pydantic import BaseModel, ConfigDict, TypeAdapter

from agentq.provider.openai_chat import OpenAIChat
from agentq.provider.types import ChatRequest, Message, Role, ToolCall, Turn, Usage
from agentq.testing import FakeProvider
from agentq.tools import ToolRegistry
from tests.support.provider import KEY, TOOLS, Played

PARAMS = TypeAdapter(CompletionCreateParamsNonStreaming)
OURS = "openai-chat:gpt-4o"


class Plan(BaseModel):
    """Where to go."""

    city: str
    days: list[int]
    note: str | None = None


DECLARED = [
    {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    for spec in ToolRegistry(list(TOOLS)).visible(None)
]
SDK_TOOLS: Any = [{"type": "function", "function": tool} for tool in DECLARED]


def completion(message: dict[str, Any], finish: str = "stop", **more: Any) -> dict[str, Any]:
    """A body as api.openai.com writes it."""
    return {
        "id": "chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT",
        "object": "chat.completion",
        "created": 1741569952,
        "model": "gpt-4o-2024-08-06",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "refusal": None, "annotations": [], **message},
                "logprobs": None,
                "finish_reason": finish,
            }
        ],
        "usage": {
            "prompt_tokens": 1117,
            "completion_tokens": 46,
            "total_tokens": 1163,
            "prompt_tokens_details": {"cached_tokens": 1024, "audio_tokens": 0, "cache_write_tokens": 64},
            "completion_tokens_details": {
                "reasoning_tokens": 30,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        },
        "service_tier": "default",
        "system_fingerprint": "fp_fc9f1d7035",
        **more,
    }


def asked(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


TEXT = completion({"content": "Rain."})
CALLS = completion(
    {
        "content": None,
        "tool_calls": [asked("call_abc", "forecast", '{"city": "Oslo"}'), asked("call_def", "today", "{}")],
    },
    "tool_calls",
)
RECORDED: dict[str, dict[str, Any]] = {
    "text": TEXT,
    "calls": CALLS,
    "cut": completion({"content": "Once"}, "length"),
    "refusal": completion({"content": None, "refusal": "I can't."}),
    "citations": completion(
        {
            "content": "Rain.",
            "annotations": [
                {
                    "type": "url_citation",
                    "url_citation": {"start_index": 0, "end_index": 4, "title": "T", "url": "https://a.b"},
                }
            ],
        }
    ),
    "reasoning": completion({"content": "Rain.", "reasoning_content": "It is autumn."}),
    "no details": completion(
        {"content": "Rain."}, usage={"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
    ),
    "no usage": completion({"content": "Rain."}, usage=None),
}


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for name in ("OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.delenv(name, raising=False)


def ours(request: ChatRequest, model: str = "gpt-4o", **options: Any) -> dict[str, Any]:
    """What we send."""
    played = Played(TEXT)
    client = OpenAIChat(model, transport=played, **options)
    client.complete(request)
    client.close()
    return played.body


def theirs(ask: Callable[[openai.OpenAI], Any]) -> dict[str, Any]:
    """What the SDK sends."""
    with (
        FakeProvider(["Rain."], keys={KEY}) as server,
        openai.OpenAI(base_url=server.url, max_retries=0, timeout=10) as client,
    ):
        ask(client)
    return dict(server.requests[-1].body)


def result_of(body: dict[str, Any], **request: Any) -> Any:
    client = OpenAIChat("gpt-4o", transport=Played(body, headers={"x-request-id": "req_1"}))
    try:
        return client.complete(ChatRequest([Message(Role.USER, "hi")], **request))
    finally:
        client.close()


def envelope(call_id: str, content: str) -> Message:
    data = {"tool_call_id": call_id, "tool": "t", "ok": True, "error_code": None, "content": content}
    return Message(Role.TOOL, json.dumps(data), tool_call_id=call_id)


CONVERSATION = ChatRequest(
    [
        Message(Role.USER, "Where does it rain?"),
        Message(
            Role.ASSISTANT,
            "",
            (ToolCall("call_abc", "forecast", '{"city": "Oslo"}'), ToolCall("call_def", "today", "{}")),
        ),
        envelope("call_abc", "rain"),
        envelope("call_def", "Tuesday"),
        Message(Role.ASSISTANT, "In Oslo."),
        Message(Role.USER, "Tomorrow, too?"),
    ],
    system="Be brief.",
    max_output_tokens=500,
    temperature=0.2,
    stop=["END"],
    tools=DECLARED,
)


def test_the_whole_request_is_the_one_of_the_sdk_built_from_its_own_objects() -> None:
    def ask(client: openai.OpenAI) -> None:
        # As its documentation says: the message of the reply is put into the list as it is.
        said = ChatCompletion.model_validate(CALLS).choices[0].message
        messages: list[Any] = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Where does it rain?"},
            {key: value for key, value in said.model_dump(exclude_unset=True).items() if key in _OF_A_TURN},
            {"role": "tool", "tool_call_id": "call_abc", "content": "rain"},
            {"role": "tool", "tool_call_id": "call_def", "content": "Tuesday"},
            {"role": "assistant", "content": "In Oslo."},
            {"role": "user", "content": "Tomorrow, too?"},
        ]
        client.chat.completions.create(
            model="gpt-4o", messages=messages, max_tokens=500, temperature=0.2, stop=["END"], tools=SDK_TOOLS
        )

    assert ours(CONVERSATION) == theirs(ask)


def test_both_send_it_to_the_same_address_with_the_same_headers() -> None:
    with FakeProvider(["Rain."], keys={KEY}) as server:
        model = OpenAIChat("gpt-4o", base_url=server.url)
        model.complete(ChatRequest([Message(Role.USER, "hi")]))
        model.close()
        with openai.OpenAI(base_url=server.url, max_retries=0, timeout=10) as client:
            client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "hi"}])
    mine, its = server.requests
    assert (mine.dialect, mine.key) == (its.dialect, its.key)
    assert mine.headers["content-type"] == its.headers["content-type"]


def test_both_know_the_same_public_address() -> None:
    with openai.OpenAI() as client:
        assert str(client.base_url).rstrip("/") == OpenAIChat("gpt-4o").base_url


# `refusal: null` and `annotations: []` say nothing, and not every server takes them back.
_OF_A_TURN = {"role", "content", "tool_calls"}


def test_a_model_that_reasons_gets_what_the_sdk_sends_it() -> None:
    def ask(client: openai.OpenAI) -> None:
        client.chat.completions.create(
            model="gpt-5",
            messages=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "hi"}],
            max_completion_tokens=500,
            reasoning_effort="low",
        )

    request = ChatRequest(
        [Message(Role.USER, "hi")], system="Be brief.", max_output_tokens=500, temperature=0.2
    )
    assert ours(request, "gpt-5", options={"reasoning_effort": "low"}) == theirs(ask)


def test_a_form_of_the_answer_is_that_which_the_sdk_makes_of_the_model() -> None:
    request = replace(CONVERSATION, json_schema=Plan.model_json_schema(), tools=())
    mine = ours(request)["response_format"]
    its: Any = type_to_response_format_param(Plan)
    assert mine["json_schema"]["name"] == its["json_schema"]["name"]
    assert mine["json_schema"]["strict"] is its["json_schema"]["strict"] is True
    assert mine["json_schema"]["schema"] == _without_titles(its["json_schema"]["schema"])


def _without_titles(schema: Any) -> Any:
    """Titles are the SDK's habit: they say a name again."""
    if isinstance(schema, list):
        return [_without_titles(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_titles(value)
        for key, value in schema.items()
        if key != "title" or not isinstance(value, str)
    }


class Open(BaseModel):
    """What the strict form cannot say."""

    model_config = ConfigDict(extra="allow")
    counts: dict[str, int]


def test_a_form_that_is_not_to_be_had_strictly_is_asked_for_without() -> None:
    mine = ours(replace(CONVERSATION, json_schema=Open.model_json_schema(), tools=()))
    assert "strict" not in mine["response_format"]["json_schema"]
    assert mine["response_format"]["json_schema"]["schema"] == Open.model_json_schema()
    PARAMS.validate_python(mine)


@pytest.mark.parametrize("model", ["gpt-4o", "gpt-5", "gpt-5.6", "o3-mini"])
@pytest.mark.parametrize("provider", ["openai", "mistral", "google", "groq", "deepseek"])
@pytest.mark.parametrize("closing", [False, True])
def test_each_request_is_one_by_the_sdks_own_types(model, provider, closing) -> None:
    last = {"tools": (), "tool_choice": "none"} if closing else {"tool_choice": "auto"}
    request = replace(CONVERSATION, json_schema=Plan.model_json_schema(), **last)
    body = ours(request, model, provider=provider, quirks={"forbidden_tools": "declared"})
    PARAMS.validate_python(body)
    # A TypedDict takes keys that it does not name.
    assert body.keys() <= CompletionCreateParamsNonStreaming.__annotations__.keys()


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_answers_are_answers_to_the_sdk_and_to_us(name) -> None:
    body = RECORDED[name]
    said = ChatCompletion.model_validate(body)
    result = result_of(body)
    message = said.choices[0].message
    assert result.text == (message.content or message.refusal or "")
    assert [(c.id, c.name, c.arguments) for c in result.tool_calls] == [
        (c.id, c.function.name, c.function.arguments)
        for c in message.tool_calls or ()
        if c.type == "function"
    ]
    assert (result.model, result.provider, result.request_id) == (said.model, "openai", "req_1")
    if said.usage is None:
        assert result.usage == Usage()
    else:
        assert (result.usage.input_tokens, result.usage.output_tokens, result.usage.total_tokens) == (
            said.usage.prompt_tokens, said.usage.completion_tokens, said.usage.total_tokens,
        )  # fmt: skip


def test_details_of_the_usage_are_read() -> None:
    assert result_of(TEXT).usage == Usage(1117, 46, 1024, 30, 64)


def test_a_turn_is_kept_only_where_it_holds_more_than_text_and_calls() -> None:
    kept = {name: result_of(body).turn for name, body in RECORDED.items()}
    assert {name for name, turn in kept.items() if turn is not None} == {"reasoning"}
    message = RECORDED["reasoning"]["choices"][0]["message"]
    assert kept["reasoning"] == Turn(OURS, message)


def test_finish_reasons_are_those_that_the_loop_knows() -> None:
    reasons = {name: result_of(body).finish_reason for name, body in RECORDED.items()}
    assert reasons == {
        "text": "stop", "calls": "tool_calls", "cut": "length", "refusal": "refusal", "citations": "stop",
        "reasoning": "stop", "no details": "stop", "no usage": "stop",
    }  # fmt: skip
    assert result_of(TEXT, max_output_tokens=46).finish_reason == "length"
