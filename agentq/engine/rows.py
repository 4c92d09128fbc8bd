"""Rows: what a person asks a batch to do, one JSON object each.

    {"custom_id": "t-17", "input": "…", "agent": "triage", "metadata": {}, "context": {}, "max_usd": "0.10"}

Only `input` is required.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from agentq.core.money import to_nano
from agentq.core.words import nearest

FIELDS = ("input", "custom_id", "agent", "metadata", "context", "max_usd")
ROLES = ("system", "user", "assistant")
CONTEXT_BYTES_MAX = 8_000
CUSTOM_ID_CHARS_MAX = 256


@dataclass(frozen=True, slots=True)
class Row:
    """One run as it was asked for. `custom_id` and `agent` are empty where the line left them out."""

    input: str | list[dict[str, str]]
    custom_id: str = ""
    agent: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    context: Mapping[str, Any] = field(default_factory=dict)
    max_usd: Decimal | None = None
    where: str = field(default="", compare=False)
    """Where it was read, as `file:line`; not a part of its content."""

    def messages(self) -> list[dict[str, str]]:
        """The conversation that the run starts with: `{"role", "content"}` each."""
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}]
        return [dict(message) for message in self.input]

    @property
    def content_hash(self) -> str:
        """16 hex digits that are equal for equal rows, whatever their id and the order of their keys."""
        content = {
            "input": self.input,
            "agent": self.agent,
            "metadata": self.metadata,
            "context": self.context,
            "max_usd": None if self.max_usd is None else to_nano(self.max_usd),
        }
        return hashlib.sha256(_compact(content, sort_keys=True).encode()).hexdigest()[:16]


def parse_row(mapping: Mapping[str, Any]) -> Row:
    """Check one row and give it its types.

    Raises:
        ValueError: with one sentence that says what is wrong and what would be right.
    """
    if not isinstance(mapping, Mapping):
        raise ValueError(f"a row is an object, not {kind_of(mapping)}")
    for key in mapping:
        if key not in FIELDS:
            raise ValueError(f"unknown key {key!r}{nearest(key, FIELDS)}; a row has {', '.join(FIELDS)}")
    if "input" not in mapping:
        raise ValueError("the row has no 'input'")
    row = Row(
        input=_input(mapping["input"]),
        custom_id=_name(mapping, "custom_id"),
        agent=_name(mapping, "agent"),
        metadata=_object(mapping, "metadata"),
        context=_object(mapping, "context"),
        max_usd=_usd(mapping.get("max_usd")),
    )
    try:
        row.custom_id.encode()
        _ = row.content_hash
    except UnicodeEncodeError:
        raise ValueError("the row holds half of a surrogate pair, which is not text") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the row cannot be written as JSON: {error}") from None
    size = len(_compact(row.context).encode())
    if size > CONTEXT_BYTES_MAX:
        raise ValueError(f"'context' is {size} bytes; the most is {CONTEXT_BYTES_MAX}, so pass ids, not data")
    return row


def _input(value: Any) -> str | list[dict[str, str]]:
    match value:
        case str():
            if not value.strip():
                raise ValueError("'input' is empty")
            return value
        case Mapping():
            return _compact(value)
        case list() | tuple():
            return [_message(message, index) for index, message in enumerate(_some(value), start=1)]
        case _:
            raise ValueError(f"'input' is a string, a list of messages or an object, not {kind_of(value)}")


def _some(messages: list[Any] | tuple[Any, ...]) -> list[Any]:
    if not any(isinstance(message, Mapping) and message.get("role") == "user" for message in messages):
        raise ValueError("'input' is a list without a message of the user")
    return list(messages)


def _message(value: Any, index: int) -> dict[str, str]:
    if not isinstance(value, Mapping) or set(value) != {"role", "content"}:
        raise ValueError(
            f"message {index} of 'input' is not an object with 'role' and 'content' and nothing else"
        )
    role, content = value["role"], value["content"]
    if role not in ROLES:
        raise ValueError(f"message {index} of 'input' has the role {role!r}; it is one of {', '.join(ROLES)}")
    if not isinstance(content, str):
        raise ValueError(f"the content of message {index} of 'input' is a string, not {kind_of(content)}")
    return {"role": role, "content": content}


def _name(mapping: Mapping[str, Any], key: str) -> str:
    value = mapping.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{key!r} is a string, not {kind_of(value)}")
    if not value or len(value) > CUSTOM_ID_CHARS_MAX or not value.isprintable():
        raise ValueError(f"{key!r} is 1 to {CUSTOM_ID_CHARS_MAX} printable characters")
    return value


def _object(mapping: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = mapping.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{key!r} is an object, not {kind_of(value)}")
    return dict(value)


def _usd(value: Any) -> Decimal | None:
    if value is None:
        return None
    if isinstance(value, float):
        raise ValueError(f"'max_usd' is money and never a float: write \"{value}\" in quotes")
    if isinstance(value, bool) or not isinstance(value, (str, int, Decimal)):
        raise ValueError(f"'max_usd' is an amount such as \"0.10\", not {kind_of(value)}")
    try:
        to_nano(value)
    except ValueError as error:
        raise ValueError(f"'max_usd': {error}") from None
    return Decimal(value)


def kind_of(value: Any) -> str:
    """What a JSON value is, in words."""
    words: list[tuple[type | tuple[type, ...], str]] = [
        (type(None), "null"),
        (bool, "true or false"),
        ((int, float), "a number"),
        (str, "a string"),
        ((list, tuple), "a list"),
        (Mapping, "an object"),
    ]
    return next((word for kind, word in words if isinstance(value, kind)), type(value).__name__)


def _compact(value: Any, *, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=sort_keys)
