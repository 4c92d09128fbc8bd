"""Arguments that are made for a tool pass its own check, or it is said why there are none."""

from __future__ import annotations

import datetime as dt
import json
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from agentq.testing.arguments import NoArgumentsError, arguments_for
from agentq.tools import tool


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Address(BaseModel):
    street: str
    zip: Annotated[int, Field(ge=10_000, le=99_999)]
    floor: int = 0


class Chain(BaseModel):
    name: str
    next: Chain


@tool
def many(
    *,
    text: str,
    long: Annotated[str, Field(min_length=9)],
    short: Annotated[str, Field(max_length=2)],
    shown: Annotated[str, Field(examples=["A-17"], pattern="^[A-Z]-[0-9]+$")],
    day: dt.date,
    whole: int,
    positive: Annotated[int, Field(gt=0, multiple_of=5)],
    under: Annotated[float, Field(lt=0)],
    yes: bool,
    colour: Colour,
    kind: Literal["b", "a"],
    perhaps: int | None,
    address: Address,
    lines: list[Address],
    pair: tuple[int, str],
    several: Annotated[list[int], Field(min_length=2)],
    anything: Any,
    left_out: int = 7,
) -> str:
    """Takes everything."""
    return "ok"


def test_arguments_of_every_type_pass_the_tool_s_own_check():
    made = arguments_for(many.tool_spec)  # type: ignore[attr-defined]
    many.tool_spec.args_model.model_validate(json.loads(json.dumps(made)))  # type: ignore[attr-defined]
    assert made["shown"] == "A-17"
    assert made["colour"] == "red"
    assert made["several"] == [1, 1]
    assert "left_out" not in made
    assert made["address"] == {"street": "text", "zip": 10_000}


@tool
def by_pattern(number: Annotated[str, Field(pattern="^T-[0-9]+$")]) -> str:
    """Takes a number in a form of its own."""
    return number


@tool
def without_end(chain: Chain) -> str:
    """Takes a chain that never ends."""
    return chain.name


@tool
def taller_than_wide(low: int, high: Annotated[int, Field(ge=5, le=3)]) -> str:
    """Takes what cannot be."""
    return f"{low}{high}"


@pytest.mark.parametrize(
    "function, reason",
    [
        (by_pattern, "give the parameter examples=[…]"),
        (without_end, "its parameters contain themselves"),
        (taller_than_wide, "does not pass its check"),
    ],
)
def test_where_no_arguments_can_be_made_it_is_said_why(function, reason):
    with pytest.raises(NoArgumentsError, match=reason.replace("[", r"\[")):
        arguments_for(function.tool_spec)
