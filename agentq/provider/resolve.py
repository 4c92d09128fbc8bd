"""From what a user writes as `model=` to a client."""

from __future__ import annotations

import difflib
import functools
import importlib
from collections.abc import Callable
from typing import Any

from agentq.core.errors import UsageError
from agentq.provider.client import LLMClient
from agentq.provider.errors import InvalidRequest
from agentq.provider.scripted import ScriptedModel

ClientFactory = Callable[[], LLMClient]
"""Gives the client; made at the first call, the same one after that."""

NOT_YET = ("openai", "openai-chat", "anthropic")
PROVIDERS = ("scripted", *NOT_YET)


def resolve_model(model: object) -> ClientFactory:
    """The factory of the client that `model` names. A name that cannot work is refused here, at the start.

    Args:
        model: an object with `complete()`; `scripted` (the script is in the row's metadata);
            `scripted:path.json`; or `module:factory`, imported now and called once, when first needed.

    Raises:
        UsageError: in one sentence that says what to write instead.
    """
    if not isinstance(model, str):
        return _given(model)
    provider, colon, rest = model.partition(":")
    if provider == "scripted":
        return _scripted(rest)
    if provider in NOT_YET:
        raise UsageError(
            f"model {model!r}: the provider {provider!r} is not available in this version yet, "
            "use your own client as 'module:factory', or 'scripted'"
        )
    if not colon or not rest:
        raise UsageError(f"model {model!r} names no provider and no 'module:factory'{_nearest(provider)}")
    return _imported(model, provider, rest)


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
