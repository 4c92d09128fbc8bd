"""An event of a trace as one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentq.agent import TraceEvent

WIDTH = 160


def trace_line(event: TraceEvent) -> str:
    """Step, whether it went well, what it was, and the beginning of its detail."""
    detail = " ".join(str(event.detail).split())
    if len(detail) > WIDTH:
        detail = f"{detail[: WIDTH - 1]}…"
    return f"{event.step:>4} {'✓' if event.ok else '✗'} {event.kind:<16} {detail}".rstrip()
