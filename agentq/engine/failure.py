"""Failed model calls: what they may have cost, and how long to wait before the next."""

from __future__ import annotations

import random

from agentq.core.text import encodable
from agentq.provider.errors import LLMError

FAILURES_MAX = 8
"""Failed model calls in a row on one step after which no further one is made."""
UNCLEAR_FAILURES_MAX = 3
"""The same for those that may have been billed: each is charged in full."""
BACKOFF_CAP_MS = 60_000
ERROR_CHARS_MAX = 500


def is_unclear(error: Exception) -> bool:
    """Whether a failed call may have been billed: only proof says that it was not."""
    return getattr(error, "billed", None) is not False


def may_retry(error: Exception, *, failures: int, unclear: int) -> bool:
    """Whether another call may follow this error, the `failures`-th in a row, `unclear` of them unclear."""
    # A worker without memory says nothing about the model: another one may have room.
    may = error.retryable if isinstance(error, LLMError) else isinstance(error, MemoryError)
    if not may:
        return False
    return failures < FAILURES_MAX and unclear < UNCLEAR_FAILURES_MAX


def backoff_ms(error: Exception, failures: int) -> int:
    """The wait after the `failures`-th failure in a row: doubled each time, never under Retry-After."""
    delay_ms = min(500 * 2 ** (failures - 1), BACKOFF_CAP_MS)
    after_s: float | None = getattr(error, "retry_after_s", None)
    if after_s is not None:
        delay_ms = max(delay_ms, round(after_s * 1000))
    return spread(delay_ms)


def spread(delay_ms: int) -> int:
    """A delay and up to half as much again, at most 2 s: those who wait do not come back together."""
    return delay_ms + random.randrange(min(delay_ms // 2, 2_000) + 1)  # noqa: S311 - jitter


def described(error: Exception) -> str:
    """An error for the trace and for people, of a bounded length."""
    return encodable(f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX])
