"""Waits and limits in every form that providers write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentq.provider.types import Allowance, RateLimits
from agentq.provider.waits import LONGEST_S, duration_s, rate_limits, retry_after_s

DATE = "Wed, 21 Oct 2026 07:28:00 GMT"
NAMES = (
    "retry-after-ms",
    "retry-after",
    "date",
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
    "anthropic-ratelimit-requests-limit",
    "anthropic-ratelimit-input-tokens-limit",
    "anthropic-ratelimit-input-tokens-reset",
)


@pytest.mark.parametrize(
    "headers, seconds",
    [
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "12.5", "retry-after": "9"}, 0.0125),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "20"}, 20.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": " 1.57 "}, 1.57),
        ({"retry-after": "6m0s"}, 360.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT", "date": DATE}, 30.0),
        ({"retry-after": "2026-10-21T07:29:00Z", "date": DATE}, 60.0),
        ({"retry-after": "2026-10-21T09:29:00.5+02:00", "date": DATE}, 60.5),
        ({"retry-after": "Wed, 21 Oct 2026 07:27:00 GMT", "date": DATE}, 0.0),
        ({"retry-after": "999999999"}, LONGEST_S),
        ({"retry-after": "9" * 400}, LONGEST_S),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT", "date": DATE}, LONGEST_S),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
    ],
)
def test_a_wait_is_read_in_each_form_of_its_header(headers: dict[str, str], seconds: float) -> None:
    assert retry_after_s(headers) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value", ["", "-5", "soon", "1e3", "nan", "inf", "1, 2", "Wed, 99 Oct 99999999999999 07:28:00 GMT"]
)
def test_a_header_that_says_nothing_is_no_wait(value: str) -> None:
    assert retry_after_s({"retry-after": value}) is None


@pytest.mark.parametrize(
    "text, seconds",
    [
        (
            "Rate limit reached on tokens per minute (TPM): Please try again in 5.289s. Visit",
            5.289,
        ),
        ("Please try again in 7m12s.", 432.0),
        ("Please try again in 120ms.", 0.12),
        ("Please try again in 1h2m3.5s", 3723.5),
        ("Please retry in 34.074824224s.", 34.074824224),
        ("Please retry after 26 seconds.", 26.0),
        ("try again in 2 days", 2 * LONGEST_S / 2),
    ],
)
def test_groq_and_others_write_the_wait_into_the_text(text: str, seconds: float) -> None:
    assert retry_after_s({}, text) == pytest.approx(min(seconds, LONGEST_S))


def test_a_header_goes_before_the_text_and_text_without_a_wait_is_none() -> None:
    assert retry_after_s({"retry-after": "3"}, "try again in 9s") == 3.0
    assert retry_after_s({"retry-after": "soon"}, "try again in 9s") == 9.0
    assert retry_after_s({}, "please try again in a while") is None
    assert retry_after_s({}) is None


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("6m0s", 360.0),
        ("1.57s", 1.57),
        ("12ms", 0.012),
        ("1h0m0.5s", 3600.5),
        ("2m59.56s", 179.56),
        ("1d2h", 93_600.0),
        ("250us", 0.00025),
        ("250µs", 0.00025),
        ("0s", 0.0),
        ("60", 60.0),
        ("", None),
        ("s", None),
        ("5x", None),
        ("5s and", None),
        ("-5s", None),
    ],
)
def test_durations_of_go_are_read_whole_or_not_at_all(text: str, seconds: float | None) -> None:
    assert duration_s(text) == (None if seconds is None else pytest.approx(seconds))


def test_limits_of_openai_and_groq() -> None:
    assert rate_limits(
        {
            "x-ratelimit-limit-requests": "600",
            "x-ratelimit-remaining-requests": "599",
            "x-ratelimit-reset-requests": "100ms",
            "x-ratelimit-limit-tokens": "200000",
            "x-ratelimit-remaining-tokens": "0",
            "x-ratelimit-reset-tokens": "6m0s",
        }
    ) == RateLimits(Allowance(600, 599, 0.1), Allowance(200_000, 0, 360.0))


def test_limits_of_anthropic_count_from_the_server_s_own_clock() -> None:
    limits = rate_limits(
        {
            "date": DATE,
            "anthropic-ratelimit-requests-limit": "50",
            "anthropic-ratelimit-requests-remaining": "49",
            "anthropic-ratelimit-requests-reset": "2026-10-21T07:28:01Z",
            "anthropic-ratelimit-input-tokens-limit": "40000",
            "anthropic-ratelimit-input-tokens-remaining": "1000",
            "anthropic-ratelimit-input-tokens-reset": "2026-10-21T07:29:00Z",
            "anthropic-ratelimit-output-tokens-limit": "8000",
            "anthropic-ratelimit-output-tokens-remaining": "8000",
            "anthropic-ratelimit-output-tokens-reset": "2026-10-21T07:28:00Z",
        }
    )
    # The one of which the least share is left: 1,000 of 40,000, although 8,000 is a smaller limit.
    assert limits == RateLimits(Allowance(50, 49, 1.0), Allowance(40_000, 1_000, 60.0))


def test_a_limit_that_is_named_alone_is_read() -> None:
    assert rate_limits({"anthropic-ratelimit-input-tokens-limit": "9"}) == RateLimits(None, Allowance(9))
    assert rate_limits({"x-ratelimit-remaining-tokens": "7"}) == RateLimits(None, Allowance(None, 7))
    assert rate_limits({"x-ratelimit-reset-requests": "1s"}) is None
    assert rate_limits({}) is None


def test_the_tightest_is_found_beside_ones_that_say_little() -> None:
    limits = rate_limits(
        {
            "anthropic-ratelimit-tokens-limit": "10",
            "anthropic-ratelimit-input-tokens-limit": "0",
            "anthropic-ratelimit-output-tokens-limit": "10",
            "anthropic-ratelimit-output-tokens-remaining": "5",
        }
    )
    assert limits == RateLimits(None, Allowance(10, 5))


def test_a_time_of_the_epoch_as_a_reset_is_a_day_at_most() -> None:
    limits = rate_limits({"x-ratelimit-limit-requests": "50", "x-ratelimit-reset-requests": "1741305600000"})
    assert limits == RateLimits(Allowance(50, None, LONGEST_S))


@given(
    headers=st.dictionaries(
        st.sampled_from(NAMES), st.text(max_size=30) | st.integers().map(str) | st.floats().map(str)
    ),
    text=st.text(max_size=80),
)
def test_whatever_a_server_writes_the_wait_is_bounded(headers: dict[str, str], text: str) -> None:
    wait = retry_after_s(headers, f"try again in {text}")
    assert wait is None or 0 <= wait <= LONGEST_S
    limits = rate_limits(headers)
    for allowance in (limits.requests, limits.tokens) if limits else ():
        if allowance is not None and allowance.reset_s is not None:
            assert 0 <= allowance.reset_s <= LONGEST_S
