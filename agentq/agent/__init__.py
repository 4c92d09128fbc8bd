"""The agent loop: what to do next, as pure decisions, and an agent that carries them out in one process.

Layer rule: this package imports `agentq.core`, `agentq.provider` and `agentq.tools`; no Redis, no Celery.
The distributed step makes the same decisions with the same functions (`agentq.agent.loop`).
"""

from __future__ import annotations

from agentq.agent.agent import Agent, RunResult
from agentq.agent.budgets import Budgets, Spend
from agentq.agent.loopdetect import REPEAT_WARNING, LoopDetector
from agentq.agent.metrics import RunMetrics, run_metrics
from agentq.agent.thread import Thread, TraceEvent
from agentq.core.lifecycle import StopReason
from agentq.provider.scripted import ScriptedClient

__all__ = [
    "REPEAT_WARNING",
    "Agent",
    "Budgets",
    "LoopDetector",
    "RunMetrics",
    "RunResult",
    "ScriptedClient",
    "Spend",
    "StopReason",
    "Thread",
    "TraceEvent",
    "run_metrics",
]
