"""agentq: LLM agents in bulk, on Celery and Redis, inside budgets that hold.

    from agentq import AgentQ, Budgets, CallContext, tool

`AgentQ` is loaded when it is asked for, so that `import agentq.agent` needs no Celery.
"""

from typing import TYPE_CHECKING, Any

from agentq.agent import Agent, Budgets, LoopDetector, StopReason, Thread
from agentq.tools import CallContext, tool

if TYPE_CHECKING:
    from agentq.app import AgentQ, Batch, Result, Run

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


def __getattr__(name: str) -> Any:
    if name in {"AgentQ", "Batch", "Result", "Run"}:
        import agentq.app

        return getattr(agentq.app, name)
    raise AttributeError(f"module 'agentq' has no attribute {name!r}")
