"""Arguments that a tool accepts, made from its JSON schema: examples, defaults, else the least that fits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentq.tools.gates import misfit

if TYPE_CHECKING:
    from agentq.tools import ToolSpec

_DEEPEST = 12
_FORMATS = {
    "date": "2025-01-31",
    "date-time": "2025-01-31T12:00:00Z",
    "time": "12:00:00",
    "duration": "PT1H",
    "email": "someone@example.com",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
}
_TEXT = "text"


class NoArgumentsError(Exception):
    """No arguments can be made that the tool would accept; the text says why."""


def arguments_for(spec: ToolSpec) -> dict[str, Any]:
    """Arguments that pass the tool's own check. A parameter with a default is left to it.

    Raises:
        NoArgumentsError: when what the schema allows is not known, or not enough for the tool.
    """
    made = _object(spec.parameters, spec.parameters.get("$defs", {}), 0)
    wrong = misfit(spec, made)
    if wrong:
        raise NoArgumentsError(f"{made} does not pass its check: {wrong}")
    return made


def example_of(schema: Mapping[str, Any]) -> Any:
    """A value that is valid for a JSON schema.

    Raises:
        NoArgumentsError: when the schema contains itself, or wants a text by a pattern and shows none.
    """
    return _value(schema, schema.get("$defs", {}), 0)


def _object(schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int) -> dict[str, Any]:
    properties = schema.get("properties", {})
    return {name: _value(properties.get(name, {}), defs, depth + 1) for name in schema.get("required", ())}


def _value(schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int) -> Any:
    if depth > _DEEPEST:
        raise NoArgumentsError("its parameters contain themselves")
    if schema.get("examples"):
        return schema["examples"][0]
    for word in ("default", "const"):
        if word in schema:
            return schema[word]
    if schema.get("enum"):
        return schema["enum"][0]
    if "$ref" in schema:
        return _value(defs.get(schema["$ref"].rpartition("/")[2], {}), defs, depth + 1)
    for word in ("anyOf", "oneOf"):
        if schema.get(word):
            return _value(schema[word][0], defs, depth + 1)
    if schema.get("allOf"):
        return _value(
            {key: value for part in schema["allOf"] for key, value in part.items()}, defs, depth + 1
        )
    return _of_type(schema, defs, depth)


def _of_type(schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int) -> Any:
    match schema.get("type"):
        case "string":
            return _text(schema)
        case "integer":
            return math.ceil(_number(schema))
        case "number":
            return _number(schema)
        case "boolean":
            return True
        case "null":
            return None
        case "array":
            fixed = [_value(item, defs, depth + 1) for item in schema.get("prefixItems", ())]
            missing = max(0, schema.get("minItems", 0) - len(fixed))
            return fixed + [_value(schema.get("items", {}), defs, depth + 1) for _ in range(missing)]
        case "object":
            return _object(schema, defs, depth)
        case _:
            return _TEXT  # a parameter of any type


def _text(schema: Mapping[str, Any]) -> str:
    if "pattern" in schema:
        raise NoArgumentsError(f"a text must match {schema['pattern']!r}: give the parameter examples=[…]")
    text: str = _FORMATS.get(schema.get("format", ""), _TEXT)
    least, most = schema.get("minLength", 0), schema.get("maxLength", len(text))
    return text.ljust(least, "x")[: max(least, most)]


def _number(schema: Mapping[str, Any]) -> float:
    step: float = schema.get("multipleOf", 1)
    least = schema.get("minimum", schema.get("exclusiveMinimum"))
    most = schema.get("maximum", schema.get("exclusiveMaximum"))
    if least is None:
        least = 1 if most is None or most >= 1 else most - step
    number: float = math.ceil(least / step) * step
    return number + step if number == schema.get("exclusiveMinimum") else number
