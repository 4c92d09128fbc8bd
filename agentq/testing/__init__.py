"""Testing agents that run on agentq: a provider that is played, and the chaos kit behind `agentq chaos`.

`FakeProvider` is a real HTTP server that speaks as model providers do. The chaos kit runs an app's agents,
with their real tools and a scripted model, through every crash point, and checks what must hold afterwards.

Each name is loaded when it is asked for: the fake provider needs neither Celery nor Redis.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentq.testing.chaos import Outcome, Report, run_chaos
    from agentq.testing.plan import Plan, make_plan
    from agentq.testing.provider import Call, FakeProvider, Fault, Limits, Turn, lognormal, uniform
    from agentq.testing.verdict import Violation

__all__ = [
    "Call",
    "FakeProvider",
    "Fault",
    "Limits",
    "Outcome",
    "Plan",
    "Report",
    "Turn",
    "Violation",
    "lognormal",
    "make_plan",
    "run_chaos",
    "uniform",
]

_HOMES = {
    "agentq.testing.chaos": ("Outcome", "Report", "run_chaos"),
    "agentq.testing.plan": ("Plan", "make_plan"),
    "agentq.testing.provider": ("Call", "FakeProvider", "Fault", "Limits", "Turn", "lognormal", "uniform"),
    "agentq.testing.verdict": ("Violation",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = getattr(import_module(home), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
