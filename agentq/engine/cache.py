"""The threads that this process has just committed, so that its next step of a run need not read them again.

What is kept is true only as long as the run's last commit is the one after which it was kept: the claim
compares the two, and answers with the whole thread when they differ. An entry is taken out to be worked on
and put back after the commit, so what a failed step did to it is never seen.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from agentq.engine.snapshot import Snapshot

BYTES_MAX = 64_000_000
"""The most that all kept threads may have in messages, roughly."""


class ThreadCache:
    """Snapshots by run, the longest unused dropped first."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._kept: OrderedDict[str, tuple[str, Snapshot]] = OrderedDict()
        self._guard = threading.Lock()

    def take(self, run_id: str) -> tuple[str, Snapshot | None]:
        """The commit after which the thread was kept, and the thread; an empty word when there is none."""
        with self._guard:
            entry = self._kept.pop(run_id, None)
            if entry is None:
                return "", None
            self._bytes -= entry[1].bytes
            return entry

    def put(self, run_id: str, commit: str, snapshot: Snapshot) -> None:
        """Keep a thread as it is after this commit."""
        with self._guard:
            if run_id in self._kept:
                self._bytes -= self._kept.pop(run_id)[1].bytes
            self._kept[run_id] = (commit, snapshot)
            self._bytes += snapshot.bytes
            while self._bytes > self._bytes_max:
                _, (_, oldest) = self._kept.popitem(last=False)
                self._bytes -= oldest.bytes

    def __len__(self) -> int:
        return len(self._kept)
