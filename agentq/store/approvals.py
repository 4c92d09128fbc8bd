"""The inbox: calls that wait for a person, and what was decided about them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import redis

from agentq.core.ids import new_nonce
from agentq.core.records import Decision
from agentq.store.keys import Keys
from agentq.store.scripts import Scripts, unexpected

_CHUNK = 500
Verdict = Literal["approve", "deny"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A decision that somebody wants to take about one call of one run. `arguments` is JSON, or empty."""

    run_id: str
    call: str
    verdict: Verdict
    by: str
    reason: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of it.

    `word` is DECIDED; TAKEN (somebody was first: `first`), EXPIRED (its time is over), CLOSED (the run does
    not wait any more: `state`), UNKNOWN (no such call waits) or MISSING (no such run).
    """

    word: str
    left: int = 0
    """Calls of the run that are still open."""
    first: Decision | None = None
    state: str = ""


class Approvals:
    """All calls of one namespace that wait for a person."""

    def __init__(self, client: redis.Redis, keys: Keys, scripts: Scripts) -> None:
        self._client = client
        self._keys = keys
        self._scripts = scripts

    def count(self) -> int:
        """How many runs wait for a person."""
        return int(self._client.zcard(self._keys.inbox))

    def runs(self) -> Iterator[list[str]]:
        """The runs that wait for a person, who has waited longest first, in chunks."""
        waiting = [str(run) for run in self._client.zrange(self._keys.inbox, 0, -1)]
        for start in range(0, len(waiting), _CHUNK):
            yield waiting[start : start + _CHUNK]

    def decide(self, wanted: Sequence[Wanted]) -> list[Taken]:
        """Take decisions, in one round trip; each is decided by itself, and the first one counts."""
        calls = [
            [want.run_id, want.call, new_nonce(), want.verdict, want.by, want.reason, want.arguments]
            for want in wanted
        ]
        return [_taken(reply) for reply in self._scripts.call_many("approval_decide", calls)]

    def decisions(self, run_id: str) -> dict[str, Decision]:
        """What was decided about calls of a run, by call id."""
        texts: Any = self._client.hgetall(self._keys.run(run_id, "decisions"))
        return {call: decision_of(text) for call, text in texts.items()}


def decision_of(text: str) -> Decision:
    """A decision as it is stored."""
    said = json.loads(text)
    return Decision(
        verdict=said["verdict"],
        by=said.get("by", ""),
        reason=said.get("reason", ""),
        arguments=said.get("arguments", ""),
        at_ms=int(said.get("at", 0)),
    )


def _taken(reply: list[Any]) -> Taken:
    match reply:
        case ["DECIDED", left]:
            return Taken("DECIDED", left=int(left))
        case ["TAKEN", text]:
            return Taken("TAKEN", first=decision_of(text))
        case ["CLOSED", state]:
            return Taken("CLOSED", state=state)
        case [("EXPIRED" | "UNKNOWN" | "MISSING") as word]:
            return Taken(word)
        case _:
            raise unexpected("approval_decide", reply)
