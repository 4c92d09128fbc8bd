"""Schedules: what makes batches again and again, and whose turn it is to make one."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import redis

from agentq.core.errors import ConflictError, StoreError
from agentq.store.keys import Keys
from agentq.store.scripts import Scripts, unexpected

STAGED_MS = 3_600_000
"""How long rows are kept whose schedule was never set."""


@dataclass(frozen=True, slots=True)
class ScheduleRecord:
    """A schedule as it stands. Times are the server's milliseconds since 1970."""

    name: str
    spec: str
    """What it says, as JSON: see `agentq.engine.plan.Plan`."""
    rows: int
    bytes: int
    """What its rows take in Redis."""
    part: str
    """Which of its keys has them."""
    created_ms: int
    next_ms: int | None
    """When it is due; None when it never is again."""
    asked_ms: int | None
    """Since when a batch is asked for by hand that is not made yet."""
    paused: str | None
    """Who paused it."""
    is_claimed: bool
    """Whether a worker makes a batch of it now."""
    made: int
    """How many batches it has made."""
    last: str | None
    """The last of them."""
    last_ms: int | None
    """The time that it was of."""
    outcome: str
    """What came of the last time: made, late (made, but others were missed), skipped, failed or retry.

    Empty before the first.
    """
    detail: str
    """More about that."""
    tries: int
    """How often the time at hand was tried in vain."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A schedule whose batch this worker is to make."""

    name: str
    by: str
    """Who has claimed it."""
    is_asked: bool
    """Whether a person asked for it, in place of its own time."""
    due_ms: int
    """That time: its own may be long over."""
    spec: str
    rows: int
    part: str
    last: str | None
    """The batch that was made last."""
    tries: int
    begun_ms: int
    """When that time was taken on first, by whomever."""


