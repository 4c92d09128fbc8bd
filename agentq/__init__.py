"""agentq: LLM agents in bulk, on Celery and Redis, inside budgets that hold.

    from agentq import AgentQ, Budgets, CallContext, tool

Each name is loaded when it is asked for: `import agentq.agent` needs no Celery, and `agentq` starts at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentq.agent import Agent, Budgets, LoopDetector, StopReason, Thread
    from agentq.app import AgentQ, Batch, Result, Run
    from agentq.tools import CallContext, tool

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "AgentQ",
    "Batch",
    "Budgets",
    "CallContext",
    "LoopDetector",
    "Result",
    "Run",
    "StopReason",
    "Thread",
    "__version__",
    "tool",
]


_HOMES = {
    "agentq.agent": ("Agent", "Budgets", "LoopDetector", "StopReason", "Thread"),
    "agentq.app": ("AgentQ", "Batch", "Result", "Run"),
    "agentq.tools": ("CallContext", "tool"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'agentq' has no attribute {name!r}")
