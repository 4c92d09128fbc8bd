"""What one model, or one server, wants otherwise than its dialect says: data that users can override."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from importlib import resources
from typing import Any, Literal, get_args, get_type_hints

from agentq.core.errors import UsageError
from agentq.core.words import nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirks:
    """The ways of one model. The defaults are what most servers of a dialect understand."""

    output_cap: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """The name of the output cap in chat completions; both are never sent."""
    system_role: Literal["system", "developer"] = "system"
    """The role of the instructions."""
    content_with_calls: Literal["null", "empty"] = "null"
    """What stands for no text in an assistant's message that has calls."""
    call_ids: Literal["any", "40", "mistral"] = "any"
    """What ids of calls may be: any text up to 64 characters, up to 40, or nine letters and digits."""
    schema_keys: Literal["all", "plain"] = "all"
    """Whether schemas keep all their keys, or only those that every server knows."""
    native_schema: Literal["schema", "object", "none"] = "schema"
    """How an answer is held to a schema: by the schema, as some JSON object, or only by being told."""
    schema_with_tools: bool = True
    """Whether an answer can be held to a schema in a request that has tools."""
    effort_with_tools: str | None = None
    """The `reasoning_effort` without which the model refuses tools."""
    parallel_tool_calls: bool = True
    """Whether the switch of that name may be sent at all."""
    forbidden_tools: Literal["left_out", "declared"] = "left_out"
    """What becomes of tools that may not be called: some gateways refuse a history with calls of others."""
    user_after_tool: bool = True
    """Whether a user's message may follow a tool's, or another one of the user's."""
    keeps_turns: bool = True
    """Whether what a reply holds beside text and calls (reasoning) is taken back; some refuse their own."""
    temperature: bool = True
    """Whether a temperature may be sent."""
    reasons: bool = False
    """Whether it thinks before it answers: its encrypted thoughts are asked for, and sent back."""
    prompt_cache: bool = True
    """Whether the parts of a prompt that stay the same are marked for the provider's cache."""
    cuts_prompt: bool = False
    """The server may cut the front of a long prompt and answer all the same."""
    errors_billed: bool = False
    """A failure of the provider (5xx) may have been billed, so it is charged in full."""


_NAMES = tuple(field.name for field in fields(Quirks))


def quirks_of(
    dialect: str, provider: str, base_url: str, model: str, own: Mapping[str, Any] | None = None
) -> Quirks:
    """The ways of a model: those of each entry of `quirks.json` that fits, in order, then the user's own.

    Raises:
        UsageError: for a name or a value of `own` that does not exist.
    """
    known = Quirks()
    for entry in _table():
        if (
            entry["dialect"] == dialect
            and entry.get("provider", provider) == provider
            and any(fnmatchcase(model, pattern) for pattern in entry["model"])
            and any(fnmatchcase(base_url, pattern) for pattern in entry.get("base_url", ["*"]))
        ):
            known = replace(known, **entry["set"])
    return replace(known, **_checked(own or {}))


def _checked(own: Mapping[str, Any]) -> Mapping[str, Any]:
    hints = get_type_hints(Quirks)
    for name, value in own.items():
        if name not in _NAMES:
            raise UsageError(
                f"there is no quirk {name!r}{nearest(name, _NAMES)}", hint=f"they are: {', '.join(_NAMES)}"
            )
        choices = get_args(hints[name])
        fits = isinstance(value, bool) if hints[name] is bool else True
        if choices and type(None) not in choices:
            fits = value in choices
        elif choices:
            fits = value is None or isinstance(value, str)
        if not fits:
            words = [choice for choice in choices if isinstance(choice, str)]
            one_of = "true or false" if hints[name] is bool else ", ".join(words) or "a text, or none"
            raise UsageError(f"the quirk {name} cannot be {value!r}: it is {one_of}")
    return own


@functools.cache
def _table() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(
        resources.files("agentq.provider").joinpath("quirks.json").read_text("utf-8")
    )
    return entries
