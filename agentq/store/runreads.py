"""Runs as they stand: read, never changed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import redis

from agentq.core.lifecycle import RunState, StopReason
from agentq.core.records import Family, Parked, PendingCall, RunRecord, RunSpec, ThreadParts
from agentq.store.keys import Keys
from agentq.store.rows import is_row_id, read_rows, row_head, row_messages


class RunReads:
    """What the runs of one namespace say of themselves."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def read(self, run_id: str) -> RunRecord | None:
        """A run as it stands, or None when there is none of that id (any more)."""
        return self.read_many([run_id])[0]

    def read_many(self, run_ids: Sequence[str]) -> list[RunRecord | None]:
        """Runs as they stand, in one round trip; rows that are no runs yet in a few more."""
        records = self._present(run_ids)
        if absent := [run_id for run_id in run_ids if run_id not in records]:
            records |= read_rows(self._client, self._keys, absent)
        if admitted := [run_id for run_id in absent if run_id not in records and is_row_id(run_id)]:
            # Between the two looks a row became a run; it never goes back.
            records |= self._present(admitted)
        return [records.get(run_id) for run_id in run_ids]

    def _present(self, run_ids: Sequence[str]) -> dict[str, RunRecord]:
        pipeline = self._client.pipeline(transaction=False)
        self._read(pipeline, run_ids)
        found = zip(run_ids, self._records(run_ids, pipeline.execute()), strict=True)
        return {run_id: record for run_id, record in found if record is not None}

    def children(self, run_id: str) -> list[str]:
        """The runs that a run has started, in no order."""
        return self.children_of([run_id])

    def children_of(self, run_ids: Sequence[str]) -> list[str]:
        """The runs that any of these have started, in no order, in one round trip."""
        pipeline = self._client.pipeline(transaction=False)
        for run_id in run_ids:
            pipeline.hvals(self._keys.run(run_id, "children"))
        return [text.partition(" ")[2] for texts in pipeline.execute() for text in texts]

    def family(self, run_id: str, gather: str, asked: Sequence[str]) -> Family:
        """What a gather of this name has to know, at one instant."""
        pipeline = self._client.pipeline(transaction=True)
        pipeline.hvals(self._keys.run(run_id, "children"))
        pipeline.hget(self._keys.run(run_id, "gathers"), gather)
        self._read(pipeline, asked)
        texts, deadline, *replies = pipeline.execute()
        return Family(
            children=frozenset(text.partition(" ")[2] for text in texts),
            deadline_ms=None if deadline is None else int(deadline),
            records=self._records(asked, replies),
        )

    def _read(self, pipeline: redis.client.Pipeline, run_ids: Sequence[str]) -> None:
        for run_id in run_ids:
            pipeline.hgetall(self._keys.run(run_id))
            pipeline.hmget(self._keys.scope(f"run:{run_id}"), ["us", "ts"])

    @staticmethod
    def _records(run_ids: Sequence[str], replies: Sequence[Any]) -> list[RunRecord | None]:
        return [
            record_of(run_id, fields, spent) if fields else None
            for run_id, fields, spent in zip(run_ids, replies[::2], replies[1::2], strict=True)
        ]

    def parts(self, run_id: str) -> ThreadParts | None:
        """The stored pieces of a run's thread, also of a row's; None when there is no such run."""
        # A row may become a run while it is looked for.
        return self._parts(run_id) or self._row_parts(run_id) or self._parts(run_id)

    def _parts(self, run_id: str) -> ThreadParts | None:
        pipeline = self._client.pipeline(transaction=True)
        pipeline.hget(self._keys.run(run_id), "head")
        pipeline.lrange(self._keys.run(run_id, "msgs"), 0, -1)
        pipeline.lrange(self._keys.run(run_id, "trace"), 0, -1)
        pipeline.hgetall(self._keys.run(run_id, "cache"))
        head, messages, trace, cached = pipeline.execute()
        if head is None:
            return None
        return ThreadParts(head, f"[{','.join(messages)}]", f"[{','.join(trace)}]", cached)

    def _row_parts(self, run_id: str) -> ThreadParts | None:
        head = row_head(self._client, self._keys, run_id)
        messages = row_messages(self._client, self._keys, [run_id]).get(run_id)
        if head is None or messages is None:
            return None
        return ThreadParts(head, f"[{','.join(messages)}]", "[]", {})

    def messages(self, run_ids: Sequence[str]) -> list[list[str]]:
        """The messages of these runs, still encoded; of a row that is no run, those that it begins with."""
        found = self._messages(run_ids)
        if absent := [run_id for run_id in run_ids if not found[run_id]]:
            found |= row_messages(self._client, self._keys, absent)
        if admitted := [run_id for run_id in absent if not found[run_id] and is_row_id(run_id)]:
            found |= self._messages(admitted)
        return [found[run_id] for run_id in run_ids]

    def _messages(self, run_ids: Sequence[str]) -> dict[str, list[str]]:
        pipeline = self._client.pipeline(transaction=False)
        for run_id in run_ids:
            pipeline.lrange(self._keys.run(run_id, "msgs"), 0, -1)
        return dict(zip(run_ids, pipeline.execute(), strict=True))

    def trace(self, run_id: str, start: int = 0) -> list[str]:
        """Trace events from the `start`-th on, still encoded."""
        return [str(event) for event in self._client.lrange(self._keys.run(run_id, "trace"), start, -1)]


