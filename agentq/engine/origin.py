"""From runs back to the input lines that they came from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from agentq.core.records import Reopening
from agentq.engine.input.original import line_of
from agentq.provider.types import Role
from agentq.store.connect import Store

_CHUNK = 50
"""Runs whose conversations are in memory at once."""


def input_lines(store: Store, run_ids: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The lines of these runs, in this order, to be submitted again; none for one that is gone."""
    for start in range(0, len(run_ids), _CHUNK):
        chunk = run_ids[start : start + _CHUNK]
        records = store.runs.read_many(chunk)
        reopenings = store.control.reopenings(chunk)
        for record, reopening, texts in zip(records, reopenings, store.runs.messages(chunk), strict=True):
            if record is not None and texts:
                messages = [json.loads(text) for text in texts]
                yield line_of(record.spec, messages if reopening is None else _first(messages, reopening))


def _first(messages: list[dict[str, Any]], reopening: Reopening) -> list[dict[str, Any]]:
    """What a run began with: what is before the first of its own replies, which are the last ones."""
    kept, head = messages[: reopening.messages], json.loads(reopening.head)
    replies = [at for at, message in enumerate(kept) if message["role"] == Role.ASSISTANT.value]
    # A reply that corrects the one before is no step.
    own = head.get("step", 0) + ("repaired" in head)
    return kept[: replies[-own]] if 0 < own <= len(replies) else kept
