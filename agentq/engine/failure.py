"""Failed model calls: what they may have cost, and whether, when and by whom the next one is made.

All is read from the class of the error, never from its text. No worker sleeps for a provider: the step is
given back with a due time, and its next claim knows from the number of failures which model it asks.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from agentq.core.text import encodable
from agentq.provider.client import LLMClient
from agentq.provider.errors import AuthError, LLMError, QuotaExceeded

FAILURES_MAX = 8
"""Failed calls in a row of one model on one step after which it is asked no more."""
UNCLEAR_FAILURES_MAX = 3
"""The same for those that may have been billed: each is charged in full."""
PATIENCE_SECONDS = 3_600.0
"""How long one step's calls may fail, waits included, before no further one is made."""
BACKOFF_CAP_MS = 60_000
ERROR_CHARS_MAX = 500

_REFUSALS: tuple[tuple[type[LLMError], str], ...] = (
    (AuthError, "provider_auth"),
    (QuotaExceeded, "provider_quota"),
)


@dataclass(frozen=True, slots=True)
class Chain:
    """The models that may answer a step, in their order, and how patiently each is tried."""

    links: Sequence[LLMClient]
    attempts: int = FAILURES_MAX
    seconds: float = PATIENCE_SECONDS

    def position(self, failures: int) -> int:
        """Which of them is asked after so many failures in a row."""
        return min(failures // self.attempts, len(self.links) - 1)


@dataclass(frozen=True, slots=True)
class NextTry:
    """Another call after a failure: when, and how many failures that one counts as."""

    delay_ms: int
    counts: int


def chain_of(client: LLMClient, seconds: float = PATIENCE_SECONDS) -> Chain:
    """A chain says itself how patient it is; any other client is asked again for so many seconds."""
    links: Sequence[LLMClient] | None = getattr(client, "chain", None)
    policy = getattr(client, "policy", None)
    if not links or policy is None:
        return Chain((client,), seconds=seconds)
    return Chain(links, min(policy.max_attempts, FAILURES_MAX), policy.total_deadline_s)


def next_try(
    error: Exception, chain: Chain, *, failures: int, unclear: int, failing_ms: int
) -> NextTry | None:
    """What follows a failed call, or None when no other is made.

    Args:
        error: what came of the call.
        chain: who may be asked.
        failures: how many calls of the step had failed in a row before this one.
        unclear: how many of all of them, this one too, may have been billed.
        failing_ms: how long they have been failing.
    """
    at = chain.position(failures)
    tries = failures - at * chain.attempts + 1
    delay_ms = backoff_ms(error, tries)
    # A worker without memory says nothing about the model: another one may have room.
    may = error.retryable if isinstance(error, LLMError) else isinstance(error, MemoryError)
    if (
        may
        and tries < chain.attempts
        and unclear < UNCLEAR_FAILURES_MAX * (at + 1)
        and failing_ms + delay_ms <= chain.seconds * 1000 * (at + 1)
    ):
        return NextTry(delay_ms, 1)
    if at + 1 < len(chain.links):
        return NextTry(0, (at + 1) * chain.attempts - failures)
    return None


def is_unclear(error: Exception) -> bool:
    """Whether a failed call may have been billed: only proof says that it was not."""
    return getattr(error, "billed", None) is not False


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
    """An error for the trace and for people, of a bounded length; a refused key or quota by its own word."""
    for kind, word in _REFUSALS:
        if isinstance(error, kind):
            return encodable(f"{word}: {error}"[:ERROR_CHARS_MAX])
    return encodable(f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX])
