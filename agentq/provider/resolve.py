"""From what a user writes as `model=` to a client."""

from __future__ import annotations

import difflib
import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from agentq.core.errors import UsageError
from agentq.provider.client import LLMClient
from agentq.provider.errors import InvalidRequest
from agentq.provider.scripted import ScriptedModel

ClientFactory = Callable[[], LLMClient]
"""Gives the client; made at the first call, the same one after that."""

ADAPTERS = {
    "openai": ("agentq.provider.openai_responses", "OpenAIResponses"),
    "openai-chat": ("agentq.provider.openai_chat", "OpenAIChat"),
    "anthropic": ("agentq.provider.anthropic", "Anthropic"),
}
PROVIDERS = ("scripted", *ADAPTERS)


def resolve_model(model: object, **options: Any) -> ClientFactory:
    """The factory of the client that `model` names. A name that cannot work is refused here, at the start.

    Args:
        model: an object with `complete()`; `openai:`, `openai-chat:` or `anthropic:` and the model's id;
            `scripted` (the script is in the row's metadata); `scripted:path.json`; or `module:factory`,
            imported now and called once, when first needed.
        options: of `HttpModel`, for a model of a provider; None is the default.

    Raises:
        UsageError: in one sentence that says what to write instead.
    """
    given = {name: value for name, value in options.items() if value is not None}
    provider, colon, rest = model.partition(":") if isinstance(model, str) else ("", "", "")
    if provider in ADAPTERS:
        return _adapter(provider, rest, given)
    for name in given:
        raise UsageError(
            f"{_OPTIONS.get(name, name)}= is for models of a provider ({', '.join(ADAPTERS)}), "
            f"and model={model!r} is none"
        )
    if not isinstance(model, str):
        return _given(model)
    if provider == "scripted":
        return _scripted(rest)
    if not colon or not rest:
        raise UsageError(f"model {model!r} names no provider and no 'module:factory'{_nearest(provider)}")
    return _imported(model, provider, rest)


_OPTIONS = {"options": "model_options"}
"""What an option is called where an agent is defined."""


def _adapter(provider: str, model: str, options: Mapping[str, Any]) -> ClientFactory:
    if not model.strip():
        raise UsageError(f"model '{provider}:' names no model, write '{provider}:' and its id")
    module, name = ADAPTERS[provider]
    adapter = getattr(importlib.import_module(module), name)
    try:
        client: LLMClient = adapter(model, **options)
    except InvalidRequest as error:
        raise UsageError(f"model '{provider}:{model}': {error.message}") from error
    return lambda: client


def _given(model: object) -> ClientFactory:
    if not callable(getattr(model, "complete", None)):
        raise UsageError(
            f"a model must be a name or have a method complete(request), not a {type(model).__name__}"
        )
    client: Any = model
    return lambda: client


def _scripted(path: str) -> ClientFactory:
    if not path:
        return functools.cache(ScriptedModel)
    try:
        client = ScriptedModel.from_file(path)
    except InvalidRequest as error:
        raise UsageError(error.message) from error
    return lambda: client


def _imported(model: str, module_name: str, factory_name: str) -> ClientFactory:
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(
            f"model {model!r}: cannot import {module_name!r} ({error}){_nearest(module_name)}"
        ) from error
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        raise UsageError(f"model {model!r}: {module_name!r} has no callable {factory_name!r}")

    @functools.cache
    def make() -> LLMClient:
        client: Any = factory()
        if not callable(getattr(client, "complete", None)):
            raise UsageError(
                f"model {model!r}: the factory returned a {type(client).__name__} without complete()"
            )
        made: LLMClient = client
        return made

    return make


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name, PROVIDERS, n=1)
    return f", did you mean {near[0]!r}?" if near else f", the providers are: {', '.join(PROVIDERS)}"
