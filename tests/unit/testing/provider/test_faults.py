"""Each fault shows what it says, in each dialect that it is for, and only when it is to."""

from __future__ import annotations

import json
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
import pytest

from agentq.core.errors import UsageError
from agentq.provider.waits import rate_limits, retry_after_s
from agentq.testing import FakeProvider, Fault, Turn
from agentq.testing.provider.catalogue import CATALOGUE
from agentq.testing.provider.refusals import REFUSALS
from tests.unit.testing.provider.conftest import SCHEMA, calls, hello, text, tools

CALL = [["get_order", {"id": 1}]]
ALL = ["chat", "responses", "messages"]
OPENAI = ["chat", "responses"]


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_fault_answers_or_breaks_off_and_is_in_the_bill(provider, ask, name):
    for dialect in CATALOGUE[name].dialects:
        for more in ({}, {"stream": True}, {"tools": tools(dialect)}):
            provider.faults = Fault(name, seconds=0.01)
            try:
                reply = ask(dialect, **more)
            except httpx.RemoteProtocolError:
                assert CATALOGUE[name].wire in ("closed", "half", "no_answer", "cut_stream")
            except httpx.ReadError:
                assert CATALOGUE[name].wire in ("closed", "no_answer")
            else:
                assert "script failed" not in reply.text
                assert (reply.status_code != 200) == (name in REFUSALS) or CATALOGUE[name].demands
            assert provider.bill.entries[-1].faults in ((name,), ())
    assert any(entry.faults == (name,) for entry in provider.bill.entries)


@pytest.mark.parametrize(
    "name, seconds",
    [
        ("rate_limited", 3.0),
        ("retry_after_float", 1.25),
        ("retry_after_date", 3.0),
        ("retry_after_ms", 0.25),
        ("retry_in_text", 5.289),
    ],
)
def test_each_form_of_a_wait_says_the_same_wait(provider, ask, name, seconds):
    provider.faults = Fault(name, seconds=seconds)
    reply = ask("chat")
    waits = retry_after_s(dict(reply.headers), reply.json()["error"]["message"])
    assert waits == pytest.approx(seconds, abs=1.01 if name == "retry_after_date" else 0.001)


def test_a_date_is_one(provider, ask):
    provider.faults = Fault("retry_after_date", seconds=60)
    reply = ask("messages")
    gap = parsedate_to_datetime(reply.headers["retry-after"]) - parsedate_to_datetime(reply.headers["date"])
    assert 59 <= gap.total_seconds() <= 61


@pytest.mark.parametrize("dialect", ALL)
def test_resets_of_limits_are_told_in_the_service_s_own_headers(provider, ask, dialect):
    provider.faults = Fault("retry_headers", seconds=90)
    reply = ask(dialect)
    found = rate_limits(dict(reply.headers))
    assert found is not None
    assert found.tokens is not None
    assert found.tokens.remaining == 0
    assert found.tokens.reset_s == pytest.approx(90, abs=2)


@pytest.mark.parametrize(
    "name, dialect, status, code",
    [
        ("slow_down", "chat", 429, "slow_down"),
        ("insufficient_quota", "responses", 429, "insufficient_quota"),
        ("credit_exhausted", "chat", 429, "credit_balance_exhausted"),
        ("spend_limit", "chat", 429, "organization_spend_limit_exceeded"),
        ("project_spend_limit", "chat", 429, "project_spend_limit_exceeded"),
        ("usage_limit", "chat", 429, "organization_usage_limit_exceeded"),
        ("context_overflow", "chat", 400, "context_length_exceeded"),
        ("context_overflow", "responses", 400, "context_length_exceeded"),
        ("tool_use_failed", "chat", 400, "tool_use_failed"),
    ],
)
def test_a_refusal_has_the_code_that_the_service_gives_it(provider, ask, name, dialect, status, code):  # noqa: PLR0917 - one line of the table each
    provider.faults = name
    reply = ask(dialect)
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)


