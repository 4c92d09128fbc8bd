"""Redis: the only truth. Every change of state is one Lua script; reads and keys live here too.

Nothing here knows an agent, a model or Celery: it takes and returns the plain records of
`agentq.core.records`.
"""

from agentq.store.connect import Store, connect

__all__ = ["Store", "connect"]
