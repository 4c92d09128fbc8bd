"""What users construct: the app object, and the handles of what they submitted."""

from agentq.app.agentq import AgentQ
from agentq.app.approval import Approval
from agentq.app.batch import Batch
from agentq.app.result import Result
from agentq.app.run import Run

__all__ = ["AgentQ", "Approval", "Batch", "Result", "Run"]
