"""A server whose memory is full: nothing new is begun, all that is under way comes to its end in order."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from agentq.core.lifecycle import StopReason
from agentq.core.records import Delta, Granted, Parked, Settlement
from agentq.store.connect import Store, connect
from agentq.store.effects import Effect
from agentq.worker.embedded import EmbeddedServer
from tests.support.harness import (
    LEASE_MS,
    age,
    by,
    check_invariants,
    claim_run,
    open_batch,
    reserve,
    state_of,
    steady,
    submit_run,
)

NOTHING_NEW = Delta(head="{}")
BATCH = "batch:b1"


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


def test_who_waits_for_money_is_woken_and_closed_and_nobody_new_is_parked(full_store: Store):
    store = full_store
    open_batch(store, usd=100)
    leases = {}
    for run in ("holder", "r1", "r2", "r3", "closing"):
        submit_run(store, run, batch="b1")
        leases[run] = claim_run(store, run).lease
    lease = leases["closing"]
    assert isinstance(reserve(store, lease, usd=0, tokens=1, escrow_usd=10, escrow_tokens=1), Granted)
    holder = leases["holder"]
    assert isinstance(reserve(store, holder, usd=90, tokens=1), Granted)
    for run, usd in (("r1", 30), ("r2", 60)):
        answer = reserve(store, leases[run], usd=usd, tokens=1, policy="park")
        assert answer == Parked(BATCH, "usd", "wait")
    store.client.config_set("maxmemory", "1")

    # It would have to be written that it waits: like each reserve that is refused, the step is given back.
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        reserve(store, leases["r3"], usd=30, tokens=1, policy="park")
    assert store.runs.release(leases["r3"], delay_ms=60_000) == "OK"
    converted = store.ledger.convert(lease, 2)
    assert isinstance(converted, Granted)
    for frozen in (True, False):  # it can be stopped all the same
        store.ledger.freeze("tenant:other", actor=by(), frozen=frozen)
    settlement = Settlement(converted.reservation, "settle", 10, 1)
    assert store.runs.commit_end(lease, NOTHING_NEW, settlement, StopReason.COST_BUDGET) == "OK"
    settlement = Settlement(f"{holder.fence}:1", "settle", 40, 1)
    assert store.runs.commit_end(holder, NOTHING_NEW, settlement, StopReason.FINISHED) == "OK"
    assert (state_of(store, "r1"), state_of(store, "r2")) == ("queued", "parked")
    assert store.ledger.sweep(BATCH) == (0, True)
    assert store.ledger.book(BATCH, "adjust", usd=-30, actor=by()) == (20, 3)
    assert state_of(store, "r2") == "queued"
    assert store.runs.cancel("r2", "test") == "CANCELLED"

    store.client.config_set("maxmemory", "0")
    check_invariants(store, ["holder", "r1", "r2", "r3", "closing"])


def test_no_tool_begins_to_act_and_what_one_has_done_is_noted(full_store: Store):
    """Without a note before it, nobody could tell later whether it has acted."""
    store = full_store
    submit_run(store)
    lease = claim_run(store).lease
    store.runs.commit_tools(lease, NOTHING_NEW, Settlement("", "release"))
    begun, next_one = (Effect(lease, call, f"pay:{call}", once=True) for call in ("c1", "c2"))
    assert store.effects.begin(begun, retry=False, reads={}) == ("GO", "")
    store.client.config_set("maxmemory", "1")
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        store.effects.begin(next_one, retry=False, reads={})
    assert store.effects.done(begun, "[1]", late=False, event="[]", content="paid") == "OK"
    assert store.runs.commit_continue(lease, NOTHING_NEW, None) == "OK"
    store.client.config_set("maxmemory", "0")
    check_invariants(store, ["r1"])
