"""The official SDK is the measure: what it sends is what we send, what it takes for an answer we read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic import transform_schema
from anthropic.types import Message as SdkMessage
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from pydantic import BaseModel, TypeAdapter

from agentq.provider.anthropic import Anthropic
from agentq.provider.schemas import narrow
from agentq.provider.types import ChatRequest, Message, Role, ToolCall, Turn, Usage
from agentq.tools import ToolRegistry
from tests.support.provider import KEY, TOOLS, Played

PARAMS = TypeAdapter(MessageCreateParamsNonStreaming)
MODEL = "claude-sonnet-4-6"
OURS = f"anthropic:{MODEL}"
MARK: Any = {"type": "ephemeral"}
SIGNED = {"type": "thinking", "thinking": "It is autumn.", "signature": "EqoBCkgIARABGAIiQL8Q"}
DECLARED = [
    {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    for spec in ToolRegistry(list(TOOLS)).visible(None)
]
SDK_TOOLS: Any = [
    {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
    for tool in DECLARED
]


class Plan(BaseModel):
    """Where to go."""

    city: str
    days: list[int]
    note: str | None


def recorded(*content: dict[str, Any], stop: str = "end_turn", **more: Any) -> dict[str, Any]:
    """A body as api.anthropic.com writes it."""
    return {
        "id": "msg_013Zva2CMHLNnXjNJJKqJ2EF",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-6",
        "content": list(content),
        "stop_reason": stop,
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
        "usage": {
            "input_tokens": 29,
            "cache_creation_input_tokens": 64,
            "cache_read_input_tokens": 1024,
            "cache_creation": {"ephemeral_5m_input_tokens": 64, "ephemeral_1h_input_tokens": 0},
            "output_tokens": 46,
            "output_tokens_details": {"thinking_tokens": 30},
            "server_tool_use": None,
            "service_tier": "standard",
            "inference_geo": "global",
        },
        **more,
    }


def said(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, "citations": None, **more}


def asked(call_id: str, name: str, arguments: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments, **more}


CITATION = {
    "type": "web_search_result_location",
    "url": "https://a.b",
    "title": "T",
    "cited_text": "rain",
    "encrypted_index": "Eo8BCioI",
}
SEARCH = {
    "type": "server_tool_use",
    "id": "srvtoolu_01W",
    "name": "web_search",
    "input": {"query": "rain"},
    "caller": {"type": "direct"},
}
FOUND = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_01W",
    "caller": {"type": "direct"},
    "content": [
        {
            "type": "web_search_result",
            "url": "https://a.b",
            "title": "T",
            "encrypted_content": "EqgfCioIARgB",
            "page_age": None,
        }
    ],
}
OSLO = asked("toolu_01A09q90qw90lq917835lq9", "forecast", {"city": "Oslo"}, caller={"type": "direct"})
TODAY = asked("toolu_02", "today", {}, caller={"type": "direct"})
TEXT = recorded(said("Rain."))
RECORDED: dict[str, dict[str, Any]] = {
    "text": TEXT,
    "several texts": recorded(said("Rain, "), said("and wind.")),
    "calls": recorded(said("Let me look."), OSLO, TODAY, stop="tool_use"),
    "calls of an older version": recorded(asked("toolu_1", "forecast", {"city": "Oslo"}), stop="tool_use"),
    "cut": recorded(said("Once"), stop="max_tokens"),
    "stop sequence": recorded(said("Once"), stop="stop_sequence", stop_sequence="END"),
    "thinking": recorded(SIGNED, said("Rain.")),
    "thinking that is not shown": recorded({**SIGNED, "thinking": ""}, OSLO, stop="tool_use"),
    "redacted": recorded({"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3p"}, said("Rain.")),
    "between calls": recorded(SIGNED, OSLO, SIGNED, TODAY, stop="tool_use"),
    "citations": recorded(said("Rain.", citations=[CITATION])),
    "search": recorded(SEARCH, FOUND, said("Rain.")),
    "paused": recorded(said("Let me look."), SEARCH, stop="pause_turn"),
    "window": recorded(said("Once"), stop="model_context_window_exceeded"),
    "little usage": {
        "id": "m", "type": "message", "role": "assistant", "model": "m", "content": [said("Rain.")],
        "stop_reason": "end_turn", "usage": {"input_tokens": 9, "output_tokens": 2},
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    for name in ("ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def ours(request: ChatRequest, model: str = MODEL, **options: Any) -> dict[str, Any]:
    """What we send."""
    played = Played(TEXT)
    client = Anthropic(model, transport=played, **options)
    client.complete(request)
    client.close()
    return played.body


class Asked(httpx2.MockTransport):
    """Answers the SDK, which has a HTTP library of its own, and keeps what it sends."""

    def __init__(self) -> None:
        self.requests: list[httpx2.Request] = []
        super().__init__(self._answer)

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        return httpx2.Response(200, json=TEXT)

    @property
    def body(self) -> dict[str, Any]:
        """The last request's."""
        body: dict[str, Any] = json.loads(self.requests[-1].content)
        return body


