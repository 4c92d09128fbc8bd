"""What the batch lines of providers have in common."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from agentq.core.words import nearest
from agentq.engine.rows import FIELDS, kind_of

OWN = tuple(name for name in FIELDS if name != "input")
"""Fields of a row that a batch line may have beside the provider's."""

MODEL_CHARS_MAX = 200
_TOOLS = ("tools", "functions", "mcp_servers")
# A stream's answer is the same one; empty tools are none.
_DROPPED = frozenset({"stream", "stream_options", *_TOOLS})


def fields_of(value: Mapping[str, Any], provider: Collection[str]) -> dict[str, Any]:
    """The row's fields of a line.

    Args:
        provider: the keys that the provider's form has.

    Raises:
        ValueError: for a key that neither has.
    """
    for key in value:
        if key not in provider and key not in OWN:
            known = (*provider, *(name for name in OWN if name not in provider))
            raise ValueError(
                f"unknown key {key!r}{nearest(key, known)}; such a line has {', '.join(provider)}"
            )
    return {name: value[name] for name in OWN if name in value}


def body_of(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The request in a line.

    Raises:
        ValueError: when it is none.
    """
    body = value.get(key)
    if not isinstance(body, Mapping):
        raise ValueError(f"{key!r} is an object, not {kind_of(body)}")
    return body


def call_of(dialect: str, body: Mapping[str, Any], where: str, spoken: Collection[str]) -> dict[str, Any]:
    """What a one-call run sends beside its messages; see `Row.call`.

    Args:
        dialect: the adapter that sends it.
        body: the request.
        where: what it is called in the line.
        spoken: the keys of it that are messages.

    Raises:
        ValueError: for a request that is not one call with one answer.
    """
    model = body.get("model")
    if not isinstance(model, str) or not 0 < len(model) <= MODEL_CHARS_MAX or not model.isprintable():
        raise ValueError(
            f"'{where}.model' is the name of a model, 1 to {MODEL_CHARS_MAX} printable characters; "
            "or name --agent, whose model stands"
        )
    for key in _TOOLS:
        if body.get(key):
            raise ValueError(f"'{where}.{key}': a call with tools is an agent's work: name one with --agent")
    if body.get("n") is not None and body["n"] != 1:
        raise ValueError(f"'{where}.n' is 1 here: a row has one answer; for more, write more rows")
    if body.get("background"):
        raise ValueError(f"'{where}.background' cannot be: the answer is waited for")
    return {
        "dialect": dialect,
        "model": model,
        "options": {
            key: said
            for key, said in body.items()
            if key != "model" and key not in spoken and key not in _DROPPED
        },
    }


def agent_of_call(call: Mapping[str, Any]) -> str:
    """The name of the agent that such a run has; a colon is in no other one."""
    return f"{call['dialect']}:{call['model']}"
