"""Faults that refuse: what providers answer when it is not the fault of the request."""

# ruff: noqa: ARG001, ARG005 - every fault is called with the same arguments

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from agentq.testing.provider.clock import go_duration, http_date, rfc3339
from agentq.testing.provider.known import CHAT, MESSAGES, OPENAI, Known
from agentq.testing.provider.overflow import overflow
from agentq.testing.provider.refusal import Refusal
from agentq.testing.provider.request import Request

if TYPE_CHECKING:
    from agentq.testing.provider.fault import Fault

PAGE = (
    "<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1><hr>nginx</body></html>\n"
)
_QUOTA = "You exceeded your current quota, please check your plan and billing details."


def _limited(request: Request, headers: Mapping[str, str], message: str = "") -> Refusal:
    if request.dialect == "messages":
        message = message or "This request would exceed your account's rate limit. Please try again later."
        return Refusal(429, message, headers=headers)
    message = message or f"Rate limit reached for {request.model} on requests per min (RPM): Limit 3, Used 3."
    return Refusal(429, message, kind="requests", code="rate_limit_exceeded", headers=headers)


def _waits(headers: Callable[[float], dict[str, str]]) -> Callable[[Request, Fault], Refusal]:
    """A 429 with these headers, made from the seconds to wait."""
    return lambda request, fault: _limited(request, headers(fault.seconds))


def _reset_headers(request: Request, fault: Fault) -> Refusal:
    # Of two limits one is used up: the wait is that one's.
    if request.dialect == "messages":
        name = "anthropic-ratelimit"
        return _limited(
            request,
            {
                f"{name}-requests-limit": "50",
                f"{name}-requests-remaining": "49",
                f"{name}-requests-reset": rfc3339(1),
                f"{name}-tokens-limit": "40000",
                f"{name}-tokens-remaining": "0",
                f"{name}-tokens-reset": rfc3339(fault.seconds),
            },
        )
    return _limited(
        request,
        {
            "x-ratelimit-limit-requests": "60",
            "x-ratelimit-remaining-requests": "59",
            "x-ratelimit-reset-requests": go_duration(1),
            "x-ratelimit-limit-tokens": "40000",
            "x-ratelimit-remaining-tokens": "0",
            "x-ratelimit-reset-tokens": go_duration(fault.seconds),
        },
    )


def _in_text(request: Request, fault: Fault) -> Refusal:
    wait = f"{fault.seconds:g}s"
    message = f"Rate limit reached for model `{request.model}`: Limit 6000. Please try again in {wait}."
    return Refusal(429, message, kind="tokens", code="rate_limit_exceeded")


def _quota(code: str) -> Callable[[Request, Fault], Refusal]:
    return lambda request, fault: Refusal(429, _QUOTA, kind="insufficient_quota", code=code)


def _spend_limit(request: Request, fault: Fault) -> Refusal:
    if request.dialect == "messages":
        message = "You have reached your specified API usage limits."
        return Refusal(429, message, code="enforced_spend_limit_reached")
    return Refusal(429, _QUOTA, kind="insufficient_quota", code="organization_spend_limit_exceeded")


def _credit_too_low(request: Request, fault: Fault) -> Refusal:
    return Refusal(
        400, "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing."
    )


def _payment_required(request: Request, fault: Fault) -> Refusal:
    if request.dialect == "messages":
        return Refusal(402, "There's an issue with your billing or payment information.")
    return Refusal(402, "Insufficient Balance", kind="unknown_error", code="invalid_request_error")


def _daily_quota(request: Request, fault: Fault) -> Refusal:
    violation = {"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier", "quotaValue": "20"}
    failure = "type.googleapis.com/google.rpc.QuotaFailure"
    retry = {
        "@type": "type.googleapis.com/google.rpc.RetryInfo",
        "retryDelay": f"{math.ceil(fault.seconds)}s",
    }
    details = [{"@type": failure, "violations": [violation]}, retry]
    error = {"code": 429, "message": _QUOTA, "status": "RESOURCE_EXHAUSTED", "details": details}
    return Refusal(429, _QUOTA, body=[{"error": error}])


def _failing(status: int, message: str, *, kind: str | None = None) -> Callable[[Request, Fault], Refusal]:
    return lambda request, fault: Refusal(status, message, kind=kind)


def _overloaded(request: Request, fault: Fault) -> Refusal:
    if request.dialect == "messages":
        return Refusal(529, "Overloaded")
    message = "The engine is currently overloaded, please try again later"
    return Refusal(503, message, kind="service_unavailable_error")


def _body(status: int, body: Any) -> Callable[[Request, Fault], Refusal]:
    return lambda request, fault: Refusal(status, "", body=body)


def _overflow(request: Request, fault: Fault) -> Refusal:
    return overflow(request, min(fault.tokens, max(1, request.input_tokens - 1)))


def _overflow_with_cap(request: Request, fault: Fault) -> Refusal:
    used, cap = request.input_tokens, request.output_cap or 0
    sums = f"{used} + {cap} > {max(1, used + cap - 1)}"
    return Refusal(
        400, f"input length and `max_tokens` exceed context limit: {sums}, decrease either and try again"
    )


def _overflow_vllm(request: Request, fault: Fault) -> Refusal:
    used = max(request.input_tokens, fault.tokens + 1)
    message = (
        f"This model's maximum context length is {fault.tokens} tokens. However, your request has {used} "
        "input "
        "tokens. Please reduce the length of the input messages."
    )
    return Refusal(
        400,
        message,
        body={"error": {"message": message, "type": "BadRequestError", "param": None, "code": 400}},
    )


