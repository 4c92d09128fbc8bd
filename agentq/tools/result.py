"""What comes back from a tool call: always a value, also when it was refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
