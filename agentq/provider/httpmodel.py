"""A model behind HTTP: what the three dialects share. One call is one request; who reserved it retries."""

from __future__ import annotations

import copy
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self

import httpx

from agentq.core.errors import UsageError
from agentq.provider.apikey import ApiKey, hide, key_tag
from agentq.provider.errors import AuthError, ContextOverflow, LLMError, TransientError
from agentq.provider.failures import error_of, request_id_in
from agentq.provider.hosts import address, is_public, provider_at
from agentq.provider.quirks import quirks_of
from agentq.provider.refusal import refusal_in
from agentq.provider.types import ChatRequest, ChatResult
from agentq.provider.waits import rate_limits
from agentq.provider.wire import Answer, Wire

CALL_SECONDS = 600.0
_NOTES_MAX = 256
_BYTES_PER_TOKEN = 4
_CUT_SHARE = 0.6
"""A prompt of which the server counts less than this share of an estimate was cut by it."""
_CUT_FROM_TOKENS = 2_000


class HttpModel(ABC):
    """One model of one dialect at one address. It keeps connections and nothing of a call.

    Args:
        model: its exact id.
        base_url: where the dialect's paths begin; by default the dialect's variable, then its public address.
        api_key_file: a file with the key; by default the dialect's variable, or the file that the variable
            with `_FILE` names. The key is read at each call.
        provider: the name under which its prices are looked up; by default as the address says.
        quirks: what this model wants otherwise, over `quirks.json` (see `Quirks`).
        options: added to each request as it is: `{"reasoning": {"effort": "low"}}`.
        call_seconds: the longest that one call may take.
        transport: in place of the network, for tests.

    Raises:
        UsageError: for a quirk that does not exist, or an option that is not the user's to set.
        InvalidRequest: for an address that is none.
    """

    dialect: ClassVar[str]
    path: ClassVar[str]
    vendor: ClassVar[str]
    key_variable: ClassVar[str]
    url_variable: ClassVar[str]
    public_url: ClassVar[str]
    own_keys: ClassVar[frozenset[str]] = frozenset()
    """What of a request is the adapter's: with another cap or a stream, what was reserved would not hold."""

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key_file: str | None = None,
        provider: str | None = None,
        quirks: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        call_seconds: float = CALL_SECONDS,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        url = base_url or os.environ.get(self.url_variable, "").strip() or self.public_url
        self.model = model
        self.base_url, login = address(url)
        self.provider = provider or provider_at(self.base_url, self.vendor)
        self.quirks = quirks_of(self.dialect, self.provider, self.base_url, model, quirks)
        self.options = dict(options or {})
        self._check_options()
        self._said: set[str] = set()
        self.key = ApiKey(self.key_variable, api_key_file)
        self._login, self._transport = login, transport
        self._wire = self._line(call_seconds)

    @property
    def by(self) -> str:
        """Who writes its turns, and may read them again."""
        return f"{self.dialect}:{self.model}"

    @property
    def native_schema(self) -> bool:
        """Whether the provider itself holds an answer to a schema; else the model must be told of it."""
        return self.quirks.native_schema == "schema" and self.quirks.schema_with_tools

    @property
    def lane(self) -> str:
        """What shares one rate limit: provider, account and model.

        Raises:
            AuthError: when the key cannot be had.
        """
        return f"{self.provider}:{key_tag(self.base_url, self._key())}:{self.model}"

    def with_options(self, options: Mapping[str, Any]) -> Self:
        """The same model on the same connections, with these options in place of its own.

        Raises:
            UsageError: for an option that is not the user's to set.
        """
        other = copy.copy(self)
        other.options = dict(options)
        other._check_options()
        return other

    def complete(self, req: ChatRequest) -> ChatResult:
        """Make one call.

        Raises:
            LLMError: a subclass, which says whether to try again and what may have been billed.
        """
        body = self.fitting(self.body(req) | self.options | dict(req.extra))
        key = self._key()
        answer = self._wire.post(
            self._path(), self.headers(key), body, provider=self.provider, model=self.model
        )
        try:
            self._refuse(answer)
            result = self._result(answer, req)
            self._check_prompt(req, result)
        except LLMError as error:
            hide(key, error)
            raise
        return result

    def ask_for_models(self, *, seconds: float) -> None:
        """Ask for the provider's list of models, which costs nothing, within so many seconds.

        Raises:
            LLMError: as a call would, for the key and the address.
        """
        path = "/v1/models" if self._path().startswith("/v1/") else "/models"
        key, wire = self._key(), self._line(seconds)
        try:
            answer = wire.get(path, self.headers(key), provider=self.provider, model=self.model)
            self._refuse(answer)
        except LLMError as error:
            hide(key, error)
            raise
        finally:
            wire.close()

    def close(self) -> None:
        """Give its connections back."""
        self._wire.close()

    # ── what a dialect says ──────────────────────────────────────────────────────────────────────

    @abstractmethod
    def headers(self, key: str | None) -> dict[str, str]:
        """The headers of a request beside its content type."""

    @abstractmethod
    def body(self, req: ChatRequest) -> dict[str, Any]:
        """The request in the dialect, with a history that the provider accepts."""

    @abstractmethod
    def result(self, data: Mapping[str, Any], req: ChatRequest) -> ChatResult:
        """The reply out of the body of a good answer.

        Raises:
            LLMError: when the body is none, or says that it failed.
            KeyError, TypeError, IndexError, ValueError, AttributeError: when its shape is another one.
        """

    def fitting(self, body: dict[str, Any]) -> dict[str, Any]:
        """The whole request, options included, without what does not go together."""
        return body

    # ── what all share ───────────────────────────────────────────────────────────────────────────

    def _key(self) -> str | None:
        key = self.key.read()
        if key is None and is_public(self.base_url):
            raise AuthError(
                f"{self.key_variable} is not set: export it, or name a file with api_key_file=",
                provider=self.provider,
                model=self.model,
            )
        return key

    def _line(self, seconds: float) -> Wire:
        return Wire(self.base_url, login=self._login, seconds=seconds, transport=self._transport)

    def _check_options(self) -> None:
        for name in sorted(self.options.keys() & self.own_keys):
            raise UsageError(
                f"the option {name!r} is not to be set: agentq sets it for each call",
                hint="the cap on an answer is max_output_tokens=, a history and tools are the agent's",
            )

    def once(self, notes: Iterable[str]) -> tuple[str, ...]:
        """The notes that were not given yet: what is the same of each call is said of the first."""
        new = tuple(dict.fromkeys(note for note in notes if note not in self._said))
        if len(self._said) < _NOTES_MAX:
            self._said.update(new)
            return new
        return ()

    def _path(self) -> str:
        return self.path

    def _refuse(self, answer: Answer) -> None:
        # A 200 may carry an error: what the body says goes before the line that it came under.
        if 200 <= answer.status < 300 and refusal_in(answer.data) is None:
            return
        error = error_of(
            answer.status,
            answer.headers,
            answer.data,
            answer.text,
            provider=self.provider,
            model=self.model,
            errors_billed=self.quirks.errors_billed,
        )
        if answer.status < 300 and isinstance(answer.data, dict) and answer.data.get("usage"):
            error.billed = None  # it broke off, and counts what it had used
        raise error

    def _result(self, answer: Answer, req: ChatRequest) -> ChatResult:
        request_id = request_id_in(answer.headers)
        try:
            if not isinstance(answer.data, dict):
                raise ValueError("its answer is no JSON object")
            result = self.result(answer.data, req)
        except (KeyError, TypeError, IndexError, ValueError, AttributeError, ArithmeticError) as error:
            # It was answered, and billed perhaps; what it said is lost.
            raise TransientError(
                f"the answer cannot be read: {type(error).__name__}: {error}",
                provider=self.provider,
                model=self.model,
                status_code=answer.status,
                request_id=request_id,
                cause=error,
            ) from error
        return replace(result, request_id=request_id, limits=rate_limits(answer.headers))

    def _check_prompt(self, req: ChatRequest, result: ChatResult) -> None:
        if not self.quirks.cuts_prompt or not result.usage.input_tokens:
            return
        size = len((req.system or "").encode("utf-8", "surrogatepass"))
        size += sum(len(m.content.encode("utf-8", "surrogatepass")) for m in req.messages)
        estimate = size // _BYTES_PER_TOKEN
        counted = result.usage.input_tokens
        if estimate > _CUT_FROM_TOKENS and counted < estimate * _CUT_SHARE:
            raise ContextOverflow(
                f"the server cut the prompt: about {estimate} tokens were sent and {counted} read; "
                "raise its context (Ollama: OLLAMA_CONTEXT_LENGTH)",
                provider=self.provider,
                model=self.model,
                request_id=result.request_id,
                billed=None,
            )