class Schedules:
    """All schedules of one namespace."""

    def __init__(self, client: redis.Redis, keys: Keys, scripts: Scripts) -> None:
        self._client = client
        self._keys = keys
        self._scripts = scripts

    # ── keeping ──────────────────────────────────────────────────────────────────────────────────

    def set(
        self, name: str, spec: str, *, digest: str, rows: int, chunks: Sequence[str], next_ms: int
    ) -> bool:
        """Keep a schedule; whether it is new. The same again is left alone.

        Args:
            name: its name.
            spec: what it says, JSON.
            digest: equal for what is the same schedule with the same rows.
            rows: how many there are.
            chunks: the rows, as text.
            next_ms: its first time.

        Raises:
            ConflictError: when there is another one of that name.
        """
        part = secrets.token_hex(4)
        key = self._keys.schedule(name, f"rows:{part}")
        for chunk in chunks:
            pipeline = self._client.pipeline(transaction=True)
            pipeline.rpush(key, chunk)
            pipeline.pexpire(key, STAGED_MS)
            pipeline.execute()
        size = sum(map(len, chunks))
        reply = self._scripts.call("schedule_set", name, spec, digest, rows, size, part, len(chunks), next_ms)
        match reply:
            case ["SET", _]:
                return True
            case ["SAME", _]:
                return False
            case ["CONFLICT"]:
                raise ConflictError(
                    f"there is a schedule {name!r} with other rows or terms",
                    hint=f"agentq schedules remove {name}, or another --batch NAME",
                )
            case ["LOST"]:
                raise StoreError(f"the rows of schedule {name!r} are not whole in Redis: try again")
            case _:
                raise unexpected("schedule_set", reply)

    def chunks(self, name: str, part: str) -> Iterator[str]:
        """The rows of a schedule as they were set, a chunk at a time."""
        key, place = self._keys.schedule(name, f"rows:{part}"), 0
        while (chunk := self._client.lindex(key, place)) is not None:
            yield str(chunk)
            place += 1

    def remove(self, name: str) -> bool:
        """Forget a schedule and its rows; whether there was one. Its batches stay."""
        return self._act("schedule_remove", name) is not None

    # ── changing ─────────────────────────────────────────────────────────────────────────────────

    def pause(self, name: str, by: str) -> bool:
        """Let it make nothing by itself until it is resumed; whether there is one."""
        return self._act("schedule_pause", name, by, "") is not None

    def resume(self, name: str, next_ms: int | None) -> bool:
        """Take back `pause`, and go on at this time; whether there is one."""
        return self._act("schedule_pause", name, "", "" if next_ms is None else next_ms) is not None

    def ask(self, name: str) -> int | None:
        """Ask for a batch now; the time that it will be of, or None when there is no such schedule."""
        found = self._act("schedule_ask", name)
        return None if found is None else int(found)

    def _act(self, script: str, *args: str | int) -> str | None:
        match self._scripts.call(script, *args):
            case ["OK"]:
                return ""
            case ["OK", answer]:
                return str(answer)
            case ["MISSING"]:
                return None
            case reply:
                raise unexpected(script, reply)

    # ── looking ──────────────────────────────────────────────────────────────────────────────────

    def names(self) -> list[str]:
        """All of them, whose turn is next first."""
        return [str(name) for name in self._client.zrange(self._keys.schedules, 0, -1)]

    def read(self, name: str) -> ScheduleRecord | None:
        """A schedule as it stands, or None when there is none of that name."""
        fields: Mapping[str, str] = self._client.hgetall(self._keys.schedule(name))  # type: ignore[assignment]
        if not fields:
            return None

        def number(field: str) -> int | None:
            return int(fields[field]) if field in fields else None

        return ScheduleRecord(
            name=name,
            spec=fields["spec"],
            rows=int(fields["rows"]),
            bytes=int(fields["bytes"]),
            part=fields["part"],
            created_ms=int(fields["created"]),
            next_ms=number("next"),
            asked_ms=number("asked"),
            paused=fields.get("paused"),
            is_claimed="claim" in fields,
            made=number("made") or 0,
            last=fields.get("last"),
            last_ms=number("last_at"),
            outcome=fields.get("outcome", ""),
            detail=fields.get("detail", ""),
            tries=number("tries") or 0,
        )

    # ── making ───────────────────────────────────────────────────────────────────────────────────

    def claim(self, lease_ms: int) -> Claim | None:
        """Take on the schedule that is due first, so that nobody else makes its batch; None when none is.

        It is anybody's again when it is not heard of for `lease_ms`.
        """
        by = secrets.token_hex(8)
        match self._scripts.call("schedule_claim", by, lease_ms):
            case ["NONE"]:
                return None
            case ["CLAIMED", name, kind, due, spec, rows, part, last, tries, begun]:
                return Claim(
                    name=name,
                    by=by,
                    is_asked=kind == "asked",
                    due_ms=int(due),
                    spec=spec,
                    rows=int(rows),
                    part=part,
                    last=last or None,
                    tries=int(tries),
                    begun_ms=int(begun),
                )
            case reply:
                raise unexpected("schedule_claim", reply)

    def renew(self, claim: Claim, lease_ms: int) -> bool:
        """Say that a claim is still worked on; False when somebody else has it by now, or nobody any more."""
        return self._held("schedule_renew", claim.name, claim.by, lease_ms)

    def settle(
        self,
        claim: Claim,
        *,
        time_ms: int,
        batch: str | None,
        outcome: str,
        detail: str = "",
        next_ms: int | None = None,
    ) -> bool:
        """Give a claim back: what is due is done with. False when it was somebody else's by now.

        Args:
            claim: what was claimed.
            time_ms: the time of the batch.
            batch: the one that was made, if any.
            outcome: what came of it: see `ScheduleRecord`. With a `detail` it is logged as an event.
            detail: more about it.
            next_ms: the schedule's next time; None for never. One that was asked for by hand leaves it.
        """
        following = "" if next_ms is None else next_ms
        return self._done(claim, time_ms, batch or "", outcome, detail, following, "")

    def defer(self, claim: Claim, *, time_ms: int, why: str, retry_ms: int) -> bool:
        """Give a claim back: the same is tried again after `retry_ms`."""
        return self._done(claim, time_ms, "", "retry", why, "", retry_ms)

    def _done(self, claim: Claim, *args: str | int) -> bool:
        kind = "asked" if claim.is_asked else "due"
        return self._held("schedule_done", claim.name, claim.by, kind, *args)

    def _held(self, script: str, *args: str | int) -> bool:
        match self._scripts.call(script, *args):
            case ["OK"]:
                return True
            case ["LOST"]:
                return False
            case reply:
                raise unexpected(script, reply)
