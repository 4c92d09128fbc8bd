"""Each quirk of servers of Responses, over real HTTP: the run goes on, or ends for its reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Annotated, Any

import pytest
from pydantic import Field

from agentq.core.lifecycle import StopReason
from agentq.provider.errors import (
    ContextOverflow,
    InvalidRequest,
    LLMError,
    QuotaExceeded,
    RateLimited,
    TransientError,
)
from agentq.provider.history import LOST
from agentq.provider.openai_responses import ENCRYPTED, OpenAIResponses
from agentq.provider.types import ChatRequest, Message, Role, ToolCall, Turn, Usage
from agentq.testing import FakeProvider, Fault
from agentq.testing import Turn as Says
from agentq.tools import tool
from tests.support.provider import KEY, run

CALL = [["forecast", {"city": "Oslo", "days": 2}]]
SCRIPT: list[Any] = [CALL, [["forecast", {"city": "Rome"}], ["today"]], "Take an umbrella."]
RESULTS = ["Oslo, 2 days: rain", "Rome, 1 days: rain", "Tuesday"]
TOOL = {"name": "forecast", "description": "The weather.", "parameters": {"type": "object", "properties": {}}}
HELLO = ChatRequest([Message(Role.USER, "hello")], system="Be brief.", max_output_tokens=64)
AFTER_A_CALL = replace(
    HELLO,
    messages=(
        Message(Role.USER, "go"),
        Message(Role.ASSISTANT, "", (ToolCall("call_1", "forecast", "{}"),)),
        Message(Role.TOOL, "rain", tool_call_id="call_1"),
    ),
)

Make = Callable[..., OpenAIResponses]


@pytest.fixture
def server() -> Iterator[FakeProvider]:
    with FakeProvider(SCRIPT, keys={KEY}) as server:
        yield server


@pytest.fixture
def model(server: FakeProvider, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes models at the server, and closes them."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    made: list[OpenAIResponses] = []

    def make(name: str = "gpt-5-mini", **options: Any) -> OpenAIResponses:
        made.append(OpenAIResponses(name, base_url=server.url, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def failure(model: OpenAIResponses, request: ChatRequest = HELLO) -> LLMError:
    with pytest.raises(LLMError) as caught:
        model.complete(request)
    return caught.value


def works(model: OpenAIResponses, **options: Any) -> Any:
    """The run of the script goes through all its turns."""
    result = run(model, **options)
    assert (result.stop_reason, result.answer) == (StopReason.FINISHED, "Take an umbrella."), (
        result.thread.trace
    )
    results = [json.loads(m.content) for m in result.thread.messages if m.role is Role.TOOL]
    return [one["content"] for one in results]


def sent(server: FakeProvider) -> list[dict[str, Any]]:
    """The items of the last request."""
    items: list[dict[str, Any]] = json.loads(json.dumps(server.requests[-1].body["input"]))
    return items


def kinds(server: FakeProvider) -> list[str]:
    return [str(item.get("type", item.get("role"))) for item in sent(server)]


def test_without_any_quirk_a_run_goes_over_several_turns(server, model) -> None:
    assert works(model()) == RESULTS
    assert kinds(server) == [
        "user", "function_call", "function_call_output",
        "function_call", "function_call", "function_call_output", "function_call_output",
    ]  # fmt: skip
    assert server.requests[-1].body["instructions"] == "Be brief."


@pytest.mark.parametrize("name", ["gpt-5.4", "gpt-5.6", "gpt-6-sol"])
def test_row_01_models_that_reason_have_tools_here_whatever_their_effort(server, model, name) -> None:
    works(model(name))
    assert "reasoning" not in server.requests[-1].body
    works(model(name, options={"reasoning": {"effort": "high"}}))
    assert server.requests[-1].body["reasoning"] == {"effort": "high"}


def test_row_02_thoughts_are_asked_for_encrypted_and_all_items_go_back_in_their_order(server, model) -> None:
    server.faults = "thinking"
    assert works(model(options={"include": ["message.output_text.logprobs"]})) == RESULTS
    assert all(
        request.body["store"] is False
        and request.body["include"] == ["message.output_text.logprobs", ENCRYPTED]
        for request in server.requests
    )
    assert kinds(server) == [
        "user", "reasoning", "function_call", "function_call_output",
        "reasoning", "function_call", "function_call", "function_call_output", "function_call_output",
    ]  # fmt: skip
    assert all(item["encrypted_content"] for item in sent(server) if item.get("type") == "reasoning")


def test_row_02_a_closing_turn_has_them_too(server, model) -> None:
    server.faults = "thinking"
    assert run(model(), steps=1).stop_reason is StopReason.STEP_BUDGET
    assert kinds(server)[1:4] == ["reasoning", "function_call", "function_call_output"]


def test_row_02_a_thought_that_is_not_encrypted_is_left_out_with_the_ids_that_need_it(server, model) -> None:
    server.faults = "thinking"
    assert works(model("some-model")) == RESULTS  # nobody knows that it thinks, so nothing is asked for
    assert "include" not in server.requests[-1].body
    assert "reasoning" not in kinds(server)
    assert not any("id" in item for item in sent(server))


def test_row_02_it_is_asked_for_where_the_quirk_says_so(server, model) -> None:
    server.faults = "thinking"
    works(model("some-model", quirks={"reasons": True}))
    assert kinds(server).count("reasoning") == 2
    works(model(quirks={"keeps_turns": False}))
    assert "reasoning" not in kinds(server)


def test_row_02_thoughts_of_another_account_can_be_left_out(server, model) -> None:
    server.faults = "thinking"
    thread = run(model()).thread
    request = replace(HELLO, messages=tuple(thread.messages))
    model().complete(request)
    assert "reasoning" in kinds(server)
    model(quirks={"keeps_turns": False}).complete(request)
    assert "reasoning" not in kinds(server)


def test_row_02_thoughts_go_to_no_other_model(server, model) -> None:
    server.faults = "thinking"
    thread = run(model()).thread
    model("gpt-5").complete(replace(HELLO, messages=tuple(thread.messages)))
    assert "reasoning" not in kinds(server)
    assert kinds(server).count("function_call") == 3


@pytest.mark.parametrize("name", ["gpt-4o", "gpt-4.1-mini", "gpt-5.2-chat-latest"])
def test_row_02_models_without_thoughts_are_not_asked_for_them(model, name) -> None:
    assert "include" not in model(name).fitting(model(name).body(HELLO))


@pytest.mark.parametrize("thinking", [(), ("thinking",)])
@pytest.mark.parametrize("fault", ["bad_arguments", "list_arguments"])
def test_row_06_broken_arguments_are_told_to_the_model_and_never_sent_again(
    server, model, fault, thinking
) -> None:
    server.faults = [Fault(fault, first=1), *thinking]
    contents = works(model())
    assert "JSON" in contents[0] or "object" in contents[0]
    call = next(item for item in sent(server) if item.get("type") == "function_call")
    assert call["arguments"] == "{}"
    assert ("reasoning" in kinds(server)) is bool(thinking)


def test_row_06_no_arguments_at_all_are_an_empty_object(server, model) -> None:
    server.script = [[["today"]], "Take an umbrella."]
    server.faults = ["empty_arguments", "thinking"]
    assert works(model()) == ["Tuesday"]
    assert [item["arguments"] for item in sent(server) if "arguments" in item] == ["{}"]


def test_row_06_a_model_that_writes_nothing_but_broken_arguments_is_stopped(server, model) -> None:
    server.script = [CALL]
    server.faults = "bad_arguments"
    result = run(model())
    assert result.stop_reason in {StopReason.TOOL_ERROR_CEILING, StopReason.LOOP_DETECTED}


@pytest.mark.parametrize("thinking", [(), ("thinking",)])
@pytest.mark.parametrize("fault", ["cut_with_calls", "truncated_arguments"])
def test_row_07_no_call_of_a_reply_that_was_cut_is_made(server, model, fault, thinking) -> None:
    server.faults = [Fault(fault, first=1), *thinking]
    contents = works(model())
    assert contents[0] == "Not made: the reply was cut off. Ask again, more briefly."
    assert contents[1:] == RESULTS[1:]
    # A turn that is not whole goes back as text and calls.
    assert kinds(server).count("reasoning") == len(thinking)


def test_row_09_to_forbid_tools_both_keys_are_left_out(server, model) -> None:
    result = run(model(), steps=1)
    assert result.stop_reason is StopReason.STEP_BUDGET
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & server.requests[-1].body.keys()
    assert "function_call" in kinds(server)  # and what was called stays in the history


def test_row_09_switches_of_tools_among_the_options_are_left_out_with_them(server, model) -> None:
    options = {"parallel_tool_calls": False, "tool_choice": "auto"}
    assert run(model(options=options), steps=1).stop_reason is StopReason.STEP_BUDGET
    first, last = server.requests
    assert options.items() <= first.body.items()
    assert not options.keys() & last.body.keys()


def test_row_09_gateways_that_want_tools_beside_calls_can_have_them(server, model) -> None:
    result = run(model(quirks={"forbidden_tools": "declared"}), steps=1)
    assert result.stop_reason is StopReason.STEP_BUDGET
    body = server.requests[-1].body
    assert ([one["name"] for one in body["tools"]], body["tool_choice"]) == (["forecast"], "none")


@pytest.mark.parametrize("fault", ["calls_despite_none", "empty_call"])
def test_row_09_calls_that_come_all_the_same_are_not_made(server, model, fault) -> None:
    server.faults = Fault(fault, when=lambda request: not request.tools)
    result = run(model(), steps=1)
    assert result.stop_reason is StopReason.STEP_BUDGET
    assert sum(message.role is Role.TOOL for message in result.thread.messages) == 1


def test_row_09_a_call_without_a_name_is_none(server, model) -> None:
    server.faults = ["empty_call", "thinking"]
    result = model().complete(replace(HELLO, tools=[TOOL]))
    assert (result.tool_calls, result.turn) == ((), None)


def test_row_10_the_switch_for_parallel_calls_is_sent_to_nobody_who_refuses_it(server, model) -> None:
    server.faults = "no_parallel_switch"
    works(model())
    works(model("o3-mini", quirks={"parallel_tool_calls": False}, options={"parallel_tool_calls": False}))


def test_row_11_nothing_is_said_with_no_words(server, model) -> None:
    empty = replace(AFTER_A_CALL.messages[2], content="")
    messages = (*AFTER_A_CALL.messages[:2], empty, Message(Role.ASSISTANT, ""), Message(Role.USER, "and?"))
    model().complete(replace(AFTER_A_CALL, messages=messages))
    assert kinds(server) == ["user", "function_call", "function_call_output", "user"]
    assert sent(server)[2]["output"] == "(empty)"


def test_row_12_calls_that_were_lost_are_answered(server, model) -> None:
    two = (ToolCall("call_1", "forecast", "{}"), ToolCall("call_2", "today", "{}"))
    messages = [
        Message(Role.USER, "go"),
        Message(Role.ASSISTANT, "", two),
        Message(Role.TOOL, "Tuesday", tool_call_id="call_2"),
        Message(Role.TOOL, "stray", tool_call_id="call_9"),
        Message(Role.USER, "and?"),
    ]
    model().complete(replace(HELLO, messages=messages))
    assert [item["output"] for item in sent(server) if "output" in item] == [LOST, "Tuesday"]
    assert sent(server)[-1] == {"role": "user", "content": "and?"}


def test_row_12_also_those_of_a_turn_with_a_thought(server, model) -> None:
    server.faults = "thinking"
    thread = run(model()).thread
    lost = [message for message in thread.messages[:-1] if message.role is not Role.TOOL]
    model().complete(replace(HELLO, messages=lost))
    assert [item["output"] for item in sent(server) if "output" in item] == [LOST] * 3
    assert kinds(server).count("reasoning") == 2


@pytest.mark.parametrize("thinking", [(), ("thinking",)])
@pytest.mark.parametrize("fault", ["empty_ids", "repeated_ids", "long_ids", "doubled_call"])
def test_row_13_ids_that_no_server_takes_back_are_replaced(server, model, fault, thinking) -> None:
    server.faults = [fault, *thinking]
    works(model())
    ids = [item["call_id"] for item in sent(server) if item.get("type") == "function_call"]
    assert len(set(ids)) == len(ids)
    assert ids == [item["call_id"] for item in sent(server) if "output" in item]


def test_row_14_a_server_gets_schemas_without_what_it_refuses_and_the_loss_is_said_once(
    server, model
) -> None:
    @tool
    def order(codes: Annotated[set[str], Field(min_length=1)], count: Annotated[int, Field(gt=0)]) -> str:
        """Order things."""
        return "ordered"

    server.faults = "plain_schemas"
    server.script = [[["order", {"codes": ["a"], "count": 1}]], "Take an umbrella."]
    plain = model(quirks={"schema_keys": "plain"})
    result = run(plain, tools=[order])
    assert result.stop_reason is StopReason.FINISHED
    said = [event.detail for event in result.thread.trace if event.kind == "schema_reduced"]
    assert said == ["tool order: dropped uniqueItems"]
    assert not any(event.kind == "schema_reduced" for event in run(plain, tools=[order]).thread.trace)


def test_row_14_tools_are_not_strict_so_their_schemas_stay_as_they_are(server, model) -> None:
    works(model())
    assert [one["strict"] for one in server.requests[-1].body["tools"]] == [False, False]


def test_row_14_names_that_a_model_invented_are_not_sent_back_as_they_are(server, model) -> None:
    server.script = [[["no such tool!", {}]], "Take an umbrella."]
    works(model())
    assert sent(server)[1]["name"] == "no_such_tool_"


@pytest.mark.parametrize("name", ["o1", "o3-mini", "gpt-5-mini", "gpt-5.6", "gpt-6-luna", "openai/gpt-5"])
def test_row_15_models_that_reason_get_the_cap_and_no_temperature(server, model, name) -> None:
    server.faults = "no_temperature"
    model(name).complete(replace(HELLO, temperature=0.5))
    assert server.requests[-1].output_cap == 64


def test_row_15_others_get_the_temperature(server, model) -> None:
    model("gpt-4o").complete(replace(HELLO, temperature=0.5))
    assert server.requests[-1].body["temperature"] == 0.5


def test_row_15_a_cap_that_the_service_refuses_is_not_raised_behind_the_reservation(server, model) -> None:
    error = failure(model(), replace(HELLO, max_output_tokens=15))
    assert (type(error), error.billed) == (InvalidRequest, False)
    assert "at least 16" in error.message
    assert not server.requests
    model().complete(replace(HELLO, max_output_tokens=16))


def test_row_16_instructions_are_their_own_field_and_later_ones_keep_their_place(server, model) -> None:
    late = Message(Role.SYSTEM, "Speak French.")
    model().complete(replace(HELLO, messages=[*HELLO.messages, late]))
    assert sent(server) == [
        {"role": "user", "content": "hello"},
        {"role": "system", "content": "Speak French."},
    ]
    model().complete(replace(HELLO, messages=[late, *HELLO.messages]))
    assert server.requests[-1].body["instructions"] == "Be brief.\n\nSpeak French."
    model(quirks={"system_role": "developer"}).complete(replace(HELLO, messages=[*HELLO.messages, late]))
    assert sent(server)[1]["role"] == "developer"


@pytest.mark.parametrize("fault", ["no_usage", "null_usage"])
def test_row_17_a_reply_without_usage_is_one_and_nothing_is_streamed(server, model, fault) -> None:
    server.faults = fault
    result = model().complete(HELLO)
    assert (result.usage, result.usage.total_tokens) == (Usage(), 0)
    assert "stream" not in server.requests[-1].body


def test_row_18_a_200_that_carries_an_error_is_one(server, model) -> None:
    server.faults = "error_in_200"
    error = failure(model())
    assert (type(error), error.status_code, error.retryable) == (TransientError, 502, True)
    assert "failed to generate" in error.message


@pytest.mark.parametrize("fault", ["garbage", "empty_body"])
def test_row_18_a_200_without_an_answer_is_a_failure_that_may_have_been_billed(server, model, fault) -> None:
    server.faults = fault
    error = failure(model())
    assert (type(error), error.retryable, error.billed) == (TransientError, True, None)


@pytest.mark.parametrize("fault", ["rate_limited", "slow_down", "retry_unsaid", "throttled_tokens"])
def test_row_19_too_many_requests_are_tried_again(server, model, fault) -> None:
    server.faults = fault
    error = failure(model())
    assert (type(error), error.retryable, error.billed) == (RateLimited, True, False)


@pytest.mark.parametrize(
    "fault",
    [
        "insufficient_quota", "credit_exhausted", "spend_limit", "project_spend_limit", "usage_limit",
        "payment_required",
    ],
)  # fmt: skip
def test_row_19_an_account_without_money_is_not(server, model, fault) -> None:
    server.faults = fault
    error = failure(model())
    assert (type(error), error.retryable, error.billed) == (QuotaExceeded, False, False)


@pytest.mark.parametrize(
    "fault, wait",
    [
        ("rate_limited", 6.0), ("retry_after_float", 5.289), ("retry_after_date", None),
        ("retry_after_ms", 5.289),
    ],
)  # fmt: skip
def test_row_20_the_wait_is_read_in_each_form(server, model, fault, wait) -> None:
    server.faults = Fault(fault, seconds=5.289)
    seconds = failure(model()).retry_after_s
    assert seconds is not None
    assert 4 <= seconds <= 7 if wait is None else seconds == pytest.approx(wait, abs=0.01)


def test_row_20_limits_and_their_resets_come_with_the_error(server, model) -> None:
    server.faults = Fault("retry_headers", seconds=90)
    limits = failure(model()).limits
    assert limits is not None
    assert limits.tokens is not None
    assert (limits.tokens.limit, limits.tokens.remaining, limits.tokens.reset_s) == (40_000, 0, 90)
    server.faults = "should_not_retry"
    assert not failure(model()).retryable


@pytest.mark.parametrize("fault", ["overloaded", "unavailable", "server_error", "html_page", "empty_error"])
def test_row_21_a_failure_of_the_server_was_not_billed_and_is_tried_again(server, model, fault) -> None:
    server.faults = fault
    error = failure(model())
    assert (type(error), error.retryable, error.billed) == (TransientError, True, False)


@pytest.mark.parametrize("fault", ["closed", "half_body", Fault("no_answer", seconds=0.05)])
def test_row_21_an_answer_that_breaks_off_may_have_been_billed(server, model, fault) -> None:
    server.faults = fault
    error = failure(model())
    assert (type(error), error.retryable, error.billed) == (TransientError, True, None)


@pytest.mark.parametrize("fault", ["context_overflow", "overflow_413"])
def test_row_22_a_context_that_is_too_long_is_known_in_each_wording(server, model, fault) -> None:
    server.faults = fault
    error = failure(model())
    assert (type(error), error.retryable, error.billed) == (ContextOverflow, False, False)


def test_row_25_a_refusal_is_the_answer_and_is_said(server, model) -> None:
    server.faults = "refusal"
    result = model().complete(HELLO)
    assert (result.text, result.finish_reason) == ("I can't help with that.", "refusal")
    assert result.notes == ("refused: I can't help with that.",)


def test_row_25_an_answer_that_was_withheld_is_no_success(server, model) -> None:
    server.faults = "content_filter"
    server.script = ["Once upon"]
    error = failure(model())
    assert (type(error), error.billed) == (InvalidRequest, None)


def test_row_26_one_call_is_one_request_and_its_id_is_kept(server, model) -> None:
    server.faults = Fault("server_error", first=1)
    error = failure(model())
    result = model().complete(HELLO)
    assert len(server.requests) == 2
    assert all(str(one).startswith("req_") for one in (error.request_id, result.request_id))
    assert error.request_id != result.request_id


def test_what_is_not_known_yet_is_no_trouble(server, model) -> None:
    server.faults = ["unknown_fields", "thinking"]
    works(model())


def test_an_empty_answer_is_no_error(server, model) -> None:
    server.faults = "empty_answer"
    result = model().complete(HELLO)
    assert (result.text, result.tool_calls, result.finish_reason, result.turn) == ("", (), "stop", None)


def test_usage_is_read_by_one_rule(server, model) -> None:
    server.script = [
        Says(
            text="x",
            input_tokens=100,
            output_tokens=50,
            reasoning_tokens=40,
            cached_tokens=80,
            cache_write_tokens=20,
        )
    ]
    assert model().complete(HELLO).usage == Usage(100, 50, 80, 40, 20)


def test_a_turn_of_another_dialect_is_sent_in_normal_form(server, model) -> None:
    message = replace(AFTER_A_CALL.messages[1], turn=Turn("openai-chat:gpt-5-mini", {"role": "assistant"}))
    messages = (AFTER_A_CALL.messages[0], message, AFTER_A_CALL.messages[2])
    model().complete(replace(AFTER_A_CALL, messages=messages))
    assert sent(server)[1] == {
        "type": "function_call", "call_id": "call_1", "name": "forecast", "arguments": "{}",
    }  # fmt: skip
