"""Which failures of a call may be followed by another call."""

from __future__ import annotations

import pytest

from agentq.engine.failure import FAILURES_MAX, UNCLEAR_FAILURES_MAX, is_unclear, may_retry
from agentq.provider.errors import AuthError, RateLimited


@pytest.mark.parametrize(
    "error, may",
    [
        (RateLimited("slow down"), True),
        (AuthError("no such key"), False),
        (ValueError("a bug of the client"), False),
        (MemoryError("this worker is full"), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_says_nothing_against_another_call_is_tried_again(error: Exception, may: bool):
    assert may_retry(error, failures=1, unclear=1) is may


def test_neither_failures_nor_unclear_ones_go_on_for_ever():
    error = MemoryError()
    assert is_unclear(error)
    assert not may_retry(error, failures=1, unclear=UNCLEAR_FAILURES_MAX)
    assert not may_retry(RateLimited("slow down"), failures=FAILURES_MAX, unclear=0)
