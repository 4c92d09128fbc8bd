"""Tools by name."""

from __future__ import annotations

import pytest

from agentq.tools import ToolRegistry, tool


@tool
def zebra() -> str:
    """Z."""
    return "z"


@tool
def ant() -> str:
    """A."""
    return "a"


def test_tools_are_sorted_and_filtered_by_the_allowlist() -> None:
    """The order in which they were given does not show."""
    registry = ToolRegistry([zebra, ant.tool_spec])  # type: ignore[attr-defined]
    assert registry.names() == ["ant", "zebra"]
    assert [spec.name for spec in registry.visible()] == ["ant", "zebra"]
    assert [spec.name for spec in registry.visible(["zebra", "unknown"])] == ["zebra"]
    assert registry.visible([]) == []
    assert "ant" in registry
    assert len(registry) == 2
    assert registry.get("none") is None


def test_what_is_no_tool_and_what_is_there_twice_is_refused() -> None:
    """A bare function says what is missing; the same tool again is no conflict."""
    registry = ToolRegistry([ant])
    registry.register(ant)
    with pytest.raises(TypeError, match="put @tool above it"):
        registry.register(lambda: 1)
    with pytest.raises(ValueError, match="two tools with the name ant"):
        registry.register(tool(name="ant", description="another")(lambda: "x"))
