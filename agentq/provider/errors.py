"""What can go wrong at a provider, told apart by what to do next and by what it may have cost."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import ClassVar, Final, Literal

from agentq.provider.types import RateLimits


class _Unset(Enum):
    BY_CLASS = 0


_BY_CLASS: Final = _Unset.BY_CLASS
_Billed = bool | Literal[_Unset.BY_CLASS] | None


class LLMError(Exception):
    """A call that failed.

    `retryable` says whether the same request may work later, and `retry_after_s` when, if the provider said
    so: it is the least to wait. `billed` is False only with proof that nothing was billed; None means
    unknown, and then the whole reservation is charged. `limits` is what the provider said of its limits.
    """

    retryable: bool = False
    billed_default: ClassVar[bool | None] = None

    def __init__(
        self,
        message: str,
        *,
        provider: str = "",
        model: str = "",
        status_code: int | None = None,
        cause: BaseException | None = None,
        billed: _Billed = _BY_CLASS,
        retry_after_s: float | None = None,
        request_id: str | None = None,
        limits: RateLimits | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.provider = provider
        self.model = model
        self.status_code = status_code
        self.cause = cause
        self.billed: bool | None = self.billed_default if billed is _BY_CLASS else billed
        self.retry_after_s = retry_after_s
        self.request_id = request_id
        self.limits = limits

    def __str__(self) -> str:
        source = "/".join(part for part in (self.provider, self.model) if part)
        of = [f"HTTP {self.status_code}"] if self.status_code is not None else []
        of += [self.request_id] if self.request_id else []
        text = f"{self.message} ({', '.join(of)})" if of else self.message
        return f"{source}: {text}" if source else text


class RateLimited(LLMError):  # noqa: N818 - the seed's name
    """The provider turns requests away for now. It turns all away that share the key, so all wait."""

    retryable = True
    billed_default = False


class QuotaExceeded(LLMError):  # noqa: N818 - named as the others are
    """The account has no money or no quota left. It stays so until a person acts: the fleet stops calling."""

    billed_default = False


class TransientError(LLMError):
    """A timeout, a lost connection, a failure of the provider.

    Adapters pass `billed=False` when it answered with an error, which proves that nothing was billed.
    """

    retryable = True


class InvalidRequest(LLMError):  # noqa: N818 - the seed's name
    """The request is wrong and stays wrong: trying again is no use."""

    billed_default = False


class ContextOverflow(InvalidRequest):
    """The request is longer than the model's window."""


class AuthError(LLMError):
    """The key is missing, wrong or may not use this model."""

    billed_default = False


class AllProvidersFailed(LLMError):  # noqa: N818 - the seed's name
    """Every link of a chain failed; `failures` holds (provider/model, error) in the order they were tried."""

    def __init__(self, failures: Sequence[tuple[str, LLMError]]) -> None:
        self.failures = list(failures)
        text = "; ".join(f"{name}: {error.message}" for name, error in self.failures)
        proven = all(error.billed is False for _, error in self.failures)
        super().__init__(f"every provider failed: {text}", billed=False if proven else None)
        self.retryable = any(error.retryable for _, error in self.failures)
