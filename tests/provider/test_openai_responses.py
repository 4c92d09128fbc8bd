"""What is sent to Responses for each kind of request, and what is made of answers of every shape."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from agentq.core.errors import UsageError
from agentq.provider.errors import InvalidRequest, LLMError, RateLimited, TransientError
from agentq.provider.openai_responses import ENCRYPTED, OpenAIResponses
from agentq.provider.types import ChatRequest, Message, Role, ToolCall, Turn, Usage
from tests.support.provider import KEY, Played
from tests.support.responses import asked, message, phased, reasoning, response

TOOL = {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}}
REQUEST = ChatRequest([Message(Role.USER, "hi")], max_output_tokens=100)
LOCAL = "http://localhost:1/v1"


class Plan(BaseModel):
    city: str


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


def complete(body: Any, request: ChatRequest = REQUEST, **options: Any) -> Any:
    client = OpenAIResponses("gpt-5", transport=Played(body), base_url=LOCAL, **options)
    try:
        return client.complete(request)
    finally:
        client.close()


def failure(body: Any, request: ChatRequest = REQUEST) -> LLMError:
    with pytest.raises(LLMError) as caught:
        complete(body, request)
    return caught.value


def body_of(request: ChatRequest = REQUEST, name: str = "gpt-5", **options: Any) -> dict[str, Any]:
    """The whole request, options included."""
    played = Played(response(message("ho")))
    client = OpenAIResponses(name, transport=played, base_url=LOCAL, **options)
    client.complete(request)
    client.close()
    return played.body


# ── the request ──────────────────────────────────────────────────────────────────────────────────


def test_the_smallest_request() -> None:
    assert body_of() == {
        "model": "gpt-5",
        "input": [{"role": "user", "content": "hi"}],
        "max_output_tokens": 100,
        "store": False,
        "include": [ENCRYPTED],
    }


def test_a_tool_is_declared_as_it_is_and_not_strictly() -> None:
    body = body_of(replace(REQUEST, tools=[TOOL, {"name": "bare"}]))
    assert body["tools"] == [
        {"type": "function", **TOOL, "strict": False},
        {
            "type": "function",
            "name": "bare",
            "parameters": {"type": "object", "properties": {}},
            "strict": False,
        },
    ]
    assert "tool_choice" not in body


@pytest.mark.parametrize(
    "choice, sent",
    [("auto", "auto"), ("required", "required"), ("look", {"type": "function", "name": "look"})],
)
def test_a_choice_among_tools(choice, sent) -> None:
    assert body_of(replace(REQUEST, tools=[TOOL], tool_choice=choice))["tool_choice"] == sent


def test_options_go_beside_what_is_asked_for_and_into_it() -> None:
    body = body_of(
        replace(REQUEST, json_schema=Plan.model_json_schema(), extra={"user": "u1"}),
        options={"text": {"verbosity": "low"}, "reasoning": {"effort": "low"}, "store": True},
    )
    assert (body["text"]["verbosity"], body["text"]["format"]["type"]) == ("low", "json_schema")
    assert (body["reasoning"], body["user"], body["store"]) == ({"effort": "low"}, "u1", True)
    assert "format" not in body


@pytest.mark.parametrize(
    "name", ["max_output_tokens", "stream", "background", "previous_response_id", "conversation", "input"]
)
def test_an_option_cannot_lift_the_cap_nor_put_another_history_in_its_place(name) -> None:
    with pytest.raises(UsageError, match=name):
        OpenAIResponses("gpt-5", options={name: 1})


@pytest.mark.parametrize(
    "kept, format_sent",
    [("schema", "json_schema"), ("object", "json_object"), ("none", None)],
)
def test_an_answer_is_held_to_a_schema_as_far_as_the_server_can(kept, format_sent) -> None:
    body = body_of(replace(REQUEST, json_schema=Plan.model_json_schema()), quirks={"native_schema": kept})
    assert body.get("text", {}).get("format", {}).get("type") == format_sent
    assert OpenAIResponses("gpt-5", quirks={"native_schema": kept}).native_schema is (kept == "schema")


def test_a_schema_that_servers_know_in_part_is_reduced_and_not_called_strict() -> None:
    schema = {"title": "Odd one!", "type": "object", "properties": {"a": {"type": "string", "format": "uri"}}}
    request = replace(REQUEST, json_schema=schema)
    body = body_of(request, quirks={"schema_keys": "plain"})
    assert body["text"]["format"] == {
        "type": "json_schema",
        "name": "Odd_one_",
        "strict": False,
        "schema": {"type": "object", "properties": {"a": {"type": "string"}}},
    }
    result = complete(response(message("ho")), request, quirks={"schema_keys": "plain"})
    assert result.notes == ("schema_reduced: the answer: dropped format uri",)


def test_a_schema_is_left_out_beside_tools_where_a_server_takes_only_one_of_them() -> None:
    request = replace(REQUEST, json_schema=Plan.model_json_schema(), tools=[TOOL])
    assert "text" not in body_of(request, quirks={"schema_with_tools": False})
    assert "text" in body_of(replace(request, tools=()), quirks={"schema_with_tools": False})


def test_stop_sequences_are_refused_because_the_interface_has_none() -> None:
    error = failure(response(message("ho")), replace(REQUEST, stop=["END"]))
    assert (type(error), error.billed) == (InvalidRequest, False)
    assert "openai-chat:" in error.message


def test_an_empty_conversation_is_not_sent() -> None:
    assert type(failure(response(), replace(REQUEST, messages=[]))) is InvalidRequest


def test_a_key_is_sent_as_a_bearer_and_no_key_not_at_all(monkeypatch) -> None:
    played = Played(response(message("ho")))
    client = OpenAIResponses("gpt-5", transport=played, base_url=LOCAL)
    client.complete(REQUEST)
    monkeypatch.delenv("OPENAI_API_KEY")
    client.complete(REQUEST)
    client.close()
    assert [one.headers.get("authorization") for one in played.requests] == [f"Bearer {KEY}", None]
    assert {str(one.url) for one in played.requests} == {f"{LOCAL}/responses"}


def test_a_turn_that_is_no_list_is_sent_as_its_text() -> None:
    odd = Message(Role.ASSISTANT, "so", turn=Turn("openai:gpt-5", {"output": []}))
    items = body_of(replace(REQUEST, messages=[REQUEST.messages[0], odd]))["input"]
    assert items[1:] == [{"role": "assistant", "content": "so"}]


# ── the reply ────────────────────────────────────────────────────────────────────────────────────


def test_calls_side_by_side_keep_their_order_and_ids() -> None:
    result = complete(
        response(asked("call_1", "look"), message("I look."), asked("call_2", "see", '{"a":1}'))
    )
    assert result.tool_calls == (ToolCall("call_1", "look", "{}"), ToolCall("call_2", "see", '{"a":1}'))
    assert (result.text, result.finish_reason) == ("I look.", "tool_calls")


def test_arguments_may_be_an_object_or_missing() -> None:
    odd = response(asked("c1", "look", {"a": 1}), asked("c2", "look", None))  # type: ignore[arg-type]
    assert [call.arguments for call in complete(odd).tool_calls] == ['{"a": 1}', ""]


def test_words_between_calls_are_a_turn_of_their_own_order() -> None:
    assert complete(response(message("I look."), asked("c1", "look"))).turn is None
    mixed = response(asked("c1", "look"), message("I looked."))
    assert complete(mixed).turn == Turn("openai:gpt-5", mixed["output"])


def test_the_answer_is_the_final_one_where_remarks_are_told_from_it() -> None:
    result = complete(response(phased("I think.", "commentary"), phased('{"a":1}', "final_answer")))
    assert result.text == '{"a":1}'
    assert complete(response(phased("I look.", "commentary"), asked("c1", "look"))).text == "I look."
    assert complete(response(message("One."), message("Two."))).text == "One.\n\nTwo."


@pytest.mark.parametrize(
    "items",
    [
        [reasoning()],  # what it led to is missing
        [message("ho"), reasoning()],
        [reasoning(encrypted_content=None), message("ho")],
        [reasoning(), asked("x" * 65, "look")],
        [reasoning(), asked("", "look")],
        [reasoning(), asked("c1", "look", status="incomplete")],
        [],
    ],
)
def test_a_turn_that_could_not_be_sent_back_is_not_kept(items) -> None:
    assert complete(response(*items)).turn is None


def test_a_thought_in_the_open_carries_itself() -> None:
    """So do vLLM and LM Studio give those of gpt-oss."""
    shown = reasoning(encrypted_content=None, content=[{"type": "reasoning_text", "text": "Hm."}])
    items = [shown, message("ho")]
    assert complete(response(*items)).turn == Turn("openai:gpt-5", items)
    assert complete(response(*items), quirks={"keeps_turns": False}).turn is None


def test_a_call_of_a_program_or_of_a_kind_that_nobody_knows_goes_back_as_it_came() -> None:
    program = asked("c1", "look", caller={"type": "program", "caller_id": "p1"})
    assert complete(response(program)).turn is not None
    assert complete(response(asked("c1", "look", caller={"type": "direct"}))).turn is None
    assert complete(response({"type": "tomorrow", "id": "t1"}, message("ho"))).turn is not None


@pytest.mark.parametrize("reason", ["max_output_tokens", "content_filter"])
def test_calls_of_a_response_that_is_incomplete_are_cut(reason) -> None:
    result = complete(response(reasoning(), asked("c1", "look"), cut=reason))
    assert (result.finish_reason, len(result.tool_calls), result.turn) == ("length", 1, None)


def test_a_call_that_is_incomplete_is_cut_whatever_the_response_says() -> None:
    assert complete(response(asked("c1", "look", status="incomplete"))).finish_reason == "length"


def test_an_answer_as_long_as_the_cap_was_cut() -> None:
    assert complete(response(message("ho")), replace(REQUEST, max_output_tokens=46)).finish_reason == "length"
    assert complete(response(message("ho")), replace(REQUEST, max_output_tokens=47)).finish_reason == "stop"


@pytest.mark.parametrize(
    "more",
    [
        {"status": "cancelled"},
        {"status": "queued"},
        {"status": "in_progress"},
        {"status": "failed"},
        {"status": "tomorrow"},
        {"status": "incomplete"},
        {"status": "incomplete", "incomplete_details": {"reason": "steered"}},
    ],
)
def test_a_response_that_did_not_end_well_is_tried_again_and_charged(more) -> None:
    error = failure(response(message("ho"), **more))
    assert (type(error), error.retryable, error.billed) == (TransientError, True, None)
    assert more["status"] in error.message


@pytest.mark.parametrize(
    "code, kind",
    [
        ("server_error", TransientError),
        ("vector_store_timeout", TransientError),
        ("rate_limit_exceeded", RateLimited),
        ("invalid_prompt", InvalidRequest),
        ("bio_policy", InvalidRequest),
        ("misalignment_policy_violation", InvalidRequest),
        ("data_residency_mismatch", InvalidRequest),
    ],
)
def test_a_failed_response_is_the_error_that_its_code_is(code, kind) -> None:
    failed = response(status="failed", error={"code": code, "message": "Because."}, usage=None)
    error = failure(failed)
    assert (type(error), error.message, error.billed) == (kind, "Because.", False)
    failed["usage"] = {"input_tokens": 9, "output_tokens": 1}
    assert failure(failed).billed is None  # it broke off, and counts what it had used


@pytest.mark.parametrize(
    "broken",
    [
        {"output": None},
        {"output": "text"},
        {"output": [None]},
        {"output": [{"type": "message", "content": [{"type": "output_text"}]}]},
        {"output": [{"type": "message", "content": 7}]},
        {"status": 7},
    ],
)
def test_a_shape_that_is_none_is_a_failure_that_may_have_been_billed(broken) -> None:
    error = failure(response(message("ho")) | broken)
    assert (type(error), error.billed) == (TransientError, None)


def test_a_count_without_end_is_none() -> None:
    text = json.dumps(response(message("ho"))).replace("1117", "1e999")
    error = failure(httpx.Response(200, content=text.encode()))
    assert (type(error), error.billed) == (TransientError, None)


def test_a_server_that_says_less_is_understood() -> None:
    result = complete({"output": [{"type": "message", "role": "assistant", "content": "ho"}]})
    assert (result.text, result.usage, result.model, result.finish_reason) == ("ho", Usage(), "gpt-5", "stop")
    assert complete(response(message("ho"), status=None, incomplete_details=None)).text == "ho"


@pytest.mark.parametrize(
    "counted, usage",
    [
        ({"input_tokens": 10, "output_tokens": 5}, Usage(10, 5)),
        ({"input_tokens": 10, "output_tokens": 5, "total_tokens": 40}, Usage(10, 30, 0, 25)),
        (
            {"input_tokens": 10, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 99}},
            Usage(10, 5, 10),
        ),
        (
            {"input_tokens": 10, "output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 9}},
            Usage(10, 5, 0, 5),
        ),
        ({"input_tokens": -1, "output_tokens": None, "input_tokens_details": None}, Usage()),
        ("none", Usage()),
    ],
)
def test_usage_is_never_more_than_there_was(counted, usage) -> None:
    assert complete(response(message("ho"), usage=counted)).usage == usage
