"""The official SDK is the measure: what it sends is what we send, what it takes for a response we read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from openai.lib._parsing._responses import type_to_text_format_param
from openai.types.responses import Response
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming
from pydantic import BaseModel, ConfigDict, TypeAdapter

from agentq.provider.openai_responses import ENCRYPTED, OpenAIResponses
from agentq.provider.types import ChatRequest, Message, Role, ToolCall, Usage
from agentq.testing import FakeProvider
from agentq.tools import ToolRegistry
from tests.support.provider import KEY, TOOLS, Played
from tests.support.responses import asked, message, phased, reasoning, response

PARAMS = TypeAdapter(ResponseCreateParamsNonStreaming)


class Plan(BaseModel):
    """Where to go."""

    city: str
    days: list[int]
    note: str | None = None


class Open(BaseModel):
    """What the strict form cannot say."""

    model_config = ConfigDict(extra="allow")
    counts: dict[str, int]


DECLARED = [
    {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    for spec in ToolRegistry(list(TOOLS)).visible(None)
]
SDK_TOOLS: Any = [{"type": "function", "strict": False, **tool} for tool in DECLARED]
CALLED = response(
    asked("call_abc", "forecast", '{"city": "Oslo"}'), asked("call_def", "today", "{}"), model="gpt-4o"
)
THOUGHT = response(
    reasoning("rs_1"), asked("call_abc", "forecast", '{"city": "Oslo"}'), asked("call_def", "today", "{}")
)
RECORDED: dict[str, dict[str, Any]] = {
    "text": response(message("Rain.")),
    "calls": CALLED,
    "reasoning, then text": response(reasoning("rs_1"), message("Rain.")),
    "reasoning, then calls": THOUGHT,
    "a summary of the reasoning": response(reasoning("rs_1", summary="It is autumn."), message("Rain.")),
    "a remark, then the answer": response(
        reasoning("rs_1"), phased("I look.", "commentary"), phased("Rain.", "final_answer")
    ),
    "cut": response(message("Once", status="incomplete"), cut="max_output_tokens"),
    "cut while it thought": response(cut="max_output_tokens"),
    "refusal": response(message(refusal="I can't.")),
    "citations": response(
        message(
            "Rain.",
            annotations=[
                {"type": "url_citation", "start_index": 0, "end_index": 4, "title": "T", "url": "https://a.b"}
            ],
        )
    ),
    "no usage": response(message("Rain."), usage=None),
}


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for name in ("OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.delenv(name, raising=False)


def ours(request: ChatRequest, model: str = "gpt-4o", **options: Any) -> dict[str, Any]:
    """What we send."""
    played = Played(RECORDED["text"])
    client = OpenAIResponses(model, transport=played, **options)
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


def played(body: dict[str, Any]) -> tuple[openai.OpenAI, Played]:
    """The SDK on a server that answers with this body, and what it sends."""
    transport = Played(body)
    http: Any = httpx.Client(transport=transport)  # typed for httpx2, which has the same methods
    return openai.OpenAI(http_client=http, max_retries=0), transport


def result_of(body: dict[str, Any], model: str = "gpt-5", **request: Any) -> Any:
    client = OpenAIResponses(model, transport=Played(body, headers={"x-request-id": "req_1"}))
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
    tools=DECLARED,
)


def outputs(output: list[Any]) -> list[Any]:
    """The conversation around the output of the first call, as the SDK's documentation builds it."""
    return [
        {"role": "user", "content": "Where does it rain?"},
        *output,
        {"type": "function_call_output", "call_id": "call_abc", "output": "rain"},
        {"type": "function_call_output", "call_id": "call_def", "output": "Tuesday"},
        {"role": "assistant", "content": "In Oslo."},
        {"role": "user", "content": "Tomorrow, too?"},
    ]


def test_the_whole_request_is_the_one_of_the_sdk_built_from_its_own_objects() -> None:
    def ask(client: openai.OpenAI) -> None:
        output = Response.model_validate(CALLED).output
        client.responses.create(
            model="gpt-4o",
            instructions="Be brief.",
            input=outputs([item.model_dump(exclude_unset=True, include=_OF_A_CALL) for item in output]),
            max_output_tokens=500,
            temperature=0.2,
            tools=SDK_TOOLS,
            store=False,
        )

    assert ours(CONVERSATION) == theirs(ask)


# Ids and states of items are the provider's: without a thought before them they say nothing.
_OF_A_CALL: Any = {"type", "call_id", "name", "arguments"}


def test_a_turn_with_a_thought_goes_back_as_the_sdk_sends_its_own_objects() -> None:
    """As its documentation says: `input += response.output`, the objects as they are."""
    client, transport = played(THOUGHT)
    asked_with: dict[str, Any] = {
        "model": "gpt-5",
        "instructions": "Be brief.",
        "max_output_tokens": 500,
        "tools": SDK_TOOLS,
        "store": False,
        "include": [ENCRYPTED],
        "reasoning": {"effort": "low"},
    }
    with client:
        said = client.responses.create(input="Where does it rain?", **asked_with)
        client.responses.create(input=outputs(list(said.output)), **asked_with)
    result = result_of(THOUGHT)
    told = Message(Role.ASSISTANT, result.text, tuple(result.tool_calls), turn=result.turn)
    messages = [CONVERSATION.messages[0], told, *CONVERSATION.messages[2:]]
    mine = ours(replace(CONVERSATION, messages=messages), "gpt-5", options={"reasoning": {"effort": "low"}})
    assert mine == transport.body
    assert mine["input"][1:4] == THOUGHT["output"]


