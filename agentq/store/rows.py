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


def read_rows(client: redis.Redis, keys: Keys, run_ids: Sequence[str]) -> dict[str, RunRecord]:
    """Those of these ids that are rows of a batch: queued, or ended where their batch was dropped."""
    by_serial: dict[str, list[str]] = defaultdict(list)
    for run_id in run_ids:
        if found := _ROW.fullmatch(run_id):
            by_serial[found[1]].append(run_id)
    records: dict[str, RunRecord] = {}
    for serial, ids in by_serial.items():
        name = client.get(keys.serial(serial))
        if name is not None:
            records.update(_rows_of(client, keys, str(name), ids))
    return records


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
