"""A client that tries again, and then somewhere else."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentq.provider.client import LLMClient, named
from agentq.provider.errors import AllProvidersFailed, LLMError
from agentq.provider.types import ChatRequest, ChatResult


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how patiently one link of the chain is tried. Times are seconds.

    `total_deadline_s` bounds the tries of one link: no wait that would end after it is begun.
    """

    max_attempts: int = 3
    base_delay_s: float = 0.5
    max_delay_s: float = 20.0
    jitter_s: float = 0.25
    total_deadline_s: float = 45.0
    honor_retry_after: bool = True

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError("max_attempts must be 1 or more: the first try counts")

    def delay_for(self, attempt: int, error: LLMError) -> float:
        """Seconds to wait after the failed try number `attempt`, counted from 1."""
        delay = min(self.max_delay_s, self.base_delay_s * 2.0 ** (attempt - 1))
        if self.honor_retry_after and error.retry_after_s is not None:
            delay = max(delay, error.retry_after_s)
        return delay + random.uniform(0, self.jitter_s)  # noqa: S311 - spreads load, guards nothing


class ResilientClient:
    """The primary model with retries, then each fallback with retries.

    Whether to try again is read from the error's class alone. A try that failed without proof that it was
    free makes the whole call's `billed` unknown; the usage of such a try is not in the reply.
    """

    def __init__(
        self,
        primary: LLMClient,
        fallbacks: Sequence[LLMClient] = (),
        *,
        policy: RetryPolicy | None = None,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
        on_fallback: Callable[[str, str, LLMError], None] | None = None,
    ) -> None:
        self.chain: tuple[LLMClient, ...] = (primary, *fallbacks)
        self.policy = policy or RetryPolicy()
        self.fallbacks_taken = 0
        self._sleep = sleep
        self._now = now
        self._on_fallback = on_fallback

    @property
    def provider(self) -> str:
        """The primary's provider."""
        return self.chain[0].provider

    @property
    def model(self) -> str:
        """The primary's model."""
        return self.chain[0].model

    @property
    def models(self) -> tuple[str, ...]:
        """Every model that may answer: the worst case is the dearest of them."""
        return tuple(client.model for client in self.chain)

    @property
    def native_schema(self) -> bool:
        """Whether every model of the chain is held to a schema by its provider."""
        return all(getattr(client, "native_schema", False) for client in self.chain)

    def complete(self, req: ChatRequest) -> ChatResult:
        """The first good reply.

        Raises:
            AllProvidersFailed: when there are fallbacks and every link failed.
            LLMError: the last error, when there are none.
        """
        failures: list[tuple[str, LLMError]] = []
        for position, client in enumerate(self.chain):
            try:
                return self._try(client, req)
            except LLMError as error:
                failures.append((named(client), error))
                if position + 1 < len(self.chain):
                    self._fall_back(client, self.chain[position + 1], error)
        if len(failures) == 1:
            raise failures[0][1]
        raise AllProvidersFailed(failures) from failures[-1][1]

    def _try(self, client: LLMClient, req: ChatRequest) -> ChatResult:
        deadline = self._now() + self.policy.total_deadline_s
        unproven = False
        attempt = 1
        while True:
            try:
                return client.complete(req)
            except LLMError as error:
                unproven = unproven or error.billed is not False
                delay = self.policy.delay_for(attempt, error)
                last = attempt >= self.policy.max_attempts or self._now() + delay > deadline
                if last or not error.retryable:
                    if unproven and error.billed is False:
                        error.billed = None
                    raise
            self._sleep(delay)
            attempt += 1

    def _fall_back(self, failed: LLMClient, following: LLMClient, error: LLMError) -> None:
        self.fallbacks_taken += 1
        if self._on_fallback is not None:
            self._on_fallback(named(failed), named(following), error)
