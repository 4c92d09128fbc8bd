"""What a step needs to have at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agentq.agent.agent import Agent
from agentq.engine.leases import Leases
from agentq.store.connect import Store

Dispatch = Callable[[str, int], None]
"""Send the hint that a run has this step to do. It may fail, be lost or arrive twice."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A worker's tools: where the truth is, which agents it knows, and how it sends hints."""

    store: Store
    agents: Mapping[str, Agent]
    leases: Leases
    dispatch: Dispatch
    lease_ms: int
    approval_ms: int