def asking(ask: Callable[[anthropic.Anthropic], Any]) -> Asked:
    """What the SDK sends."""
    asked = Asked()
    with (
        httpx2.Client(transport=asked) as http,
        anthropic.Anthropic(http_client=http, max_retries=0) as client,
    ):
        ask(client)
    return asked


def result_of(body: dict[str, Any], **request: Any) -> Any:
    client = Anthropic(MODEL, transport=Played(body, headers={"request-id": "req_1"}))
    try:
        return client.complete(ChatRequest([Message(Role.USER, "hi")], **request))
    finally:
        client.close()


def envelope(call_id: str, content: str, *, ok: bool = True) -> Message:
    code = None if ok else "timeout"
    data = {"tool_call_id": call_id, "tool": "t", "ok": ok, "error_code": code, "content": content}
    return Message(Role.TOOL, json.dumps(data), tool_call_id=call_id)


LOOKED = RECORDED["calls"]
THOUGHT = recorded(SIGNED, OSLO, TODAY, stop="tool_use")
ASKED = Message(
    Role.ASSISTANT,
    "Let me look.",
    (ToolCall(OSLO["id"], "forecast", '{"city": "Oslo"}'), ToolCall(TODAY["id"], "today", "{}")),
)
CONVERSATION = ChatRequest(
    [
        Message(Role.USER, "Where does it rain?"),
        ASKED,
        envelope(OSLO["id"], "rain"),
        envelope(TODAY["id"], "too slow", ok=False),
        Message(Role.ASSISTANT, "In Oslo."),
        Message(Role.USER, "Tomorrow, too?"),
    ],
    system="Be brief.",
    max_output_tokens=4_000,
    temperature=0.2,
    stop=["END"],
    tools=DECLARED,
)
RESULTS: Any = [
    {"type": "tool_result", "tool_use_id": OSLO["id"], "content": "rain"},
    {
        "type": "tool_result",
        "tool_use_id": TODAY["id"],
        "content": "timeout: too slow",
        "is_error": True,
        "cache_control": MARK,
    },
]


def as_documented(turn: Any) -> list[Any]:
    """As the SDK's documentation builds it: the reply's content goes into the list as it is."""
    return [
        {"role": "user", "content": [{"type": "text", "text": "Where does it rain?"}]},
        {"role": "assistant", "content": turn},
        {"role": "user", "content": RESULTS},
        {"role": "assistant", "content": [{"type": "text", "text": "In Oslo."}]},
        {"role": "user", "content": [{"type": "text", "text": "Tomorrow, too?", "cache_control": MARK}]},
    ]


# What a turn of text and calls has beside them in a reply, which says nothing and need not go back.
_EMPTY = {"citations": None, "caller": {"type": "direct"}}


def without_empty(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in block.items() if k not in _EMPTY or _EMPTY[k] != v} for block in blocks]


def test_the_whole_request_is_the_one_of_the_sdk_built_from_its_own_objects() -> None:
    def ask(client: anthropic.Anthropic) -> None:
        reply = SdkMessage.model_validate(LOOKED)
        turn = without_empty([block.model_dump(exclude_unset=True) for block in reply.content])
        client.messages.create(
            model=MODEL,
            max_tokens=4_000,
            system=[{"type": "text", "text": "Be brief.", "cache_control": MARK}],
            messages=as_documented(turn),
            tools=SDK_TOOLS,
            stop_sequences=["END"],
            extra_body={"temperature": 0.2},  # not in the version that the SDK asks for, but in ours
        )

    assert ours(CONVERSATION) == asking(ask).body


