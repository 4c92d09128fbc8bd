"""JSON schemas as providers take them: OpenAI's strict form, and one without the keys that some refuse."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_DEPTH_MAX = 32
"""How deep a schema is followed."""
_PARTS_MAX = 5_000
"""How many parts a schema may have with all references written out."""
_NAME_CHARS = 64

_SAME = frozenset({"type", "enum", "const", "description"})
_STRICT_KEYS = _SAME | {
    "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    "minItems", "maxItems",
}  # fmt: skip
_STRICT_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
)
_NARROW_KEYS = _SAME | {"format", "required", "additionalProperties", "$ref"}
_PLAIN_KEYS = frozenset(
    {
        "type", "enum", "description", "nullable", "minimum", "maximum", "minItems", "maxItems", "minLength",
        "maxLength", "pattern",
    }
)  # fmt: skip
_PLAIN_FORMATS = frozenset({"date-time", "int32", "int64", "float", "double"})
_SAYS_NOTHING = frozenset(
    {"$schema", "$id", "$defs", "definitions", "$comment", "title", "default", "examples"}
)
_STRUCTURE = frozenset(
    {
        "properties",
        "required",
        "items",
        "anyOf",
        "oneOf",
        "allOf",
        "$ref",
        "additionalProperties",
        "discriminator",
    }
)


class _Inexpressible(Exception):  # noqa: N818 - never leaves this module
    """The schema says something that the form cannot."""


def strict(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schema in OpenAI's strict form, or None where it has something that the form cannot say.

    All properties are required and no others allowed, so each answer that fits it fits the schema, but for
    limits that the form does not know (the length of a text): those are left to whoever checks the answer.
    """
    try:
        made = _strict(_followed(schema, schema), schema, 0)
        names = {name: _strict(part, schema, 0) for name, part in _definitions(schema).items()}
    except _Inexpressible:
        return None
    if made.get("type") != "object":
        return None
    return made | {"$defs": names} if names else made


def narrow(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The strict form as Anthropic takes it, or None where there is none, or it is nested in itself.

    Limits of a value are no part of that form: each is told in the description of its value.
    """
    made = strict(schema)
    if made is None or _is_nested(made, made.get("$defs") or {}, ()):
        return None
    return _narrow(made)


def plain(schema: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The schema with keys that every server knows, references written out, and what was lost by it.

    What says nothing of a value (`title`, `$schema`) is no loss, nor is `additionalProperties: false`.
    """
    made, lost = _plain_cached(json.dumps(schema, sort_keys=False, default=str))
    value: dict[str, Any] = json.loads(made)
    return value, lost


def reductions(tools: Sequence[Mapping[str, Any]], answer: Mapping[str, Any] | None) -> Iterator[str]:
    """Notes of what the plain form loses of the schemas of tools, and of that of the answer."""
    named = [(f"tool {tool['name']}", tool.get("parameters") or {}) for tool in tools]
    named += [] if answer is None else [("the answer", answer)]
    for name, schema in named:
        _, lost = plain(schema)
        if lost:
            yield f"schema_reduced: {name}: dropped {', '.join(lost)}"


def schema_name(schema: Mapping[str, Any]) -> str:
    """What a provider that wants a name calls the schema: its title, in the letters that are allowed."""
    title = str(schema.get("title") or "answer")
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in title)[:_NAME_CHARS]


@functools.lru_cache(maxsize=512)
def _plain_cached(text: str) -> tuple[str, tuple[str, ...]]:
    reduction = _Reduction(json.loads(text))
    made = reduction.of(reduction.root)
    return json.dumps(made), tuple(reduction.lost)


# ── the strict form ──────────────────────────────────────────────────────────────────────────────


def _strict(part: Any, root: Mapping[str, Any], depth: int) -> dict[str, Any]:
    if not isinstance(part, Mapping) or depth > _DEPTH_MAX:
        raise _Inexpressible
    part = _merged(part, root)
    if "$ref" in part:
        name = _name(part)
        if name not in _definitions(root):
            raise _Inexpressible
        return {"$ref": f"#/$defs/{name}"}
    made = {key: value for key, value in part.items() if key in _STRICT_KEYS}
    if made.get("format") not in _STRICT_FORMATS:
        made.pop("format", None)
    choices = part.get("anyOf") or part.get("oneOf")
    if choices:
        return {key: made[key] for key in made if key == "description"} | {
            "anyOf": [_strict(choice, root, depth + 1) for choice in choices]
        }
    kinds = _kinds(part)
    if not kinds and "enum" not in part and "const" not in part:
        raise _Inexpressible  # any value
    if "object" in kinds:
        if part.get("additionalProperties") not in (None, False) or "properties" not in part:
            raise _Inexpressible  # keys of any name
        made["properties"] = {
            name: _strict(value, root, depth + 1) for name, value in part["properties"].items()
        }
        made |= {"required": list(made["properties"]), "additionalProperties": False}
    if "array" in kinds:
        if "items" not in part:
            raise _Inexpressible
        made["items"] = _strict(part["items"], root, depth + 1)
    return made


# ── Anthropic's form ─────────────────────────────────────────────────────────────────────────────


