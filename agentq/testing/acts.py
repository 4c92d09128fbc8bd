"""What tools really did: each execution of one with a side effect is written down before it acts."""

from __future__ import annotations

import dataclasses
import inspect
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentq.testing.files import append, read
from agentq.tools import CallContext, ToolSpec

_CONTEXT = "agentq_chaos_context"


@dataclass(frozen=True, slots=True)
class Act:
    """One execution. `key` is the idempotency key that the tool was given."""

    run: str
    tool: str
    key: str
    pid: int


def recorded(spec: ToolSpec, path: Path) -> ToolSpec:
    """The same tool, whose executions become lines of a file. One that only reads is left as it is."""
    if not spec.side_effect:
        return spec

    def note(ctx: CallContext) -> None:
        append(path, [ctx.run_id, spec.name, ctx.idempotency_key, os.getpid()])

    async def act_later(**given: Any) -> Any:
        note(given.pop(_CONTEXT))
        return await spec.fn(**given)

    def act(**given: Any) -> Any:
        note(given.pop(_CONTEXT))
        return spec.fn(**given)

    return dataclasses.replace(
        spec,
        fn=act_later if inspect.iscoroutinefunction(spec.fn) else act,
        context_params=(*spec.context_params, _CONTEXT),
    )


def acts(path: Path) -> list[Act]:
    """All executions so far."""
    return [Act(*line) for line in read(path)]
