"""The tools of an agent, by name: its own, and those of sources, which are asked when they are needed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from agentq.tools.readresult import READ_RESULT
from agentq.tools.spec import ToolSpec

log = logging.getLogger("agentq.tools")


@runtime_checkable
class ToolSource(Protocol):
    """Something that has tools, and is asked for them when they are first needed."""

    def specs(self) -> Sequence[ToolSpec]:
        """Its tools; the same objects as long as they are the same.

        Raises:
            UnavailableError: when it cannot be reached, and never was.
        """
        ...

    def known(self) -> Sequence[ToolSpec] | None:
        """Its tools as far as this process knows them, without asking; None: not at all."""
        ...

    def may_have(self, name: str) -> bool:
        """Whether a tool of this name could be one of its tools."""
        ...


class ToolRegistry:
    """A set of tools. Give it functions that are decorated with `@tool`, specs, or sources as `MCPServer`.

    When one of them has its long results kept (`spill`), `read_result` is one more of them.
    """

    def __init__(self, tools: Iterable[Callable[..., Any] | ToolSpec | ToolSource] = ()) -> None:
        self._specs: dict[str, ToolSpec] = {}
        self._sources: list[ToolSource] = []
        self._left_out: set[str] = set()  # what the log has said of them
        for item in tools:
            self.register(item)

    def register(self, item: Callable[..., Any] | ToolSpec | ToolSource) -> ToolSpec | None:
        """Add one tool and return its spec, or add a source, whose tools are not known yet.

        Raises:
            TypeError: for a function without `@tool`.
            ValueError: when another tool has this name.
        """
        if isinstance(item, ToolSource):
            self._sources.append(item)
            return None
        spec = item if isinstance(item, ToolSpec) else getattr(item, "tool_spec", None)
        if not isinstance(spec, ToolSpec):
            name = getattr(item, "__name__", repr(item))
            raise TypeError(f"{name} is not a tool: put @tool above it")
        present = self._specs.get(spec.name)
        if present is not None and present is not spec:
            raise ValueError(f"there are two tools with the name {spec.name}")
        self._specs[spec.name] = spec
        return spec

    @property
    def is_known(self) -> bool:
        """Whether all tools can be named without asking a source."""
        return all(source.known() is not None for source in self._sources)

    def own_names(self) -> list[str]:
        """The names of all tools that are not of a source, sorted."""
        return sorted(self._specs)

    def may_have(self, name: str) -> bool:
        """Whether there is a tool of this name, or a source could have one. Asks none."""
        return name in self._specs or any(source.may_have(name) for source in self._sources)

    def known(self, name: str) -> ToolSpec | None:
        """The tool of this name, if this process knows it without asking a source."""
        return self._merged([source.known() or () for source in self._sources]).get(name)

    def allows(self, name: str, allowlist: Sequence[str] | None) -> bool:
        """Whether a tool may be used: it is on the list, or reads what one on the list has had kept."""
        if allowlist is None or name in allowlist:
            return True
        return any(spec.name == name for spec in self.visible(allowlist))

    def get(self, name: str) -> ToolSpec | None:
        """The tool of this name, or None.

        Raises:
            UnavailableError: when a source that may have it cannot be reached.
        """
        return self._specs.get(name) or self._all().get(name)

    def _has_reader(self, found: Mapping[str, ToolSpec], allowlist: Sequence[str] | None) -> bool:
        return found.get(READ_RESULT.name) is READ_RESULT and any(
            spec.spill for spec in found.values() if allowlist is None or spec.name in allowlist
        )

    def names(self) -> list[str]:
        """All names, sorted.

        Raises:
            UnavailableError: when a source cannot be reached.
        """
        return sorted(self._all())

    def visible(self, allowlist: Sequence[str] | None = None) -> list[ToolSpec]:
        """The tools that the model may see, sorted by name: all of them without an allowlist.

        Raises:
            UnavailableError: when a source cannot be reached.
        """
        found = self._all()
        seen = {name for name in found if allowlist is None or name in allowlist}
        if self._has_reader(found, allowlist):
            seen.add(READ_RESULT.name)
        return [found[name] for name in sorted(seen)]

    def _all(self) -> dict[str, ToolSpec]:
        return self._merged([source.specs() for source in self._sources])

    def _merged(self, of_sources: Iterable[Sequence[ToolSpec]]) -> dict[str, ToolSpec]:
        """Own tools first: a source can put none in the place of one of them, nor of another source's."""
        found = dict(self._specs)
        for specs in of_sources:
            for spec in specs:
                if found.setdefault(spec.name, spec) is not spec and spec.name not in self._left_out:
                    self._left_out.add(spec.name)
                    log.warning("tool_left_out tool=%s why=another one has the name", spec.name)
        if any(spec.spill for spec in found.values()):
            found.setdefault(READ_RESULT.name, READ_RESULT)
        return found

    def __len__(self) -> int:
        return len(self._all())

    def __contains__(self, name: object) -> bool:
        return name in self._all()
