"""A signature becomes a schema; what cannot become one is refused when the module is imported."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from agentq.tools import CallContext, ToolExecutor, ToolRegistry, tool


class Address(BaseModel):
    """Where somebody lives."""

    city: str
    title: str = "home"


@tool(side_effect=True, timeout_s=3, name="book")
def reserve(  # noqa: PLR0917 - one parameter of each kind
    context: CallContext,
    day: date,
    size: Literal["small", "large"],
    where: Address,
    tenant_id: str,
    note: Annotated[str | None, Field(description="Anything else")] = None,
    tags: list[str] = [],  # noqa: B006 - a default that a user may write
    json: float = 1.5,
    dry: bool = False,
) -> dict[str, Any]:
    """Book a room."""
    return {
        "day": day,
        "size": size,
        "where": where,
        "note": note,
        "tags": tags,
        "json": json,
        "dry": dry,
        "for": f"{tenant_id}/{context.user_id}",
    }


def test_the_schema_has_what_the_model_must_know_and_nothing_of_the_server() -> None:
    """Types, choices, descriptions and required fields; no context, no titles, nothing unknown."""
    spec = reserve.tool_spec  # type: ignore[attr-defined]
    properties = spec.parameters["properties"]
    assert list(properties) == ["day", "size", "where", "note", "tags", "json", "dry"]
    assert properties["day"] == {"format": "date", "type": "string"}
    assert properties["size"]["enum"] == ["small", "large"]
    assert properties["note"]["description"] == "Anything else"
    assert spec.parameters["required"] == ["day", "size", "where"]
    assert spec.parameters["additionalProperties"] is False
    assert set(spec.parameters["$defs"]["Address"]["properties"]) == {"city", "title"}
    assert "title" not in properties["day"]
    assert (spec.name, spec.description, spec.timeout_s) == ("book", "Book a room.", 3)
    assert spec.context_params == ("context", "tenant_id")
    assert not spec.is_read_only


def test_arguments_arrive_in_their_python_types() -> None:
    """A date is a date and a model a model; the server's part is filled in."""
    executor = ToolExecutor(ToolRegistry([reserve]))
    ctx = CallContext(user_id="u", tenant_id="t")
    arguments = '{"day": "2026-01-02", "size": "small", "where": {"city": "Rome"}, "json": 2}'
    result = executor.call("book", arguments, ctx)
    assert result.ok, result.content
    assert result.raw["day"] == date(2026, 1, 2)
    assert result.raw["where"] == Address(city="Rome")
    assert result.raw["for"] == "t/u"
    assert '"where":{"city":"Rome","title":"home"}' in result.content


def test_the_function_stays_a_function() -> None:
    """Decorated bare, it is called as before."""

    @tool
    def twice(n: int) -> int:
        """Double a number."""
        return 2 * n

    assert twice(4) == 8
    assert twice.tool_spec.name == "twice"  # type: ignore[attr-defined]


def test_a_tool_without_parameters_has_an_empty_schema() -> None:
    """Still an object that forbids everything."""

    @tool
    def ping() -> str:
        """Answer."""
        return "pong"

    assert ping.tool_spec.parameters == {  # type: ignore[attr-defined]
        "additionalProperties": False,
        "properties": {},
        "type": "object",
    }


def test_what_the_model_could_not_use_is_refused_in_words() -> None:
    """No docstring, no type, no name, an unknown type, a type that JSON has not."""

    def silent(n: int) -> int:
        return n

    def untyped(n) -> int:
        """Doc."""
        return int(n)

    def many(*n: int) -> int:
        """Doc."""
        return len(n)

    def unknown(n: Nowhere) -> int:  # type: ignore[name-defined]  # noqa: F821
        """Doc."""
        return 1

    def strange(n: object, m: TestObject) -> int:
        """Doc."""
        return 1

    with pytest.raises(ValueError, match="silent needs a docstring"):
        tool(silent)
    with pytest.raises(TypeError, match="'n' needs a type"):
        tool(untyped)
    with pytest.raises(TypeError, match="name each argument"):
        tool(many)
    with pytest.raises(TypeError, match="not known in its module"):
        tool(unknown)
    with pytest.raises(TypeError, match="cannot be checked"):
        tool(strange)
    with pytest.raises(ValueError, match="cannot be a tool's name"):
        tool(name="no spaces")(silent)
    with pytest.raises(ValueError, match="timeout_s"):
        tool(description="d", timeout_s=0)(silent)


class TestObject:
    """A class that pydantic does not know."""

    __test__ = False
