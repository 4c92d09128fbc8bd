"""Tools: how a Python function becomes something that a model may call, and what guards it.

Layer rule: this package imports `agentq.core` and nothing else of agentq. It knows no model and no
thread: a call is a name and a text of arguments, a result is a value. Nothing here raises at the model.
"""

from __future__ import annotations

from agentq.tools.children import ChildResult
from agentq.tools.context import CallContext
from agentq.tools.decorator import tool
from agentq.tools.executor import ToolExecutor
from agentq.tools.idempotency import call_signature
from agentq.tools.journal import PlannedCall
from agentq.tools.registry import ToolRegistry
from agentq.tools.result import ToolResult
from agentq.tools.spec import ToolSpec

__all__ = [
    "CallContext",
    "ChildResult",
    "PlannedCall",
    "ToolExecutor",
    "ToolRegistry",
    "ToolResult",
    "ToolSpec",
    "call_signature",
    "tool",
]
