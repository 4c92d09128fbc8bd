"""Rows that are no runs yet, read as the runs that they will be, or that they ended without becoming."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import redis

from agentq.core.lifecycle import RunState, StopReason
from agentq.core.records import RunRecord, RunSpec
from agentq.store.keys import Keys

_ROW = re.compile(r"run_[0-9a-z]+_([0-9]+)")
DROPPED = (StopReason.CANCELLED, StopReason.COST_BUDGET, StopReason.TOKEN_BUDGET)
"""Why a row may end without ever becoming a run."""
_HEAD, _TEMPLATE, _ROW_PARTS = 4, 8, 5
"""Where a template has its head; how much of it, and of a row, is before messages: `engine/patterns.py`."""


def is_row_id(run_id: str) -> bool:
    """Whether a run of this id was a row of a batch, or is one."""
    return _ROW.fullmatch(run_id) is not None


def read_rows(client: redis.Redis, keys: Keys, run_ids: Sequence[str]) -> dict[str, RunRecord]:
    """Those of these ids that are rows of a batch: queued, or ended where their batch was dropped."""
    records: dict[str, RunRecord] = {}
    for batch, ids in _by_batch(client, keys, run_ids):
        records.update(_rows_of(client, keys, batch, ids))
    return records


def row_messages(client: redis.Redis, keys: Keys, run_ids: Sequence[str]) -> dict[str, list[str]]:
    """Of those of these ids that are rows of a batch: the messages that they begin with, still encoded."""
    messages: dict[str, list[str]] = {}
    for batch, ids in _by_batch(client, keys, run_ids):
        payloads: Any = client.hmget(keys.batch(batch, "rows"), ids)
        templates: Any = client.hgetall(keys.batch(batch, "templates"))
        for run_id, payload in zip(ids, payloads, strict=True):
            if payload is not None:
                row = json.loads(payload)
                messages[run_id] = [*json.loads(templates[row[0]])[_TEMPLATE:], *row[_ROW_PARTS:]]
    return messages


def row_head(client: redis.Redis, keys: Keys, run_id: str) -> str | None:
    """The head with which the run of a row begins; None when it is no row of a batch."""
    for batch, _ in _by_batch(client, keys, [run_id]):
        payload = client.hget(keys.batch(batch, "rows"), run_id)
        if payload is not None:
            template = client.hget(keys.batch(batch, "templates"), json.loads(str(payload))[0])
            return str(json.loads(str(template))[_HEAD])
    return None


def _by_batch(client: redis.Redis, keys: Keys, run_ids: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Those that look like rows, by their batches that are there."""
    by_serial: dict[str, list[str]] = defaultdict(list)
    for run_id in run_ids:
        if found := _ROW.fullmatch(run_id):
            by_serial[found[1]].append(run_id)
    names = {serial: client.get(keys.serial(serial)) for serial in by_serial}
    return [(str(names[serial]), ids) for serial, ids in by_serial.items() if names[serial] is not None]


def _rows_of(client: redis.Redis, keys: Keys, batch: str, run_ids: Sequence[str]) -> dict[str, RunRecord]:
    pipeline = client.pipeline(transaction=True)
    pipeline.hmget(keys.batch(batch, "rows"), list(run_ids))
    pipeline.hgetall(keys.batch(batch, "templates"))
    for reason in DROPPED:
        pipeline.zmscore(keys.batch(batch, f"dropped:{reason.value}"), list(run_ids))
    payloads, templates, *dropped = pipeline.execute()
    decoded = {name: json.loads(text) for name, text in templates.items()}
    records = {}
    for place, (run_id, payload) in enumerate(zip(run_ids, payloads, strict=True)):
        if payload is not None:
            row = json.loads(payload)
            reasons = (r for r, scores in zip(DROPPED, dropped, strict=True) if scores[place] is not None)
            records[run_id] = _record(run_id, row, decoded[row[0]], next(reasons, None))
    return records


def _record(run_id: str, row: list[str], template: list[Any], dropped: StopReason | None) -> RunRecord:
    created = int(template[2])
    return RunRecord(
        id=run_id,
        spec=spec_of(row, template),
        state=RunState.QUEUED if dropped is None else RunState.ENDED,
        step=0,
        phase="model",
        created_ms=created,
        stop_reason=dropped,
        stop_detail=None if dropped is None else "it was never started",
        definition=template[3],
        is_row=True,
    )


def spec_of(row: Sequence[str], template: Sequence[str]) -> RunSpec:
    """What was submitted: what rows have in common, and what this one has beside it."""
    return RunSpec(**json.loads(f"{template[5]},{row[3]}}}"))