def test_a_turn_with_thoughts_is_the_object_of_the_reply_itself() -> None:
    thinking: Any = {"type": "enabled", "budget_tokens": 2_000}

    def ask(client: anthropic.Anthropic) -> None:
        reply = SdkMessage.model_validate(THOUGHT)
        client.messages.create(
            model=MODEL,
            max_tokens=4_000,
            system=[{"type": "text", "text": "Be brief.", "cache_control": MARK}],
            messages=as_documented(reply.content),
            tools=SDK_TOOLS,
            stop_sequences=["END"],
            thinking=thinking,
        )

    kept = replace(ASKED, content="", turn=result_of(THOUGHT).turn)
    messages = [kept if message is ASKED else message for message in CONVERSATION.messages]
    body = ours(replace(CONVERSATION, messages=messages), options={"thinking": thinking})
    assert body == asking(ask).body
    assert json.dumps(body["messages"][1]["content"]) == json.dumps(THOUGHT["content"])


def test_both_send_it_to_the_same_address_with_the_same_headers() -> None:
    played = Played(TEXT)
    model = Anthropic(MODEL, transport=played, options={"betas": ["a-2026-01-01", "b-2026-01-01"]})
    model.complete(ChatRequest([Message(Role.USER, "hi")]))
    model.close()

    def ask(client: anthropic.Anthropic) -> None:
        client.beta.messages.create(
            model=MODEL,
            max_tokens=1_024,
            messages=[{"role": "user", "content": "hi"}],
            betas=["a-2026-01-01", "b-2026-01-01"],
        )

    (mine,), (its,) = played.requests, asking(ask).requests
    assert str(mine.url) == str(its.url).partition("?")[0]
    for name in ("anthropic-beta", "content-type"):
        assert mine.headers[name] == its.headers[name]
    # The version that takes a temperature, and the header for the key that all servers of the dialect know:
    # the SDK has gone on to newer ones, which are no more to Anthropic's own service.
    assert (mine.headers["anthropic-version"], its.headers["anthropic-version"]) == (
        "2023-06-01",
        "2026-10-21",
    )
    assert f"Bearer {mine.headers['x-api-key']}" == its.headers["authorization"]


def test_both_know_the_same_public_address() -> None:
    with anthropic.Anthropic() as client:
        assert str(client.base_url).rstrip("/") == Anthropic(MODEL).base_url