@pytest.mark.parametrize(
    "name, status, kind",
    [
        ("rate_limited", 429, "rate_limit_error"),
        ("payment_required", 402, "billing_error"),
        ("credit_too_low", 400, "invalid_request_error"),
        ("overloaded", 529, "overloaded_error"),
        ("overflow_413", 413, "request_too_large"),
        ("server_error", 500, "api_error"),
    ],
)
def test_anthropic_s_refusals_have_their_types_and_the_request_s_id(provider, ask, name, status, kind):
    provider.faults = name
    reply = ask("messages")
    assert (reply.status_code, reply.json()["error"]["type"]) == (status, kind)
    assert reply.json()["request_id"] == reply.headers["request-id"]


def test_anthropic_s_spend_limit_is_in_the_details(provider, ask):
    provider.faults = "spend_limit"
    assert ask("messages").json()["error"]["details"] == {"error_code": "enforced_spend_limit_reached"}


ECHOED = [
    ("reasoning_content", "must be passed back"),
    ("thought_signature", "missing a thought_signature"),
    ("thought_signature_vertex", "missing a thought_signature"),
]


@pytest.mark.parametrize("name, reason", ECHOED)
def test_what_must_be_echoed_is_taken_when_it_is_and_refused_when_it_is_not(provider, ask, name, reason):
    provider.faults, provider.script = name, [CALL, "Done."]
    message = ask("chat", tools=tools("chat")).json()["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sent"}
    said = hello("chat")["messages"]
    assert text("chat", ask("chat", messages=[*said, message, result], tools=tools("chat"))) == "Done."
    message.pop("reasoning_content", None)
    for call in message["tool_calls"]:
        call.pop("extra_content", None)
    reply = ask("chat", messages=[*said, message, result], tools=tools("chat"))
    assert reply.status_code == 400
    assert reason in reply.json()["error"]["message"]


@pytest.mark.parametrize("dialect", OPENAI)
@pytest.mark.parametrize("name", ["bad_arguments", "truncated_arguments"])
def test_bad_arguments_are_no_json_and_are_said_to_be_calls(provider, ask, name, dialect):
    provider.faults, provider.script = name, [CALL]
    ((_, _, arguments),) = calls(dialect, ask(dialect, tools=tools(dialect)))
    with pytest.raises(ValueError, match="line 1"):
        json.loads(arguments)


@pytest.mark.parametrize(
    "name, expected", [("empty_arguments", ""), ("dict_arguments", {"id": 1}), ("list_arguments", "[1]")]
)
def test_arguments_come_in_forms_that_they_should_not_have(provider, ask, name, expected):
    provider.faults, provider.script = name, [CALL]
    assert calls("chat", ask("chat", tools=tools("chat")))[0][2] == expected


@pytest.mark.parametrize(
    "dialect, where, value",
    [
        ("chat", ("choices", 0, "finish_reason"), "length"),
        ("responses", ("incomplete_details", "reason"), "max_output_tokens"),
        ("messages", ("stop_reason",), "max_tokens"),
    ],
)
def test_a_reply_that_is_cut_may_have_calls_that_parse(provider, ask, dialect, where, value):
    provider.faults, provider.script = "cut_with_calls", [CALL]
    reply = ask(dialect, tools=tools(dialect))
    found: Any = reply.json()
    for step in where:
        found = found[step]
    assert found == value
    assert len(calls(dialect, reply)) == 1


def test_calls_come_with_the_finish_reason_of_an_answer(provider, ask):
    provider.faults, provider.script = "stop_with_calls", [CALL]
    reply = ask("chat", tools=tools("chat"))
    assert reply.json()["choices"][0]["finish_reason"] == "stop"
    assert calls("chat", reply)


@pytest.mark.parametrize("dialect", ALL)
def test_a_model_calls_although_it_must_not(provider, ask, dialect):
    none: Any = {"type": "none"} if dialect == "messages" else "none"
    forbidden = {"tools": tools(dialect), "tool_choice": none}
    provider.script = [CALL]
    assert not calls(dialect, ask(dialect, **forbidden))
    provider.faults = "calls_despite_none"
    assert calls(dialect, ask(dialect, **forbidden))[0][1] == "get_order"
    assert calls(dialect, ask(dialect))


