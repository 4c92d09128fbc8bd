"""What a step needs to have at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from agentq.agent.agent import Agent
from agentq.engine.cache import ThreadCache
from agentq.engine.failure import PATIENCE_SECONDS
from agentq.engine.leases import Leases
from agentq.engine.suspects import Suspects
from agentq.store.connect import Store
from agentq.store.ledger import PARK_MS

Dispatch = Callable[[str, int], None]
"""Send the hint that a run has this step to do. It may fail, be lost or arrive twice."""


MakeHint = Callable[[str, int], tuple[str, str] | None]
"""A hint that a script can push by itself: queue key and message. None: it has to be dispatched."""


def no_hint(run_id: str, step: int) -> None:
    """Every hint is dispatched."""


@dataclass(frozen=True, slots=True)
class Workbench:
    """A worker's tools: where the truth is, which agents it knows, and how it sends hints."""

    store: Store
    agents: Mapping[str, Agent]
    leases: Leases
    dispatch: Dispatch
    lease_ms: int
    approval_ms: int
    park_ms: int = PARK_MS
    """How long a run may wait for money before its closing turn is made."""
    patience_seconds: float = PATIENCE_SECONDS
    """How long the calls of one step may fail before no further one is made."""
    on_unpriced: str = "refuse"
    scopes: tuple[str, ...] = ()
    """As in the settings, for runs that its runs start."""
    make_hint: MakeHint = no_hint
    cache: ThreadCache = field(default_factory=ThreadCache)
    suspects: Suspects = field(default_factory=Suspects)