def test_a_choice_of_tools_and_one_call_at_a_time_are_what_the_sdk_sends() -> None:
    hi: Any = [{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": MARK}]}]
    tools: Any = [*SDK_TOOLS[:-1], {**SDK_TOOLS[-1], "cache_control": MARK}]
    alone: Any = {"type": "tool", "name": "forecast", "disable_parallel_tool_use": True}

    def ask(client: anthropic.Anthropic) -> None:
        client.messages.create(
            model=MODEL,
            max_tokens=500,
            messages=hi,
            tools=tools,
            tool_choice=alone,
        )

    request = ChatRequest(
        [Message(Role.USER, "hi")], max_output_tokens=500, tools=DECLARED, tool_choice="forecast"
    )
    assert ours(request, options={"disable_parallel_tool_use": True}) == asking(ask).body


def test_a_form_of_the_answer_is_that_which_the_sdk_makes_of_the_model() -> None:
    def ask(client: anthropic.Anthropic) -> None:
        client.messages.create(
            model=MODEL,
            max_tokens=500,
            messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
            output_config={
                "effort": "low",
                "format": {"type": "json_schema", "schema": _without_titles(transform_schema(Plan))},
            },
        )

    request = ChatRequest(
        [Message(Role.USER, "hi")], max_output_tokens=500, json_schema=Plan.model_json_schema()
    )
    assert ours(request, options={"output_config": {"effort": "low"}}) == asking(ask).body
    assert narrow(Plan.model_json_schema()) == _without_titles(transform_schema(Plan))


def _without_titles(schema: Any) -> Any:
    """Titles are the SDK's habit: they say a name again."""
    if isinstance(schema, list):
        return [_without_titles(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _without_titles(value) for key, value in schema.items() if key != "title"}


OPTIONS = {
    "plain": {},
    "thinking": {"thinking": {"type": "enabled", "budget_tokens": 2_000}},
    "adaptive": {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
    "alone": {"disable_parallel_tool_use": True, "betas": ["b"]},
}


@pytest.mark.parametrize("name", [MODEL, "claude-opus-5-5", "claude-3-7-sonnet-latest", "deepseek-v4"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("turn", [None, *(key for key, body in RECORDED.items() if "usage" in body)])
@pytest.mark.parametrize("closing", [False, True])
def test_each_request_is_one_by_the_sdks_own_types(name, options, turn, closing) -> None:
    last: dict[str, Any] = {"tools": (), "tool_choice": "none"} if closing else {}
    messages = list(CONVERSATION.messages)
    if turn is not None:
        kept = result_of(RECORDED[turn])
        own = None if kept.turn is None else replace(kept.turn, by=f"anthropic:{name}")
        messages += [
            Message(Role.ASSISTANT, kept.text, kept.tool_calls, turn=own),
            *(envelope(call.id, "fine") for call in kept.tool_calls),
            Message(Role.USER, "and?"),
        ]
    request = replace(CONVERSATION, messages=messages, json_schema=Plan.model_json_schema(), **last)
    body = ours(request, name, options=OPTIONS[options])
    PARAMS.validate_python(body)
    # A TypedDict takes keys that it does not name; the temperature is one that the SDK has given up.
    assert body.keys() <= MessageCreateParamsNonStreaming.__annotations__.keys() | _of_base() | {
        "temperature"
    }


def _of_base() -> set[str]:
    bases = getattr(MessageCreateParamsNonStreaming, "__orig_bases__", ())
    return {key for base in bases for key in getattr(base, "__annotations__", {})}


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_answers_are_answers_to_the_sdk_and_to_us(name) -> None:
    body = RECORDED[name]
    message = SdkMessage.model_validate(body)
    result = result_of(body)
    assert result.text == "".join(block.text for block in message.content if block.type == "text")
    assert [(c.id, c.name, json.loads(c.arguments)) for c in result.tool_calls] == [
        (block.id, block.name, block.input) for block in message.content if block.type == "tool_use"
    ]
    assert (result.model, result.provider, result.request_id) == (message.model, "anthropic", "req_1")
    counted = message.usage
    assert (result.usage.input_tokens, result.usage.output_tokens) == (
        counted.input_tokens
        + (counted.cache_creation_input_tokens or 0)
        + (counted.cache_read_input_tokens or 0),
        counted.output_tokens,
    )


def test_the_recorded_answers_are_strictly_of_the_sdks_types() -> None:
    """The SDK takes anything for a block: here each is of its own class, without anything unknown."""
    for body in RECORDED.values():
        message = SdkMessage.model_validate(body)
        for block in message.content:
            assert type(block).__name__.replace("Block", "").lower() == block.type.replace("_", "")
            assert not block.model_extra


def test_details_of_the_usage_are_read() -> None:
    assert result_of(TEXT).usage == Usage(29 + 64 + 1024, 46, 1024, 30, 64)
    assert result_of(RECORDED["little usage"]).usage == Usage(9, 2)


def test_a_turn_is_kept_only_where_it_holds_more_than_text_and_calls() -> None:
    kept = {name: result_of(body).turn for name, body in RECORDED.items()}
    assert {name for name, turn in kept.items() if turn is not None} == {
        "thinking", "thinking that is not shown", "redacted", "between calls", "citations", "search",
        "paused",
    }  # fmt: skip
    for name, turn in kept.items():
        if turn is not None:
            assert turn == Turn(OURS, RECORDED[name]["content"])


def test_stop_reasons_are_those_that_the_loop_knows() -> None:
    reasons = {name: result_of(body).finish_reason for name, body in RECORDED.items()}
    others = {
        "calls": "tool_calls", "calls of an older version": "tool_calls", "between calls": "tool_calls",
        "thinking that is not shown": "tool_calls", "cut": "max_tokens", "window": "max_tokens",
        "paused": "pause_turn",
    }  # fmt: skip
    assert reasons == dict.fromkeys(RECORDED, "stop") | others
    assert result_of(TEXT, max_output_tokens=46).finish_reason == "max_tokens"
