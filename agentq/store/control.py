"""What people do to runs beside submitting and cancelling: pause, resume, retry."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import redis

from agentq.core.ids import new_nonce
from agentq.core.records import Reopening, Retrial
from agentq.store.keys import Keys
from agentq.store.scripts import Arg, Scripts, unexpected

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Control:
    """All runs of one namespace, as people steer them. Many runs are one round trip."""

    def __init__(self, client: redis.Redis, keys: Keys, scripts: Scripts) -> None:
        self._client = client
        self._keys = keys
        self._scripts = scripts

    def pause_many(self, run_ids: Sequence[str], by: str) -> list[str]:
        """HELD, PAUSING (as soon as it is queued), CANCELLING, ENDED or MISSING, for each."""
        return self._words("run_pause", [[run_id, by] for run_id in run_ids])

    def resume_many(self, run_ids: Sequence[str], *, own: bool) -> list[str]:
        """RESUMED, HELD (another pause holds it), ENDED or MISSING, for each.

        Args:
            run_ids: the runs.
            own: take back the pause of each run itself; else that of their batch was taken back.
        """
        return self._words("run_resume", [[run_id, int(own)] for run_id in run_ids])

    def _words(self, script: str, calls: Sequence[Sequence[Arg]]) -> list[str]:
        return [str(reply[0]) for reply in self._scripts.call_many(script, calls)]

    def reopenings(self, run_ids: Sequence[str]) -> list[Reopening | None]:
        """What a retry has to know of each ended run, or None where there is no such run."""
        pipeline = self._client.pipeline(transaction=False)
        for run_id in run_ids:
            pipeline.hmget(self._keys.run(run_id), ["generation", "head", "reopen", "reopen_head"])
            pipeline.llen(self._keys.run(run_id, "msgs"))
        replies = pipeline.execute()
        found: list[Reopening | None] = []
        for (generation, head, kept, before), there in zip(replies[::2], replies[1::2], strict=True):
            if head is None:
                found.append(None)
                continue
            found.append(Reopening(int(generation or 0), str(before or head), str(head), int(kept or there)))
        return found

    def retry_many(self, retrials: Sequence[Retrial]) -> list[tuple[str, str]]:
        """Reopen ended runs; for each a word and what goes with it.

        RETRIED and its step; LIVE and its state; CANCELLING and its batch (cancelled, with live rows);
        CHANGED (somebody else has retried it); GONE and which part is; ORPHAN and its parent's state, or
        nothing; MISSING.
        """
        calls = [self._retrial(retrial) for retrial in retrials]
        answers: list[tuple[str, str]] = []
        for reply in self._scripts.call_many("run_retry", calls):
            match reply:
                case [("RETRIED" | "LIVE" | "CANCELLING" | "GONE" | "ORPHAN") as word, what]:
                    answers.append((word, what))
                case [("CHANGED" | "MISSING") as word]:
                    answers.append((word, ""))
                case _:
                    raise unexpected("run_retry", reply)
        return answers

    @staticmethod
    def _retrial(retrial: Retrial) -> list[Arg]:
        limits: list[Any] = [retrial.usd, retrial.tokens]
        fields: list[Arg] = [] if retrial.spec is None else ["spec", _encode(retrial.spec.as_dict())]
        return [
            retrial.run_id,
            new_nonce(),
            retrial.generation,
            retrial.head,
            retrial.messages,
            *("" if limit == "same" else "-" if limit is None else limit for limit in limits),
            retrial.event,
            retrial.by,
            len(fields),
            *fields,
        ]
