"""Refusals as providers really write them, and the class that each is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentq.provider.errors import (
    AuthError,
    ContextOverflow,
    LLMError,
    QuotaExceeded,
    TransientError,
)
from agentq.provider.failures import error_of, request_id_in
from agentq.provider.refusal import MESSAGE_CHARS, Refusal, refusal_in


def refused(
    status: int, data: Any, headers: dict[str, str] | None = None, text: str = "", **quirks: bool
) -> LLMError:
    return error_of(status, headers or {}, data, text, provider="p", model="m", **quirks)


def openai(message: str, kind: str = "invalid_request_error", code: Any = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def claude(kind: str, message: str, **more: Any) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message, **more}, "request_id": "req_1"}


def google(code: int, message: str, status: str, *details: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"error": {"code": code, "message": message, "status": status, "details": list(details)}}]


GEMINI_QUOTA = (
    "You exceeded your current quota, please check your plan and billing details. For more information on "
    "this error, head to: https://ai.google.dev/gemini-api/docs/rate-limits. To monitor your usage, head to: "
    "https://ai.dev/usage?tab=rate-limit. \n* Quota exceeded for metric: generativelanguage.googleapis.com/"
    "generate_content_free_tier_requests, limit: 20, model: gemini-2.5-flash\nPlease retry in 34.074824224s."
)


RETRY_INFO = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34s"}

# What they answer, as recorded or documented: `of` whom, under which status, and the class that it `is`.
REFUSALS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("refusals.json").read_text("utf-8"))


@pytest.mark.parametrize("row", REFUSALS, ids=[f"{row['of']}-{row['status']}" for row in REFUSALS])
def test_each_refusal_has_its_class_and_only_the_groq_one_may_have_cost(row: dict[str, Any]) -> None:
    error = refused(row["status"], row["body"])
    assert type(error).__name__ == row["is"], error
    unclear = "failed_generation" in json.dumps(row["body"])
    assert error.billed is (None if unclear else False)
    assert error.retryable is (row["is"] in {"RateLimited", "TransientError"})


def test_what_was_said_in_a_200_stands_under_the_status_that_it_named() -> None:
    assert refused(200, {"error": {"code": "503", "message": "x"}}).status_code == 503
    assert refused(200, {"error": {"code": 200, "message": "x"}}).status_code == 502
    assert refused(200, claude("rate_limit_error", "x")).status_code == 429


def test_a_failure_of_a_provider_that_bills_them_is_unclear() -> None:
    assert refused(500, None, errors_billed=True).billed is None
    assert refused(429, None, errors_billed=True).billed is False


@pytest.mark.parametrize("status", [429, 500, 503, 529])
def test_a_provider_that_says_not_to_retry_is_obeyed(status: int) -> None:
    error = refused(status, None, {"x-should-retry": "false"})
    assert not error.retryable
    assert refused(status, None, {"x-should-retry": "true"}).retryable


def test_a_provider_that_says_to_retry_is_obeyed_but_not_for_keys_or_money() -> None:
    advice = {"x-should-retry": "true"}
    error = refused(400, openai("Try it again"), advice)
    assert (type(error), error.retryable, error.billed) == (TransientError, True, False)
    assert type(refused(401, None, advice)) is AuthError
    assert type(refused(402, None, advice)) is QuotaExceeded
    assert type(refused(413, None, advice)) is ContextOverflow


def test_the_wait_is_the_header_s_else_the_field_s_else_the_text_s() -> None:
    body = google(429, GEMINI_QUOTA, "RESOURCE_EXHAUSTED", RETRY_INFO)
    assert refused(429, body, {"retry-after": "7"}).retry_after_s == 7
    assert refused(429, google(429, "x", "RESOURCE_EXHAUSTED", RETRY_INFO)).retry_after_s == 34
    assert refused(429, google(429, GEMINI_QUOTA, "x")).retry_after_s == pytest.approx(34.074824224)
    assert refused(503, None, {"retry-after": "3"}).retry_after_s == 3
    assert refused(400, openai("try again in 9s")).retry_after_s is None
    assert refused(429, google(429, "x", "y", {"retryDelay": "9999999s"})).retry_after_s == 86_400


def test_what_openrouter_hides_in_metadata_is_shown_and_read() -> None:
    raw = '{"error":{"message":"prompt is too long: 9 tokens > 8 maximum"}}'
    error = refused(
        400, {"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": raw}}}
    )
    assert type(error) is ContextOverflow
    assert "Provider returned error" in error.message
    assert "9 tokens" in error.message


def test_a_page_of_html_becomes_its_words() -> None:
    page = (
        "<html><head><style>p {x}</style><title>502 Bad Gateway</title></head>\n<body><h1>nginx</h1></body>"
    )
    assert refused(502, None, text=page).message == "502 Bad Gateway nginx"
    assert refused(502, None, text="  ").message == "no reason given"
    assert len(refused(502, None, text="x" * 100_000).message) <= 200


def test_a_body_that_was_not_read_is_read() -> None:
    assert (
        type(refused(400, None, text=json.dumps(openai("x", code="context_length_exceeded"))))
        is ContextOverflow
    )
    assert refused(500, None, text="[" * 100_000).message == "[" * 200


def test_a_message_is_bounded_and_the_sentence_at_its_end_is_still_read() -> None:
    error = refused(400, openai("y" * 3_000 + " maximum context length"))
    assert type(error) is ContextOverflow
    assert len(error.message) == MESSAGE_CHARS


def test_a_redirect_names_where_the_address_is() -> None:
    error = refused(308, None, {"location": "https://new.example/v1"})
    assert "redirects to https://new.example/v1" in error.message
    assert "base_url" in error.message


def test_the_error_carries_the_limits_and_the_request_s_id() -> None:
    headers = {"request-id": "req_7", "x-ratelimit-limit-requests": "5"}
    error = refused(429, None, headers)
    assert error.request_id == "req_7"
    assert "req_7" in str(error)
    assert error.limits is not None


def test_a_request_s_id_is_bounded_and_printable() -> None:
    assert request_id_in({"x-request-id": "a\x1b[31m" + "b" * 1000}) == ("a[31m" + "b" * 1000)[:128]
    assert request_id_in({"x-request-id": "", "request-id": "r"}) == "r"
    assert request_id_in({}) is None


@pytest.mark.parametrize(
    "body",
    [
        None,
        1,
        "error",
        [],
        [[]],
        {},
        {"error": None},
        {"error": {}},
        {"error": ""},
        {"id": 1},
        {"type": "message"},
    ],
)
def test_a_body_without_an_error_carries_none(body: Any) -> None:
    assert refusal_in(body) is None


def test_codes_are_taken_from_wherever_they_stand() -> None:
    refusal = refusal_in({"code": "Top", "error": {"code": 429, "type": "T", "status": "S", "message": "m"}})
    assert refusal == Refusal("m", frozenset({"top", "t", "s"}), 429)


@pytest.mark.parametrize("code", ["²²²", "9" * 5_000, True, 99, 600, -1, 1.5, [], {"a": 1}])
def test_a_code_that_is_no_status_is_none(code: Any) -> None:
    refusal = refusal_in({"error": {"code": code, "message": "m"}})
    assert refusal is not None
    assert refusal.status is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "error",
                    "code",
                    "message",
                    "type",
                    "details",
                    "metadata",
                    "raw",
                    "object",
                    "detail",
                    "violations",
                ]
            ),
            inner,
        )
    ),
    max_leaves=20,
)


@given(status=st.integers(100, 599), body=JSON, text=st.text(max_size=50))
def test_any_body_is_some_class_and_never_an_error_of_ours(status: int, body: Any, text: str) -> None:
    error = refused(status, body, text=text)
    assert isinstance(error, LLMError)
    assert len(error.message) <= MESSAGE_CHARS
    assert error.billed in {False, None}
