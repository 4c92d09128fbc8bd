"""The tools of an agent, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from agentq.tools.spec import ToolSpec


class ToolRegistry:
    """A set of tools. Give it functions that are decorated with `@tool`, or specs."""

    def __init__(self, tools: Iterable[Callable[..., Any] | ToolSpec] = ()) -> None:
        self._specs: dict[str, ToolSpec] = {}
        for item in tools:
            self.register(item)

    def register(self, item: Callable[..., Any] | ToolSpec) -> ToolSpec:
        """Add one tool and return its spec.

        Raises:
            TypeError: for a function without `@tool`.
            ValueError: when another tool has this name.
        """
        spec = item if isinstance(item, ToolSpec) else getattr(item, "tool_spec", None)
        if not isinstance(spec, ToolSpec):
            name = getattr(item, "__name__", repr(item))
            raise TypeError(f"{name} is not a tool: put @tool above it")
        present = self._specs.get(spec.name)
        if present is not None and present is not spec:
            raise ValueError(f"there are two tools with the name {spec.name}")
        self._specs[spec.name] = spec
        return spec

    def get(self, name: str) -> ToolSpec | None:
        """The tool of this name, or None."""
        return self._specs.get(name)

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._specs)

    def visible(self, allowlist: Sequence[str] | None = None) -> list[ToolSpec]:
        """The tools that the model may see, sorted by name: all of them without an allowlist."""
        return [self._specs[name] for name in self.names() if allowlist is None or name in allowlist]

    def __len__(self) -> int:
        return len(self._specs)

    def __contains__(self, name: object) -> bool:
        return name in self._specs
