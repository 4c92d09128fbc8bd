"""Each quirk of servers that speak Anthropic's dialect: the run goes on, or ends for its reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from agentq.core.lifecycle import StopReason
from agentq.provider.anthropic import Anthropic
from agentq.provider.errors import (
    ContextOverflow,
    InvalidRequest,
    LLMError,
    QuotaExceeded,
    RateLimited,
    TransientError,
)
from agentq.provider.history import LOST
from agentq.provider.resilient import ResilientClient
from agentq.provider.types import ChatRequest, Message, Role, ToolCall, Turn, Usage
from agentq.testing import FakeProvider, Fault
from agentq.testing import Turn as Says
from tests.support.provider import KEY, Played, run

CALL = [["forecast", {"city": "Oslo", "days": 2}]]
SCRIPT: list[Any] = [CALL, [["forecast", {"city": "Rome"}], ["today"]], "Take an umbrella."]
TOOL = {"name": "forecast", "description": "The weather.", "parameters": {"type": "object", "properties": {}}}
HELLO = ChatRequest([Message(Role.USER, "hello")], system="Be brief.", max_output_tokens=64)
AFTER_A_CALL = replace(
    HELLO,
    messages=(
        Message(Role.USER, "go"),
        Message(Role.ASSISTANT, "", (ToolCall("toolu_1", "forecast", "{}"),)),
        Message(Role.TOOL, "rain", tool_call_id="toolu_1"),
    ),
)
THINKS = {"thinking": {"type": "enabled", "budget_tokens": 1_024}}
MODEL = "claude-sonnet-4-6"

Make = Callable[..., Anthropic]


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)


@pytest.fixture
def server() -> Iterator[FakeProvider]:
    with FakeProvider(SCRIPT, keys={KEY}) as server:
        yield server


@pytest.fixture
def model(server: FakeProvider) -> Iterator[Make]:
    """Makes models at the server, and closes them."""
    made: list[Anthropic] = []

    def make(name: str = MODEL, **options: Any) -> Anthropic:
        made.append(Anthropic(name, **{"base_url": server.url, **options}))
        return made[-1]

    yield make
    for one in made:
        one.close()


def failure(model: Anthropic, request: ChatRequest = HELLO) -> LLMError:
    with pytest.raises(LLMError) as caught:
        model.complete(request)
    return caught.value


def works(model: Any, **options: Any) -> list[str]:
    """The run of the script goes through all its turns; what its tools answered."""
    result = run(model, **options)
    assert (result.stop_reason, result.answer) == (StopReason.FINISHED, "Take an umbrella."), (
        result.thread.trace
    )
    results = [json.loads(m.content) for m in result.thread.messages if m.role is Role.TOOL]
    return [one["content"] for one in results]


def sent(server: FakeProvider) -> list[dict[str, Any]]:
    """The messages of the last request, without marks of the cache."""
    messages: list[dict[str, Any]] = json.loads(json.dumps(server.requests[-1].body["messages"]))
    for message in messages:
        for block in message["content"]:
            block.pop("cache_control", None)
    return messages


def kinds(message: dict[str, Any]) -> list[str]:
    return [block["type"] for block in message["content"]]


def played(body: dict[str, Any], request: ChatRequest = HELLO, **options: Any) -> Any:
    """What we make of an answer that no service gives, but a server that takes its place."""
    client = Anthropic(MODEL, transport=Played(body), **options)
    try:
        return client.complete(request)
    finally:
        client.close()


def message(*blocks: dict[str, Any], stop: str | None = "end_turn", **more: Any) -> dict[str, Any]:
    return {
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": list(blocks),
        "stop_reason": stop,
        "usage": {"input_tokens": 5, "output_tokens": 7},
        **more,
    }


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def asks(arguments: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": "toolu_7", "name": "forecast", "input": arguments, **more}


def test_without_any_quirk_a_run_goes_over_several_turns(server, model) -> None:
    assert works(model()) == ["Oslo, 2 days: rain", "Rome, 1 days: rain", "Tuesday"]
    assert [(one["role"], kinds(one)) for one in sent(server)] == [
        ("user", ["text"]), ("assistant", ["tool_use"]), ("user", ["tool_result"]),
        ("assistant", ["tool_use", "tool_use"]), ("user", ["tool_result", "tool_result"]),
    ]  # fmt: skip


@pytest.mark.parametrize("base", ["", "/", "/v1", "/v1/"])
def test_a_base_url_may_end_with_the_version(server, model, base) -> None:
    works(model(base_url=server.url + base))
    assert {request.dialect for request in server.requests} == {"messages"}


def test_row_03_and_04_thoughts_go_back_as_they_came_and_in_their_order(server, model) -> None:
    server.script = [
        Says(text="Let me look.", thinking='Hm \u2028 \U0001f600 "quoted" \\ é', calls=CALL),
        Says(thinking="And Rome?", calls=[["forecast", {"city": "Rome"}]]),
        "Take an umbrella.",
    ]
    claude = model(options=THINKS)
    heard = listening(claude)
    works(claude, max_output_tokens=4_000)
    turns = [one["content"] for one in sent(server) if one["role"] == "assistant"]
    assert turns == heard[:2]
    assert [kinds({"content": turn}) for turn in turns] == [
        ["thinking", "text", "tool_use"], ["thinking", "tool_use"],
    ]  # fmt: skip


def listening(claude: Anthropic) -> list[list[dict[str, Any]]]:
    """The blocks of each answer, as they came."""
    heard: list[list[dict[str, Any]]] = []
    read = claude.result

    def result(data: Any, req: ChatRequest) -> Any:
        heard.append(json.loads(json.dumps(data["content"])))
        return read(data, req)

    claude.result = result  # type: ignore[method-assign]
    return heard


@pytest.mark.parametrize("options", [THINKS, {"thinking": {"type": "adaptive", "display": "omitted"}}, {}])
@pytest.mark.parametrize("fault", ["thinking", "redacted_thinking"])
def test_row_04_thoughts_that_are_not_shown_go_back_too(server, model, options, fault) -> None:
    server.faults = fault
    works(model(options=options), max_output_tokens=4_000)
    thoughts = [kinds(one)[0] for one in sent(server) if one["role"] == "assistant"]
    assert thoughts == [fault, fault]


def test_row_04_another_model_gets_none_of_them_and_does_not_think_within_a_turn(server, model) -> None:
    server.faults = Fault("thinking", when=lambda request: request.model == MODEL)
    thread = run(model(options=THINKS), max_output_tokens=4_000).thread
    server.faults = ()
    other = model("claude-opus-4-6", options=THINKS)
    up_to_results = replace(HELLO, messages=thread.messages[:-1], tools=[TOOL], max_output_tokens=4_000)
    other.complete(up_to_results)
    assert "thinking" not in {kind for one in sent(server) for kind in kinds(one)}
    # A turn with calls cannot begin without a thought and go on with one.
    assert "thinking" not in server.requests[-1].body
    other.complete(replace(up_to_results, messages=[*thread.messages, Message(Role.USER, "and?")]))
    assert server.requests[-1].body["thinking"] == THINKS["thinking"]


def test_row_04_a_fallback_within_a_turn_goes_on_without_them(server, model) -> None:
    server.faults = ["thinking", Fault("server_error", after=1, when=lambda request: request.model == MODEL)]
    works(ResilientClient(model(), [model("claude-opus-4-6")], sleep=lambda seconds: None))
    assert [kinds(one)[0] for one in sent(server) if one["role"] == "assistant"] == ["tool_use", "thinking"]


def test_row_04_an_emptied_text_is_left_out_and_the_thought_beside_it_stays() -> None:
    thought = {"type": "thinking", "thinking": "", "signature": "EuYB=="}
    result = played(message(thought, text(""), asks({}), text(" \n"), stop="tool_use"))
    assert result.turn == Turn(f"anthropic:{MODEL}", [thought, asks({})])


def test_row_04_a_reply_that_was_cut_within_its_thoughts_is_not_sent_back(server, model) -> None:
    thought = {"type": "thinking", "thinking": "Hm", "signature": "EuYB=="}
    result = played(message(thought, stop="max_tokens"))
    assert (result.text, result.turn, result.finish_reason) == ("", None, "max_tokens")


def test_row_06_arguments_are_an_object_whatever_a_server_makes_of_them() -> None:
    for given, read in [({"a": 1}, '{"a": 1}'), ({}, "{}"), ('{"a": 1}', '{"a": 1}'), ("", ""), (None, "")]:
        result = played(message(asks(given), stop="tool_use"))
        assert [call.arguments for call in result.tool_calls] == [read]
    thought = {"type": "thinking", "thinking": "Hm", "signature": "EuYB=="}
    result = played(message(thought, asks("broken {"), stop="tool_use"))
    assert result.tool_calls[0].arguments == "broken {"
    assert result.turn.body == [thought, asks({})]


def test_row_06_broken_arguments_of_another_dialect_are_not_sent(server, model) -> None:
    calls = (ToolCall("call_1", "forecast", '{"city": '), ToolCall("call_2", "forecast", "[1]"))
    model().complete(replace(HELLO, messages=[Message(Role.ASSISTANT, "", calls)]))
    assert [block["input"] for block in sent(server)[1]["content"]] == [{}, {}]


def test_row_07_no_call_of_a_reply_that_was_cut_is_made(server, model) -> None:
    server.faults = Fault("cut_with_calls", first=1)
    contents = works(model())
    assert contents[0] == "Not made: the reply was cut off. Ask again, more briefly."
    assert contents[1:] == ["Rome, 1 days: rain", "Tuesday"]


def test_row_07_a_reply_as_long_as_its_cap_was_cut_whatever_the_server_says() -> None:
    answer = message(text("Once upon"), usage={"input_tokens": 5, "output_tokens": 64})
    assert played(answer).finish_reason == "max_tokens"
    assert played(answer, replace(HELLO, max_output_tokens=65)).finish_reason == "stop"


@pytest.mark.parametrize("stop", ["end_turn", "stop_sequence", "tool_use", "pause_turn", None])
def test_row_08_calls_count_whatever_the_stop_reason_says(stop) -> None:
    result = played(message(asks({}), stop=stop))
    assert (len(result.tool_calls), result.finish_reason) == (1, "tool_calls")


def test_row_08_without_calls_there_are_none_whatever_it_says() -> None:
    assert played(message(text("Rain."), stop="tool_use")).finish_reason == "stop"


def test_row_09_to_forbid_tools_those_of_the_history_stay_declared(server, model) -> None:
    result = run(model(), steps=2)
    assert result.stop_reason is StopReason.STEP_BUDGET
    body = server.requests[-1].body
    assert [tool["name"] for tool in body["tools"]] == ["forecast", "today"]
    assert body["tool_choice"] == {"type": "none"}


def test_row_09_without_tools_in_the_history_none_are_declared(server, model) -> None:
    model().complete(replace(HELLO, tool_choice="none"))
    assert not {"tools", "tool_choice"} & server.requests[-1].body.keys()


def test_row_09_tools_that_are_given_stay_when_they_are_forbidden(server, model) -> None:
    model().complete(replace(HELLO, tools=[TOOL], tool_choice="none"))
    body = server.requests[-1].body
    assert (body["tools"][0]["name"], body["tool_choice"]) == ("forecast", {"type": "none"})


def test_row_09_calls_that_come_all_the_same_are_not_made(server, model) -> None:
    server.faults = Fault("calls_despite_none", when=lambda request: request.choice == "none")
    result = run(model(), steps=1)
    assert result.stop_reason is StopReason.STEP_BUDGET
    assert sum(message.role is Role.TOOL for message in result.thread.messages) == 1


@pytest.mark.parametrize(
    "choice, said",
    [
        (None, None),
        ("auto", None),
        ("required", {"type": "any"}),
        ("forecast", {"type": "tool", "name": "forecast"}),
    ],
)
def test_the_choice_of_tools_is_said_in_the_dialect(server, model, choice, said) -> None:
    model().complete(replace(HELLO, tools=[TOOL], tool_choice=choice))
    assert server.requests[-1].body.get("tool_choice") == said
    model(options=THINKS).complete(
        replace(HELLO, tools=[TOOL], tool_choice=choice, max_output_tokens=4_000, temperature=0.5)
    )  # which refuses thinking beside a forced call, or a temperature
    assert server.requests[-1].body.get("tool_choice") == (None if said is None else {"type": "auto"})


def test_row_10_one_call_at_a_time_is_a_part_of_the_choice_and_only_where_calls_may_be(server, model) -> None:
    alone = {"disable_parallel_tool_use": True}
    assert run(model(options=alone), steps=1).stop_reason is StopReason.STEP_BUDGET
    first, last = server.requests
    assert first.body["tool_choice"] == {"type": "auto", **alone}
    assert last.body["tool_choice"] == {"type": "none"}
    model(options=alone).complete(HELLO)
    assert not {"tool_choice", *alone} & server.requests[-1].body.keys()
    model(options=alone, quirks={"parallel_tool_calls": False}).complete(replace(HELLO, tools=[TOOL]))
    assert not {"tool_choice", *alone} & server.requests[-1].body.keys()


def test_row_11_no_block_of_text_and_no_result_is_empty(server, model) -> None:
    messages = [
        Message(Role.USER, "go"),
        Message(Role.ASSISTANT, " \n", (ToolCall("toolu_1", "forecast", "{}"),)),
        Message(Role.TOOL, "", tool_call_id="toolu_1"),
        Message(Role.ASSISTANT, "\t"),
        Message(Role.USER, "  "),
        Message(Role.USER, "and?"),
    ]
    model().complete(replace(HELLO, messages=messages, system=" "))
    assert [kinds(one) for one in sent(server)] == [["text"], ["tool_use"], ["tool_result", "text"]]
    assert sent(server)[2]["content"][0]["content"] == "(empty)"
    assert "system" not in server.requests[-1].body


def test_row_12_all_results_of_a_turn_are_in_the_next_message_also_of_calls_that_were_lost(
    server, model
) -> None:
    two = (ToolCall("toolu_1", "forecast", "{}"), ToolCall("toolu_2", "today", "{}"))
    messages = [
        Message(Role.USER, "go"),
        Message(Role.ASSISTANT, "", two),
        Message(Role.TOOL, "Tuesday", tool_call_id="toolu_2"),
        Message(Role.TOOL, "stray", tool_call_id="toolu_9"),
        Message(Role.USER, "and?"),
    ]
    model().complete(replace(HELLO, messages=messages))
    assert sent(server)[2]["content"] == [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": LOST, "is_error": True},
        {"type": "tool_result", "tool_use_id": "toolu_2", "content": "Tuesday"},
        {"type": "text", "text": "and?"},
    ]


def test_row_12_a_result_that_is_an_error_says_so(server, model) -> None:
    server.script = [[["forecast", {"city": 7, "dayz": 1}]], "Take an umbrella."]
    works(model())
    assert sent(server)[2]["content"][0]["is_error"] is True


@pytest.mark.parametrize("fault", ["repeated_ids", "doubled_call"])
def test_row_13_ids_that_are_not_unique_are_replaced(server, model, fault) -> None:
    server.faults = fault
    works(model())
    server.faults = [fault, "thinking"]
    works(model(options=THINKS), max_output_tokens=4_000)


def test_row_13_ids_of_other_providers_are_made_to_fit(server, model) -> None:
    calls = (ToolCall("call.1|fc_" + 60 * "x", "forecast", "{}"), ToolCall("", "today", "{}"))
    model().complete(replace(HELLO, messages=[Message(Role.ASSISTANT, "", calls)]))
    ids = [block["id"] for block in sent(server)[1]["content"]]
    assert ids == [block["tool_use_id"] for block in sent(server)[2]["content"]]


def test_row_14_a_choice_at_the_top_of_a_tools_schema_is_left_out_and_said_once(server, model) -> None:
    choice = {"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": {}, "b": {}}}
    request = replace(HELLO, tools=[{"name": "either", "parameters": choice}])
    claude = model()
    assert claude.complete(request).notes == ("schema_reduced: tool either: dropped anyOf",)
    assert claude.complete(request).notes == ()
    schema = server.requests[-1].body["tools"][0]["input_schema"]
    assert schema == {"type": "object", "properties": {"a": {}, "b": {}}}


def test_row_14_all_else_of_a_schema_stays_unless_a_server_refuses_it(server, model) -> None:
    parameters = {
        "type": "object",
        "properties": {"n": {"type": "array", "uniqueItems": True, "items": {"type": "string"}}},
        "additionalProperties": False,
    }
    request = replace(HELLO, tools=[{"name": "count", "parameters": parameters}])
    model().complete(request)
    assert server.requests[-1].body["tools"][0]["input_schema"] == parameters
    result = model(quirks={"schema_keys": "plain"}).complete(request)
    assert result.notes == ("schema_reduced: tool count: dropped uniqueItems",)
    assert "uniqueItems" not in json.dumps(server.requests[-1].body["tools"])


def test_row_14_names_that_a_model_invented_are_not_sent_back_as_they_are(server, model) -> None:
    server.script = [[["no such tool!", {}]], "Take an umbrella."]
    works(model())
    assert sent(server)[1]["content"][0]["name"] == "no_such_tool_"


def test_row_15_the_cap_is_always_sent_and_thinking_stays_within_it(server, model) -> None:
    claude = model(options={"thinking": {"type": "enabled", "budget_tokens": 10_000}})
    budgets = []
    for cap in (20_000, 10_000, 4_000, 2_048, 2_047, 64):
        claude.complete(replace(HELLO, max_output_tokens=cap))
        assert server.requests[-1].body["max_tokens"] == cap
        budgets.append(server.requests[-1].body.get("thinking", {}).get("budget_tokens"))
    assert budgets == [10_000, 5_000, 2_000, 1_024, None, None]


def test_row_15_a_wrong_budget_is_the_users_and_is_told(model) -> None:
    error = failure(model(options={"thinking": {"type": "enabled", "budget_tokens": 12}}))
    assert type(error) is InvalidRequest
    assert "1024" in error.message


@pytest.mark.parametrize(
    "name", ["claude-opus-4-7", "claude-opus-4-8", "claude-sonnet-5", "claude-fable-5-1"]
)
def test_row_15_newer_models_get_no_temperature(server, model, name) -> None:
    server.faults = "no_temperature"
    model(name).complete(replace(HELLO, temperature=0.5))


@pytest.mark.parametrize("name", ["claude-haiku-4-5", "claude-opus-4-6", "deepseek-v4"])
def test_row_15_others_get_it(server, model, name) -> None:
    model(name).complete(replace(HELLO, temperature=0.5))
    assert server.requests[-1].body["temperature"] == 0.5
    model(name, options=THINKS).complete(replace(HELLO, temperature=0.5, max_output_tokens=4_000))
    assert "temperature" not in server.requests[-1].body


def test_row_16_instructions_are_no_message_wherever_they_stand(server, model) -> None:
    messages = [*HELLO.messages, Message(Role.SYSTEM, "Speak French.")]
    model().complete(replace(HELLO, messages=messages))
    assert [block["text"] for block in server.requests[-1].body["system"]] == ["Be brief.\n\nSpeak French."]
    assert [one["role"] for one in sent(server)] == ["user"]


@pytest.mark.parametrize("fault", ["no_usage", "null_usage"])
def test_row_17_a_reply_without_usage_is_one_and_nothing_is_streamed(server, model, fault) -> None:
    server.faults = fault
    result = model().complete(HELLO)
    assert (result.usage, result.usage.total_tokens) == (Usage(), 0)
    assert "stream" not in server.requests[-1].body


def test_row_18_a_200_that_carries_an_error_is_one(server, model) -> None:
    server.faults = "error_in_200"
    error = failure(model())
    assert (type(error), error.retryable) == (TransientError, True)


@pytest.mark.parametrize("fault", ["garbage", "empty_body"])
def test_row_18_a_200_without_an_answer_is_a_failure_that_may_have_been_billed(server, model, fault) -> None:
    server.faults = fault
    error = failure(model())
    assert (type(error), error.retryable, error.billed) == (TransientError, True, None)


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"content": None},
        {"content": "Rain."},
        {"content": ["Rain."]},
        {"content": [{"type": "text"}]},
        {"content": [{"type": "tool_use", "id": "toolu_1", "input": {}}]},
    ],
)
def test_row_18_an_answer_of_another_shape_too(broken) -> None:
    with pytest.raises(TransientError) as caught:
        played({"type": "message", "stop_reason": "end_turn", **broken})
    assert (caught.value.retryable, caught.value.billed) == (True, None)


@pytest.mark.parametrize("fault", ["rate_limited", "retry_unsaid", "throttled_tokens"])
def test_row_19_too_many_requests_are_tried_again(server, model, fault) -> None:
    server.faults = fault
    error = failure(model())
    assert (type(error), error.retryable, error.billed) == (RateLimited, True, False)


@pytest.mark.parametrize("fault", ["spend_limit", "credit_too_low", "payment_required"])
def test_row_19_an_account_without_money_is_not(server, model, fault) -> None:
    server.faults = fault
    error = failure(model())
    assert (type(error), error.retryable, error.billed) == (QuotaExceeded, False, False)


@pytest.mark.parametrize(
    "fault, wait",
    [
        ("rate_limited", 6.0),
        ("retry_after_float", 5.289),
        ("retry_after_date", None),
        ("retry_after_ms", 5.289),
    ],
)
def test_row_20_the_wait_is_read_in_each_form(server, model, fault, wait) -> None:
    server.faults = Fault(fault, seconds=5.289)
    seconds = failure(model()).retry_after_s
    assert seconds is not None
    assert 4 <= seconds <= 7 if wait is None else seconds == pytest.approx(wait, abs=0.01)


def test_row_20_limits_and_their_resets_come_with_the_error(server, model) -> None:
    server.faults = Fault("retry_headers", seconds=90)
    limits = failure(model()).limits
    assert limits is not None
    assert limits.requests is not None or limits.tokens is not None
    server.faults = "should_not_retry"
    assert not failure(model()).retryable


@pytest.mark.parametrize("fault", ["overloaded", "unavailable", "server_error", "html_page", "empty_error"])
def test_row_21_a_failure_of_the_server_was_not_billed_and_is_tried_again(server, model, fault) -> None:
    server.faults = fault
    error = failure(model())
    assert (type(error), error.retryable, error.billed) == (TransientError, True, False)


def test_row_21_overloaded_is_529(server, model) -> None:
    server.faults = "overloaded"
    assert failure(model()).status_code == 529


@pytest.mark.parametrize("fault", ["closed", "half_body", Fault("no_answer", seconds=0.05)])
def test_row_21_an_answer_that_breaks_off_may_have_been_billed(server, model, fault) -> None:
    server.faults = fault
    error = failure(model())
    assert (type(error), error.retryable, error.billed) == (TransientError, True, None)


@pytest.mark.parametrize("fault", ["context_overflow", "overflow_with_cap", "overflow_413"])
def test_row_22_a_context_that_is_too_long_is_known_in_each_wording(server, model, fault) -> None:
    server.faults = fault
    error = failure(model())
    assert (type(error), error.retryable, error.billed) == (ContextOverflow, False, False)


def test_row_22_a_prompt_that_leaves_no_room_for_an_answer_is_too_long_and_was_billed() -> None:
    with pytest.raises(ContextOverflow) as caught:
        played(message(stop="model_context_window_exceeded"))
    assert caught.value.billed is None


def test_row_23_a_prompt_that_the_server_cut_is_an_error_where_servers_do_so() -> None:
    long = replace(HELLO, messages=[Message(Role.USER, "one two three four " * 1_000)])
    with pytest.raises(ContextOverflow):
        played(message(text("hi")), long, quirks={"cuts_prompt": True})
    assert played(message(text("hi")), long).text == "hi"


@pytest.mark.parametrize(
    "stop, finish",
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "max_tokens"),
        ("model_context_window_exceeded", "max_tokens"),
        ("pause_turn", "pause_turn"),
        (None, "stop"),
    ],
)
def test_row_25_stop_reasons_are_those_that_the_loop_knows(stop, finish) -> None:
    assert played(message(text("Once upon"), stop=stop)).finish_reason == finish


def test_row_25_an_answer_that_ends_where_the_window_does_is_cut_off_and_that_is_said(server, model) -> None:
    server.faults = "window_exceeded"
    server.script = ["Once upon"]
    claude = model()
    for _ in range(2):
        result = run(claude)
        assert (result.stop_reason, result.answer) == (StopReason.FINISHED, "Once upon")
        details = [event.detail for event in result.thread.trace if event.kind == "window_filled"]
        assert details == ["the reply ends where the model's window does"]


def test_row_25_a_paused_turn_is_sent_again_as_it_is_and_gone_on_with(server, model) -> None:
    server.script = [
        Says(text="Let me look.  ", thinking="Hm", stop="pause"),
        Says(text="Still looking.", stop="pause"),
        [["today"]],
        "Take an umbrella.",
    ]
    claude = model(options=THINKS)
    heard = listening(claude)
    assert works(claude, max_output_tokens=4_000) == ["Tuesday"]
    second, third = (request.body["messages"] for request in server.requests[1:3])
    assert [one["role"] for one in second] == ["user", "assistant"]
    # The service refuses blanks at the end of what it is to go on with.
    assert second[1]["content"] == [heard[0][0], {**heard[0][1], "text": "Let me look."}]
    assert [one["content"] for one in third[1:]] == heard[:2]
    assert [one["content"] for one in sent(server)[1:4]] == heard[:3]


def test_row_25_a_paused_turn_goes_through_the_store_as_it_is(server, model) -> None:
    server.faults = Fault("pause_turn", first=1)
    result = run(model())
    assert result.stop_reason is StopReason.FINISHED
    assert [event.kind for event in result.thread.trace][:3] == ["step", "turn_paused", "step"]


def test_row_25_a_turn_that_is_paused_for_ever_ends_the_run(server, model) -> None:
    server.faults = "pause_turn"
    server.script = ["Let me look."]
    result = run(model())
    assert result.stop_reason is StopReason.MODEL_ERROR
    assert len(server.requests) == 8


SEARCHES = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "rain"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}


def resent(*messages: Message, answer: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    transport = Played(answer or message(text("ok")))
    claude = Anthropic(MODEL, transport=transport)
    claude.complete(replace(HELLO, messages=[Message(Role.USER, "go"), *messages]))
    claude.close()
    said: list[dict[str, Any]] = transport.body["messages"]
    return said


def test_row_25_a_search_that_was_paused_for_is_only_gone_on_with_by_its_model() -> None:
    def paused(by: str) -> Message:
        return Message(Role.ASSISTANT, "Let me look.", turn=Turn(by, [text("Let me look."), SEARCHES]))

    by = f"anthropic:{MODEL}"
    assert resent(paused(by))[1]["content"] == [text("Let me look."), SEARCHES]
    done = Message(Role.ASSISTANT, "Rain.", turn=Turn(by, [FOUND, text("Rain.")]))
    parts = [one["content"] for one in resent(paused(by), done, Message(Role.USER, "and?"))[1:3]]
    assert parts == [[text("Let me look."), SEARCHES], [FOUND, text("Rain.")]]
    other = Message(Role.ASSISTANT, "Snow.", turn=Turn("anthropic:claude-opus-4-6", [FOUND, text("Snow.")]))
    parts = [one["content"] for one in resent(paused(by), other, Message(Role.USER, "and?"))[1:3]]
    assert parts == [[text("Let me look.")], [text("Snow.")]]
    # Whoever speaks in between ends it: a search without a result would be refused.
    assert resent(paused(by), Message(Role.USER, "stop"))[1]["content"] == [text("Let me look.")]
    # And no other model has begun it.
    assert resent(paused("anthropic:claude-opus-4-6"))[1:] == [
        {"role": "assistant", "content": [text("Let me look.")]},
        {"role": "user", "content": [text("Go on.")]},
    ]


def test_row_25_a_refusal_is_no_answer_and_another_model_may_be_asked(server, model) -> None:
    server.faults = Fault("refusal", when=lambda request: request.model == MODEL)
    error = failure(model())
    assert (type(error), error.retryable, error.billed) == (InvalidRequest, False, None)
    assert "refused to answer" in error.message
    result = run(model())
    assert (result.stop_reason, len(server.requests)) == (StopReason.MODEL_ERROR, 2)
    works(ResilientClient(model(), [model("claude-opus-4-6")]))


def test_row_25_a_refusal_says_its_reason_where_there_is_one() -> None:
    details = {"type": "refusal", "category": "cyber", "explanation": "It is about malware." * 50}
    with pytest.raises(InvalidRequest) as caught:
        played(message(stop="refusal", stop_details=details))
    assert "refused to answer: cyber: It is about malware." in caught.value.message
    assert len(caught.value.message) < 400


def test_row_25_a_stop_reason_that_nobody_knows_is_no_success(server, model) -> None:
    server.faults = "unknown_stop"
    error = failure(model())
    assert (type(error), error.billed) == (TransientError, None)


def test_row_26_one_call_is_one_request_and_its_id_is_kept(server, model) -> None:
    server.faults = Fault("server_error", first=1)
    error = failure(model())
    result = model().complete(HELLO)
    assert len(server.requests) == 2
    assert all(str(one).startswith("req_") for one in (error.request_id, result.request_id))
    assert error.request_id != result.request_id


# ── beside the rows ──────────────────────────────────────────────────────────────────────────────


def test_what_is_not_known_yet_is_no_trouble(server, model) -> None:
    server.faults = "unknown_fields"
    works(model())


def test_a_block_that_is_not_known_yet_goes_back_in_its_place() -> None:
    news = {"type": "daydream", "data": [1, {"b": None}]}
    result = played(message(text("Hm."), news, asks({}, toolset_name="x"), stop="tool_use"))
    assert (result.text, result.turn.body) == ("Hm.", [text("Hm."), news, asks({}, toolset_name="x")])


def test_an_empty_answer_is_no_error(server, model) -> None:
    server.faults = "empty_answer"
    result = model().complete(HELLO)
    assert (result.text, result.tool_calls, result.turn) == ("", (), None)


def test_what_a_cache_read_or_kept_is_a_part_of_the_input(server, model) -> None:
    server.script = [
        Says(text="x", input_tokens=100, output_tokens=50, reasoning_tokens=40, cached_tokens=70,
             cache_write_tokens=20)
    ]  # fmt: skip
    assert model().complete(HELLO).usage == Usage(100, 50, 70, 40, 20)


def test_a_conversation_begins_and_ends_with_the_user() -> None:
    assert resent(Message(Role.ASSISTANT, "Rain."))[-1] == {"role": "user", "content": [text("Go on.")]}
    transport = Played(message(text("ok")))
    claude = Anthropic(MODEL, transport=transport)
    claude.complete(replace(HELLO, messages=[Message(Role.ASSISTANT, "Hi."), Message(Role.USER, "hi")]))
    assert [one["role"] for one in transport.body["messages"]] == ["user", "assistant", "user"]
    with pytest.raises(InvalidRequest, match="nothing to send"):
        claude.complete(replace(HELLO, messages=[Message(Role.USER, " ")]))
    claude.close()


def test_a_turn_of_another_dialect_is_sent_in_normal_form(server, model) -> None:
    turn = Turn(f"openai:{MODEL}", [{"type": "reasoning"}])
    other = replace(AFTER_A_CALL.messages[1], turn=turn)
    model().complete(
        replace(AFTER_A_CALL, messages=(AFTER_A_CALL.messages[0], other, AFTER_A_CALL.messages[2]))
    )
    assert kinds(sent(server)[1]) == ["tool_use"]


def test_betas_are_a_header_and_nothing_of_the_body(server, model) -> None:
    for betas in (["a-2026-01-01", "b-2026-01-01"], "a-2026-01-01,b-2026-01-01"):
        model(options={"betas": betas}).complete(HELLO)
        assert server.requests[-1].headers["anthropic-beta"] == "a-2026-01-01,b-2026-01-01"
        assert "betas" not in server.requests[-1].body