def test_both_send_it_to_the_same_address_with_the_same_headers() -> None:
    with FakeProvider(["Rain."], keys={KEY}) as server:
        model = OpenAIResponses("gpt-4o", base_url=server.url)
        model.complete(ChatRequest([Message(Role.USER, "hi")]))
        model.close()
        with openai.OpenAI(base_url=server.url, max_retries=0, timeout=10) as client:
            client.responses.create(model="gpt-4o", input="hi")
    mine, its = server.requests
    assert (mine.dialect, mine.key) == (its.dialect, its.key)
    assert mine.dialect == "responses"
    assert mine.headers["content-type"] == its.headers["content-type"]


def test_both_know_the_same_public_address() -> None:
    with openai.OpenAI() as client:
        assert str(client.base_url).rstrip("/") == OpenAIResponses("gpt-4o").base_url


def test_a_form_of_the_answer_is_that_which_the_sdk_makes_of_the_model() -> None:
    mine = ours(replace(CONVERSATION, json_schema=Plan.model_json_schema()))["text"]["format"]
    its: Any = type_to_text_format_param(Plan)
    assert mine | {"schema": None} == dict(its) | {"schema": None}
    assert mine["schema"] == _without_titles(its["schema"])


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


def test_a_form_that_is_not_to_be_had_strictly_is_asked_for_without() -> None:
    body = ours(replace(CONVERSATION, json_schema=Open.model_json_schema()))
    mine = body["text"]["format"]
    assert (mine["strict"], mine["schema"]) == (False, Open.model_json_schema())
    PARAMS.validate_python(body)


@pytest.mark.parametrize("model", ["gpt-4o", "gpt-5", "gpt-6-sol", "o3-mini"])
@pytest.mark.parametrize("kept", ["schema", "object", "none"])
@pytest.mark.parametrize("declared", ["left_out", "declared"])
@pytest.mark.parametrize("closing", [False, True])
def test_each_request_is_one_by_the_sdks_own_types(model, kept, declared, closing) -> None:
    last = {"tools": (), "tool_choice": "none"} if closing else {"tool_choice": "forecast"}
    result = result_of(THOUGHT, model)
    told = Message(Role.ASSISTANT, result.text, tuple(result.tool_calls), turn=result.turn)
    request = replace(
        CONVERSATION,
        messages=[*CONVERSATION.messages, told, Message(Role.SYSTEM, "Hurry.")],
        json_schema=Plan.model_json_schema(),
        **last,
    )
    body = ours(
        request,
        model,
        quirks={"forbidden_tools": declared, "native_schema": kept},
        options={"text": {"verbosity": "low"}, "parallel_tool_calls": False},
    )
    PARAMS.validate_python(body)
    # A TypedDict takes keys that it does not name.
    assert body.keys() <= ResponseCreateParamsNonStreaming.__annotations__.keys()


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_responses_are_responses_to_the_sdk_and_to_us(name) -> None:
    body = RECORDED[name]
    said = Response.model_validate(body)
    Response.model_validate(body, strict=True)
    result = result_of(body)
    phases = [item.phase for item in said.output if item.type == "message"]
    if "commentary" not in phases:  # the SDK strings remarks and answer together
        refusals = [part.refusal for item in said.output if item.type == "message" for part in item.content
                    if part.type == "refusal"]  # fmt: skip
        assert result.text == (said.output_text or "".join(refusals))
    assert [(c.id, c.name, c.arguments) for c in result.tool_calls] == [
        (item.call_id, item.name, item.arguments) for item in said.output if item.type == "function_call"
    ]
    assert (result.model, result.provider, result.request_id) == (said.model, "openai", "req_1")
    if said.usage is None:
        assert result.usage == Usage()
    else:
        assert (result.usage.input_tokens, result.usage.output_tokens, result.usage.total_tokens) == (
            said.usage.input_tokens, said.usage.output_tokens, said.usage.total_tokens,
        )  # fmt: skip


def test_details_of_the_usage_are_read() -> None:
    assert result_of(RECORDED["text"]).usage == Usage(1117, 46, 1024, 30, 64)


def test_a_turn_is_kept_only_where_it_holds_more_than_text_and_calls() -> None:
    kept = {name: result_of(body).turn for name, body in RECORDED.items()}
    assert {name for name, turn in kept.items() if turn is not None} == {
        "reasoning, then text",
        "reasoning, then calls",
        "a summary of the reasoning",
        "a remark, then the answer",
    }
    for name, turn in kept.items():
        assert turn is None or turn.body == RECORDED[name]["output"]


def test_finish_reasons_are_those_that_the_loop_knows() -> None:
    reasons = {name: result_of(body).finish_reason for name, body in RECORDED.items()}
    assert reasons == {
        "text": "stop", "calls": "tool_calls", "reasoning, then text": "stop",
        "reasoning, then calls": "tool_calls", "a summary of the reasoning": "stop",
        "a remark, then the answer": "stop", "cut": "length", "cut while it thought": "length",
        "refusal": "refusal", "citations": "stop", "no usage": "stop",
    }  # fmt: skip
    assert result_of(RECORDED["text"], max_output_tokens=46).finish_reason == "length"
