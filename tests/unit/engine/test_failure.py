"""Which failures of a call may be followed by another call, when, and by which model."""

from __future__ import annotations

import pytest

from agentq.agent import ScriptedClient
from agentq.engine.failure import (
    FAILURES_MAX,
    UNCLEAR_FAILURES_MAX,
    Chain,
    NextTry,
    backoff_ms,
    chain_of,
    described,
    is_unclear,
    next_try,
)
from agentq.provider.errors import (
    AuthError,
    ContextOverflow,
    InvalidRequest,
    QuotaExceeded,
    RateLimited,
    TransientError,
)
from agentq.provider.resilient import ResilientClient, RetryPolicy

FIRST, SECOND = ScriptedClient(["a"], model="first"), ScriptedClient(["b"], model="second")
ALONE = Chain((FIRST,))
PAIR = Chain((FIRST, SECOND), attempts=3, seconds=45)


def after(
    error: Exception, chain: Chain = ALONE, *, failures: int = 0, unclear: int = 0, failing_ms: int = 0
):
    return next_try(error, chain, failures=failures, unclear=unclear, failing_ms=failing_ms)


@pytest.mark.parametrize(
    "error, may",
    [
        (RateLimited("slow down"), True),
        (TransientError("503"), True),
        (AuthError("no such key"), False),
        (QuotaExceeded("no money"), False),
        (InvalidRequest("no"), False),
        (ContextOverflow("too long"), False),
        (ValueError("a bug of the client"), False),
        (MemoryError("this worker is full"), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_class_alone_says_whether_the_same_model_is_asked_again(error: Exception, may: bool):
    found = after(error)
    assert (found is not None) is may
    if found is not None:
        assert found.counts == 1
        assert found.delay_ms >= 500


def test_neither_failures_nor_unclear_ones_go_on_for_ever():
    error = MemoryError()
    assert is_unclear(error)
    assert after(error, unclear=UNCLEAR_FAILURES_MAX) is None
    assert after(RateLimited("slow down"), failures=FAILURES_MAX - 2) is not None
    assert after(RateLimited("slow down"), failures=FAILURES_MAX - 1) is None


def test_no_wait_is_begun_that_ends_after_the_patience_is_over():
    patient = Chain((FIRST,), seconds=60)
    assert after(RateLimited("later", retry_after_s=30), patient, failures=1, failing_ms=20_000) is not None
    assert after(RateLimited("later", retry_after_s=30), patient, failures=1, failing_ms=31_000) is None


def test_the_wait_doubles_and_is_never_less_than_the_provider_asks_for():
    assert 500 <= backoff_ms(TransientError("x"), 1) <= 750
    assert 4_000 <= backoff_ms(TransientError("x"), 4) <= 6_000
    assert 60_000 <= backoff_ms(TransientError("x"), 20) <= 62_000
    assert backoff_ms(TransientError("x", retry_after_s=300), 1) >= 300_000


def test_a_link_of_a_chain_is_tried_as_often_as_its_policy_says_then_the_next_is_asked_at_once():
    error = TransientError("503", billed=False)
    assert [PAIR.position(failures) for failures in range(8)] == [0, 0, 0, 1, 1, 1, 1, 1]
    first, second, third = (after(error, PAIR, failures=failures) for failures in range(3))
    assert first is not None
    assert second is not None
    assert (first.counts, second.counts) == (1, 1)
    assert third == NextTry(0, 1)
    assert after(error, PAIR, failures=5) is None


def test_what_no_wait_cures_goes_to_the_next_link_at_once():
    skipped = after(AuthError("no such key"), PAIR)
    assert skipped == NextTry(0, 3)
    assert PAIR.position(0 + skipped.counts) == 1
    assert after(AuthError("no such key"), PAIR, failures=3) is None


def test_a_link_that_may_have_billed_three_calls_is_left_and_the_next_has_three_of_its_own():
    lost = TransientError("the connection broke")
    patient = Chain((FIRST, SECOND), attempts=8, seconds=1_000)
    assert after(lost, patient, failures=2, unclear=3) == NextTry(0, 6)
    assert after(lost, patient, failures=8, unclear=5) is not None
    assert after(lost, patient, failures=8, unclear=6) is None


def test_a_resilient_client_says_its_chain_and_its_patience_and_any_other_has_that_of_the_settings():
    client = ResilientClient(FIRST, [SECOND], policy=RetryPolicy(max_attempts=2, total_deadline_s=9))
    assert chain_of(client, 50) == Chain((FIRST, SECOND), attempts=2, seconds=9)
    assert chain_of(FIRST, 50) == Chain((FIRST,), attempts=FAILURES_MAX, seconds=50)


def test_a_refused_key_and_an_empty_account_are_named_by_their_own_words():
    assert described(AuthError("no such key")) == "provider_auth: no such key"
    assert described(QuotaExceeded("no money")) == "provider_quota: no money"
    assert described(RateLimited("slow")) == "RateLimited: slow"
