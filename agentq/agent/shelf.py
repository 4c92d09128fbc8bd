"""Long results of a run in one process: kept in its thread."""

from __future__ import annotations

import threading

from agentq.agent.thread import Thread
from agentq.tools.shelf import MAX_KEPT_RESULTS, MAX_KEPT_TOTAL_BYTES


class ThreadShelf:
    """The kept results of one thread; see `agentq.tools.shelf.Shelf`."""

    def __init__(self, thread: Thread) -> None:
        self._kept = thread.kept
        self._guard = threading.Lock()

    def keep(self, reference: str, text: str) -> bool:
        """Keep a text, if there is room for it."""
        with self._guard:
            others = [len(kept.encode()) for name, kept in self._kept.items() if name != reference]
            if len(others) >= MAX_KEPT_RESULTS or sum(others) + len(text.encode()) > MAX_KEPT_TOTAL_BYTES:
                return False
            self._kept[reference] = text
            return True

    def read(self, reference: str) -> str | None:
        """The text under this reference."""
        return self._kept.get(reference)
