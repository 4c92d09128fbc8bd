"""One request as the server sees it, the same for every dialect."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Dialect = Literal["chat", "responses", "messages"]
DIALECTS: tuple[Dialect, ...] = ("chat", "responses", "messages")

BYTES_PER_TOKEN = 4
_NOT_READ = frozenset(
    {
        "role",
        "type",
        "id",
        "tool_call_id",
        "call_id",
        "tool_use_id",
        "signature",
        "encrypted_content",
        "status",
    }
)


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the request offers, with the JSON schema of its arguments."""

    name: str
    schema: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked. `body` is the JSON as it was sent; the other fields are read from it.

    Given to scripts and to the predicates of faults; `provider.requests` keeps the last ones.
    """

    dialect: Dialect
    body: Mapping[str, Any] = field(repr=False)
    number: int = 0
    """Counts all requests of the server, from 1."""
    key: str = ""
    """The API key, all but its last characters taken out."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """By lower-case names, without the key."""
    model: str = ""
    turn: int = 0
    """How many turns the assistant has had."""
    text: str = ""
    """The last that the user said."""
    tools: tuple[Tool, ...] = ()
    choice: str = "auto"
    """`auto`, `none`, `required`, or the name of the tool that must be called."""
    results: int = 0
    """How many results of tools there are."""
    schema: Mapping[str, Any] | None = field(default=None, repr=False)
    """What the answer must be valid for, where that was asked."""
    output_cap: int | None = None
    """The most tokens that the answer may have."""
    stream: bool = False
    thinks: bool = False
    """Whether the model was asked to think."""
    input_tokens: int = 0

    @property
    def forbids_tools(self) -> bool:
        """Whether a model that behaves calls nothing."""
        return self.choice == "none" or not self.tools


def tokens_of(size: int) -> int:
    """Tokens of so many bytes of text: a quarter, rounded up."""
    return -(-size // BYTES_PER_TOKEN)


def text_bytes(value: Any) -> int:
    """The bytes of all texts in a JSON value, ids, roles and signatures left out."""
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in _texts(value))


def json_bytes(value: Any) -> int:
    """The bytes of a JSON value written without spaces: what tools and schemas count. None: nothing."""
    if value is None:
        return 0
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass"))


def _texts(value: Any) -> Iterator[str]:
    # A stack of our own: how deep a body is nested is the client's choice.
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, list):
            stack.extend(item)
        elif isinstance(item, Mapping):
            stack.extend(inner for name, inner in item.items() if name not in _NOT_READ)
