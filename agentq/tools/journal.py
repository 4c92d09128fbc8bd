"""What the executor needs of whoever keeps the journal of side effects. In one process there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from agentq.tools.result import ToolResult
from agentq.tools.spec import ToolSpec


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """One call of a step, as it is to be made.

    Args:
        name: the tool.
        arguments: as JSON text; not those that the model sent, where a person has changed them.
        approved: a person has approved it.
        answer: stands in place of making it: what is known already, or a refusal.
        id: tells it from an equal call of the run.
    """

    name: str
    arguments: str
    approved: bool = False
    answer: ToolResult | None = None
    id: str = ""


class Journal(Protocol):
    """Of the calls of one step, each by its position."""

    def check(self) -> None:
        """Return when the step may go on.

        Raises:
            Exception: when it may not: no further call is made.
        """
        ...

    def begin(
        self, position: int, spec: ToolSpec, signature: str, reads: Mapping[int, ToolResult]
    ) -> ToolResult | None:
        """Note that a side effect begins; what answers in its place when it may not be made.

        Args:
            position: of the call.
            spec: its tool.
            signature: of what is executed.
            reads: results since the last side effect, by position; they are kept with it.

        Raises:
            Exception: when the step may not go on.
        """
        ...

    def done(self, position: int, spec: ToolSpec, signature: str, result: ToolResult, *, late: bool) -> None:
        """Note what it has given. `late`: its time was over before."""
        ...

    def asks(self, spec: ToolSpec) -> bool:
        """Whether a person is asked about a call of which nobody knows whether it has acted."""
        ...
