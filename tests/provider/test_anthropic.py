"""Anthropic's dialect: what is marked for the cache, how an answer is held to a schema, how it is read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import BaseModel, Field

from agentq.core.errors import UsageError
from agentq.core.lifecycle import StopReason
from agentq.provider.anthropic import Anthropic
from agentq.provider.errors import AuthError, InvalidRequest
from agentq.provider.resolve import resolve_model
from agentq.provider.schemas import narrow
from agentq.provider.types import ChatRequest, Message, Role, ToolCall
from agentq.testing import FakeProvider
from tests.support.provider import KEY, Played, run

MODEL = "claude-sonnet-4-6"
MARK = {"type": "ephemeral"}
TOOLS = [{"name": name, "parameters": {"type": "object", "properties": {}}} for name in ("look", "write")]
HELLO = ChatRequest([Message(Role.USER, "hello")], system="Be brief.", max_output_tokens=64)
ANSWER = {
    "type": "message",
    "role": "assistant",
    "model": MODEL,
    "content": [{"type": "text", "text": "ok"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 5, "output_tokens": 7},
}


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)


@pytest.fixture
def server() -> Iterator[FakeProvider]:
    with FakeProvider(keys={KEY}) as server:
        yield server


def sent(request: ChatRequest, model: str = MODEL, **options: Any) -> dict[str, Any]:
    played = Played(ANSWER)
    claude = Anthropic(model, transport=played, **options)
    claude.complete(request)
    claude.close()
    return played.body


# ── the cache ────────────────────────────────────────────────────────────────────────────────────


def marks(body: dict[str, Any]) -> list[str]:
    """Where the marks are: the part, and the index of the block in it."""
    places = [("tools", body.get("tools", [])), ("system", body.get("system", []))]
    places += [(f"message {i}", message["content"]) for i, message in enumerate(body["messages"])]
    return [
        f"{name}.{i}" for name, blocks in places for i, block in enumerate(blocks) if "cache_control" in block
    ]


def conversation(steps: int) -> list[Message]:
    """So many steps of two calls each."""
    messages = [Message(Role.USER, "go")]
    for step in range(steps):
        calls = tuple(ToolCall(f"toolu_{step}_{i}", "look", "{}") for i in range(2))
        messages.append(Message(Role.ASSISTANT, "", calls))
        messages += [Message(Role.TOOL, "seen", tool_call_id=call.id) for call in calls]
    return messages


def test_instructions_and_tools_are_kept_for_other_runs_and_the_last_turn_for_the_next_step() -> None:
    bodies = [sent(replace(HELLO, messages=conversation(n), tools=TOOLS)) for n in range(4)]
    assert [marks(body) for body in bodies] == [
        ["system.0", "message 0.0"],
        ["system.0", "message 0.0", "message 2.1"],
        ["system.0", "message 2.1", "message 4.1"],
        ["system.0", "message 4.1", "message 6.1"],
    ]
    assert bodies[0]["system"][0]["cache_control"] == MARK


def test_what_is_marked_is_what_the_next_step_sends_again() -> None:
    for n in range(4):
        now, after = (
            sent(replace(HELLO, messages=conversation(m), tools=TOOLS), quirks={"prompt_cache": False})
            for m in (n, n + 1)
        )
        assert (now["system"], now["tools"]) == (after["system"], after["tools"])
        assert after["messages"][: len(now["messages"])] == now["messages"]


def test_without_instructions_the_tools_are_marked() -> None:
    assert marks(sent(replace(HELLO, system=None, tools=TOOLS))) == ["tools.1", "message 0.0"]


def test_a_single_question_marks_only_what_other_runs_share() -> None:
    assert marks(sent(HELLO)) == ["system.0"]
    assert marks(sent(replace(HELLO, system=None))) == []


def test_the_last_turn_marks_nothing_because_nobody_reads_it() -> None:
    closing = replace(HELLO, messages=conversation(2), tool_choice="none")
    assert marks(sent(closing)) == []


def test_no_turn_of_the_assistant_is_marked_and_there_are_never_more_than_four_marks() -> None:
    body = sent(replace(HELLO, messages=[*conversation(9), Message(Role.USER, "and?")], tools=TOOLS))
    assert marks(body) == ["system.0", "message 16.1", "message 18.2"]


def test_marks_can_be_switched_off() -> None:
    assert marks(sent(replace(HELLO, tools=TOOLS), quirks={"prompt_cache": False})) == []


def test_nothing_that_is_given_is_changed() -> None:
    request = replace(HELLO, messages=conversation(2), tools=TOOLS)
    before = json.dumps([TOOLS, [message.as_dict() for message in request.messages]])
    assert sent(request) == sent(request)
    assert json.dumps([TOOLS, [message.as_dict() for message in request.messages]]) == before


# ── the form of an answer ────────────────────────────────────────────────────────────────────────


class Place(BaseModel):
    city: Annotated[str, MinLen(1), MaxLen(40)] = Field(description="Its name.")
    kind: Literal["town", "village"]


class Plan(BaseModel):
    """Where to go."""

    places: Annotated[list[Place], MinLen(1), MaxLen(3)]
    nights: Annotated[int, Ge(1), Le(14)]
    start: date
    note: str | None = None


class Counts(BaseModel):
    by_city: dict[str, int]


class Tree(BaseModel):
    name: str
    children: list[Tree]


def held(body: dict[str, Any]) -> Any:
    return body.get("output_config", {}).get("format")


def test_an_answer_is_held_to_its_schema_by_the_provider(server) -> None:
    server.script = ['{"places": [], "nights": 2}']
    claude = Anthropic(MODEL, base_url=server.url)
    claude.complete(replace(HELLO, json_schema=Plan.model_json_schema(), tools=TOOLS))
    claude.close()
    form = held(dict(server.requests[-1].body))
    assert (form["type"], form["schema"]) == ("json_schema", narrow(Plan.model_json_schema()))
    assert "schema" not in server.requests[-1].body["system"][0]["text"]


def test_limits_are_told_in_descriptions_because_the_form_does_not_know_them() -> None:
    schema = narrow(Plan.model_json_schema())
    assert schema is not None
    assert schema["properties"]["nights"] == {"type": "integer", "description": "(maximum: 14, minimum: 1)"}
    assert schema["properties"]["places"]["minItems"] == 1
    assert schema["properties"]["places"]["description"] == "(maxItems: 3)"
    assert schema["properties"]["start"] == {"type": "string", "format": "date"}
    assert schema["properties"]["note"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert schema["required"] == ["places", "nights", "start", "note"]
    assert schema["$defs"]["Place"]["properties"]["kind"]["enum"] == ["town", "village"]
    assert schema["$defs"]["Place"]["additionalProperties"] is False


def test_several_types_become_a_choice() -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": ["integer", "null"], "minimum": 3, "description": "How many."}},
        "required": ["n"],
        "additionalProperties": False,
    }
    made = narrow(schema)
    assert made is not None
    assert made["properties"]["n"] == {
        "description": "How many. (minimum: 3)",
        "anyOf": [{"type": "integer"}, {"type": "null"}],
    }


@pytest.mark.parametrize("model", [Counts, Tree])
def test_a_form_that_the_provider_cannot_hold_is_told_to_the_model_and_that_is_said_once(model) -> None:
    schema = model.model_json_schema()
    assert narrow(schema) is None
    played = Played(ANSWER)
    claude = Anthropic(MODEL, transport=played)
    request = replace(HELLO, json_schema=schema)
    assert claude.complete(request).notes == (
        "schema_reduced: the answer: the model is told of its schema, not held to it",
    )
    assert claude.complete(request).notes == ()
    claude.close()
    assert held(played.body) is None
    assert json.dumps(schema, separators=(",", ":")) in played.body["system"][0]["text"]


@pytest.mark.parametrize(
    "model, native",
    [
        ("claude-sonnet-4-5", True),
        ("claude-haiku-4-5-20251001", True),
        ("claude-opus-4-6", True),
        ("claude-fable-5-1", True),
        ("anthropic/claude-opus-5-5", True),
        ("claude-3-7-sonnet-latest", False),
        ("claude-sonnet-4-20250514", False),
        ("claude-opus-4-1-20250805", False),
        ("claude-opus-4-0", False),
        ("deepseek-v4", False),
        ("kimi-k3", False),
    ],
)
def test_who_cannot_be_held_to_a_schema_is_not_asked_to_be(model, native) -> None:
    claude = Anthropic(model)
    assert claude.native_schema is native  # else the agent tells the model itself
    body = sent(replace(HELLO, json_schema=Plan.model_json_schema()), model)
    assert (held(body) is not None) is native
    assert body["system"][0]["text"] == "Be brief."


def test_the_users_effort_stays_beside_the_form() -> None:
    options = {"output_config": {"effort": "low"}}
    body = sent(replace(HELLO, json_schema=Plan.model_json_schema()), options=options)
    assert body["output_config"]["effort"] == "low"
    assert held(body)["type"] == "json_schema"
    assert sent(HELLO, options=options)["output_config"] == {"effort": "low"}


def test_a_run_ends_with_an_answer_of_its_form(server) -> None:
    plan = {"places": [{"city": "Rome", "kind": "town"}], "nights": 2, "start": "2026-01-02", "note": None}
    server.script = [[["today"]], json.dumps({**plan, "nights": 99}), json.dumps(plan)]
    claude = Anthropic(MODEL, base_url=server.url)
    result = run(claude, output=Plan)
    claude.close()
    assert (result.stop_reason, json.loads(result.answer)) == (StopReason.FINISHED, plan)
    assert len(server.requests) == 3  # with one repair, in which no tool may be called
    assert server.requests[-1].body["tool_choice"] == {"type": "none"}
    assert {held(dict(request.body))["type"] for request in server.requests} == {"json_schema"}


# ── names, keys, options ─────────────────────────────────────────────────────────────────────────


def test_it_is_what_a_name_that_begins_with_anthropic_stands_for(monkeypatch) -> None:
    claude = resolve_model(f"anthropic:{MODEL}")()
    assert isinstance(claude, Anthropic)
    assert (claude.provider, claude.model, claude.base_url) == (
        "anthropic",
        MODEL,
        "https://api.anthropic.com",
    )
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "https://api.deepseek.com/anthropic")
    other = resolve_model("anthropic:deepseek-v4")()
    assert isinstance(other, Anthropic)
    assert other.provider == "deepseek"


def test_the_key_and_the_version_are_headers() -> None:
    played = Played(ANSWER)
    claude = Anthropic(MODEL, transport=played)
    claude.complete(HELLO)
    claude.close()
    headers = played.requests[0].headers
    assert (headers["x-api-key"], headers["anthropic-version"]) == (KEY, "2023-06-01")
    assert "authorization" not in headers
    assert str(played.requests[0].url) == "https://api.anthropic.com/v1/messages"


def test_a_wrong_key_is_one_error_and_is_not_said_back(server, monkeypatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-wrong-0123456789")
    claude = Anthropic(MODEL, base_url=server.url)
    with pytest.raises(AuthError) as caught:
        claude.complete(HELLO)
    claude.close()
    assert caught.value.billed is False
    assert "sk-ant-wrong" not in str(caught.value)


def test_whether_it_answers_can_be_asked_for_nothing(server) -> None:
    for base in ("", "/v1"):
        claude = Anthropic(MODEL, base_url=server.url + base)
        claude.ask_for_models(seconds=5)
        claude.close()
    assert server.bill.totals.output_tokens == 0


@pytest.mark.parametrize(
    "name", ["model", "messages", "system", "max_tokens", "tools", "tool_choice", "stream"]
)
def test_an_option_that_is_not_the_users_is_refused_at_once(name) -> None:
    with pytest.raises(UsageError, match=name):
        Anthropic(MODEL, options={name: 1})


def test_options_are_sent_as_they_are() -> None:
    options = {"service_tier": "standard_only", "metadata": {"user_id": "u1"}, "top_k": 5}
    assert options.items() <= sent(HELLO, options=options).items()


def test_a_model_that_does_not_exist_is_one_sentence() -> None:
    with FakeProvider(keys={KEY}, models={MODEL}) as server:
        claude = Anthropic("claude-sonet", base_url=server.url)
        with pytest.raises(InvalidRequest, match="claude-sonet"):
            claude.complete(HELLO)
        claude.close()
