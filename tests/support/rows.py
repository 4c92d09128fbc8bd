"""Batches with rows, below the engine: no agents, no prices, the same text in each row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from agentq.core.lifecycle import StopReason
from agentq.core.records import Delta, Opened, RowEntry, RunSpec, Settlement
from agentq.store import Store
from agentq.store.batches import SOMEBODY
from tests.support.harness import HELLO, RETENTION_MS, claim_run, reserve

_OF_ROWS = ("custom_id", "metadata", "context", "content_hash", "priority", "call")


def open_for(
    store: Store,
    batch: str = "b1",
    *,
    tenant: str = "acme",
    loader: str = SOMEBODY,
    dead: str = "",
    usd: int | None = None,
    **options: int | str,
) -> Opened:
    """Open a batch for a loader, with these options of the feeder."""
    return store.batches.open(
        batch,
        agent="a",
        tenant=tenant,
        usd=usd,
        tokens=None,
        retention_ms=RETENTION_MS,
        loader=loader,
        dead=dead,
        options=options,
    )


def template(batch: str = "b1", tenant: str = "acme", *, created_ms: int = 1, usd: str = "") -> str:
    """What the rows of a batch have in common, as `engine/patterns.py` writes it."""
    spec = RunSpec(agent="a", tenant=tenant, batch=batch, budgets={"max_usd": None, "max_tokens": None})
    fields = {name: value for name, value in asdict(spec).items() if name not in _OF_ROWS}
    scopes = " ".join(spec.scopes_of("")[:-1])
    return json.dumps([tenant, scopes, str(created_ms), "definition", "{}", json.dumps(fields)[:-1], usd, ""])


def row_id(number: int, serial: str) -> str:
    """The id of the run that a row will be."""
    return f"run_{number:012}_{serial}"


def row_entry(
    number: int, serial: str, *, priority: int = 0, custom_id: str = "", text: str = "", usd: str = ""
) -> RowEntry:
    """The `number`-th row of a batch with this serial; another `text` is other content."""
    custom_id = custom_id or f"c{number}"
    own = json.dumps({"custom_id": custom_id, "content_hash": f"h{text}", "priority": priority})[1:-1]
    payload = json.dumps(["t", custom_id, f"h{text}", own, usd, HELLO])
    return RowEntry(row_id(number, serial), custom_id, f"h{text}", priority, payload)


def add_rows(
    store: Store,
    opened: Opened,
    numbers: Sequence[int],
    batch: str = "b1",
    *,
    tenant: str = "acme",
    loader: str = SOMEBODY,
    priority: int = 0,
    text: str = "",
) -> list[str]:
    """Add these rows, of one priority; answers the ids of their runs."""
    entries = [row_entry(number, opened.serial, priority=priority, text=text) for number in numbers]
    store.batches.add(batch, entries, {"t": template(batch, tenant)}, loader=loader)
    return [entry.run_id for entry in entries]


def load_rows(
    store: Store,
    count: int,
    batch: str = "b1",
    *,
    tenant: str = "acme",
    priorities: Sequence[int] = (0,),
    usd: int | None = None,
    **options: Any,
) -> list[str]:
    """A new batch with so many rows, their priorities in turn, sealed; answers the ids of their runs."""
    opened = open_for(store, batch, tenant=tenant, usd=usd, **options)
    entries = [
        row_entry(number, opened.serial, priority=priorities[number % len(priorities)])
        for number in range(count)
    ]
    for start in range(0, count, 500):
        store.batches.add(batch, entries[start : start + 500], {"t": template(batch, tenant)})
    store.batches.seal(batch)
    return [entry.run_id for entry in entries]


def window(store: Store, slots: int) -> None:
    """Workers have signed on, and so many runs may be in flight. Their hints are the tick's."""
    store.client.hset(store.keys.feeder, "window", slots)


def in_flight(store: Store, kind: str = "", name: str = "") -> set[str]:
    """The runs that have a slot: all, or those of a tenant (`t`) or batch (`b`)."""
    key = store.keys.slots_of(kind, name) if kind else store.keys.slots
    return {str(run_id) for run_id in store.client.smembers(key)}


def waiting(store: Store, batch: str = "b1") -> list[str]:
    """The rows of a batch whose turn has not come, in the order in which it will."""
    return [str(run_id) for run_id in store.client.zrange(store.keys.batch(batch, "feed"), 0, -1)]


def finish(store: Store, run_id: str, *, tokens: int = 0, reason: StopReason = StopReason.FINISHED) -> None:
    """Claim a run, let it need so many tokens, and end it."""
    lease = claim_run(store, run_id).lease
    settled = None
    if tokens:
        reserve(store, lease, 1, usd=0, tokens=tokens)
        settled = Settlement(f"{lease.fence}:1", "settle", 0, tokens)
    assert store.runs.commit_end(lease, Delta("{}"), settled, reason) == "OK"