def _narrow(part: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    told = []
    for key, value in part.items():
        if key in {"properties", "$defs"}:
            made[key] = {name: _narrow(inner) for name, inner in value.items()}
        elif key == "items":
            made[key] = _narrow(value)
        elif key == "anyOf":
            made[key] = [_narrow(choice) for choice in value]
        elif key in _NARROW_KEYS or (key == "minItems" and value in (0, 1)):
            made[key] = value
        else:
            told.append(f"{key}: {value}")
    if told:
        said = [made["description"]] if made.get("description") else []
        made["description"] = " ".join([*said, f"({', '.join(told)})"])
    kinds = made.get("type")
    if isinstance(kinds, list):
        rest = {key: value for key, value in made.items() if key not in {"type", "description"}}
        made = {key: made[key] for key in made if key == "description"}
        made["anyOf"] = [{"type": "null"} if kind == "null" else {"type": kind, **rest} for kind in kinds]
    return made


def _is_nested(part: Mapping[str, Any], names: Mapping[str, Any], inside: tuple[str, ...]) -> bool:
    """Whether a part holds itself, by its references."""
    if "$ref" in part:
        name = _name(part)
        return name in inside or _is_nested(names[name], names, (*inside, name))
    parts = [*part.get("properties", {}).values(), *part.get("anyOf", ())]
    parts += [part["items"]] if "items" in part else []
    return any(_is_nested(inner, names, inside) for inner in parts)


# ── the plain form ───────────────────────────────────────────────────────────────────────────────


class _Reduction:
    """One schema on its way to the plain form, and what is lost on it."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self.lost: dict[str, None] = {}
        self._left = _PARTS_MAX

    def of(self, part: Any, open_refs: tuple[str, ...] = ()) -> dict[str, Any]:
        """The plain form of a part; `open_refs` are the references that it stands in."""
        self._left -= 1
        if not isinstance(part, Mapping):
            return {}
        name = _name(part)
        if name in open_refs or len(open_refs) > _DEPTH_MAX or self._left < 0:
            self.lost["what is nested in itself"] = None
            return {"type": "object"}
        open_refs += (name,) if name else ()
        part = _merged(_followed(part, self.root), self.root)
        self.lost |= dict.fromkeys(key for key in ("$ref", "allOf") if key in part)  # they lead nowhere
        made = {key: value for key, value in part.items() if key in _PLAIN_KEYS}
        for key in sorted(part.keys() - _PLAIN_KEYS - _SAYS_NOTHING - _STRUCTURE):
            self._reduce(key, part, made)
        if part.get("additionalProperties") not in (None, False, True):
            self.lost["additionalProperties"] = None
        choices = [self.of(choice, open_refs) for choice in part.get("anyOf") or part.get("oneOf") or ()]
        if isinstance(made.get("type"), list):
            choices = choices or [{"type": kind} for kind in made["type"]]
            del made["type"]
        if choices:
            made = _choice(made, choices)
        if "properties" in part:
            made["properties"] = {n: self.of(value, open_refs) for n, value in part["properties"].items()}
            made |= {"required": list(part["required"])} if part.get("required") else {}
        if part.get("type") == "array":
            made["items"] = self.of(part.get("items", {}), open_refs) or {"type": "string"}
        return made

    def _reduce(self, key: str, part: Mapping[str, Any], made: dict[str, Any]) -> None:
        """Say what a key that is not known everywhere says with one that is, or note that it is lost."""
        value = part[key]
        whole = part.get("type") == "integer" and isinstance(value, int)
        if key == "const":
            made["enum"] = [value]
        elif key == "format" and value in _PLAIN_FORMATS:
            made[key] = value
        elif key == "exclusiveMinimum" and whole:
            made["minimum"] = value + 1
        elif key == "exclusiveMaximum" and whole:
            made["maximum"] = value - 1
        else:
            self.lost[f"{key} {value}" if key == "format" else key] = None


def _choice(made: dict[str, Any], choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One of several schemas; that it may be null is a key, and one that is left is no choice."""
    rest = [choice for choice in choices if choice.get("type") != "null"]
    if len(rest) < len(choices):
        made["nullable"] = True
    return rest[0] | made if len(rest) == 1 else made | {"anyOf": rest}


# ── both ─────────────────────────────────────────────────────────────────────────────────────────


def _name(part: Mapping[str, Any]) -> str:
    """The definition that a part refers to, or an empty text."""
    return str(part.get("$ref", "")).rpartition("/")[2]


def _definitions(root: Mapping[str, Any]) -> Mapping[str, Any]:
    named = {**(root.get("definitions") or {}), **(root.get("$defs") or {})}
    return {name: value for name, value in named.items() if isinstance(value, Mapping)}


def _followed(part: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part with its reference written out, if it leads anywhere."""
    for _ in range(_DEPTH_MAX):
        target = _definitions(root).get(_name(part))
        if target is None:
            break
        part = {**target, **{key: value for key, value in part.items() if key != "$ref"}}
    return part


def _merged(part: Mapping[str, Any], root: Mapping[str, Any], depth: int = 0) -> Mapping[str, Any]:
    """A schema without `allOf`: pydantic writes one around a reference that has a description."""
    if not part.get("allOf") or depth > _DEPTH_MAX:
        return part
    made = {key: value for key, value in part.items() if key != "allOf"}
    for piece in part["allOf"]:
        whole = dict(_merged(_followed(piece, root), root, depth + 1))
        if "properties" in whole and "properties" in made:
            whole["properties"] = {**made["properties"], **whole["properties"]}
            whole["required"] = list(dict.fromkeys([*made.get("required", ()), *whole.get("required", ())]))
        made = {**made, **whole} | ({"description": made["description"]} if "description" in made else {})
    return made


def _kinds(part: Mapping[str, Any]) -> Sequence[str]:
    kind = part.get("type")
    return kind if isinstance(kind, list) else [kind] if kind else []
