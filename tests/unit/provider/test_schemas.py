"""Schemas in OpenAI's strict form, and without the keys that some providers refuse."""

from __future__ import annotations

import itertools
import json
from datetime import date, datetime
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from openai.lib._pydantic import to_strict_json_schema
from pydantic import BaseModel, Field

from agentq.provider.schemas import plain, strict
from agentq.testing.provider.checks import check_strict
from agentq.testing.provider.demands import GEMINI_KNOWS_NOT


class Kind(Enum):
    A = "a"
    B = "b"


class Item(BaseModel):
    """One thing."""

    name: Annotated[str, Field(min_length=1, pattern="^x", description="How it is called.")]
    count: Annotated[int, Field(gt=0, lt=10)] = 1
    weight: Annotated[float, Field(gt=0)] | None = None
    kind: Kind = Kind.A
    fixed: Literal["x"] = "x"
    when: date | None = None
    at: datetime


class Order(BaseModel):
    """What is ordered."""

    items: list[Item] = Field(description="All of them.")
    first: Item = Field(description="The first of them.")
    either: int | str
    tags: set[str]


class Node(BaseModel):
    value: int
    nodes: list[Node] = []


class Counts(BaseModel):
    counts: dict[str, int]


class Anything(BaseModel):
    value: Any


def keys_in(schema: Any) -> set[str]:
    """The keys of all schemas in it, names of properties left out."""
    if isinstance(schema, list):
        return set().union(*map(keys_in, schema)) if schema else set()
    if not isinstance(schema, dict):
        return set()
    found = set(schema) - {"properties", "$defs"}
    for key, value in schema.items():
        for inner in value.values() if key in {"properties", "$defs"} else [value]:
            found |= keys_in(inner)
    return found | (schema.keys() & {"properties", "$defs"})


def reduced(model: type[BaseModel]) -> tuple[dict[str, Any], tuple[str, ...]]:
    return plain(model.model_json_schema())


@pytest.mark.parametrize("model", [Item, Order, Node])
def test_the_strict_form_is_strict_by_openais_rules(model) -> None:
    schema = strict(model.model_json_schema())
    check_strict(schema, "it", "it", "code")
    assert schema is not None
    assert not keys_in(schema) & {"default", "title", "uniqueItems", "minLength", "oneOf", "allOf"}
    # What is a number to the SDK is one to us, and so on: the same properties of the same types.
    its = to_strict_json_schema(model)
    assert schema["required"] == (its if "required" in its else its["$defs"]["Node"])["required"]


@pytest.mark.parametrize("model", [Counts, Anything])
def test_what_the_strict_form_cannot_say_has_none(model) -> None:
    assert strict(model.model_json_schema()) is None


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "string"},
        {"type": "object"},
        {"type": "object", "properties": {}, "additionalProperties": True},
        {"type": "object", "properties": {"a": {"type": "array"}}},
        {"type": "object", "properties": {"a": True}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/Nobody"}}},
        {"anyOf": [{"type": "object", "properties": {}}, {"type": "object", "properties": {}}]},
    ],
)
def test_other_schemas_without_one(schema) -> None:
    assert strict(schema) is None


def test_the_plain_form_has_no_key_that_gemini_refuses_and_says_what_is_lost() -> None:
    schema, lost = reduced(Order)
    assert not keys_in(schema) & GEMINI_KNOWS_NOT
    assert not keys_in(schema) & {"title", "default"}
    assert set(lost) == {"uniqueItems", "format date", "exclusiveMinimum"}
    assert schema["properties"]["first"]["description"] == "The first of them."


def test_what_can_be_said_otherwise_is_not_lost() -> None:
    item = reduced(Item)[0]["properties"]
    assert (item["count"]["minimum"], item["count"]["maximum"]) == (1, 9)
    assert item["fixed"]["enum"] == ["x"]
    assert item["when"] == {"type": "string", "nullable": True}
    assert item["at"] == {"type": "string", "format": "date-time"}
    assert item["kind"] == {"type": "string", "enum": ["a", "b"]}
    assert (item["name"]["minLength"], item["name"]["pattern"]) == (1, "^x")


def test_a_list_of_types_and_null_is_a_choice() -> None:
    schema = {"type": "object", "properties": {"a": {"type": ["string", "null"], "description": "A."}}}
    made, lost = plain(schema)
    assert made["properties"]["a"] == {"type": "string", "description": "A.", "nullable": True}
    assert lost == ()


def test_a_schema_that_is_nested_in_itself_is_cut_off_and_that_is_said() -> None:
    schema, lost = reduced(Node)
    assert lost == ("what is nested in itself",)
    assert schema["properties"]["nodes"]["items"] == {"type": "object"}


def test_references_that_double_at_each_step_stay_bounded() -> None:
    names = [f"d{i}" for i in range(40)]
    chain = {
        name: {"type": "object", "properties": {side: {"$ref": f"#/$defs/{after}"} for side in "lr"}}
        for name, after in itertools.pairwise(names)
    }
    schema = {"$ref": "#/$defs/d0", "$defs": {**chain, "d39": {"type": "string"}}}
    made, lost = plain(schema)
    assert len(json.dumps(made)) < 500_000
    assert lost == ("what is nested in itself",)


@pytest.mark.parametrize("name", ["A", "B"])
def test_references_in_a_circle_end(name) -> None:
    circle = {"A": {"$ref": "#/$defs/B"}, "B": {"allOf": [{"$ref": "#/$defs/A"}]}}
    schema = {"type": "object", "properties": {"x": {"$ref": f"#/$defs/{name}"}}, "$defs": circle}
    assert strict(schema) is None
    made, lost = plain(schema)
    assert made["type"] == "object"
    assert lost


def test_all_of_is_one_schema() -> None:
    ref = {"allOf": [{"$ref": "#/$defs/P"}], "description": "Mine."}
    p = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "description": "P."}
    schema = {"type": "object", "properties": {"p": ref}, "$defs": {"P": p}}
    made, lost = plain(schema)
    assert made["properties"]["p"] == {**p, "description": "Mine."}
    assert lost == ()


def test_properties_may_have_the_names_of_keys() -> None:
    names = ("title", "$ref", "default", "anyOf", "format")
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    assert plain(schema)[0]["properties"].keys() == set(names)
    made = strict(schema)
    assert made is not None
    assert set(made["required"]) == set(names)


def test_the_schema_that_is_given_is_not_changed() -> None:
    schema = Order.model_json_schema()
    before = json.dumps(schema)
    strict(schema)
    made, _ = plain(schema)
    made["properties"].clear()
    assert json.dumps(schema) == before
    assert plain(schema)[0]["properties"]
