"""A server whose memory is full: nothing new is begun, all that is under way comes to its end in order."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from agentq.core.lifecycle import StopReason
from agentq.core.records import Delta, Granted, Settlement
from agentq.store.connect import Store, connect
from agentq.worker.embedded import EmbeddedServer
from tests.support.harness import (
    LEASE_MS,
    age,
    check_invariants,
    claim_run,
    reserve,
    state_of,
    steady,
    submit_run,
)

NOTHING_NEW = Delta(head="{}")


@pytest.fixture
def full_store() -> Iterator[Store]:
    """A server of the test's own, which may be full."""
    home = Path(tempfile.mkdtemp(prefix="aqm-", dir="/tmp"))
    server = EmbeddedServer.start(home)
    try:
        yield connect(server.url, "full")
    finally:
        server.stop()
        shutil.rmtree(home, ignore_errors=True)


def test_work_ends_in_order_and_nothing_is_begun(full_store: Store):
    store, held = full_store, {}
    for run in ("r1", "r2", "r3", "r4", "r5"):
        submit_run(store, run)
        lease = claim_run(store, run).lease
        granted = reserve(store, lease, 1, usd=100, tokens=10, escrow_usd=50, escrow_tokens=5)
        assert isinstance(granted, Granted)
        held[run] = (lease, granted.reservation)
    submit_run(store, "queued")
    store.client.config_set("maxmemory", "1")

    with pytest.raises(redis.exceptions.OutOfMemoryError):
        submit_run(store, "new")
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        claim_run(store, "queued")
    lease, reservation = held["r1"]
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        reserve(store, lease, 2, usd=1, tokens=1, escrow_usd=0, escrow_tokens=0)

    assert store.watch.renew([lease], LEASE_MS) == ["OK"]
    settlement = Settlement(reservation, "settle", usd=70, tokens=7)
    assert store.runs.commit_end(lease, NOTHING_NEW, settlement, StopReason.FINISHED) == "OK"
    lease, reservation = held["r2"]
    settlement = Settlement(reservation, "settle", usd=70, tokens=7)
    assert store.runs.commit_continue(lease, NOTHING_NEW, settlement) == "OK"
    lease, reservation = held["r3"]
    assert store.runs.release(lease, delay_ms=5, settlement=Settlement(reservation, "release")) == "OK"
    assert store.runs.cancel("r4", "test") == "CANCELLING"
    lease, reservation = held["r4"]
    settlement = Settlement(reservation, "settle", usd=70, tokens=7)
    assert store.runs.commit_continue(lease, NOTHING_NEW, settlement) == "CANCELLED"
    store.watch.due(LEASE_MS, room=0, rescues=10)
    store.client.config_set("maxmemory", "0")
    steady(store)
    age(store, "r5")
    store.client.config_set("maxmemory", "1")
    assert store.watch.rescue("r5", LEASE_MS).verdict == "RESCUED"
    assert isinstance(store.ledger.account("global").spent_nano, int)

    store.client.config_set("maxmemory", "0")
    assert [state_of(store, run) for run in ("r1", "r2", "r3", "r4", "r5", "queued")] == [
        "ended",
        "queued",
        "queued",
        "ended",
        "queued",
        "queued",
    ]
    account = store.ledger.account("global")
    assert (account.spent_nano, account.forfeited_nano, account.reserved_nano) == (3 * 70 + 100, 100, 0)
    check_invariants(store, ["r1", "r2", "r3", "r4", "r5", "queued"])
