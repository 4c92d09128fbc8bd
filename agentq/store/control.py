"""What people do to runs beside submitting and cancelling: pause, resume, retry."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

import redis

from agentq.core.errors import UsageError
from agentq.core.ids import new_nonce
from agentq.core.records import Reopening, RunSpec
from agentq.store.keys import Keys
from agentq.store.scripts import Arg, Scripts, unexpected

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Control:
    """All runs of one namespace, as people steer them."""

    def __init__(self, client: redis.Redis, keys: Keys, scripts: Scripts) -> None:
        self._client = client
        self._keys = keys
        self._scripts = scripts

    def pause_many(self, run_ids: Sequence[str], by: str) -> list[str]:
        """HELD, PAUSING (as soon as it is queued), CANCELLING, ENDED or MISSING, for each."""
        return self._words("run_pause", [[run_id, by] for run_id in run_ids])

    def resume_many(self, run_ids: Sequence[str]) -> list[str]:
        """RESUMED, HELD (its batch is paused), ENDED or MISSING, for each."""
        return self._words("run_resume", [[run_id] for run_id in run_ids])

    def _words(self, script: str, calls: Sequence[Sequence[Arg]]) -> list[str]:
        return [str(reply[0]) for reply in self._scripts.call_many(script, calls)]

    def reopening(self, run_id: str) -> Reopening | None:
        """What a retry has to know of an ended run, or None when there is no such run."""
        names = ["generation", "head", "reopen", "reopen_head"]
        generation, head, kept, before = self._client.hmget(self._keys.run(run_id), names)
        if head is None:
            return None
        messages: Any = kept or self._client.llen(self._keys.run(run_id, "msgs"))
        return Reopening(int(generation or 0), str(before or head), int(messages))

    def retry(
        self,
        run_id: str,
        reopening: Reopening,
        *,
        head: str,
        event: str,
        usd: int | Literal["same"] | None = "same",
        tokens: int | Literal["same"] | None = "same",
        spec: RunSpec | None = None,
    ) -> int:
        """Reopen an ended run; answers its step.

        Args:
            run_id: the run.
            reopening: as it was read.
            head: its thread's, with what stopped it taken out.
            event: for its trace.
            usd: its limit from now on, in nano-USD; None for none.
            tokens: the same in tokens.
            spec: what it is from now on, where its budgets change.

        Raises:
            UsageError: when it cannot be reopened.
        """
        limits = ["" if limit == "same" else "-" if limit is None else limit for limit in (usd, tokens)]
        fields: list[Arg] = [] if spec is None else ["spec", _encode(asdict(spec))]
        reply = self._scripts.call(
            "run_retry",
            run_id,
            new_nonce(),
            reopening.generation,
            head,
            reopening.messages,
            *limits,
            event,
            len(fields),
            *fields,
        )
        match reply:
            case ["RETRIED", step]:
                return int(step)
            case ["LIVE", state]:
                raise UsageError(f"run {run_id} is {state}: only a run that has ended is retried")
            case ["CHANGED"]:
                raise UsageError(f"run {run_id} was retried by somebody else meanwhile")
            case ["GONE", what]:
                raise UsageError(
                    f"run {run_id} is kept no longer in full (its {what}): it cannot be retried",
                    hint="submit it anew",
                )
            case ["ORPHAN", state]:
                raise UsageError(
                    f"run {run_id} is a child, and its parent is {state or 'gone'}", hint="retry the parent"
                )
            case ["MISSING"]:
                raise UsageError(f"there is no run {run_id!r}", hint="it may be older than the retention")
            case _:
                raise unexpected("run_retry", reply)
