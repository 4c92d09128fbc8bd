"""What can go wrong at a provider, told apart by what to do next and by what it may have cost."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import ClassVar, Final, Literal


class _Unset(Enum):
    BY_CLASS = 0


_BY_CLASS: Final = _Unset.BY_CLASS
_Billed = bool | Literal[_Unset.BY_CLASS] | None


class LLMError(Exception):
    """A call that failed.

    `retryable` says whether the same request may work later. `billed` is False only with proof that
    nothing was billed; None means unknown, and then the whole reservation is charged.
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
    ) -> None:
        super().__init__(message)
        self.message = message
        self.provider = provider
        self.model = model
        self.status_code = status_code
        self.cause = cause
        self.billed: bool | None = self.billed_default if billed is _BY_CLASS else billed

    def __str__(self) -> str:
        source = "/".join(part for part in (self.provider, self.model) if part)
        status = f" (HTTP {self.status_code})" if self.status_code is not None else ""
        return f"{source}: {self.message}{status}" if source else f"{self.message}{status}"


class RateLimited(LLMError):  # noqa: N818 - the seed's name
    """The provider turns requests away for now; `retry_after_s` is its own advice, if it gave any."""

    retryable = True
    billed_default = False

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float | None = None,
        provider: str = "",
        model: str = "",
        status_code: int | None = None,
        cause: BaseException | None = None,
        billed: _Billed = _BY_CLASS,
    ) -> None:
        super().__init__(
            message, provider=provider, model=model, status_code=status_code, cause=cause, billed=billed
        )
        self.retry_after_s = retry_after_s


class TransientError(LLMError):
    """A timeout, a lost connection, a failure of the provider.

    Adapters pass `billed=False` when it answered with an error, which proves that nothing was billed.
    """

    retryable = True


class InvalidRequest(LLMError):  # noqa: N818 - the seed's name
    """The request is wrong and stays wrong: trying again is no use."""

    billed_default = False


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
