"""What models want otherwise, as data."""

from __future__ import annotations

import json
from dataclasses import fields
from fnmatch import fnmatchcase
from importlib import resources
from typing import Any

import pytest

from agentq.core.errors import UsageError
from agentq.provider.catalogue import built_in
from agentq.provider.quirks import Quirks, _checked, quirks_of

TABLE: list[dict[str, Any]] = json.loads(
    resources.files("agentq.provider").joinpath("quirks.json").read_text("utf-8")
)
DIALECTS = {"openai-chat", "openai", "anthropic"}
OPENAI = "https://api.openai.com/v1"


def of(dialect: str, model: str, provider: str = "openai", url: str = OPENAI, **own: Any) -> Quirks:
    return quirks_of(dialect, provider, url, model, own)


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: entry["why"][:50])
def test_each_entry_says_why_and_sets_what_exists_and_is_not_so_already(entry: dict[str, Any]) -> None:
    assert entry.keys() <= {"why", "dialect", "provider", "model", "base_url", "set"}
    assert len(entry["why"]) > 10
    assert entry["dialect"] in DIALECTS
    assert entry["model"]
    assert entry["set"]
    assert _checked(entry["set"]) == entry["set"]
    defaults = {field.name: field.default for field in fields(Quirks)}
    undone = {
        name
        for other in TABLE[: TABLE.index(entry)]
        if other["dialect"] == entry["dialect"]
        for name in other["set"]
    }
    assert any(value != defaults[name] or name in undone for name, value in entry["set"].items())


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: entry["why"][:50])
def test_each_pattern_is_of_a_model_that_there_is(entry: dict[str, Any]) -> None:
    for pattern in entry["model"]:
        assert any(fnmatchcase(model, pattern) for model in built_in()), pattern


def test_a_model_that_nobody_knows_has_the_ways_of_its_dialect() -> None:
    assert of("openai-chat", "some-model", "vllm", "http://127.0.0.1:8000/v1") == Quirks()
    assert of("anthropic", "claude-x", "anthropic") == Quirks()


def test_models_that_think_want_another_cap_another_role_and_no_temperature() -> None:
    quirks = of("openai-chat", "gpt-5.6-mini")
    assert quirks.output_cap == "max_completion_tokens"
    assert quirks.system_role == "developer"
    assert not quirks.temperature
    assert quirks.effort_with_tools == "none"
    assert quirks.parallel_tool_calls
    assert not of("openai-chat", "o3-mini").parallel_tool_calls
    assert of("openai-chat", "gpt-4.1").output_cap == "max_tokens"


def test_an_instant_model_is_not_asked_for_thoughts() -> None:
    assert of("openai", "gpt-5.1").reasons
    assert not of("openai", "gpt-5.1").temperature
    for dialect in ("openai", "openai-chat"):
        quirks = of(dialect, "gpt-5-chat-latest")
        assert quirks.temperature
        assert not quirks.reasons


def test_servers_are_told_apart_by_their_provider_or_address() -> None:
    assert of("openai-chat", "x", "mistral").call_ids == "mistral"
    assert of("openai-chat", "x", "openai").call_ids == "40"
    assert of("openai-chat", "x", "google").schema_keys == "plain"
    assert of("openai-chat", "x", "deepseek").native_schema == "object"
    for url in ("http://localhost:11434/v1", "http://localhost:11434", "https://ollama.example/v1"):
        assert of("openai-chat", "x", "other", url).cuts_prompt
    assert not of("openai-chat", "x", "other", "http://localhost:8000/v1").cuts_prompt


def test_the_user_s_own_go_last() -> None:
    quirks = of("openai-chat", "gpt-5.6", effort_with_tools=None, output_cap="max_tokens", temperature=True)
    assert quirks.effort_with_tools is None
    assert quirks.output_cap == "max_tokens"
    assert quirks.temperature


def test_a_quirk_that_there_is_not_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"no quirk 'output_cab' \(did you mean 'output_cap'") as caught:
        of("openai-chat", "m", output_cab="max_tokens")
    assert "native_schema" in caught.value.hint


@pytest.mark.parametrize(
    "name, value, one_of",
    [
        ("temperature", "no", "true or false"),
        ("temperature", 1, "true or false"),
        ("temperature", None, "true or false"),
        ("output_cap", "max", "max_tokens, max_completion_tokens"),
        ("call_ids", 40, "any, 40, mistral"),
        ("call_ids", ["40"], "any, 40, mistral"),
        ("effort_with_tools", 3, "a text, or none"),
    ],
)
def test_a_value_that_a_quirk_cannot_have_is_refused(name: str, value: Any, one_of: str) -> None:
    with pytest.raises(UsageError, match=f"{name} cannot be .*: it is {one_of}"):
        of("openai-chat", "m", **{name: value})
