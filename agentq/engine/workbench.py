"""What a step needs to have at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentq.agent.agent import Agent
from agentq.agent.budgets import Budgets
from agentq.core.records import RunSpec
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
    run_limits: Budgets = field(default_factory=Budgets)
    """What those may spend that are started with budgets that do not name it."""
    make_hint: MakeHint = no_hint
    one_call: Callable[[Mapping[str, Any]], Agent] | None = None
    """Makes the agent of a batch line that is a run of its own model; see `OneCalls.agent`."""
    cache: ThreadCache = field(default_factory=ThreadCache)
    suspects: Suspects = field(default_factory=Suspects)

    def agent_of(self, spec: RunSpec) -> Agent | None:
        """The agent of a run; None where this worker does not know it.

        Raises:
            UsageError: when a call of its own model cannot be made here.
        """
        agent = self.agents.get(spec.agent)
        if agent is None and "model" in spec.call and self.one_call is not None:
            return self.one_call(spec.call)
        return agent
