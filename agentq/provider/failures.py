"""From a provider's refusal to one of our classes, by status and code. The class says what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
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
from agentq.provider.waits import rate_limits, retry_after_s

_MESSAGE_CHARS = 400

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
    }
)
"""What OpenAI, Anthropic and DeepSeek call an account without money or quota."""
_OVERFLOW_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error", "request_too_large"})
_RETRYABLE_CODES = frozenset({"tool_use_failed"})
"""The model wrote something that its server could not read (Groq): another try may go well."""

# Providers have no code in common for a prompt that is too long. A throttle speaks of many tokens, too.
_THROTTLE = re.compile(r"please wait|try again|per minute|rate limit|throttl", re.IGNORECASE)
_OVERFLOW = re.compile(
    r"prompt is too long|maximum context length|context length exceeded|exceeds? the (?:model's )?context"
    r"|exceed context limit|context window|context size|too many (?:input )?tokens|input is too long"
    r"|maximum prompt length|reduce the length of the messages",
    re.IGNORECASE,
)
_NO_CREDIT = re.compile(
    r"credit balance is too low|insufficient balance|exceeded your current quota", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """What an error body says, whatever its shape: `codes` are all its codes and types, in lower case."""

    message: str
    codes: frozenset[str]
    status: int | None = None
    """The status that the body names, where it stands in for the real one (OpenRouter, in a 200)."""


def refusal_in(data: Any) -> Refusal | None:
    """The error that a body of JSON carries, or None when it carries none."""
    error = data.get("error") if isinstance(data, dict) else None
    if error is None and isinstance(data, dict) and data.get("type") == "error":
        error = data
    if not error:
        return None
    if not isinstance(error, dict):
        return Refusal(str(error)[:_MESSAGE_CHARS], frozenset())
    details = _mapping(error.get("details"))
    metadata = _mapping(error.get("metadata"))
    code = error.get("code")
    named = [code, error.get("type"), error.get("status"), details.get("error_code"), data.get("code")]
    status = _status(code)
    raw = metadata.get("raw")
    message = str(error.get("message") or error.get("type") or code or "no reason given")
    if isinstance(raw, str) and raw and raw not in message:
        message = f"{message}: {raw}"
    codes = frozenset(str(name).lower() for name in named if name and not _status(name))
    return Refusal(message[:_MESSAGE_CHARS], codes, status)


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
        status: of HTTP, or the one that a body in a 200 names.
        headers: by lower-case names.
        data: the body as JSON, or None when it is none.
        text: the body, where it is no JSON.
        provider: whose answer it is; `model` likewise.
        errors_billed: whether a failure of the provider may have been billed.
    """
    refusal = refusal_in(data) or Refusal(_first_line(text) or "no reason given", frozenset())
    kind, retryable = _class_of(status, refusal)
    billed = None if kind is TransientError and (errors_billed or refusal.codes & _RETRYABLE_CODES) else False
    error = kind(
        refusal.message,
        provider=provider,
        model=model,
        status_code=status,
        billed=billed,
        retry_after_s=retry_after_s(headers, refusal.message if status == 429 else ""),
        request_id=headers.get("x-request-id") or headers.get("request-id"),
        limits=rate_limits(headers),
    )
    if retryable and headers.get("x-should-retry", "").lower() == "false":
        error.retryable = False
    return error


def _class_of(status: int, refusal: Refusal) -> tuple[type[LLMError], bool]:
    if status in {401, 403} and not refusal.codes & _QUOTA_CODES:
        return AuthError, False
    if (
        status == 402
        or refusal.codes & _QUOTA_CODES
        or (status in {400, 403, 429} and _says(_NO_CREDIT, refusal))
    ):
        return QuotaExceeded, False
    if status == 429:
        return RateLimited, True
    if status == 413 or refusal.codes & _OVERFLOW_CODES:
        return ContextOverflow, False
    if status in {400, 422} and _says(_OVERFLOW, refusal) and not _says(_THROTTLE, refusal):
        return ContextOverflow, False
    if status in {408, 409, 425} or status >= 500 or refusal.codes & _RETRYABLE_CODES:
        return TransientError, True
    return InvalidRequest, False


def _says(pattern: re.Pattern[str], refusal: Refusal) -> bool:
    return pattern.search(refusal.message) is not None


def _status(code: Any) -> int | None:
    if isinstance(code, str) and code.isdigit():
        code = int(code)
    return code if isinstance(code, int) and not isinstance(code, bool) and 100 <= code <= 599 else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _first_line(text: str) -> str:
    plain = re.sub(r"<[^>]*>", " ", text)
    return " ".join(plain.split())[:200]
