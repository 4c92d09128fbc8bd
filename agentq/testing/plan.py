"""What is played in each case: rows, each with a script for its model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentq.app import AgentQ
from agentq.core.errors import UsageError
from agentq.core.words import nearest
from agentq.testing.script import default_script, tools_of


@dataclass(frozen=True, slots=True)
class Plan:
    """The rows, and the tools of their agents that the default scripts do not call, each with the reason."""

    rows: list[dict[str, Any]]
    left_out: dict[str, str] = field(default_factory=dict)

    def calls(self) -> Counter[str]:
        """How often the scripts call each tool."""
        return Counter(name for row in self.rows for name in tools_of(row["metadata"]["script"]))


def make_plan(
    app: AgentQ,
    *,
    agent: str | None = None,
    rows: Sequence[Mapping[str, Any]] = (),
    script: Sequence[Any] | None = None,
) -> Plan:
    """What to play: each row with the script in its metadata, else `script`, else its agent's default one.

    Args:
        app: the user's.
        agent: of rows that name none. Without rows: the one to play; None: all agents of the app, a row each.
        rows: as in an input file.
        script: turns, each a text or a list of [tool, arguments as JSON].

    Raises:
        UsageError: when the app has no agents, or not the one that is named.
    """
    if not app.agents:
        raise UsageError(f"the app {app.name!r} has no agents", hint="define one with app.agent(…)")
    names = [agent] if agent else list(app.agents)
    made = [dict(row) for row in rows] or [{"input": "chaos", "agent": name} for name in names]
    left_out: dict[str, str] = {}
    for number, row in enumerate(made, start=1):
        row["agent"] = name = _known(app, row.get("agent") or agent or (names[0] if len(names) == 1 else ""))
        row.setdefault("custom_id", f"row-{number}")
        row["metadata"] = metadata = dict(row.get("metadata") or {})
        if "script" not in metadata and script is not None:
            metadata["script"] = list(script)
        elif "script" not in metadata:
            default = default_script(app.agents[name])
            metadata["script"] = default.turns
            left_out |= default.left_out
    return Plan(made, left_out)


def _known(app: AgentQ, name: str) -> str:
    if name not in app.agents:
        problem = f"there is no agent {name!r}{nearest(name, app.agents)}" if name else "a row names no agent"
        raise UsageError(problem, hint=f"this app has {', '.join(app.agents)}; --agent names one")
    return name
