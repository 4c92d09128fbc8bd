"""Each quirk of servers of chat completions, over real HTTP: the run goes on, or ends for its reason."""

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
from agentq.provider.openai_chat import OpenAIChat
from agentq.provider.types import ChatRequest, Message, Role, ToolCall, Turn, Usage
from agentq.testing import FakeProvider, Fault
from agentq.testing import Turn as Says
from agentq.tools import tool
from tests.support.provider import KEY, run

CALL = [["forecast", {"city": "Oslo", "days": 2}]]
SCRIPT: list[Any] = [CALL, [["forecast", {"city": "Rome"}], ["today"]], "Take an umbrella."]
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

Make = Callable[..., OpenAIChat]


@pytest.fixture
def server() -> Iterator[FakeProvider]:
    with FakeProvider(SCRIPT, keys={KEY}) as server:
        yield server


@pytest.fixture
def model(server: FakeProvider, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes models at the server, and closes them."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    made: list[OpenAIChat] = []

    def make(name: str = "any-model", **options: Any) -> OpenAIChat:
        made.append(OpenAIChat(name, base_url=server.url, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def failure(model: OpenAIChat, request: ChatRequest = HELLO) -> LLMError:
    with pytest.raises(LLMError) as caught:
        model.complete(request)
    return caught.value


def works(model: OpenAIChat, **options: Any) -> Any:
    """The run of the script goes through all its turns."""
    result = run(model, **options)
    assert (result.stop_reason, result.answer) == (StopReason.FINISHED, "Take an umbrella."), (
        result.thread.trace
    )
    results = [json.loads(m.content) for m in result.thread.messages if m.role is Role.TOOL]
    return [one["content"] for one in results]


def sent(server: FakeProvider) -> list[dict[str, Any]]:
    """The messages of the last request."""
    messages: list[dict[str, Any]] = json.loads(json.dumps(server.requests[-1].body["messages"]))
    return messages


def test_without_any_quirk_a_run_goes_over_several_turns(server, model) -> None:
    assert works(model()) == ["Oslo, 2 days: rain", "Rome, 1 days: rain", "Tuesday"]
    assert [message["role"] for message in sent(server)] == [
        "system", "user", "assistant", "tool", "assistant", "tool", "tool",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["gpt-5.4", "gpt-5.5-mini", "gpt-5.6"])
def test_row_01_these_models_get_effort_none_with_tools_and_only_then(server, model, name) -> None:
    server.faults = "no_effort_with_tools"
    works(model(name))
    assert server.requests[-1].body["reasoning_effort"] == "none"
    model(name).complete(HELLO)
    assert "reasoning_effort" not in server.requests[-1].body


def test_row_01_another_model_does_so_when_it_is_told(server, model) -> None:
    server.faults = "no_effort_with_tools"
    assert run(model("gpt-9")).stop_reason is StopReason.MODEL_ERROR
    works(model("gpt-9", quirks={"effort_with_tools": "none"}))


def test_row_03_reasoning_content_goes_back_with_its_calls(server, model) -> None:
    server.faults = "reasoning_content"
    works(model("deepseek-v4", quirks={}))
    thoughts = [
        message.get("reasoning_content") for message in sent(server) if message["role"] == "assistant"
    ]
    assert thoughts == ["Let me think about this."] * 2


def test_row_03_it_goes_to_no_other_model_and_to_none_that_refuses_it(server, model) -> None:
    server.faults = "reasoning_content"
    thread = run(model("deepseek-v4")).thread
    request = replace(HELLO, messages=tuple(thread.messages))
    server.faults = ()
    model("other").complete(request)
    assert "reasoning_content" not in json.dumps(sent(server))
    strange = model("deepseek-v4", quirks={"keeps_turns": False})
    strange.complete(request)
    assert "reasoning_content" not in json.dumps(sent(server))
    assert json.loads(sent(server)[2]["tool_calls"][0]["function"]["arguments"]) == {
        "city": "Oslo",
        "days": 2,
    }


@pytest.mark.parametrize(
    "fault, home", [("thought_signature", "google"), ("thought_signature_vertex", "vertex")]
)
def test_row_05_unknown_keys_of_calls_go_back(server, model, fault, home) -> None:
    server.faults = fault
    works(model("gemini-3-pro"))
    assert home in sent(server)[2]["tool_calls"][0]["extra_content"]


@pytest.mark.parametrize("fault", ["bad_arguments", "list_arguments"])
def test_row_06_broken_arguments_are_told_to_the_model_and_never_sent_again(server, model, fault) -> None:
    server.faults = [Fault(fault, first=1), "arguments_checked"]
    contents = works(model())
    assert "JSON" in contents[0] or "object" in contents[0]
    assert sent(server)[2]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_row_06_broken_arguments_in_a_turn_that_is_kept_are_not_sent_again_either(server, model) -> None:
    server.faults = [Fault("bad_arguments", first=1), "reasoning_content", "arguments_checked"]
    works(model())
    first = sent(server)[2]
    assert (first["tool_calls"][0]["function"]["arguments"], "reasoning_content" in first) == ("{}", True)


def test_row_06_no_arguments_at_all_are_an_empty_object(server, model) -> None:
    server.script = [[["today"]], "Take an umbrella."]
    server.faults = ["empty_arguments", "arguments_checked"]
    assert works(model()) == ["Tuesday"]


def test_row_06_arguments_may_be_an_object(server, model) -> None:
    server.faults = ["dict_arguments", "arguments_checked"]
    assert works(model()) == ["Oslo, 2 days: rain", "Rome, 1 days: rain", "Tuesday"]


def test_row_06_a_model_that_writes_nothing_but_broken_arguments_is_stopped(server, model) -> None:
    server.script = [CALL]
    server.faults = ["bad_arguments", "arguments_checked"]
    result = run(model())
    assert result.stop_reason in {StopReason.TOOL_ERROR_CEILING, StopReason.LOOP_DETECTED}


@pytest.mark.parametrize("fault", ["cut_with_calls", "truncated_arguments"])
def test_row_07_no_call_of_a_reply_that_was_cut_is_made(server, model, fault) -> None:
    server.faults = [Fault(fault, first=1), "arguments_checked"]
    contents = works(model())
    assert contents[0] == "Not made: the reply was cut off. Ask again, more briefly."
    assert contents[1:] == ["Rome, 1 days: rain", "Tuesday"]


def test_row_08_calls_count_whatever_the_finish_reason_says(server, model) -> None:
    server.faults = "stop_with_calls"
    assert works(model()) == ["Oslo, 2 days: rain", "Rome, 1 days: rain", "Tuesday"]


def test_row_09_to_forbid_tools_both_keys_are_left_out(server, model) -> None:
    result = run(model(), steps=1)
    assert result.stop_reason is StopReason.STEP_BUDGET
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & server.requests[-1].body.keys()
    assert sent(server)[2]["tool_calls"]  # and what was called stays in the history


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
    assert ([one["function"]["name"] for one in body["tools"]], body["tool_choice"]) == (["forecast"], "none")


@pytest.mark.parametrize("fault", ["calls_despite_none", "empty_call"])
def test_row_09_calls_that_come_all_the_same_are_not_made(server, model, fault) -> None:
    server.faults = Fault(fault, when=lambda request: not request.tools)
    result = run(model(), steps=1)
    assert result.stop_reason is StopReason.STEP_BUDGET
    assert sum(message.role is Role.TOOL for message in result.thread.messages) == 1


def test_row_09_a_call_without_a_name_is_none(server, model) -> None:
    server.faults = Fault("empty_call")
    assert model().complete(replace(HELLO, tools=[TOOL])).tool_calls == ()


def test_row_10_the_switch_for_parallel_calls_is_not_sent(server, model) -> None:
    server.faults = "no_parallel_switch"
    works(model())


def test_row_10_it_is_sent_to_nobody_who_refuses_it_whatever_the_options_say(server, model) -> None:
    server.faults = "no_parallel_switch"
    works(model("o3-mini", options={"parallel_tool_calls": False}))


@pytest.mark.parametrize(
    "fault, quirks", [("no_empty_content", {}), ("no_null_content", {"content_with_calls": "empty"})]
)
def test_row_11_no_text_beside_calls_is_null_or_as_the_server_wants_it(server, model, fault, quirks) -> None:
    server.faults = fault
    works(model(quirks=quirks))


def test_row_11_no_result_of_a_tool_is_empty(server, model) -> None:
    server.faults = "no_empty_content"
    empty = replace(AFTER_A_CALL.messages[2], content="")
    model().complete(replace(AFTER_A_CALL, messages=(*AFTER_A_CALL.messages[:2], empty)))
    assert sent(server)[-1] == {"role": "tool", "tool_call_id": "call_1", "content": "(empty)"}


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
    assert [(m["role"], m["content"]) for m in sent(server)[3:]] == [
        ("tool", LOST), ("tool", "Tuesday"), ("user", "and?"),
    ]  # fmt: skip


@pytest.mark.parametrize("fault", ["empty_ids", "repeated_ids", "long_ids", "doubled_call"])
def test_row_13_ids_that_no_server_takes_back_are_replaced(server, model, fault) -> None:
    server.faults = [fault, "ids_unique"]
    works(model())


def test_row_13_openai_takes_forty_characters(server, model) -> None:
    server.faults = "ids_40"
    fifty = (ToolCall("call_" + 45 * "x", "forecast", "{}"),)
    request = replace(HELLO, messages=[Message(Role.ASSISTANT, "", fifty)])
    model("gpt-4o").complete(request)
    assert len(sent(server)[1]["tool_calls"][0]["id"]) <= 40
    assert type(failure(model("gpt-4o", provider="somebody"), request)) is InvalidRequest


def test_row_13_mistral_takes_nine_letters_and_digits_also_of_another_provider(server, model) -> None:
    server.faults = "ids_mistral"
    mistral = model("mistral-large", provider="mistral")
    works(mistral)
    other = (ToolCall("call_of-another-provider", "forecast", "{}"), ToolCall("call_2", "today", "{}"))
    mistral.complete(replace(HELLO, messages=[Message(Role.ASSISTANT, "", other)]))
    ids = [call["id"] for call in sent(server)[1]["tool_calls"]]
    assert ids == [message["tool_call_id"] for message in sent(server)[2:]]
    mistral.complete(replace(HELLO, messages=[Message(Role.ASSISTANT, "", other)]))
    assert ids == [call["id"] for call in sent(server)[1]["tool_calls"]]  # each time the same


def test_row_14_gemini_gets_schemas_without_what_it_refuses_and_the_loss_is_said_once(server, model) -> None:
    @tool
    def order(codes: Annotated[set[str], Field(min_length=1)], count: Annotated[int, Field(gt=0)]) -> str:
        """Order things."""
        return "ordered"

    server.faults = "plain_schemas"
    server.script = [[["order", {"codes": ["a"], "count": 1}]], "Take an umbrella."]
    gemini = model("gemini-3-pro", provider="google")
    result = run(gemini, tools=[order])
    assert result.stop_reason is StopReason.FINISHED
    schema = server.requests[0].tools[0].schema
    assert schema["properties"]["count"]["minimum"] == 1
    said = [event.detail for event in result.thread.trace if event.kind == "schema_reduced"]
    assert said == ["tool order: dropped uniqueItems"]
    assert not any(event.kind == "schema_reduced" for event in run(gemini, tools=[order]).thread.trace)


def test_row_14_names_that_a_model_invented_are_not_sent_back_as_they_are(server, model) -> None:
    server.script = [[["no such tool!", {}]], "Take an umbrella."]
    works(model())
    assert sent(server)[2]["tool_calls"][0]["function"]["name"] == "no_such_tool_"


@pytest.mark.parametrize("name", ["o1", "o3-mini", "gpt-5-mini", "gpt-5.6"])
def test_row_15_models_that_reason_get_the_new_name_of_the_cap_and_no_temperature(
    server, model, name
) -> None:
    server.faults = ["no_max_tokens", "no_temperature"]
    model(name).complete(replace(HELLO, temperature=0.5))
    assert server.requests[-1].output_cap == 64


def test_row_15_others_get_the_old_one_and_the_temperature(server, model) -> None:
    server.faults = "no_max_completion_tokens"
    model("llama3").complete(replace(HELLO, temperature=0.5))
    assert (server.requests[-1].body["max_tokens"], server.requests[-1].body["temperature"]) == (64, 0.5)
    failure(model("llama3", quirks={"output_cap": "max_completion_tokens"}))


def test_row_16_instructions_are_the_systems_and_first_developer_only_where_models_reason(
    server, model
) -> None:
    server.faults = ["no_developer", "system_first"]
    late = Message(Role.SYSTEM, "Speak French.")
    model("qwen3").complete(replace(HELLO, messages=[*HELLO.messages, late]))
    assert [(m["role"], m["content"]) for m in sent(server)] == [
        ("system", "Be brief."), ("user", "hello"), ("user", "Speak French."),
    ]  # fmt: skip
    model("qwen3").complete(replace(HELLO, messages=[late, *HELLO.messages]))
    assert sent(server)[0] == {"role": "system", "content": "Be brief.\n\nSpeak French."}
    server.faults = ()
    model("gpt-5").complete(HELLO)
    assert sent(server)[0]["role"] == "developer"


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
    assert "upstream connect error" in error.message
    server.faults = "limited_in_200"
    assert type(failure(model())) is RateLimited


@pytest.mark.parametrize("fault", ["null_choices", "no_choices", "garbage", "empty_body"])
def test_row_18_a_200_without_an_answer_is_a_failure_that_may_have_been_billed(server, model, fault) -> None:
    server.faults = fault
    error = failure(model())
    assert (type(error), error.retryable, error.billed) == (TransientError, True, None)


def test_row_18_a_choice_that_ended_with_an_error_is_no_answer(server, model) -> None:
    server.faults = "error_finish"
    error = failure(model())
    assert (type(error), error.billed) == (TransientError, None)
    assert "Provider disconnected" in error.message


@pytest.mark.parametrize("fault", ["rate_limited", "slow_down", "retry_unsaid", "throttled_tokens"])
def test_row_19_too_many_requests_are_tried_again(server, model, fault) -> None:
    server.faults = fault
    error = failure(model())
    assert (type(error), error.retryable, error.billed) == (RateLimited, True, False)


@pytest.mark.parametrize(
    "fault",
    [
        "insufficient_quota", "credit_exhausted", "spend_limit", "project_spend_limit", "usage_limit",
        "payment_required", "daily_quota",
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
        ("retry_after_ms", 5.289), ("retry_in_text", 5.289),
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


@pytest.mark.parametrize("fault", ["context_overflow", "overflow_vllm", "overflow_llama_cpp", "overflow_413"])
def test_row_22_a_context_that_is_too_long_is_known_in_each_wording(server, model, fault) -> None:
    server.faults = fault
    error = failure(model())
    assert (type(error), error.retryable, error.billed) == (ContextOverflow, False, False)


def test_row_23_a_prompt_that_the_server_cut_is_an_error_where_servers_do_so(server, model) -> None:
    server.faults = Fault("cuts_prompt", tokens=2_050)
    long = replace(HELLO, messages=[Message(Role.USER, "one two three four " * 1_000)])
    error = failure(model("llama3", quirks={"cuts_prompt": True}), long)
    assert type(error) is ContextOverflow
    assert "OLLAMA_CONTEXT_LENGTH" in error.message
    model("llama3").complete(long)  # who is not known to do so is believed
    assert OpenAIChat("llama3", base_url="http://localhost:11434/v1").quirks.cuts_prompt


def test_row_24_a_call_that_groq_could_not_read_is_tried_again_and_charged(server, model) -> None:
    server.faults = "tool_use_failed"
    error = failure(model(), replace(HELLO, tools=[TOOL]))
    assert (type(error), error.retryable, error.billed) == (TransientError, True, None)


def test_row_25_a_refusal_is_the_answer_and_is_said(server, model) -> None:
    server.faults = "refusal"
    result = model().complete(HELLO)
    assert (result.text, result.finish_reason) == ("I can't help with that.", "refusal")
    assert result.notes == ("refused: I can't help with that.",)


@pytest.mark.parametrize(
    "fault, kind", [("content_filter", InvalidRequest), ("unknown_stop", TransientError)]
)
def test_row_25_an_answer_that_was_withheld_or_is_not_whole_is_no_success(server, model, fault, kind) -> None:
    server.faults = fault
    server.script = ["Once upon"]
    error = failure(model())
    assert (type(error), error.billed) == (kind, None)


def test_row_26_one_call_is_one_request_and_its_id_is_kept(server, model) -> None:
    server.faults = Fault("server_error", first=1)
    error = failure(model())
    result = model().complete(HELLO)
    assert len(server.requests) == 2
    assert all(str(one).startswith("req_") for one in (error.request_id, result.request_id))
    assert error.request_id != result.request_id


def test_a_user_may_not_follow_a_tool_where_mistral_says_so(server, model) -> None:
    messages = [*AFTER_A_CALL.messages, Message(Role.USER, "stop"), Message(Role.USER, "now")]
    model("mistral-large", provider="mistral").complete(replace(HELLO, messages=messages))
    assert [(m["role"], m["content"]) for m in sent(server)[3:]] == [
        ("tool", "rain"), ("assistant", "Understood."), ("user", "stop\n\nnow"),
    ]  # fmt: skip


def test_what_is_not_known_yet_is_no_trouble(server, model) -> None:
    server.faults = "unknown_fields"
    works(model())


def test_an_empty_answer_is_no_error(server, model) -> None:
    server.faults = "empty_answer"
    result = model().complete(HELLO)
    assert (result.text, result.tool_calls, result.finish_reason) == ("", (), "stop")


def test_usage_is_read_by_one_rule(server, model) -> None:
    server.script = [
        Says(text="x", input_tokens=100, output_tokens=50, reasoning_tokens=40, cached_tokens=80)
    ]
    usage = model().complete(HELLO).usage
    assert usage == Usage(100, 50, cached_input_tokens=80, reasoning_tokens=40)


def test_a_turn_of_another_dialect_is_sent_in_normal_form(server, model) -> None:
    message = replace(AFTER_A_CALL.messages[1], turn=Turn("anthropic:any-model", [{"type": "thinking"}]))
    messages = (AFTER_A_CALL.messages[0], message, AFTER_A_CALL.messages[2])
    model().complete(replace(AFTER_A_CALL, messages=messages))
    assert sent(server)[2]["tool_calls"][0]["id"] == "call_1"
