"""Batches as they stand: read, never changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import redis

from agentq.core.lifecycle import RunState, StopReason
from agentq.core.records import BatchRecord, Parked
from agentq.store.keys import Keys
from agentq.store.rows import DROPPED

_CHUNK = 500


class BatchReads:
    """What the batches of one namespace say of themselves."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def read(self, name: str) -> BatchRecord | None:
        """A batch as it stands, or None when there is none of that name."""
        pipeline = self._client.pipeline(transaction=True)
        pipeline.hgetall(self._keys.batch(name))
        pipeline.zcard(self._keys.batch(name, "feed"))
        pipeline.zcard(self._keys.batch(name, "loading"))
        pipeline.scard(self._keys.batch(name, "open"))
        pipeline.scard(self._keys.slots_of("b", name))
        pipeline.time()
        fields, fed, loading, open_runs, in_flight, (seconds, _) = pipeline.execute()
        if not fields:
            return None

        def number(field: str) -> int | None:
            return int(fields[field]) if field in fields else None

        loader = fields.get("loader", "").split()  # who, until when he need not be heard of, sealed before
        return BatchRecord(
            name=name,
            agent=fields["agent"],
            tenant=fields["tenant"],
            total=int(fields["total"]),
            ended=int(fields["ended"]),
            sealed=fields.get("sealed") == "1",
            created_ms=int(fields["created"]),
            descendants=int(fields.get("descendants", 0)),
            paused=fields.get("paused"),
            stop_reasons={k[5:]: int(v) for k, v in sorted(fields.items()) if k.startswith("stop:")},
            rows=fed + loading,
            open=open_runs,
            in_flight=in_flight,
            loader=loader[0] if loader else None,
            loader_gone=bool(loader) and int(loader[1]) <= int(seconds) * 1000,
            loading=loading,
            cancelled=fields.get("cancelled"),
            max_in_flight=number("max_in_flight"),
            max_open=number("max_open"),
            priority=number("priority") or 0,
            at_ms=number("at"),
            starts_ms=at if (at := number("at")) and at > int(seconds) * 1000 else None,
            notify=fields.get("notify"),
            notified_ms=number("notified"),
            notify_error=fields.get("notify_error"),
            dry=fields.get("dry"),
            pilot=number("pilot"),
            confirm_above_nano=number("confirm_above"),
            counters={k[2:]: int(v) for k, v in sorted(fields.items()) if k.startswith("m:")},
        )

    def names(self) -> list[str]:
        """All batches, the newest first; entries whose batch has expired are removed."""
        names = [str(n) for n in self._client.zrevrange(self._keys.batches, 0, -1)]
        if not names:
            return []
        pipeline = self._client.pipeline(transaction=False)
        for name in names:
            pipeline.exists(self._keys.batch(name))
        alive = dict(zip(names, pipeline.execute(), strict=True))
        gone = [name for name in names if not alive[name]]
        if gone:
            self._client.zrem(self._keys.batches, *gone)
        return [name for name in names if alive[name]]

    def known(self, name: str, custom_ids: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Of these custom ids, those that the batch has: custom_id to (content hash, run)."""
        if not custom_ids:
            return {}
        found = self._client.hmget(self._keys.batch(name, "ids"), list(custom_ids))
        known: dict[str, tuple[str, str]] = {}
        for custom_id, text in zip(custom_ids, found, strict=True):
            if text is not None:
                content_hash, _, run_id = str(text).partition(" ")
                known[custom_id] = (content_hash, run_id)
        return known

    def runs(self, name: str, start: int = 0) -> Iterator[list[str]]:
        """The runs of a batch in input order, from the `start`-th on, in chunks."""
        while chunk := self._client.lrange(self._keys.batch(name, "runs"), start, start + _CHUNK - 1):
            yield [str(run) for run in chunk]
            start += len(chunk)

    def done(self, name: str, start: int = 0) -> Iterator[str]:
        """The runs of a batch in the order of their ends, from the `start`-th on; retried ones again."""
        while chunk := self._client.lrange(self._keys.batch(name, "done"), start, start + _CHUNK - 1):
            yield from map(str, chunk)
            start += len(chunk)

    def unfinished(self, run_ids: Sequence[str]) -> Iterator[str]:
        """Of these runs those that did not end as finished, in this order; little of each is read."""
        for start in range(0, len(run_ids), _CHUNK):
            chunk, pipeline = run_ids[start : start + _CHUNK], self._client.pipeline(transaction=False)
            for run in chunk:
                pipeline.hget(self._keys.run(run), "stop_reason")
            reasons = pipeline.execute()
            yield from (
                run for run, reason in zip(chunk, reasons, strict=True) if reason != StopReason.FINISHED.value
            )

    def unlisted(self, name: str) -> Iterator[str]:
        """The runs of a batch that have ended, but under a release that kept no list of them: not in `done`.

        Without such runs it costs nothing. A run that was retried since stands for one of them.
        """
        key = self._keys.batch
        pipeline = self._client.pipeline(transaction=True)
        pipeline.hget(key(name), "ended")
        pipeline.llen(key(name, "done"))
        for reason in DROPPED:
            pipeline.zcard(key(name, f"dropped:{reason.value}"))
        ended, *listed = pipeline.execute()
        if int(ended or 0) <= sum(listed):
            return
        done = set(self.done(name))
        for chunk in self.runs(name):
            others = [run for run in chunk if run not in done]
            for run in others:
                pipeline.hget(self._keys.run(run), "state")
            states = pipeline.execute() if others else []
            yield from (run for run, state in zip(others, states, strict=True) if state == "ended")

    def dropped(self, name: str) -> Iterator[list[str]]:
        """The rows of a batch that ended without ever becoming runs, in chunks."""
        for reason in DROPPED:
            start, key = 0, self._keys.batch(name, f"dropped:{reason.value}")
            while chunk := self._client.zrange(key, start, start + _CHUNK - 1):
                yield [str(row) for row in chunk]
                start += len(chunk)

    def recent_ends(self, name: str) -> tuple[int, list[tuple[int, int]]]:
        """The server's clock (ms), and for the last end, the 2nd, 4th, 8th, … from the last when it was (ms).

        A run that was retried since has no end. What is asked of the server grows with the doublings only.
        """
        done = self._keys.batch(name, "done")
        ended = int(self._client.llen(done))
        backs = [2**power for power in range(ended.bit_length())]
        pipeline = self._client.pipeline(transaction=False)
        for back in backs:
            pipeline.lindex(done, -back)
        run_ids = pipeline.execute()
        for run_id in run_ids:
            pipeline.hget(self._keys.run(str(run_id)), "ended")
        pipeline.time()
        *moments, (seconds, micros) = pipeline.execute()
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        return now_ms, [(back, int(at)) for back, at in zip(backs, moments, strict=True) if at is not None]

    def live(self, name: str) -> list[str]:
        """The runs of a batch that have not ended, in no order."""
        return [str(run) for run in self._client.sscan_iter(self._keys.batch(name, "open"), count=1000)]

    def with_descendants(self, name: str) -> list[str]:
        """The rows of a batch, ended or not, that have started runs which are live."""
        if not int(self._client.hget(self._keys.batch(name), "descendants") or 0):
            return []
        found: list[str] = []
        for chunk in self.runs(name):
            pipeline = self._client.pipeline(transaction=False)
            for run in chunk:
                pipeline.hget(self._keys.run(run), "descendants")
            counts = pipeline.execute()
            found += [run for run, count in zip(chunk, counts, strict=True) if int(count or 0)]
        return found

    def live_states(self, name: str) -> Counter[RunState]:
        """How many runs of a batch are in each live state.

        One that waits for its children is running, or waiting where all of them wait for a person.
        """
        counts: Counter[RunState] = Counter()
        live = self.live(name)
        for start in range(0, len(live), _CHUNK):
            pipeline = self._client.pipeline(transaction=False)
            chunk = live[start : start + _CHUNK]
            for run in chunk:
                pipeline.hmget(self._keys.run(run), ["state", "gathering"])
            for run, (state, gathering) in zip(chunk, pipeline.execute(), strict=True):
                if gathering:
                    counts[RunState.WAITING if self._ask(self._awaited(run)) else RunState.RUNNING] += 1
                elif state and state != "ended":
                    counts[RunState(state)] += 1
        return counts

    def _ask(self, run_ids: Sequence[str]) -> bool:
        """Whether there are some of these runs, and all of them wait for a person."""
        pipeline = self._client.pipeline(transaction=False)
        for run in run_ids:
            pipeline.hmget(self._keys.run(run), ["state", "gathering"])
        # No deeper than a tree of runs is.
        return bool(run_ids) and all(
            self._ask(self._awaited(run)) if gathering else state == RunState.WAITING.value
            for run, (state, gathering) in zip(run_ids, pipeline.execute(), strict=True)
        )

    def _awaited(self, run_id: str) -> list[str]:
        return [str(child) for child in self._client.smembers(self._keys.run(run_id, "awaits"))]

    def parked(self, name: str) -> Counter[Parked]:
        """What money the parked runs of a batch wait for, and how many wait for it.

        A run that waits for children of which all are parked waits for the same money as they.
        """
        counts: Counter[Parked] = Counter()
        live = self.live(name)
        for start in range(0, len(live), _CHUNK):
            found = self._parked(live[start : start + _CHUNK])
            counts.update(parked for parked in found if parked is not None)
        return counts

    def _parked(self, run_ids: Sequence[str]) -> list[Parked | None]:
        """For each run the money that it waits for, or None when it does not wait for money alone."""
        pipeline = self._client.pipeline(transaction=False)
        for run in run_ids:
            pipeline.hmget(self._keys.run(run), ["park_scope", "park_unit", "park_kind", "gathering"])
        found: list[Parked | None] = []
        for run, (scope, unit, kind, gathering) in zip(run_ids, pipeline.execute(), strict=True):
            if not gathering:
                found.append(Parked(scope, unit, kind) if scope else None)
                continue
            # No deeper than a tree of runs is.
            below = self._parked(self._awaited(run))
            waits = all(parked is not None and parked.is_dry for parked in below)
            found.append(below[0] if below and waits else None)
        return found
