"""Rows: what a person asks a batch to do, one JSON object each.

    {"custom_id": "t-17", "input": "…", "agent": "triage", "metadata": {}, "context": {}, "max_usd": "0.10"}

Only `input` is required. A million of them are read in one go: what is done for each one is kept short.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from agentq.core.money import to_nano
from agentq.core.words import nearest

FIELDS = ("input", "custom_id", "agent", "metadata", "context", "max_usd", "priority")
ROLES = ("system", "user", "assistant")
CONTEXT_BYTES_MAX = 8_000
CUSTOM_ID_CHARS_MAX = 256
PRIORITY_MAX = 9
NESTING_MAX = 100
"""How deep lists and objects may stand in each other in what a run keeps: each reader of it has a stack."""

_KNOWN = frozenset(FIELDS)
# Made once: json.dumps makes a new encoder for every call with options.
_compact = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_sorted = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True).encode


@dataclass(frozen=True, slots=True)
class Row:
    """One run as it was asked for. `custom_id` and `agent` are empty where the line left them out."""

    input: str | list[dict[str, str]]
    custom_id: str = ""
    agent: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    context: Mapping[str, Any] = field(default_factory=dict)
    max_usd: Decimal | None = None
    priority: int | None = None
    """0 to 9, the most urgent; None: as its batch. Not a part of its content: when, not what."""
    call: Mapping[str, Any] | None = None
    """Of a provider's batch line that is run as it is, in one call: its `dialect`, `model` and `options`.
    Of one whose messages an agent takes, its `dialect` alone: the answer is written in it."""
    where: str = field(default="", compare=False)
    """Where it was read, as `file:line`; not a part of its content."""
    line_hash: str = field(default="", compare=False)
    """Of a row that was read without an id: the hash of what the line itself says. Empty: `content_hash`."""
    _content_hash: str = field(default="", init=False, repr=False, compare=False)

    def messages(self) -> list[dict[str, str]]:
        """The conversation that the run starts with: `{"role", "content"}` each."""
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}]
        return [dict(message) for message in self.input]

    @property
    def own_call(self) -> Mapping[str, Any] | None:
        """The call that it is; None for a row of an agent."""
        return self.call if self.call is not None and "model" in self.call else None

    @property
    def content_hash(self) -> str:
        """16 hex digits that are equal for equal rows, whatever their id and the order of their keys."""
        if not self._content_hash:
            object.__setattr__(self, "_content_hash", _hash(self, self.agent, self.max_usd))
        return self._content_hash

    @property
    def derived_id(self) -> str:
        """The id of a row that came without one, before equal rows are counted.

        It is of the line as it is written: the same file with another agent or cap beside it is a conflict,
        not new runs.
        """
        return self.line_hash or self.content_hash

    def named(self, custom_id: str) -> Row:
        """The same row under another id. Its hash is not computed again."""
        row = replace(self, custom_id=custom_id)
        object.__setattr__(row, "_content_hash", self._content_hash)
        return row


def parse_row(
    mapping: Mapping[str, Any],
    *,
    agent: str = "",
    max_usd: Decimal | None = None,
    call: Mapping[str, Any] | None = None,
    where: str = "",
) -> Row:
    """Check one row and give it its types.

    Args:
        mapping: what was read, with the keys of `FIELDS`.
        agent: that of a row that names none; so is `max_usd`.
        call: see `Row.call`; it is taken as it is.
        where: see `Row.where`.

    Raises:
        ValueError: with one sentence that says what is wrong and what would be right.
    """
    if not _is_object(mapping):
        raise ValueError(f"a row is an object, not {kind_of(mapping)}")
    if not _KNOWN.issuperset(mapping):
        raise ValueError(_unknown(next(key for key in mapping if key not in _KNOWN)))
    if "input" not in mapping:
        raise ValueError("the row has no 'input'")
    custom_id, own_agent = _name(mapping, "custom_id"), _name(mapping, "agent")
    own_max_usd = _usd(mapping.get("max_usd"))
    if call is not None and _is_deeper(call, NESTING_MAX):
        raise ValueError(f"its request is nested more than {NESTING_MAX} deep")
    try:
        row = Row(
            input=_input(mapping["input"]),
            custom_id=custom_id,
            agent=own_agent or agent,
            metadata=_object(mapping, "metadata"),
            context=_context(mapping),
            max_usd=max_usd if own_max_usd is None else own_max_usd,
            priority=_priority(mapping.get("priority")),
            call=call,
            where=where,
        )
        if custom_id:
            custom_id.encode()
        elif (own_agent, own_max_usd) != (row.agent, row.max_usd):
            row = replace(row, line_hash=_hash(row, own_agent, own_max_usd))
        _ = row.content_hash
    except UnicodeEncodeError:
        raise ValueError("the row holds half of a surrogate pair, which is not text") from None
    except (_JSONError, TypeError, RecursionError) as error:
        raise ValueError(f"the row cannot be written as JSON: {error}") from None
    return row


class _JSONError(ValueError):
    """A value that JSON has no form for."""


def _hash(row: Row, agent: str, max_usd: Decimal | None) -> str:
    """The hash of a row's content, with this agent and cap.

    Written by hand, so that a row of nothing but text costs little. The order of the keys is that of the
    alphabet, and a key that is younger than stored hashes is there only where it says something.
    """
    call = "" if row.call is None else f',"call":{_canonical(row.call)}'
    content = (
        f'{{"agent":{_compact(agent)}{call}'
        f',"context":{_canonical(row.context) if row.context else "{}"}'
        f',"input":{_compact(row.input) if isinstance(row.input, str) else _canonical(row.input)}'
        f',"max_usd":{"null" if max_usd is None else to_nano(max_usd)}'
        f',"metadata":{_canonical(row.metadata) if row.metadata else "{}"}}}'
    )
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _canonical(value: Any) -> str:
    return _json(value, _sorted)


def _json(value: Any, encode: Callable[[Any], str]) -> str:
    try:
        return encode(value)
    except ValueError as error:
        raise _JSONError(error) from None


def _unknown(key: Any) -> str:
    if key == "messages":
        return "unknown key 'messages'; a list of messages is the 'input' of a row"
    return f"unknown key {key!r}{nearest(str(key), FIELDS)}; a row has {', '.join(FIELDS)}"


def _is_object(value: Any) -> bool:
    # The first answer is the one for nearly all, and much quicker than the second.
    return type(value) is dict or isinstance(value, Mapping)


def _input(value: Any) -> str | list[dict[str, str]]:
    match value:
        case str():
            if not value or value.isspace():
                raise ValueError("'input' is empty")
            return value
        case Mapping():
            return _json(dict(value), _compact)
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
    if not _is_object(value):
        raise ValueError(f"{key!r} is an object, not {kind_of(value)}")
    if _is_deeper(value, NESTING_MAX):
        raise ValueError(f"{key!r} is nested more than {NESTING_MAX} deep")
    return dict(value)


def _is_deeper(value: Any, most: int) -> bool:
    """Whether more than so many lists and objects stand in each other."""
    if isinstance(value, str):  # most are
        return False
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return False
    return most == 0 or any(_is_deeper(item, most - 1) for item in value)


def _context(mapping: Mapping[str, Any]) -> dict[str, Any]:
    value = _object(mapping, "context")
    if value and (size := len(_canonical(value).encode())) > CONTEXT_BYTES_MAX:
        raise ValueError(f"'context' is {size} bytes; the most is {CONTEXT_BYTES_MAX}, so pass ids, not data")
    return value


def _priority(value: Any) -> int | None:
    if value is None:
        return None
    if type(value) is not int:
        raise ValueError(f"'priority' is a whole number from 0 to {PRIORITY_MAX}, not {_shown(value)}")
    if not 0 <= value <= PRIORITY_MAX:
        raise ValueError(f"'priority' is 0 to {PRIORITY_MAX}, the most urgent, not {value}")
    return value


def _shown(value: Any) -> str:
    return f"{value}" if type(value) is float else kind_of(value)


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
    except ArithmeticError:
        raise ValueError(f"'max_usd': {value} USD is more than can be counted") from None
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
