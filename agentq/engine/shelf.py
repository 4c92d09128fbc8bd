"""Long results of a distributed run: kept with the run's keys, for each of its steps on any worker."""

from __future__ import annotations

import logging

from agentq.core.records import Lease
from agentq.store.connect import Store
from agentq.tools.shelf import MAX_KEPT_RESULTS, MAX_KEPT_TOTAL_BYTES

log = logging.getLogger("agentq.step")


class RunShelf:
    """The kept results of one run, as one of its steps sees them; see `agentq.tools.shelf.Shelf`."""

    def __init__(self, store: Store, lease: Lease) -> None:
        self._store = store
        self._lease = lease

    def keep(self, reference: str, text: str) -> bool:
        """Keep a text, if there is room for it and the step is still this worker's."""
        answer = self._store.results.keep(
            self._lease, reference, text, most=MAX_KEPT_RESULTS, most_bytes=MAX_KEPT_TOTAL_BYTES
        )
        if answer != "OK":
            log.warning("result_not_kept run=%s ref=%s why=%s", self._lease.run_id, reference, answer)
        return answer == "OK"

    def read(self, reference: str) -> str | None:
        """The text under this reference."""
        return self._store.results.read(self._lease.run_id, reference)
