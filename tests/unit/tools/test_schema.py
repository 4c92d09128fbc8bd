"""What a type becomes in the schema, and what of a model's arguments reaches the function."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import functools
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, NewType

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from agentq.tools import CallContext, ToolExecutor, ToolRegistry, tool


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Line(BaseModel):
    """One line of an order."""

    item: str
    count: int = 1


class Order(BaseModel):
    lines: list[Line]
    note: str | None = None


class Tree(BaseModel):
    name: str
    parts: list[Tree] = []


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Options(TypedDict, total=False):
    deep: bool


class Pair(NamedTuple):
    a: int
    b: str


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    barks: bool


UserId = NewType("UserId", str)
SENTINEL = object()


def made(hint: Any, default: Any = ...) -> Any:
    """A tool with one parameter `it` of this type, which answers what it got."""

    def take(it):
        """Take it."""
        return it

    take.__annotations__ = {"it": hint}
    if default is not ...:
        take.__defaults__ = (default,)
    return tool(take)


def schema(function: Any) -> dict[str, Any]:
    """Of its parameter `it`, with what it refers to put in its place."""
    parameters = function.tool_spec.parameters
    found: dict[str, Any] = parameters["properties"]["it"]
    if "$ref" in found:
        found = parameters["$defs"][found["$ref"].rpartition("/")[2]]
    return found


def given(function: Any, value: Any = ...) -> Any:
    """What reaches the function, or the refusal."""
    arguments = {} if value is ... else {"it": value}
    result = ToolExecutor(ToolRegistry([function])).call("take", json.dumps(arguments))
    return result.raw if result.ok else result.content


UTC = dt.UTC
ARRIVES: dict[str, tuple[Any, dict[str, Any], Any, Any]] = {
    # type: its schema, a model's value, the function's
    "int": (int, {"type": "integer"}, 3, 3),
    "float": (float, {"type": "number"}, 3, 3.0),
    "bool": (bool, {"type": "boolean"}, True, True),
    "str": (str, {"type": "string"}, "é", "é"),
    "new type": (UserId, {"type": "string"}, "u", "u"),
    "any": (Any, {}, {"a": [1]}, {"a": [1]}),
    "date": (dt.date, {"format": "date", "type": "string"}, "2026-01-02", dt.date(2026, 1, 2)),
    "datetime": (
        dt.datetime,
        {"format": "date-time", "type": "string"},
        "2026-01-02T03:04:05Z",
        dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    ),
    "time": (dt.time, {"format": "time", "type": "string"}, "03:04", dt.time(3, 4)),
    "timedelta": (dt.timedelta, {"format": "duration", "type": "string"}, "PT1H", dt.timedelta(hours=1)),
    "uuid": (
        uuid.UUID,
        {"format": "uuid", "type": "string"},
        "00000000-0000-4000-8000-000000000000",
        uuid.UUID("00000000-0000-4000-8000-000000000000"),
    ),
    "literal": (Literal["a", "b"], {"enum": ["a", "b"], "type": "string"}, "b", "b"),
    "one literal": (Literal["a"], {"const": "a", "type": "string"}, "a", "a"),
    "enum": (Colour, {"enum": ["red", "blue"], "type": "string"}, "blue", Colour.BLUE),
    "int enum": (Level, {"enum": [1, 2], "type": "integer"}, 2, Level.HIGH),
    "optional": (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}, None, None),
    "union": (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "3", "3"),
    "list": (list[int], {"type": "array", "items": {"type": "integer"}}, [1, 2], [1, 2]),
    "sequence": (Sequence[int], {"type": "array", "items": {"type": "integer"}}, [1], [1]),
    "set": (set[int], {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, [1, 1], {1}),
    "dict": (
        dict[str, int],
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"a": 1},
        {"a": 1},
    ),
    "mapping": (
        Mapping[str, list[int]],
        {
            "type": "object",
            "additionalProperties": {"items": {"type": "integer"}, "type": "array"},
        },
        {"a": [1]},
        {"a": [1]},
    ),
    "constraints": (
        Annotated[int, Field(ge=1, le=5, description="How many")],
        {"type": "integer", "minimum": 1, "maximum": 5, "description": "How many"},
        5,
        5,
    ),
    "pattern": (
        Annotated[str, Field(pattern="^A", max_length=3, examples=["A1"])],
        {"type": "string", "pattern": "^A", "maxLength": 3, "examples": ["A1"]},
        "A1",
        "A1",
    ),
    "named tuple": (
        Pair,
        {
            "type": "array",
            "minItems": 2,
            "maxItems": 2,
            "prefixItems": [{"type": "integer"}, {"type": "string"}],
        },
        [1, "b"],
        Pair(1, "b"),
    ),
    "typed dict": (
        Options,
        {"type": "object", "properties": {"deep": {"type": "boolean"}}, "additionalProperties": False},
        {"deep": True},
        {"deep": True},
    ),
    "model": (
        Line,
        {
            "type": "object",
            "description": "One line of an order.",
            "properties": {"item": {"type": "string"}, "count": {"type": "integer", "default": 1}},
            "required": ["item"],
        },
        {"item": "pen"},
        Line(item="pen"),
    ),
    "dataclass": (
        Point,
        {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
            "required": ["x"],
            "additionalProperties": False,
        },
        {"x": 1},
        Point(1),
    ),
}


@pytest.mark.parametrize("kind", ARRIVES)
def test_a_type_has_its_schema_and_its_value_arrives_as_python_has_it(kind: str) -> None:
    hint, expected, sent, arrived = ARRIVES[kind]
    function = made(hint)
    assert schema(function) == expected
    got = given(function, sent)
    assert got == arrived
    assert type(got) is type(arrived)
    assert function.tool_spec.parameters["required"] == ["it"]


def test_models_in_models_lists_and_themselves_are_checked_to_the_bottom() -> None:
    order = made(Order)
    assert given(order, {"lines": [{"item": "pen"}, {"item": "ink", "count": 2}]}) == Order(
        lines=[Line(item="pen"), Line(item="ink", count=2)]
    )
    assert "'it.lines.1.count': Input should be a valid integer" in given(
        order, {"lines": [{"item": "pen"}, {"item": "ink", "count": "x"}]}
    )
    assert set(order.tool_spec.parameters["$defs"]) == {"Order", "Line"}
    assert given(made(Tree), {"name": "a", "parts": [{"name": "b"}]}).parts[0] == Tree(name="b")
    assert given(made(list[Point]), [{"x": 1}, {"x": 2, "y": 3}]) == [Point(1), Point(2, 3)]
    assert given(made(dict[str, Line]), {"a": {"item": "pen"}}) == {"a": Line(item="pen")}


def test_a_union_of_models_is_told_apart() -> None:
    for hint in (Cat | Dog, Annotated[Cat | Dog, Field(discriminator="kind")]):
        function = made(hint)
        assert given(function, {"kind": "dog", "barks": True}) == Dog(kind="dog", barks=True)
        assert "The arguments do not fit: 'it" in given(function, {"kind": "cow"})


def test_a_decimal_is_exact() -> None:
    assert given(made(decimal.Decimal), "0.10") == decimal.Decimal("0.10")


@pytest.mark.parametrize(
    "hint, value, says",
    [
        (int, "much", "'it': Input should be a valid integer"),
        (int, 1.5, "'it': Input should be a valid integer"),
        (Colour, "green", "'it': Input should be 'red' or 'blue'"),
        (Literal["a"], "b", "'it': Input should be 'a'"),
        (dt.date, "tomorrow", "'it': Input should be a valid date"),
        (Annotated[int, Field(ge=1)], 0, "'it': Input should be greater than or equal to 1"),
        (int | None, ..., "'it': Field required"),
        (Point, {"x": 1, "z": 2}, "'it.z': Unexpected keyword argument"),
    ],
)
def test_what_does_not_fit_is_named(hint: Any, value: Any, says: str) -> None:
    assert says in given(made(hint), value)


@pytest.mark.parametrize(
    "hint, default, shown",
    [
        (int, 3, 3),
        (int | None, None, None),
        (list[int], [1], [1]),
        (dt.date, dt.date(2026, 1, 2), "2026-01-02"),
        (Colour, Colour.RED, "red"),
        (Point, Point(1, 2), {"x": 1, "y": 2}),
        (Line, Line(item="pen"), {"item": "pen", "count": 1}),
    ],
)
def test_a_default_is_shown_and_reaches_the_function_as_it_is(hint: Any, default: Any, shown: Any) -> None:
    function = made(hint, default)
    assert function.tool_spec.parameters["properties"]["it"]["default"] == shown
    assert "required" not in function.tool_spec.parameters
    assert given(function) == default


@pytest.mark.parametrize("default", [float("inf"), SENTINEL])
def test_a_default_that_json_has_not_is_not_shown_and_works(default: Any) -> None:
    function = made(Any, default)
    assert "default" not in function.tool_spec.parameters["properties"]["it"]
    json.dumps(function.tool_spec.parameters, allow_nan=False)
    assert given(function) is default


def test_a_default_of_one_call_is_not_that_of_the_next() -> None:
    @tool
    def add(to: list[int] = []) -> int:  # noqa: B006 - a default that a user may write
        """Add."""
        to.append(1)
        return len(to)

    run = ToolExecutor(ToolRegistry([add]))
    assert [run.call("add", "").content for _ in range(2)] == ["1", "1"]


def test_a_field_as_the_default_says_the_same_as_one_in_annotated() -> None:
    @tool
    def one(it: int = Field(3, ge=1, description="How many")) -> int:
        """Take it."""
        return it

    @tool
    def other(it: Annotated[int, Field(default=3, ge=1, description="How many")]) -> int:
        """Take it."""
        return it

    assert (
        schema(one)
        == schema(other)
        == {"type": "integer", "minimum": 1, "default": 3, "description": "How many"}
    )
    for function in (one, other):
        run = ToolExecutor(ToolRegistry([function]))
        name = function.tool_spec.name  # type: ignore[attr-defined]
        assert run.call(name, "").content == "3"
        assert "greater than or equal to 1" in run.call(name, '{"it": 0}').content


def test_a_parameter_may_have_any_name() -> None:
    @tool
    def take(model_config: int, schema: str, copy: int, _private: int = 4, title: str = "t") -> list[Any]:
        """Take it."""
        return [model_config, schema, copy, _private, title]

    run = ToolExecutor(ToolRegistry([take]))
    assert run.call("take", '{"model_config": 1, "schema": "s", "copy": 2}').raw == [1, "s", 2, 4, "t"]
    assert "title" in take.tool_spec.parameters["properties"]  # type: ignore[attr-defined]


def test_the_docstring_says_what_parameters_mean() -> None:
    @tool
    def search(
        ctx: CallContext, text: str, where: Annotated[str, Field(description="Mine")] = "", most: int = 9
    ) -> str:
        """Search for a text.

        Also in old ones.

        Args:
            ctx: unseen.
            text (str): what to look for:
                a word, or several.
            where: unread, since the annotation says it.
            most: how many.

        Returns:
            One line for each.
        """
        return text

    spec = search.tool_spec  # type: ignore[attr-defined]
    about = {name: field.get("description") for name, field in spec.parameters["properties"].items()}
    assert about == {"text": "what to look for: a word, or several.", "where": "Mine", "most": "how many."}
    assert spec.description == ("Search for a text.\n\nAlso in old ones.\n\nReturns:\n    One line for each.")


def test_a_docstring_without_such_a_section_is_left_as_it_is() -> None:
    @tool
    def look(text: str) -> str:
        """Look. Args: none to speak of.

        Args:

        Text goes on.
        """
        return text

    assert look.tool_spec.description.endswith("Text goes on.")  # type: ignore[attr-defined]
    assert look.tool_spec.parameters["properties"]["text"] == {"type": "string"}  # type: ignore[attr-defined]


def test_what_cannot_be_a_tool_is_refused_in_one_sentence() -> None:
    import typing

    class Old(typing.TypedDict):
        n: int

    class Box:
        def take(self, n: int) -> int:
            """Take it."""
            return n

    if not hasattr(typing, "TypeAliasType"):  # Python 3.11 has no such thing yet
        with pytest.raises(TypeError, match=r"cannot be checked: Please use `typing_extensions.TypedDict`"):
            made(Old)
    with pytest.raises(TypeError, match="JSON cannot carry"):
        made(Callable[[], int])
    with pytest.raises(TypeError, match="the tool take is a method"):
        tool(Box().take)
    with pytest.raises(ValueError, match="'' cannot be a tool's name"):
        tool(functools.partial(Box().take, 1))
