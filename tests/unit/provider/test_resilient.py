"""Retries by the error's class, a deadline, and fallbacks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agentq.provider.client import LLMClient
from agentq.provider.errors import (
    AllProvidersFailed,
    AuthError,
    InvalidRequest,
    LLMError,
    RateLimited,
    TransientError,
)
from agentq.provider.resilient import ResilientClient, RetryPolicy
from agentq.provider.types import ChatRequest, ChatResult, Message, Role, Usage

REQUEST = ChatRequest([Message(Role.USER, "x")])
STEADY = RetryPolicy(jitter_s=0.0)


class Flaky:
    """Raises its errors one by one, then answers."""

    provider = "p"

    def __init__(self, model: str, errors: Sequence[LLMError]) -> None:
        self.model = model
        self.errors = list(errors)
        self.calls = 0

    def complete(self, req: ChatRequest) -> ChatResult:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return ChatResult("ok", Usage(1, 1), self.provider, self.model)


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.time = 0.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds


def test_a_transient_error_is_tried_again_with_growing_waits() -> None:
    """Two failures, then the answer."""
    clock = Clock()
    flaky = Flaky("m", [TransientError("a"), TransientError("b")])
    client = ResilientClient(flaky, policy=STEADY, sleep=clock.sleep, now=clock.now)
    assert isinstance(client, LLMClient)
    assert client.complete(REQUEST).text == "ok"
    assert clock.slept == [0.5, 1.0]


@pytest.mark.parametrize("error", [InvalidRequest("no"), AuthError("no")])
def test_a_final_error_is_not_tried_again(error: LLMError) -> None:
    """And without fallbacks it is raised as it is."""
    flaky = Flaky("m", [error])
    with pytest.raises(LLMError) as caught:
        ResilientClient(flaky, policy=STEADY).complete(REQUEST)
    assert caught.value is error
    assert flaky.calls == 1


def test_the_providers_advice_is_followed() -> None:
    """A longer retry-after goes before our own wait, unless it is not to be honoured."""
    error = RateLimited("slow", retry_after_s=7)
    assert STEADY.delay_for(1, error) == 7
    assert RetryPolicy(jitter_s=0.0, honor_retry_after=False).delay_for(1, error) == 0.5
    assert STEADY.delay_for(30, TransientError("x")) == 20.0
    assert all(0.5 <= RetryPolicy().delay_for(1, TransientError("x")) <= 0.75 for _ in range(50))


def test_no_wait_is_begun_that_would_end_after_the_deadline() -> None:
    """An advice of an hour is a failure now."""
    clock = Clock()
    flaky = Flaky("m", [RateLimited("slow", retry_after_s=3600)])
    with pytest.raises(RateLimited):
        ResilientClient(flaky, policy=STEADY, sleep=clock.sleep, now=clock.now).complete(REQUEST)
    assert clock.slept == []


def test_a_fallback_answers_and_is_counted() -> None:
    """Who failed and who follows is told; the reply names the model that answered."""
    told: list[tuple[str, str]] = []
    client = ResilientClient(
        Flaky("a", [AuthError("no")]),
        [Flaky("b", [])],
        policy=STEADY,
        on_fallback=lambda failed, following, error: told.append((failed, following)),
    )
    assert client.complete(REQUEST).model == "b"
    assert (client.fallbacks_taken, told) == (1, [("p/a", "p/b")])
    assert (client.provider, client.model, client.models) == ("p", "a", ("a", "b"))


def test_a_chain_that_fails_whole_says_so_and_what_it_may_have_cost() -> None:
    """Nothing was billed only if every link has proof."""
    proof = ResilientClient(Flaky("a", [AuthError("x")]), [Flaky("b", [InvalidRequest("y")])], policy=STEADY)
    with pytest.raises(AllProvidersFailed, match="p/a: x; p/b: y") as caught:
        proof.complete(REQUEST)
    assert caught.value.billed is False
    assert not caught.value.retryable
    unclear = AllProvidersFailed([("a", AuthError("x")), ("b", TransientError("y"))])
    assert unclear.billed is None
    assert unclear.retryable


def test_one_unclear_try_makes_the_whole_call_unclear() -> None:
    """A timeout may have been billed although the last error was free."""
    clock = Clock()
    flaky = Flaky("m", [TransientError("timeout"), RateLimited("slow"), RateLimited("slow")])
    with pytest.raises(RateLimited) as caught:
        ResilientClient(flaky, policy=STEADY, sleep=clock.sleep, now=clock.now).complete(REQUEST)
    assert caught.value.billed is None


def test_what_an_error_says_about_money_is_its_class_unless_told() -> None:
    """Unknown is the default only where it must be."""
    assert [kind("x").billed for kind in (RateLimited, InvalidRequest, AuthError)] == [False] * 3
    assert TransientError("x").billed is None
    assert TransientError("x", billed=False).billed is False
    assert RateLimited("x", billed=None).billed is None
    assert str(TransientError("x", provider="p", model="m", status_code=503)) == "p/m: x (HTTP 503)"
