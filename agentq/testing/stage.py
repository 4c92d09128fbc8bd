"""The user's app in a case: its agents and tools as they are, another model, and a namespace of its own."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from agentq.agent import Agent
from agentq.app import AgentQ
from agentq.core.settings import NAMES
from agentq.engine.workbench import no_hint
from agentq.testing.acts import recorded
from agentq.testing.delivery import Delivery, FaultyDispatch
from agentq.testing.model import PRICE, BilledModel
from agentq.tools import ToolExecutor, ToolRegistry

BILL, ACTS, PASSES, ROWS, BATCH = "bill", "acts", "passes", "rows.json", "chaos"
RUN_USD = "10"
"""The limit of each run, thousands of calls: lost ones cost money too, and no case may end for want of it."""
LATE_LEASES = 1.2
"""When a late hint arrives, in leases."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What all cases have in common."""

    app: str
    """`module:app`."""
    redis_url: str
    broker_url: str
    folder: str
    lease_seconds: float = 1.5
    tick_seconds: float = 0.2


@dataclass(frozen=True, slots=True)
class Scene:
    """What all processes of one case have in common. `folder` is where they write down what they do."""

    namespace: str
    folder: str
    delivery: Delivery = "none"
    pace: float = 0.0


def staged(user: AgentQ, ground: Ground, scene: Scene) -> AgentQ:
    """An app with the user's agents for one process of a case. The user's own is not changed."""
    app = AgentQ(user.name)
    without_limits: dict[str, Any] = {name: None for name in NAMES if "_max_usd" in name}
    app.settings = replace(
        user.settings,
        redis_url=ground.redis_url,
        broker_url=ground.broker_url,
        namespace=scene.namespace,
        home=scene.folder,
        lease_seconds=ground.lease_seconds,
        tick_seconds=ground.tick_seconds,
        **without_limits,
    )
    app.pricing = user.pricing
    model = BilledModel(bill=Path(scene.folder) / BILL, pace=scene.pace)
    for name, agent in user.agents.items():
        app.agents[name] = _staged_agent(agent, model, Path(scene.folder) / ACTS)
    if scene.delivery != "none":
        # Scripts push their hints past any fault; these go through Celery.
        vars(app)["make_hint"] = no_hint
        vars(app)["dispatch"] = FaultyDispatch(
            app.dispatch,
            scene.delivery,
            late_seconds=LATE_LEASES * ground.lease_seconds,
            folder=Path(scene.folder),
        )
    return app


def _staged_agent(agent: Agent, model: BilledModel, acts: Path) -> Agent:
    actor = copy.copy(agent)
    for name in [
        name for name in vars(actor) if isinstance(getattr(type(actor), name, None), cached_property)
    ]:
        del vars(actor)[name]
    registry = agent.executor.registry
    specs = [spec for name in registry.names() if (spec := registry.get(name)) is not None]
    actor.client = model
    actor.models = (model.model,)
    actor.pricing = {PRICE.model: PRICE}
    actor.executor = ToolExecutor(ToolRegistry(recorded(spec, acts) for spec in specs))
    actor.budgets = replace(agent.budgets, max_usd=RUN_USD, max_tokens=None, max_seconds=None)
    return actor
