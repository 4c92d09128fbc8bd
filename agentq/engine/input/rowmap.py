"""Which columns of a table, or keys of an object, make which field of a row."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentq.core.errors import UsageError
from agentq.core.words import nearest
from agentq.engine.rows import FIELDS

OBJECTS = ("metadata", "context")
"""Fields that are objects: a target names one key in them, as `metadata.lang`."""

_EXAMPLE = "for example --map 'input={question}'"
_PIECES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_TARGETS = (*(name for name in FIELDS if name not in OBJECTS), *(f"{name}.KEY" for name in OBJECTS))


@dataclass(frozen=True, slots=True)
class Column:
    """The place in a template that a column's value takes."""

    name: str


@dataclass(frozen=True, slots=True)
class Template:
    """Text with places for columns."""

    pieces: tuple[str | Column, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it needs."""
        return tuple(piece.name for piece in self.pieces if isinstance(piece, Column))

    def fill(self, values: Mapping[str, Any]) -> str:
        """The text with the values in their places.

        Raises:
            ValueError: when a column is not there.
        """
        return "".join(
            piece if isinstance(piece, str) else _shown(values, piece.name) for piece in self.pieces
        )


@dataclass(frozen=True, slots=True)
class RowMap:
    """How a row is made. Without a template for `input` it is the column of that name, else all columns."""

    templates: Mapping[str, Template]
    """By target: a field, or `metadata.KEY` and `context.KEY`."""
    rest: tuple[str, ...] | None = None
    """The columns that are the input where nothing else is; None: all."""

    def refuse_unknown(self, columns: Sequence[str]) -> None:
        """Return when each column that is used exists.

        Raises:
            UsageError: with the nearest column.
        """
        for target, template in self.templates.items():
            for name in template.columns:
                if name not in columns:
                    raise UsageError(
                        f"--map {target}: there is no column {name!r}{nearest(name, columns)}",
                        hint=f"the columns are {_listed(columns)}",
                    )

    def row(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a row, as they would stand in a native line.

        Text that is blank leaves its field out, but that of `input`.

        Raises:
            ValueError: when a key is not there, or a priority is no number.
        """
        fields: dict[str, Any] = {}
        for target, template in self.templates.items():
            text = template.fill(values)
            name, _, key = target.partition(".")
            if name == "input":
                fields[name] = text
            elif not text or text.isspace():
                continue
            elif key:
                fields.setdefault(name, {})[key] = text
            else:
                fields[name] = _number(text) if name == "priority" else text
        if "input" not in fields:
            fields["input"] = self._input(values)
        return fields

    def _input(self, values: Mapping[str, Any]) -> Any:
        if self.rest is not None:
            return {name: values[name] for name in self.rest}
        return values.get("input", values)


def parse_map(texts: Iterable[str]) -> RowMap:
    """A map from texts such as `input={question}` or `metadata.lang={lang}`.

    `{column}` is the value of a column; `{{` and `}}` are braces.

    Raises:
        UsageError: for a text that cannot be one, or a field that does not exist or is there twice.
    """
    templates: dict[str, Template] = {}
    for text in texts:
        target, equals, template = text.partition("=")
        target = target.strip()
        if not equals:
            raise UsageError(f"--map {text!r} is not FIELD=TEMPLATE", hint=_EXAMPLE)
        if not is_target(target):
            raise UsageError(
                f"--map {target!r}: a row has no such field{nearest(target, _TARGETS)}",
                hint=f"the fields are {', '.join(_TARGETS)}",
            )
        if target in templates:
            raise UsageError(f"--map {target} is there twice", hint="one template may have several columns")
        templates[target] = _template(target, template)
    return RowMap(templates)


def map_of_columns(columns: Sequence[str]) -> RowMap:
    """The map of a table that comes without one: columns named as fields are those.

    Where none is `input`, the others are: as an object.

    Raises:
        UsageError: when there is an `input`, and a column that is no field beside it.
    """
    rest = tuple(name for name in columns if not is_target(name))
    if "input" in columns and rest:
        name = rest[0]
        raise UsageError(
            f"the column {name!r} is no field of a row{nearest(name, _TARGETS)}",
            hint=f"call it 'metadata.{name}' to keep it, or leave it out with --map 'input={{input}}'",
        )
    templates = {name: Template((Column(name),)) for name in columns if is_target(name)}
    return RowMap(templates, None if "input" in columns else rest)


def is_target(name: str) -> bool:
    """Whether a column or a map may be called so."""
    first, dot, key = name.partition(".")
    return bool(key) and first in OBJECTS if dot else name in FIELDS and name not in OBJECTS


def _template(target: str, text: str) -> Template:
    pieces: list[str | Column] = []
    at = 0
    for match in _PIECES.finditer(text):
        pieces.append(text[at : match.start()])
        at = match.end()
        match match[0]:
            case "{{" | "}}":
                pieces.append(match[0][0])
            case "{" | "}":
                raise UsageError(
                    f"--map {target}: the {match[0]!r} at character {match.start() + 1} has no partner",
                    hint="a brace itself is written twice: {{ or }}",
                )
            case _ if not match[1].strip():
                raise UsageError(f"--map {target}: there is no column between {{ and }}", hint=_EXAMPLE)
            case _:
                pieces.append(Column(match[1].strip()))
    pieces.append(text[at:])
    template = Template(tuple(piece for piece in pieces if piece))
    if not text.strip():
        raise UsageError(f"--map {target}: its template is empty", hint=_EXAMPLE)
    if target == "input" and not template.columns:
        raise UsageError("--map input: there is no {column} in it: all rows would be the same", hint=_EXAMPLE)
    return template


def _shown(values: Mapping[str, Any], name: str) -> str:
    if name not in values:
        raise ValueError(f"there is no {name!r} in it{nearest(name, values)}, which --map asks for")
    value = values[name]
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _number(text: str) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
        raise ValueError(f"'priority' is a whole number, not {text!r}")
    return int(digits)


def _listed(columns: Collection[str], shown: int = 20) -> str:
    some = ", ".join(list(columns)[:shown])
    return some + (f" and {len(columns) - shown} more" if len(columns) > shown else "")