def _overflow_llama_cpp(request: Request, fault: Fault) -> Refusal:
    used = max(request.input_tokens, fault.tokens + 1)
    error = {
        "code": 400,
        "message": "the request exceeds the available context size. try increasing the context size",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": used,
        "n_ctx": fault.tokens,
    }
    return Refusal(400, "", body={"error": error})


def _throttled_tokens(request: Request, fault: Fault) -> Refusal:
    return Refusal(429, "Too many tokens, please wait before trying again.")


def _tool_use_failed(request: Request, fault: Fault) -> Refusal:
    name = request.tools[0].name if request.tools else "tool"
    error = {
        "message": "Failed to call a function. Please adjust your prompt. "
        "See 'failed_generation' for more details.",
        "type": "invalid_request_error",
        "code": "tool_use_failed",
        "failed_generation": f'<function={name}>{{"</function>',
    }
    return Refusal(400, "", body={"error": error})


REFUSALS: dict[str, Known] = {
    "rate_limited": Known(
        says="429, the wait as `retry-after` in whole seconds",
        refuses=_waits(lambda s: {"retry-after": str(math.ceil(s))}),
    ),
    "slow_down": Known(
        says="429 `slow_down`",
        dialects=OPENAI,
        refuses=lambda request, fault: Refusal(
            429,
            "Slow down",
            kind="slow_down",
            code="slow_down",
            headers={"retry-after": str(math.ceil(fault.seconds))},
        ),
    ),
    "retry_after_float": Known(
        says="429, `retry-after` with a fraction", refuses=_waits(lambda s: {"retry-after": f"{s:.3f}"})
    ),
    "retry_after_date": Known(
        says="429, `retry-after` as an HTTP date",
        refuses=_waits(lambda s: {"retry-after": http_date(math.ceil(s))}),
    ),
    "retry_after_ms": Known(
        says="429, `retry-after-ms`", refuses=_waits(lambda s: {"retry-after-ms": str(math.ceil(s * 1000))})
    ),
    "retry_headers": Known(
        says="429, only the resets of the limits: Go durations, or RFC 3339 of Anthropic",
        refuses=_reset_headers,
    ),
    "retry_in_text": Known(
        says="429, the wait only in the message: `try again in 5.289s`", dialects=CHAT, refuses=_in_text
    ),
    "retry_unsaid": Known(says="429 that names no wait at all", refuses=_waits(lambda s: {})),
    "should_not_retry": Known(
        says="429 with `x-should-retry: false`", refuses=_waits(lambda s: {"x-should-retry": "false"})
    ),
    "insufficient_quota": Known(
        says="429 `insufficient_quota`: never to be retried",
        dialects=OPENAI,
        refuses=_quota("insufficient_quota"),
    ),
    "credit_exhausted": Known(
        says="429 `credit_balance_exhausted`", dialects=OPENAI, refuses=_quota("credit_balance_exhausted")
    ),
    "spend_limit": Known(
        says="429, the spend limit is reached: OpenAI's code, or Anthropic's `enforced_spend_limit_reached`",
        refuses=_spend_limit,
    ),
    "project_spend_limit": Known(
        says="429 `project_spend_limit_exceeded`",
        dialects=OPENAI,
        refuses=_quota("project_spend_limit_exceeded"),
    ),
    "usage_limit": Known(
        says="429 `organization_usage_limit_exceeded`",
        dialects=OPENAI,
        refuses=_quota("organization_usage_limit_exceeded"),
    ),
    "credit_too_low": Known(
        says="400, the credit balance is too low", dialects=MESSAGES, refuses=_credit_too_low
    ),
    "payment_required": Known(says="402, as DeepSeek and Anthropic say it", refuses=_payment_required),
    "daily_quota": Known(says="429, Gemini's quota of a day", dialects=CHAT, refuses=_daily_quota),
    "overloaded": Known(says="529 `overloaded_error`; 503 of OpenAI", refuses=_overloaded),
    "unavailable": Known(says="503", refuses=_failing(503, "Service Unavailable")),
    "server_error": Known(
        says="500",
        refuses=_failing(500, "The server had an error while processing your request. Sorry about that!"),
    ),
    "html_page": Known(says="502, a page of HTML", refuses=_body(502, PAGE)),
    "empty_error": Known(says="500 without a body", refuses=_body(500, b"")),
    "context_overflow": Known(
        says="400, the context is too long, in the dialect's own words", refuses=_overflow
    ),
    "overflow_with_cap": Known(
        says="400 `input length and max_tokens exceed context limit`",
        dialects=MESSAGES,
        refuses=_overflow_with_cap,
    ),
    "overflow_vllm": Known(says="400, as vLLM says it", dialects=CHAT, refuses=_overflow_vllm),
    "overflow_llama_cpp": Known(
        says="400 `exceed_context_size_error`", dialects=CHAT, refuses=_overflow_llama_cpp
    ),
    "overflow_413": Known(
        says="413, the request is too large", refuses=_failing(413, "Request exceeds the maximum size")
    ),
    "throttled_tokens": Known(
        says="429 `Too many tokens, please wait`: that is throttling, and no overflow",
        refuses=_throttled_tokens,
    ),
    "tool_use_failed": Known(
        says="400 of Groq, with `failed_generation`", dialects=CHAT, refuses=_tool_use_failed
    ),
}
