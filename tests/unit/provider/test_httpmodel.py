"""What the three dialects share, with the smallest dialect that there can be."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentq.core.errors import UsageError
from agentq.provider.errors import (
    AuthError,
    ContextOverflow,
    InvalidRequest,
    LLMError,
    QuotaExceeded,
    RateLimited,
    TransientError,
)
from agentq.provider.types import Allowance, ChatRequest, Message, RateLimits, Role
from tests.support.smallmodel import Small

SECRET = "sk-secret-0123456789"
REQUEST = ChatRequest([Message(Role.USER, "hi")])
ANSWER = {"text": "ho", "in": 3, "out": 1}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMALL_API_KEY", SECRET)
    for name in ("SMALL_BASE_URL", "SMALL_API_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)


Handler = Callable[[httpx.Request], httpx.Response]


def small(answer: Handler | httpx.Response, model: str = "m", **options: Any) -> Small:
    handler = (lambda request: answer) if isinstance(answer, httpx.Response) else answer
    return Small(model, transport=httpx.MockTransport(handler), **options)


def says(status: int, body: Any, headers: dict[str, str] | None = None) -> httpx.Response:
    return httpx.Response(status, json=body, headers=headers)


def failure(answer: Handler | httpx.Response, request: ChatRequest = REQUEST, **options: Any) -> LLMError:
    with pytest.raises(LLMError) as caught:
        small(answer, **options).complete(request)
    return caught.value


# ── addresses ────────────────────────────────────────────────────────────────────────────────────


def test_the_address_is_the_argument_else_the_variable_else_the_public_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Small("m").base_url == "https://api.openai.com/v1"
    monkeypatch.setenv("SMALL_BASE_URL", " http://localhost:1/v1/ ")
    assert Small("m").base_url == "http://localhost:1/v1"
    assert Small("m", base_url="http://localhost:2").base_url == "http://localhost:2"


def test_a_provider_is_known_by_its_address_or_named() -> None:
    assert Small("m").provider == "openai"
    assert Small("m", base_url="https://api.mistral.ai/v1").quirks.call_ids == "mistral"
    assert Small("m", base_url="http://localhost:8000").provider == "small"
    assert Small("m", base_url="http://localhost:8000", provider="mistral").quirks.call_ids == "mistral"


def test_a_wrong_address_or_quirk_is_refused_at_once() -> None:
    with pytest.raises(InvalidRequest, match="no address of a model"):
        Small("m", base_url="localhost:8000")
    with pytest.raises(UsageError, match="no quirk"):
        Small("m", quirks={"colour": "red"})


def test_a_password_in_the_address_is_sent_and_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[httpx.Request] = []

    def refuse(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return says(500, {"error": {"message": "no"}})

    model = small(refuse, base_url="http://me:pass-word@localhost:8000/v1")
    with caplog.at_level(logging.DEBUG), pytest.raises(LLMError) as caught:
        model.complete(REQUEST)
    assert seen[0].headers["authorization"].startswith("Basic ")
    assert str(seen[0].url) == "http://localhost:8000/v1/talk"
    shown = [model.base_url, model.lane, repr(model), str(caught.value), repr(caught.value), caplog.text]
    assert not any("pass-word" in text for text in shown)


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────


def test_without_a_key_a_public_address_is_not_asked_and_a_private_one_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SMALL_API_KEY")
    error = failure(says(200, ANSWER))
    assert type(error) is AuthError
    assert "SMALL_API_KEY is not set" in error.message
    assert (error.billed, error.provider, error.model) == (False, "openai", "m")
    assert small(says(200, ANSWER), base_url="http://localhost:1").complete(REQUEST).text == "ho"


def test_a_client_can_be_made_without_a_key_and_reads_it_at_each_call(tmp_path: Path) -> None:
    seen: list[str] = []

    def note(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["x-api-key"])
        return says(200, ANSWER)

    path = tmp_path / "key"
    model = small(note, api_key_file=str(path))
    lanes = []
    for key in ("old", "new"):
        path.write_text(key)
        model.complete(REQUEST)
        lanes.append(model.lane)
    assert seen == ["old", "new"]
    assert lanes[0] != lanes[1]


@pytest.mark.parametrize(
    "answer",
    [
        says(401, {"error": {"message": f"the key {SECRET} is wrong"}}),
        says(400, {"error": SECRET}),
        says(500, {"detail": {"headers": {"x-api-key": SECRET}}}),
        says(200, {"error": {"message": SECRET, "code": SECRET}}),
        httpx.Response(502, text=f"<html>{SECRET}</html>"),
        httpx.Response(200, text=SECRET),
        says(200, {"text": "ho", "in": SECRET, "out": 1}),
        says(307, {}, {"location": f"https://x/?key={SECRET}"}),
        says(500, {}, {"x-request-id": SECRET}),
    ],
)
def test_a_key_that_a_server_says_back_is_in_no_error(
    answer: httpx.Response, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        error = failure(answer)
    assert SECRET not in f"{error} {error!r} {error.__cause__!r} {vars(error)} {caplog.text}"


def test_a_lane_tells_accounts_and_models_apart_and_says_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = Small("m").lane
    assert lane.startswith("openai:")
    assert lane.endswith(":m")
    assert SECRET not in lane
    assert Small("n").lane != lane
    assert Small("m", base_url="https://api.openai.com/v2").lane != lane
    monkeypatch.setenv("SMALL_API_KEY", "another")
    assert Small("m").lane != lane


# ── requests ─────────────────────────────────────────────────────────────────────────────────────


def test_options_go_over_the_body_and_the_request_s_own_over_these() -> None:
    bodies: list[Any] = []

    def note(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return says(200, ANSWER)

    model = small(note, options={"a": 1, "b": 1})
    model.complete(ChatRequest([], extra={"b": 2}, metadata={"label": "kept to ourselves"}))
    assert bodies == [{"model": "m", "messages": [], "a": 1, "b": 2}]


def test_options_that_are_no_json_are_refused_before_anything_is_sent() -> None:
    error = failure(says(200, ANSWER), options={"a": object()})
    assert type(error) is InvalidRequest
    assert error.billed is False


# ── answers ──────────────────────────────────────────────────────────────────────────────────────


def test_a_reply_carries_the_request_s_id_and_the_limits() -> None:
    headers = {"request-id": "req_1", "x-ratelimit-limit-requests": "5"}
    result = small(says(200, ANSWER, headers)).complete(REQUEST)
    assert (result.text, result.request_id) == ("ho", "req_1")
    assert result.limits == RateLimits(Allowance(5))


def test_any_good_status_is_an_answer() -> None:
    assert small(says(201, ANSWER)).complete(REQUEST).text == "ho"


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, text=""),
        httpx.Response(200, text="<html>"),
        httpx.Response(204),
        says(200, []),
        says(200, None),
        says(200, {}),
        says(200, {"text": "ho", "in": "many", "out": 1}),
        says(200, {"text": "ho", "in": None, "out": 1}),
        httpx.Response(200, text='{"text": "ho", "in": 1e999, "out": 1}'),
        says(200, {"text": None, "error": {}}),
    ],
)
def test_an_answer_that_cannot_be_read_may_have_cost_and_is_tried_again(answer: httpx.Response) -> None:
    answer.headers["x-request-id"] = "r1"
    error = failure(answer)
    assert type(error) is TransientError
    assert error.billed is None
    assert error.request_id == "r1"
    assert "the answer cannot be read" in error.message


@pytest.mark.parametrize(
    "status, body, kind",
    [
        (401, {"error": {"message": "x"}}, AuthError),
        (402, {"error": {"message": "x"}}, QuotaExceeded),
        (429, {"error": {"message": "x"}}, RateLimited),
        (413, {"error": {"message": "x"}}, ContextOverflow),
        (400, {"error": {"message": "x"}}, InvalidRequest),
        (503, {"error": {"message": "x"}}, TransientError),
        (200, {"error": {"message": "x", "code": 429}}, RateLimited),
        (200, {"error": {"message": "x", "code": 502}, "choices": None}, TransientError),
        (200, [{"error": {"message": "x", "code": 402}}], QuotaExceeded),
    ],
)
def test_a_refusal_is_its_class_under_any_status(status: int, body: Any, kind: type[LLMError]) -> None:
    error = failure(says(status, body))
    assert type(error) is kind
    assert error.billed is False
    assert (error.provider, error.model) == ("openai", "m")


def test_a_failure_in_a_200_that_counts_tokens_may_have_cost() -> None:
    body = {"error": {"message": "broke off", "code": 502}, "usage": {"output_tokens": 7}}
    assert failure(says(200, body)).billed is None


def test_a_provider_that_bills_its_failures_is_a_quirk() -> None:
    assert failure(says(500, {}), quirks={"errors_billed": True}).billed is None


def test_a_redirect_says_where_to() -> None:
    error = failure(httpx.Response(308, headers={"location": "https://new.example/v1/talk"}))
    assert type(error) is InvalidRequest
    assert "https://new.example/v1/talk" in error.message


# ── prompts that were cut ────────────────────────────────────────────────────────────────────────

LONG = ChatRequest([Message(Role.USER, "word " * 4_000)], system="s" * 4_000)  # about 6,000 tokens
OLLAMA = {"base_url": "http://localhost:11434/v1"}


def test_a_prompt_that_the_server_cut_is_an_overflow_that_may_have_cost() -> None:
    error = failure(says(200, ANSWER | {"in": 2_050}), LONG, **OLLAMA)
    assert type(error) is ContextOverflow
    assert error.billed is None
    assert "OLLAMA_CONTEXT_LENGTH" in error.message


@pytest.mark.parametrize(
    "counted, request_, options",
    [
        (5_000, LONG, OLLAMA),
        (2_050, LONG, {"base_url": "http://localhost:8000/v1"}),
        (2_050, LONG, OLLAMA | {"quirks": {"cuts_prompt": False}}),
        (0, LONG, OLLAMA),
        (2, REQUEST, OLLAMA),
    ],
    ids=["counted enough", "another server", "switched off", "not counted", "a short one"],
)
def test_a_prompt_is_not_taken_as_cut_without_reason(
    counted: int, request_: ChatRequest, options: dict[str, Any]
) -> None:
    result = small(says(200, ANSWER | {"in": counted}), **options).complete(request_)
    assert result.text == "ho"
