"""The definition of an agent: what the model is told and may do, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentq.agent import Agent, Budgets, LoopDetector
from agentq.provider.pricing import ModelPricing
from agentq.provider.scripted import ScriptedClient
from agentq.tools import ToolExecutor, ToolRegistry, tool


@tool
def look(id: str) -> str:
    """Look something up."""
    return id


@tool(side_effect=True)
def pay(order: str) -> str:
    """Pay."""
    return order


def changed(**options: Any) -> Callable[..., Any]:
    """The tool `look` as somebody might change it."""
    options = {"name": "look", "description": "Look something up."} | options

    @tool(**options)
    def look(id: str) -> str:
        """Unread."""
        return id

    return look


def definition(*tools: Callable[..., Any], model: str = "m", **options: Any) -> str:
    client = ScriptedClient(["x"], model=model)
    return Agent(client, ToolExecutor(ToolRegistry(tools or (look, pay))), **options).definition


def test_it_is_the_same_wherever_and_however_often_it_is_made():
    assert definition() == definition()
    assert len(definition()) == 12
    assert definition() == definition(changed(), pay)


def optional(id: str, deep: bool = False) -> str:
    """Look something up."""
    return f"{id} {deep}"


@pytest.mark.parametrize(
    "other",
    [
        definition(model="m2"),
        definition(system="Be brief."),
        definition(max_output_tokens=100),
        definition(look),
        definition(allowlist=["look"]),
        definition(changed(name="find"), pay),
        definition(changed(description="Look."), pay),
        definition(tool(name="look")(optional), pay),
        definition(changed(side_effect=True), pay),
        definition(changed(requires_approval=True), pay),
        definition(changed(side_effect=True, idempotent=True), pay),
        definition(changed(side_effect=True, repeatable=True), pay),
    ],
    ids=[
        "model", "system", "output cap", "tool gone", "allowlist", "tool's name", "tool's description",
        "tool's arguments", "side effect", "approval", "idempotent", "repeatable",
    ],
)  # fmt: skip
def test_what_the_model_is_told_or_may_do_is_in_it(other: str):
    assert other != definition()


def test_each_of_the_words_of_a_tool_makes_another_one():
    words: list[dict[str, Any]] = [
        {},
        {"idempotent": True},
        {"repeatable": True},
        {"requires_approval": True},
    ]
    assert len({definition(changed(side_effect=True, **word), pay) for word in words}) == len(words)


@pytest.mark.parametrize(
    "options",
    [
        {"budgets": Budgets(max_steps=3)},
        {"pricing": {"m": ModelPricing("m", "1", "10", 128_000)}},
        {"max_tool_errors": 9},
        {"loop_detector": LoopDetector(warn_at=5, stop_at=9)},
        {"closing_seconds": 5.0},
        {"on_change": "pin"},
        {"on_denied": "stop", "on_expired": "tell", "on_unknown": "ask"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_limits_and_what_happens_around_it_are_not_in_it(options: dict[str, Any]):
    assert definition(**options) == definition()


@pytest.mark.parametrize("name", ["on_denied", "on_expired", "on_unknown", "on_change"])
def test_a_word_that_does_not_exist_is_refused_with_those_that_do(name: str):
    with pytest.raises(ValueError, match=rf"{name} is one of \w+, \w+.*, not 'maybe'"):
        definition(**{name: "maybe"})
