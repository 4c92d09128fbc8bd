"""What the dialects check alike: types and names in a request, in OpenAI's words and in Anthropic's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from agentq.testing.provider.refusal import Refusal, invalid
from agentq.testing.provider.request import Tool

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
LONGEST_CALL_ID = 64
_TOOLS_MAX = 128
_DEEPEST = 32


def type_name(value: Any) -> str:
    """How OpenAI calls the type of a JSON value."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            return "a decimal"
        case str():
            return "a string"
        case list():
            return "an array"
    return "an object"


def wrong_type(param: str, wanted: str, value: Any) -> Refusal:
    """A value of another type than it must have."""
    return invalid(
        f"Invalid type for '{param}': expected {wanted}, but got {type_name(value)} instead.",
        param=param,
        code="invalid_type",
    )


def missing(param: str) -> Refusal:
    """A field that is not there."""
    return invalid(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")


def check_known(body: Mapping[str, Any], known: frozenset[str]) -> None:
    """Refuse a parameter that the service does not know."""
    for name in body:
        if name not in known:
            raise invalid(f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")


def check_number(body: Mapping[str, Any], name: str, *, least: float, most: float, whole: bool) -> None:
    """Refuse a number outside of its range."""
    value = body.get(name)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise wrong_type(name, "an integer" if whole else "a decimal", value)
    if value < least:
        raise invalid(
            f"Invalid '{name}': {'integer' if whole else 'decimal'} below minimum value. "
            f"Expected a value >= {least:g}, but got {value} instead.",
            param=name,
            code="integer_below_min_value" if whole else "decimal_below_min_value",
        )
    if value > most:
        raise invalid(
            f"Invalid '{name}': {'integer' if whole else 'decimal'} above maximum value. "
            f"Expected a value <= {most:g}, but got {value} instead.",
            param=name,
            code="integer_above_max_value" if whole else "decimal_above_max_value",
        )


def check_tools(value: Any, *, inner: str) -> tuple[Tool, ...]:
    """The function tools of an OpenAI request.

    Args:
        value: the list under `tools`; None for none.
        inner: where a tool keeps its name and schema: `function`, or "" for the tool itself.
    """
    if value is None:
        return ()
    if not isinstance(value, list):
        raise wrong_type("tools", "an array of objects", value)
    if len(value) > _TOOLS_MAX:
        raise invalid(
            f"Invalid 'tools': array too long. Expected an array with maximum length {_TOOLS_MAX}, "
            f"but got an array with length {len(value)} instead.",
            param="tools",
            code="array_above_max_length",
        )
    return tuple(tool for i, item in enumerate(value) if (tool := _tool(item, f"tools[{i}]", inner)))


def _tool(item: Any, at: str, inner: str) -> Tool | None:
    if not isinstance(item, Mapping):
        raise wrong_type(at, "an object", item)
    if "type" not in item:
        raise missing(f"{at}.type")
    if item["type"] != "function":
        return None  # the service's own tools are of no matter here
    function = item.get(inner) if inner else item
    at = f"{at}.{inner}" if inner else at
    if not isinstance(function, Mapping):
        raise missing(at)
    name = function.get("name")
    if not isinstance(name, str):
        raise missing(f"{at}.name")
    check_tool_name(name, f"{at}.name")
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        got = schema.get("type") if isinstance(schema, Mapping) else type_name(schema)
        raise invalid(
            f"Invalid schema for function '{name}': schema must be a JSON Schema of 'type: \"object\"', "
            f"got 'type: \"{got}\"'.",
            param=f"{at}.parameters",
            code="invalid_function_parameters",
        )
    if function.get("strict"):
        check_strict(schema, f"function '{name}'", f"{at}.parameters", "invalid_function_parameters")
    return Tool(name, schema)


def check_tool_name(name: str, param: str) -> None:
    """Refuse a name that no tool may have."""
    if not TOOL_NAME.fullmatch(name):
        raise invalid(
            f"Invalid '{param}': string does not match pattern. "
            "Expected a string that matches the pattern '^[a-zA-Z0-9_-]{1,64}$'.",
            param=param,
            code="invalid_value",
        )


def check_format(found: Any, at: str) -> Mapping[str, Any] | None:
    """The schema of OpenAI's `{"type": "json_schema", …}` with its name, or None for another format."""
    if not isinstance(found, Mapping):
        raise missing(at)
    name, schema = found.get("name"), found.get("schema")
    if not isinstance(name, str):
        raise missing(f"{at}.name")
    check_tool_name(name, f"{at}.name")
    if not isinstance(schema, Mapping):
        raise missing(f"{at}.schema")
    if found.get("strict"):
        check_strict(schema, f"response_format '{name}'", at, "invalid_json_schema")
    return schema


def check_strict(schema: Any, of: str, param: str, code: str) -> None:
    """Refuse a schema that OpenAI's strict mode does not take."""
    for where, wrong in _not_strict(schema, (), 0):
        raise invalid(f"Invalid schema for {of}: In context={where}, {wrong}", param=param, code=code)


def _not_strict(schema: Any, where: tuple[str, ...], depth: int) -> list[tuple[tuple[str, ...], str]]:
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return []
    if schema.get("type") == "object":
        if schema.get("additionalProperties") is not False:
            return [(where, "'additionalProperties' is required to be supplied and to be false.")]
        properties = schema.get("properties", {})
        for name in properties:
            if name not in schema.get("required", ()):
                return [
                    (
                        where,
                        "'required' is required to be supplied and to be an array including every key in "
                        f"properties. Missing '{name}'.",
                    )
                ]
    for word in ("properties", "$defs"):
        for name, inner in (schema.get(word) or {}).items():
            if found := _not_strict(inner, (*where, word, name), depth + 1):
                return found
    if found := _not_strict(schema.get("items"), (*where, "items"), depth + 1):
        return found
    for i, inner in enumerate(schema.get("anyOf") or ()):
        if found := _not_strict(inner, (*where, "anyOf", str(i)), depth + 1):
            return found
    return []


def open_object(schema: Any, depth: int = 0) -> bool:
    """Whether an object in the schema does not forbid properties that it does not name."""
    if depth > _DEEPEST:
        return False
    if isinstance(schema, list):
        return any(open_object(inner, depth + 1) for inner in schema)
    if not isinstance(schema, Mapping):
        return False
    if schema.get("type") == "object" and schema.get("additionalProperties") is not False:
        return True
    return any(open_object(inner, depth + 1) for inner in schema.values())
