"""Agents of batch lines: what of a body reaches the provider, what its call may cost, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentq.agent.loop import Close, next_action
from agentq.agent.request import call_rungs, closing_rungs, least_request, model_request
from agentq.agent.thread import Thread
from agentq.core.errors import UsageError
from agentq.core.lifecycle import StopReason
from agentq.core.records import RunSpec
from agentq.engine.onecall import AGENTS_KEPT, LARGE_OUTPUT_TOKENS, OUTPUT_TOKENS, OneCalls
from agentq.engine.reply import BODY_BYTES_MAX, kept_of_reply
from agentq.provider.catalogue import built_in
from agentq.provider.pricing import ModelPricing
from agentq.provider.types import ChatResult, Role, Usage

MODELS = {"openai-chat": "gpt-4o-mini", "openai": "gpt-5-mini", "anthropic": "claude-haiku-4-5"}
CAPS = {"openai-chat": "max_tokens", "openai": "max_output_tokens", "anthropic": "max_tokens"}


@pytest.fixture
def calls() -> OneCalls:
    return OneCalls(built_in())


def call(dialect: str = "openai-chat", model: str = "", **options: Any) -> dict[str, Any]:
    return {"dialect": dialect, "model": model or MODELS[dialect], "options": options}


def hello() -> Thread:
    thread = Thread()
    thread.add(Role.SYSTEM, "Be brief.")
    thread.add(Role.USER, "Hello?")
    return thread


def sent(agent: Any) -> dict[str, Any]:
    """The body that would be sent."""
    request = model_request(agent, hello(), {})
    body: dict[str, Any] = agent.client.fitting(agent.client.body(request) | agent.client.options)
    return body


@pytest.mark.parametrize("dialect", MODELS)
def test_the_body_is_sent_with_its_options_and_its_cap_once(calls, dialect):
    options: dict[str, Any] = {CAPS[dialect]: 77, "top_p": 0.5, "metadata": {"user_id": "u1"}}
    agent = calls.agent(call(dialect, **options))
    body = sent(agent)
    assert {name: body[name] for name in options} == options
    assert body["model"] == MODELS[dialect]
    assert [name for name in body if name.startswith("max_")] == [CAPS[dialect]]
    assert "tools" not in body
    assert "include" not in body
    assert agent.name == f"{dialect}:{MODELS[dialect]}"
    assert (agent.max_output_tokens, agent.min_output_tokens) == (77, 77)


def test_either_name_of_the_cap_becomes_the_one_that_the_model_takes(calls):
    for name in ("max_tokens", "max_completion_tokens"):
        old, new = (
            calls.agent(call("openai-chat", model, **{name: 50})) for model in ("gpt-4o-mini", "gpt-5")
        )
        assert {key: value for key, value in sent(old).items() if key.startswith("max")} == {"max_tokens": 50}
        assert sent(new)["max_completion_tokens"] == 50
        assert "max_tokens" not in sent(new)


@pytest.mark.parametrize(
    "window, cap",
    [
        (None, OUTPUT_TOKENS),
        (128_000, OUTPUT_TOKENS),
        (4_096, 2_048),
        (400_000, LARGE_OUTPUT_TOKENS),
    ],
)
def test_a_body_without_a_cap_gets_one_that_its_model_can_take(window, cap):
    calls = OneCalls({"m": ModelPricing("m", "1", "2", window)})
    assert calls.agent(call(model="m")).max_output_tokens == cap


def test_what_says_nothing_is_left_out(calls):
    said_nothing: dict[str, Any] = {
        "n": 1,
        "stream": False,
        "tools": [],
        "stop": None,
        "max_tokens": None,
        "seed": 7,
    }
    assert calls.agent(call(**said_nothing)).client.options == {"seed": 7}


@pytest.mark.parametrize(
    "refused, words",
    [
        (call("gemini", "x"), "there is no dialect 'gemini'"),
        (call(model="gpt 4"), "'gpt 4' is not the id of a model"),
        (call(model="x" * 201), "not the id of a model"),
        (call(model="m@day"), "not the id of a model"),
        ({"dialect": "openai", "model": 4}, "4 is not the id of a model"),
        (call(n=2), "'n' cannot be set by a line that is a run of its own"),
        (call(stream=True), "'stream' cannot be set"),
        (call("anthropic", tool_choice={"type": "any"}), "'tool_choice' cannot be set"),
        (call("openai", previous_response_id="r"), "'previous_response_id' cannot be set"),
        (call(max_tokens=0), "'max_tokens' is a whole number of tokens, at least 1, not 0"),
        (call(max_tokens=True), "not True"),
        (call(max_tokens="9"), "not '9'"),
        (call("openai", max_output_tokens=15), "at least 16, not 15"),
        (call(service_tier="priority"), "'service_tier': \"priority\" has a price of its own"),
        (call(web_search_options={}), "'web_search_options'"),
        (call(modalities=["text", "audio"]), "'modalities'"),
        (call("anthropic", cache_control={"type": "ephemeral", "ttl": "1h"}), "'cache_control'"),
    ],
)
def test_a_call_that_cannot_be_made_or_bounded_is_one_sentence(calls, refused, words):
    with pytest.raises(UsageError) as error:
        calls.agent(refused)
    assert words in str(error.value)


def test_what_costs_no_more_than_the_list_says_is_taken(calls):
    for options in ({"service_tier": "flex"}, {"modalities": ["text"]}):
        assert calls.agent(call(**options)).client.options == options
    cached: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}
    assert calls.agent(call("anthropic", **cached)).client.options == cached


def test_lines_that_are_alike_share_an_agent_and_all_of_a_model_its_connections(calls):
    one = calls.agent(call(seed=1, top_p=1))
    assert calls.agent(call(top_p=1, seed=1)) is one
    other = calls.agent(call(seed=2))
    assert other is not one
    assert other.client._wire is one.client._wire
    assert one.client.options == {"seed": 1, "top_p": 1}
    for seed in range(AGENTS_KEPT + 1):
        calls.agent(call(seed=100 + seed))
    assert calls.agent(call(seed=1, top_p=1)) is not one


def test_long_options_are_not_kept(calls):
    long = call(user="x" * 20_000)
    assert calls.agent(long) is not calls.agent(long)


def test_a_call_is_reserved_alone_at_its_cap_and_with_what_its_options_hold(calls):
    plain = calls.agent(call(max_tokens=50))
    (rung,) = call_rungs(plain, hello(), model_request(plain, hello(), {}), {})
    assert rung.output_tokens == 50
    assert (rung.need.escrow_usd, rung.need.escrow_tokens) == (0, 0)
    assert rung.need == closing_rungs(plain, hello(), least_request(plain, hello()))[-1].need
    schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"description": "d" * 3_000}}}
    held = calls.agent(call(max_tokens=50, response_format=schema))
    (larger,) = call_rungs(held, hello(), model_request(held, hello(), {}), {})
    assert larger.need.tokens >= rung.need.tokens + 3_000


def test_a_run_of_one_call_makes_no_second_one_whatever_its_budgets_are(calls):
    agent = calls.agent(call())
    thread = hello()
    thread.spend.steps = 1
    assert next_action(agent, thread, agent.budgets, frozenset()) == Close(StopReason.STEP_BUDGET)
    generous = type(agent.budgets)(max_steps=12)
    assert next_action(agent, thread, generous, frozenset()) == Close(StopReason.STEP_BUDGET)
    agent._close(thread, StopReason.STEP_BUDGET)
    assert thread.stop_reason == "step_budget"
    assert len(thread.messages) == 2


# ── what a run keeps of the reply ────────────────────────────────────────────────────────────────────


def reply(raw: Any, finish: str = "stop") -> ChatResult:
    return ChatResult("hi", Usage(1, 1), "openai", "gpt-4o-mini-2024-07-18", finish_reason=finish, raw=raw)


def test_a_run_keeps_which_model_answered_and_whether_it_was_cut():
    assert kept_of_reply(RunSpec("a"), reply({"id": "x"})) == {
        "model": "gpt-4o-mini-2024-07-18",
        "finish": "stop",
    }
    for cut in ("length", "max_tokens"):
        assert kept_of_reply(RunSpec("a"), reply(None, cut))["finish"] == "length"


def test_a_run_of_one_call_keeps_the_body_unless_it_is_too_long():
    spec = RunSpec("openai-chat:m", call=call())
    assert json.loads(kept_of_reply(spec, reply({"id": "ä\ud800"}))["body"]) == {"id": "ä?"}
    frame = len('{"id":""}')
    assert "body" in kept_of_reply(spec, reply({"id": "x" * (BODY_BYTES_MAX - frame)}))
    assert "body" not in kept_of_reply(spec, reply({"id": "x" * (BODY_BYTES_MAX - frame + 1)}))
    assert "body" not in kept_of_reply(spec, reply("no object"))
    taken = RunSpec("triage", call={"dialect": "anthropic"})
    assert "body" not in kept_of_reply(taken, reply({"id": "x"}))
