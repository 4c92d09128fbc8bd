"""From a provider's refusal to one of our classes, by status and code. The class says what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from agentq.provider.errors import (
    AuthError,
    ContextOverflow,
    InvalidRequest,
    LLMError,
    QuotaExceeded,
    RateLimited,
    TransientError,
)
from agentq.provider.refusal import Refusal, refusal_of
from agentq.provider.waits import LONGEST_S, rate_limits, retry_after_s

_REQUEST_ID_CHARS = 128

_QUOTA_CODES = frozenset(
    {
        "insufficient_quota",
        "credit_balance_exhausted",
        "billing_hard_limit_reached",
        "organization_spend_limit_exceeded",
        "project_spend_limit_exceeded",
        "organization_usage_limit_exceeded",
        "enforced_spend_limit_reached",
        "billing_error",
        "insufficient_balance",
        "daily_quota",
    }
)
"""What providers call an account without money or quota."""
_OVERFLOW_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error", "request_too_large"})
_AUTH_CODES = frozenset({"invalid_api_key", "api_key_invalid"})
"""Gemini and xAI refuse a key with a 400."""
_RETRYABLE_CODES = frozenset({"tool_use_failed"})
"""The model wrote something that its server could not read (Groq): another try may go well."""
_STATUS_OF = {
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    "bio_policy": 400,
    "misalignment_policy_violation": 400,
    "data_residency_mismatch": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "overloaded_error": 529,
}
"""The status that an error without one of its own stands for: in a 200 that says only the code."""

# Where a provider has no code for it, its sentence is all there is. A throttle speaks of many tokens, too,
# and is looked for first.
_THROTTLE = re.compile(
    r"please wait|wait (?:and|before)|(?:try again|retry) (?:in|after|later)|per (?:second|minute|hour|day)"
    r"|rate limit|throttl",
    re.IGNORECASE,
)
_OVERFLOW = re.compile(
    r"prompt is too long|input is too long|too many (?:input )?tokens|reduce the length of"
    r"|maximum (?:context|prompt) length|context length exceeded|context window|context size"
    r"|exceeds? (?:the )?(?:model's |available )?(?:maximum )?context"
    r"|token count .{0,40}exceeds|exceeds the maximum number of tokens|must have less than \d+ tokens",
    re.IGNORECASE,
)
_TOO_LARGE_FOR_LIMIT = re.compile(r"request too large for", re.IGNORECASE)
"""It is more than the limit of a whole minute: no wait helps, a shorter one does (OpenAI, Groq)."""
_NO_CREDIT = re.compile(
    r"credit balance is too low|insufficient (?:balance|credits)|exceeded your current quota"
    r"|used all available credits|have any credits|monthly spending limit",
    re.IGNORECASE,
)
_BAD_KEY = re.compile(r"incorrect api key|api key not valid|invalid api key", re.IGNORECASE)


def error_of(
    status: int,
    headers: Mapping[str, str],
    data: Any,
    text: str = "",
    *,
    provider: str,
    model: str,
    errors_billed: bool = False,
) -> LLMError:
    """The error that an answer with this status is.

    Args:
        status: of HTTP; 200 where the body alone says that it failed.
        headers: by lower-case names.
        data: the body as JSON, or None when it is none or was not read.
        text: the body itself.
        provider: whose answer it is; `model` likewise.
        errors_billed: whether a failure of the provider may have been billed.
    """
    refusal = refusal_of(data, text)
    if status < 300:
        status = _status_named(refusal)
    wait_s = retry_after_s(headers, refusal.text if status == 429 else "")
    if wait_s is None and refusal.wait_s is not None:
        wait_s = min(refusal.wait_s, LONGEST_S)
    kind = _advised(_class_of(status, refusal, waits=wait_s is not None), headers)
    unclear = kind is TransientError and (errors_billed or refusal.codes & _RETRYABLE_CODES)
    error = kind(
        _sentence(status, headers, refusal),
        provider=provider,
        model=model,
        status_code=status,
        billed=None if unclear else False,
        retry_after_s=wait_s,
        request_id=request_id_in(headers),
        limits=rate_limits(headers),
    )
    if headers.get("x-should-retry", "").lower() == "false":
        error.retryable = False
    return error


def request_id_in(headers: Mapping[str, str]) -> str | None:
    """The id under which the provider knows the request, for its support; of a bounded length."""
    for name in ("x-request-id", "request-id"):
        value = "".join(filter(str.isprintable, headers.get(name, "")))
        if value:
            return value[:_REQUEST_ID_CHARS]
    return None


def _class_of(status: int, refusal: Refusal, *, waits: bool) -> type[LLMError]:
    if _is_quota(status, refusal, waits=waits):
        return QuotaExceeded
    if status in {401, 403} or refusal.codes & _AUTH_CODES or (status == 400 and _says(_BAD_KEY, refusal)):
        return AuthError
    if status == 413 or refusal.codes & _OVERFLOW_CODES:
        return ContextOverflow
    if status == 429:
        return ContextOverflow if _says(_TOO_LARGE_FOR_LIMIT, refusal) else RateLimited
    if status in {400, 422} and _says(_OVERFLOW, refusal):
        return RateLimited if _says(_THROTTLE, refusal) else ContextOverflow
    if status in {408, 409, 425} or status >= 500 or refusal.codes & _RETRYABLE_CODES:
        return TransientError
    return InvalidRequest


def _is_quota(status: int, refusal: Refusal, *, waits: bool) -> bool:
    if status == 402 or refusal.codes & _QUOTA_CODES:
        return True
    # Gemini says "you exceeded your current quota" of each minute, and then how long to wait.
    return status in {400, 403, 429} and not waits and _says(_NO_CREDIT, refusal)


def _advised(kind: type[LLMError], headers: Mapping[str, str]) -> type[LLMError]:
    """The provider may know that a request which it refused is worth another try."""
    if kind is InvalidRequest and headers.get("x-should-retry", "").lower() == "true":
        return TransientError
    return kind


def _status_named(refusal: Refusal) -> int:
    if refusal.status is not None and refusal.status >= 400:
        return refusal.status
    return next((_STATUS_OF[code] for code in sorted(refusal.codes) if code in _STATUS_OF), 502)


def _sentence(status: int, headers: Mapping[str, str], refusal: Refusal) -> str:
    if 300 <= status < 400:
        where = headers.get("location", "elsewhere")[:200]
        return f"the address redirects to {where}: set base_url to the one that answers"
    return refusal.message


def _says(pattern: re.Pattern[str], refusal: Refusal) -> bool:
    return pattern.search(refusal.text) is not None
