"""JSON lines: native rows, batch lines of providers, or plain objects whose keys are mapped."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any, NoReturn

from agentq.core.errors import InputError
from agentq.engine.input.anthropicline import anthropic_line
from agentq.engine.input.eachline import each_line
from agentq.engine.input.lines import Lines
from agentq.engine.input.openailine import openai_line
from agentq.engine.input.rowmap import RowMap
from agentq.engine.rows import Row, kind_of, parse_row

Fields = dict[str, Any]
Call = dict[str, Any]

_LINES: dict[str, Callable[[Mapping[str, Any], bool], tuple[Fields, Call | None]]] = {
    "openai": openai_line,
    "anthropic": anthropic_line,
}


def json_rows(
    lines: Lines, form: str, *, agent: str, max_usd: Decimal | None, mapping: RowMap | None
) -> Iterator[tuple[str, Row | str]]:
    """A row for each line that is not blank; see `read_rows`.

    Args:
        form: `jsonl`, where each line may be a native row or a batch line; `openai` or `anthropic`, where
            each line is that.

    Raises:
        InputError: when the input is one JSON value that was written over many lines.
    """
    _refuse_one_value(lines)

    def parse(text: str, where: str) -> Row:
        value = json_object(text)
        if mapping is not None:
            return parse_row(mapping.row(value), agent=agent, max_usd=max_usd, where=where)
        kind = _kind(value) if form == "jsonl" else form
        if kind == "native":
            return parse_row(value, agent=agent, max_usd=max_usd, where=where)
        fields, call = _LINES[kind](value, bool(agent))
        return parse_row(fields, agent=agent, max_usd=max_usd, call=call, where=where)

    return each_line(lines, parse)


def json_object(text: str) -> dict[str, Any]:
    """The object that a line is.

    Raises:
        ValueError: when it is none.
    """
    try:
        value = _decode(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg[0].lower()}{error.msg[1:]} at column {error.colno}") from None
    except _JSONError:
        raise
    except ValueError:
        raise ValueError("not JSON that can be read: it has a number of thousands of digits") from None
    except RecursionError:
        raise ValueError("not JSON that can be read: nested too deeply") from None
    if type(value) is not dict:
        raise ValueError(f"a row is a JSON object, not {kind_of(value)}")
    return value


def _kind(value: Mapping[str, Any]) -> str:
    if "input" in value:
        return "native"
    if "body" in value or "url" in value:
        return "openai"
    return "anthropic" if "params" in value else "native"


class _JSONError(ValueError):
    """What Python reads and a row must not have."""


def _no_constant(word: str) -> NoReturn:
    raise _JSONError(f"not JSON: {word} is not a number")


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these; Python alone would take the last of two and lose the first."""
    value = dict(pairs)
    if len(value) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise _JSONError(f"the key {twice!r} is there twice in one object")
    return value


# Made once: json.loads makes a new decoder for every call with options.
_decode = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_each_key_once).decode


def _refuse_one_value(lines: Lines) -> None:
    """Return when the first line is not the beginning of a list, or of an object that goes on below."""
    first = lines.first().strip()
    if first == b"{":
        problem = "this is an object over many lines; a row is an object on one line: jq -c . FILE"
    elif first.startswith(b"["):
        problem = "this is a list; a row is an object on one line: jq -c '.[]' FILE"
    else:
        return
    raise InputError([f"{lines.label}:{lines.number}: {problem}"])
