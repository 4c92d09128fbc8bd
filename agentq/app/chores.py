"""What every worker does now and then beside its steps: the batches of schedules, and notices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentq.app.schedule import load_for
from agentq.engine.load import Load, Told
from agentq.engine.notify import Notifier
from agentq.engine.plan import Plan
from agentq.engine.schedule import make_due

if TYPE_CHECKING:
    from agentq.app.agentq import AgentQ


@dataclass(frozen=True, slots=True)
class AppMaker:
    """Makes batches with an app's agents: see `agentq.engine.schedule.Maker`."""

    app: AgentQ

    def load(self, batch: str, plan: Plan, tell: Told) -> Load:
        """Begin to check rows for a batch on the terms of a plan."""
        return load_for(self.app, batch, plan, tell)

    def write(self, load: Load, plan: Plan) -> None:
        """Write the rows of a load to their batch."""
        self.app.write(load, agent=plan.agent, on_exhausted=plan.on_exhausted, options=plan.options)


def chores_of(app: AgentQ) -> dict[str, Callable[[], None]]:
    """The chores of a worker of this app, by name. Each call is one round, and is bounded."""
    store, lease_ms = app.bench.store, app.settings.lease_ms
    maker, notifier = AppMaker(app), Notifier(store, app.settings)

    def make_batches() -> None:
        make_due(store, maker, lease_ms=lease_ms)

    return {"schedules": make_batches, "notices": notifier.send_due}