CLOSED = {**SCHEMA, "additionalProperties": False}
REFUSED_ON_CHAT: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("no_effort_with_tools", {"tools": tools("chat")}, {"tools": tools("chat"), "reasoning_effort": "none"}),
    ("no_max_tokens", {"max_tokens": 9}, {"max_completion_tokens": 9}),
    ("no_max_completion_tokens", {"max_completion_tokens": 9}, {"max_tokens": 9}),
    ("no_temperature", {"temperature": 0}, {}),
    ("no_parallel_switch", {"tools": tools("chat"), "parallel_tool_calls": False}, {"tools": tools("chat")}),
    ("no_empty_content", {"messages": [{"role": "user", "content": ""}]}, {}),
    ("no_developer", {"messages": [{"role": "developer", "content": "x"}]}, {}),
    (
        "system_first",
        {"messages": [{"role": "user", "content": "x"}, {"role": "system", "content": "x"}]},
        {"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "x"}]},
    ),
    (
        "plain_schemas",
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": CLOSED}}]},
        {"tools": tools("chat")},
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", REFUSED_ON_CHAT, ids=lambda case: case[0])
def test_what_another_server_refuses_is_refused_and_the_rest_taken(provider, ask, case):
    name, refused, taken = case
    assert ask("chat", **refused).status_code == 200
    provider.faults = name
    assert ask("chat", **refused).status_code == 400
    assert ask("chat", **taken).status_code == 200


def after_a_call(call_id: str, arguments: str = "{}", content: str | None = None) -> list[dict[str, Any]]:
    call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": "y"},
    ]


@pytest.mark.parametrize(
    "name, refused, taken",
    [
        ("ids_40", after_a_call("c" * 41), after_a_call("c" * 40)),
        ("ids_mistral", after_a_call("call_1"), after_a_call("abcdefgh9")),
        ("ids_unique", [*after_a_call("a"), *after_a_call("a")], [*after_a_call("a"), *after_a_call("b")]),
        ("arguments_checked", after_a_call("a", "{"), after_a_call("a", '{"x": 1}')),
        ("no_empty_content", after_a_call("a", content=""), after_a_call("a")),
        ("no_null_content", after_a_call("a"), after_a_call("a", content="")),
    ],
)
def test_a_history_that_another_server_refuses_is_refused(provider, ask, name, refused, taken):
    assert ask("chat", messages=refused).status_code == 200
    provider.faults = name
    assert ask("chat", messages=refused).status_code == 400
    assert ask("chat", messages=taken).status_code == 200


def test_ids_come_empty_repeated_long_and_in_mistral_s_form(provider, ask):
    provider.script = [[*CALL, *CALL]]
    for name, expected in (("empty_ids", ["", ""]), ("repeated_ids", ["call_0", "call_1"])):
        provider.faults = name
        assert [call[0] for call in calls("chat", ask("chat", tools=tools("chat")))] == expected
    provider.faults = "long_ids"
    assert {len(call[0]) for call in calls("responses", ask("responses", tools=tools("responses")))} == {120}
    provider.faults = "ids_mistral"
    found = [call[0] for call in calls("chat", ask("chat", tools=tools("chat")))]
    assert [len(call_id) for call_id in found] == [9, 9]
    assert len(set(found)) == 2


def test_an_error_comes_with_status_200(provider, ask):
    provider.faults = "error_in_200"
    assert ask("chat").json()["error"]["code"] == 502
    assert ask("responses").json()["status"] == "failed"
    assert ask("messages").json()["type"] == "error"
    provider.faults = "null_choices"
    assert ask("chat").json()["choices"] is None
    provider.faults = "error_finish"
    assert ask("chat").json()["choices"][0]["finish_reason"] == "error"


@pytest.mark.parametrize("dialect", ALL)
def test_usage_may_be_missing(provider, ask, dialect):
    provider.faults = "no_usage"
    assert "usage" not in ask(dialect).json()
    provider.faults = "no_stream_usage"
    assert "usage" in ask(dialect).json()


def test_the_front_of_a_prompt_is_cut(provider, ask):
    provider.faults = Fault("cuts_prompt", tokens=50)
    long = [{"role": "user", "content": "word " * 200}]
    assert ask("chat", messages=long).json()["usage"]["prompt_tokens"] == 50


@pytest.mark.parametrize(
    "name, stop",
    [
        ("pause_turn", "pause_turn"),
        ("refusal", "refusal"),
        ("window_exceeded", "model_context_window_exceeded"),
    ],
)
def test_anthropic_stops_for_other_reasons(provider, ask, name, stop):
    provider.faults = name
    assert ask("messages").json()["stop_reason"] == stop


def test_a_refusal_of_the_model_is_not_its_text(provider, ask):
    provider.faults = "refusal"
    message = ask("chat").json()["choices"][0]["message"]
    assert message["content"] is None
    assert message["refusal"]
    assert ask("responses").json()["output"][0]["content"][0]["type"] == "refusal"


def test_thinking_that_is_not_shown_must_come_back_too(provider, ask):
    provider.faults = "redacted_thinking"
    first = ask("messages").json()["content"]
    assert first[0]["type"] == "redacted_thinking"
    said = hello("messages")["messages"]
    again = {"role": "user", "content": "and?"}
    assert (
        ask("messages", messages=[*said, {"role": "assistant", "content": first}, again]).status_code == 200
    )
    first[0]["data"] += "x"
    assert (
        ask("messages", messages=[*said, {"role": "assistant", "content": first}, again]).status_code == 400
    )


def test_an_answer_has_a_request_id_unless_it_is_to_have_none(provider, ask):
    assert ask("chat").headers["x-request-id"] == provider.bill.entries[-1].request_id
    assert ask("messages").headers["request-id"] == provider.bill.entries[-1].request_id
    provider.faults = "no_request_id"
    assert "x-request-id" not in ask("chat").headers


# ---- when


def statuses(ask: Any, count: int) -> list[int]:
    return [ask("chat").status_code for _ in range(count)]


@pytest.mark.parametrize(
    "when, expected",
    [
        ({"first": 2}, [500, 500, 200, 200, 200]),
        ({"after": 1, "first": 1}, [200, 500, 200, 200, 200]),
        ({"every": 2}, [200, 500, 200, 500, 200]),
        ({"every": 2, "first": 1}, [200, 500, 200, 200, 200]),
        ({"share": 0.0}, [200] * 5),
    ],
)
def test_a_fault_hits_the_requests_that_it_is_to(provider, ask, when, expected):
    provider.faults = Fault("server_error", **when)
    assert statuses(ask, 5) == expected


def test_a_fault_hits_what_its_predicate_accepts(provider, ask):
    provider.faults = Fault("server_error", when=lambda request: request.model == "weak")
    assert ask("chat", model="weak").status_code == 500
    assert ask("chat", model="strong").status_code == 200


def test_a_fault_of_another_dialect_does_nothing(provider, ask):
    provider.faults = "pause_turn"
    assert text("chat", ask("chat")) == 'You said: "hello".'
    assert provider.bill.entries[-1].faults == ()


def test_a_predicate_that_raises_is_named_in_the_answer(provider, ask):
    provider.faults = Fault("server_error", when=lambda request: request.body["nothing"])
    reply = ask("chat")
    assert reply.status_code == 400
    assert "script failed: KeyError" in reply.json()["error"]["message"]


def test_a_fault_that_does_not_exist_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'overloaded'"):
        FakeProvider(faults=["overloadd"])


def test_faults_can_be_written_with_hyphens():
    assert Fault("rate-limited") == Fault("rate_limited")


def test_two_faults_hit_one_request(provider, ask):
    provider.faults, provider.script = ["repeated_ids", "no_usage"], [Turn(calls=CALL)]
    reply = ask("chat", tools=tools("chat"))
    assert calls("chat", reply)[0][0] == "call_0"
    assert "usage" not in reply.json()
