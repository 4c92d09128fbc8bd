"""What comes back from a tool call: always a value, also when it was refused."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

ERROR_CODES = frozenset(
    {
        "no_such_tool",
        "not_allowed",
        "bad_json",
        "bad_args",
        "needs_approval",
        "timeout",
        "tool_error",
        "outcome_unknown",
        "approval_denied",
        "approval_expired",
    }
)
"""Every reason for which a call has no good result. After `outcome_unknown` the tool may have acted."""

_ERROR_CHARS = 500

REFUSALS = frozenset({"approval_denied", "approval_expired"})
"""The codes for a person's word, or silence. They are no error: neither the model nor a tool did wrong."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of one call.

    `content` is what the model reads: the value, or what went wrong and what to do about it. `retryable`
    says whether the same call may work later. `raw` is the tool's own return value and never leaves the
    process. `cached` marks a result stored earlier in the run: the tool did not act again.
    """

    ok: bool
    content: str
    error_code: str | None = None
    retryable: bool = False
    raw: Any = None
    elapsed_ms: float = 0.0
    cached: bool = False
    suspended: bool = False
    """It is no result yet: the call waits for children or a person, or for a call before it that does."""
    asks: bool = False
    """Of a suspended one: a person must say whether a call that may have acted is made again."""

    @classmethod
    def failure(cls, code: str, content: str, *, retryable: bool = False) -> ToolResult:
        """A call without a good result.

        Raises:
            ValueError: for a code that is not in `ERROR_CODES`.
        """
        if code not in ERROR_CODES:
            raise ValueError(
                f"{code!r} is no error code of a tool, use one of: {', '.join(sorted(ERROR_CODES))}"
            )
        return cls(ok=False, content=content, error_code=code, retryable=retryable)


@dataclass(frozen=True, slots=True)
class Excerpt:
    """What a tool returned, as text, of which the end may be missing. `chars` is the length of all of it."""

    text: str
    chars: int


def excerpt_of(value: Any) -> Excerpt:
    """What a tool returned, as the text that a model reads."""
    if isinstance(value, Excerpt):
        return value
    text = text_of(value)
    return Excerpt(text, len(text))


def text_of(value: Any) -> str:
    """A text as it is, anything else as JSON, or as Python shows it where JSON cannot."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)
    except (TypeError, ValueError, RecursionError):
        # The tool has acted: what it returned must not turn that into an error.
        return str(value)


def cut(text: str, limit: int, *, chars: int | None = None) -> str:
    """The text, up to the limit, with a note of what is missing. `chars` is its length when it was whole."""
    omitted = (len(text) if chars is None else chars) - limit
    return text if omitted <= 0 else f"{text[:limit]}\n[cut: {omitted} more characters omitted]"


def described(error: BaseException) -> str:
    """Its class and up to 500 characters of its text."""
    return cut(f"{type(error).__name__}: {error}", _ERROR_CHARS)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return str(value)
