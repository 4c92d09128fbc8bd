"""Results of tools that are too long for a conversation, kept with their run."""

from __future__ import annotations

from typing import Any, Literal

import redis

from agentq.core.records import Lease
from agentq.store.keys import Keys
from agentq.store.scripts import Scripts, unexpected

Kept = Literal["OK", "FULL", "STALE"]


class Results:
    """The kept results of all runs of one namespace."""

    def __init__(self, client: redis.Redis, keys: Keys, scripts: Scripts) -> None:
        self._client = client
        self._keys = keys
        self._scripts = scripts

    def keep(self, lease: Lease, reference: str, text: str, *, most: int, most_bytes: int) -> Kept:
        """Keep a result, in place of an earlier one of the same call.

        Args:
            lease: of the step that has it.
            reference: its name in the run.
            text: the result.
            most: how many a run may have.
            most_bytes: how long all of them together may be.

        Returns:
            OK; FULL when the run has too many or too long ones already; STALE when the step is not the
            caller's any more.
        """
        reply = self._scripts.call(
            "result_keep", lease.run_id, lease.fence, reference, text, most, most_bytes
        )
        match reply:
            case ["OK"]:
                return "OK"
            case ["FULL"]:
                return "FULL"
            case ["STALE"]:
                return "STALE"
            case _:
                raise unexpected("result_keep", reply)

    def read(self, run_id: str, reference: str) -> str | None:
        """A kept result of this run, or None."""
        text: Any = self._client.hget(self._keys.run(run_id, "kept"), reference)
        return None if text is None else str(text)

    def all(self, run_id: str) -> dict[str, str]:
        """All kept results of a run, by reference."""
        found: Any = self._client.hgetall(self._keys.run(run_id, "kept"))
        return dict(found)
