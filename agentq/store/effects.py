"""The journal of side effects: what has begun, and what is known to be done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from agentq.core.records import Lease
from agentq.store.scripts import Arg, Scripts, unexpected

Began = Literal["GO", "DONE", "CACHED", "UNKNOWN", "CANCELLED", "STALE"]
Known = Literal["OK", "LATE", "GONE", "MISSING"]


@dataclass(frozen=True, slots=True)
class Effect:
    """One call with a side effect, under the lease under which it begins.

    `signature` is of what is executed. `once`: an equal call of the same run answers for it.
    """

    lease: Lease
    call: str
    signature: str
    once: bool


class Effects:
    """The journals of all runs of one namespace."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def begin(self, effect: Effect, *, retry: bool, reads: Mapping[str, str]) -> tuple[Began, str]:
        """Say that a call begins; it may be made only after GO.

        Args:
            effect: the call.
            retry: make it although it may have acted already.
            reads: results, by call id, that are kept with it.

        Returns:
            GO, or what answers in its place: DONE with its result, CACHED with the content of an equal
            call's, UNKNOWN (nobody knows whether it has acted), CANCELLED or STALE (the step must stop).
        """
        flat: list[Arg] = [part for item in reads.items() for part in item]
        lease = effect.lease
        reply = self._scripts.call(
            "effect_begin",
            lease.run_id,
            lease.fence,
            effect.call,
            lease.step,
            effect.signature,
            "once" if effect.once else "again",
            "retry" if retry else "",
            len(flat),
            *flat,
        )
        match reply:
            case [("DONE" | "CACHED") as word, text]:
                return word, text
            case [("GO" | "UNKNOWN" | "CANCELLED" | "STALE") as word]:
                return word, ""
            case _:
                raise unexpected("effect_begin", reply)

    def done(self, effect: Effect, result: str, *, late: bool, event: str, content: str | None) -> Known:
        """Say what a call that began has given. A fact: whoever holds the run by now.

        Args:
            effect: the call, as it began.
            result: its result, encoded.
            late: its time was over: the model was told that nobody knows.
            event: for the trace, when it is late or its step is over.
            content: answers equal calls of the run, then.
        """
        lease = effect.lease
        answers: list[Arg] = [0] if content is None or not effect.once else [1, content]
        reply = self._scripts.call(
            "effect_done",
            lease.run_id,
            lease.fence,
            effect.call,
            lease.step,
            effect.signature,
            result,
            event,
            int(late),
            *answers,
        )
        match reply:
            case ["OK"]:
                return "OK"
            case ["LATE"]:
                return "LATE"
            case ["GONE"]:
                return "GONE"
            case ["MISSING"]:
                return "MISSING"
            case _:
                raise unexpected("effect_done", reply)