def parts_of(head: str, messages: str, trace: str, cached: Sequence[str] | Mapping[str, str]) -> ThreadParts:
    """A thread in its stored pieces; the results as a mapping, or names and values in turn."""
    return ThreadParts(head, messages, trace, pairs(cached))


def pairs(flat: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """A hash as scripts answer it: names and values, one after the other."""
    if isinstance(flat, Mapping):
        return dict(flat)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def record_of(run_id: str, fields: Mapping[str, str], spent: Sequence[str | None]) -> RunRecord:
    """A run out of its hash, and what its scope has spent: nano-USD and tokens."""
    head = json.loads(fields["head"])
    deadline = int(fields.get("deadline", 0))
    return RunRecord(
        id=run_id,
        spec=RunSpec(**json.loads(fields["spec"])),
        state=RunState(fields["state"]),
        step=int(fields["step"]),
        phase=fields["phase"],
        created_ms=int(fields["created"]),
        stop_reason=StopReason(fields["stop_reason"]) if "stop_reason" in fields else None,
        stop_scope=fields.get("stop_scope"),
        stop_detail=fields.get("stop_detail"),
        answer=fields.get("answer"),
        has_output=fields.get("output") == "1",
        model=fields.get("model", ""),
        is_cut=fields.get("finish") == "length",
        body=fields.get("body", ""),
        usd_nano=int(spent[0] or 0),
        tokens=int(spent[1] or 0),
        input_tokens=int(head.get("in", 0)),
        output_tokens=int(head.get("out", 0)),
        steps=int(head.get("step", 0)),
        attempts=1 + int(fields.get("rescues", 0)),
        seconds_ms=int(fields.get("ms", 0)),
        failures=int(fields.get("failures", 0)),
        last_error=fields.get("error"),
        started_ms=int(fields["started"]) if "started" in fields else None,
        ended_ms=int(fields["ended"]) if "ended" in fields else None,
        pending=tuple(
            PendingCall(
                id=call["id"],
                tool=call["tool"],
                arguments=call["arguments"],
                signature=call["signature"],
                asked_at_ms=int(call["asked_at_ms"]),
                deadline_ms=deadline,
                default=call.get("default", "stop"),
                kind=call.get("kind", "approval"),
            )
            for call in json.loads(fields.get("pending", "[]"))
        ),
        parked=Parked(fields["park_scope"], fields["park_unit"], fields["park_kind"])
        if "park_scope" in fields
        else None,
        parked_ms=int(fields["parked"]) if "parked" in fields else None,
        children=int(fields.get("children", 0)),
        descendants=int(fields.get("descendants", 0)),
        stopped_at=fields.get("stopped_at"),
        paused=fields.get("paused"),
        generation=int(fields.get("generation", 0)),
        definition=fields.get("definition", ""),
        gathering=int(fields["gathering"]) if "gathering" in fields else None,
        deadline_ms=deadline or None,
    )
