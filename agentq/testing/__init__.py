"""Testing agents that run on agentq: the chaos kit behind `agentq chaos`.

It runs an app's agents, with their real tools and a scripted model, through every crash point, and checks
what must hold afterwards.
"""

from __future__ import annotations

from agentq.testing.chaos import Outcome, Report, run_chaos
from agentq.testing.plan import Plan, make_plan
from agentq.testing.verdict import Violation

__all__ = ["Outcome", "Plan", "Report", "Violation", "make_plan", "run_chaos"]
