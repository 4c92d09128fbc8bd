"""What could let rows starve, run too early, be counted twice, or let one tenant have more than its share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import redis

from agentq.app.batch import Batch
from agentq.core.lifecycle import StopReason
from agentq.core.records import Delta, RunRecord, Settlement
from agentq.engine.retry import retry_batch
from agentq.store import Store, runreads
from agentq.store.batches import LoadingError
from agentq.store.keys import Keys
from agentq.store.rows import read_rows, row_messages
from tests.support.harness import (
    HELLO,
    LEASE_MS,
    by,
    call,
    check_invariants,
    claim_run,
    due,
    reserve,
    state_of,
    submit_run,
)
from tests.support.rows import (
    add_rows,
    finish,
    in_flight,
    load_rows,
    open_for,
    row_entry,
    template,
    waiting,
    window,
)


class Desk:
    """Runs that all take equally long: who was admitted first ends first."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.order: list[str] = []

    def look(self) -> None:
        """The tick admits, and what is new stands last."""
        due(self.store)
        here = in_flight(self.store)
        self.order += sorted(here - set(self.order))

    def end(self, count: int, *, tokens: dict[str, int] | None = None) -> dict[str, int]:
        """So many runs end, one after the other; how many of each tenant."""
        ended: dict[str, int] = {}
        for _ in range(count):
            self.look()
            run_id = self.order.pop(0)
            tenant = str(self.store.client.hget(self.store.keys.run(run_id), "tenant"))
            finish(self.store, run_id, tokens=(tokens or {}).get(tenant, 1000))
            ended[tenant] = ended.get(tenant, 0) + 1
        self.look()
        return ended


def flying(store: Store, tenant: str) -> int:
    return len(in_flight(store, "t", tenant))


# ── turns ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("cap", ["batch", "tenant"])
def test_a_tenant_at_its_cap_does_not_come_back_in_front_of_others(store: Store, cap: str):
    """It has nearly all slots when the other comes; as its runs end, the other gets its half."""
    if cap == "tenant":
        store.feeder.tune("ann", {"max": 11})
    options: dict[str, Any] = {"max_in_flight": 11} if cap == "batch" else {}
    load_rows(store, 200, "a", tenant="ann", **options)
    window(store, 12)
    desk = Desk(store)
    desk.look()
    assert flying(store, "ann") == 11
    load_rows(store, 200, "b", tenant="bob")
    desk.end(60)
    assert 5 <= flying(store, "ann") <= 7, (flying(store, "ann"), flying(store, "bob"))


def test_a_tenant_at_its_cap_pays_for_what_its_runs_have_needed(store: Store):
    load_rows(store, 300, "a", tenant="ann", max_in_flight=4)
    load_rows(store, 300, "b", tenant="bob", max_in_flight=11)
    window(store, 12)
    desk = Desk(store)
    desk.end(100, tokens={"ann": 9_000, "bob": 1_000})
    ended = desk.end(100, tokens={"ann": 9_000, "bob": 1_000})
    assert ended["bob"] > 5 * ended["ann"], ended


def test_who_comes_while_the_others_are_at_their_caps_is_not_ahead_of_them(store: Store):
    """Nobody takes turns at that moment; the newcomer begins where they will go on."""
    load_rows(store, 500, "a", tenant="ann", max_in_flight=4)
    window(store, 8)
    desk = Desk(store)
    desk.end(50)
    assert flying(store, "ann") == 4
    load_rows(store, 500, "b", tenant="bob")
    store.batches.tune("a", {"max_in_flight": None})
    desk.end(40)
    assert 3 <= flying(store, "ann") <= 5


def test_a_tenant_whose_rows_are_all_admitted_pays_for_them_nevertheless(store: Store):
    """Ann submits a few rows at a time, each worth twenty of Bob's: she is no cheaper for it."""
    load_rows(store, 500, "b", tenant="bob")
    window(store, 12)
    desk, batches, ended = Desk(store), 0, {"ann": 0, "bob": 0}
    for _ in range(300):
        if not batches or not waiting(store, f"a{batches}"):
            batches += 1
            load_rows(store, 4, f"a{batches}", tenant="ann")
        for tenant, count in desk.end(1, tokens={"ann": 20_000}).items():
            ended[tenant] += count
    assert ended["bob"] > 4 * ended["ann"], ended


def test_who_floods_the_queue_with_single_runs_does_not_keep_the_others_at_one_each(store: Store):
    for number in range(60):
        submit_run(store, f"r{number}", tenant="ann")
    window(store, 12)
    load_rows(store, 50, "b", tenant="bob")
    load_rows(store, 50, "c", tenant="cid", max_in_flight=2)
    for _ in range(20):
        due(store)
    assert (flying(store, "bob"), flying(store, "cid")) == (4, 2)
    for _ in range(10):
        end_of = min(in_flight(store, "t", "bob"))
        finish(store, end_of, tokens=1000)
        assert flying(store, "bob") == 4


def test_large_weights_share_small_runs_as_they_say(store: Store):
    """A run of a few tokens is less than one token to each of them."""
    for tenant, weight in (("ann", 500), ("bob", 1_000)):
        store.feeder.tune(tenant, {"weight": weight})
        load_rows(store, 300, tenant, tenant=tenant)
    window(store, 12)
    ended = Desk(store).end(240, tokens={"ann": 120, "bob": 120})
    assert 1.6 < ended["bob"] / ended["ann"] < 2.4, ended


# ── dry ──────────────────────────────────────────────────────────────────────────────────────────────


def test_rows_come_as_soon_as_the_run_before_them_has_its_money(store: Store):
    """Not when that run is over: it may be a long one."""
    first, *_ = load_rows(store, 20, "b1", usd=100)
    lease = claim_run(store, first).lease
    reserve(store, lease, usd=95, tokens=1)
    store.runs.commit_end(
        lease, Delta("{}"), Settlement(f"{lease.fence}:1", "settle", 95, 1), StopReason.FINISHED
    )
    window(store, 4)
    due(store)
    runs = sorted(in_flight(store))
    assert len(runs) == 4
    for run_id in runs:
        reserve(store, claim_run(store, run_id).lease, usd=10, tokens=1, escrow_usd=1, policy="park")
    assert [state_of(store, run_id) for run_id in runs] == ["parked"] * 4
    due(store)
    assert not in_flight(store)
    store.ledger.topup("batch:b1", usd=1_000, actor=by())
    due(store)
    assert in_flight(store) == set(runs)
    for run_id in runs:
        reserve(store, claim_run(store, run_id).lease, usd=10, tokens=1, escrow_usd=1, policy="park")
    # They are at work, and nothing ends; fewer run than there is room for.
    window(store, 8)
    due(store)
    assert len(in_flight(store)) == 8


# ── loads ────────────────────────────────────────────────────────────────────────────────────────────


def test_rows_that_are_dropped_while_others_are_loaded_are_those_that_waited(store: Store):
    load_rows(store, 3)
    opened = open_for(store, loader="me")
    add_rows(store, opened, [10, 11], loader="me")
    store.batches.drop("b1", StopReason.COST_BUDGET)
    store.batches.abort("b1", opened.total, loader="me")
    record = store.batches.read("b1")
    assert record is not None
    assert record.ended <= record.total == 3
    check_invariants(store, sorted(in_flight(store)))


def test_a_load_whose_batch_is_cancelled_before_its_seal_is_told_so(store: Store):
    opened = open_for(store, loader="me")
    add_rows(store, opened, [1, 2], loader="me")
    store.batches.cancel("b1", "test")
    with pytest.raises(LoadingError):
        store.batches.seal("b1", loader="me")


def test_a_load_that_is_refused_leaves_a_batch_cancelled(store: Store):
    """Its runs that the cancel has not come to would go on."""
    load_rows(store, 3)
    (run_id,) = in_flight(store)
    store.batches.cancel("b1", "test")
    opened = open_for(store, loader="me")
    assert call(store, "step_claim", run_id, "", "n1", LEASE_MS, "", 1)[0] == "ORPHAN"
    store.batches.abort("b1", opened.total, loader="me")
    record = store.batches.read("b1")
    assert record is not None
    assert record.cancelled == "test"
    assert call(store, "step_claim", run_id, "", "n1", LEASE_MS, "", 1)[0] == "ORPHAN"


def test_a_load_that_is_written_lets_a_cancelled_batch_go_on(store: Store):
    load_rows(store, 3)
    store.batches.cancel("b1", "test")
    opened = open_for(store, loader="me")
    (row,) = add_rows(store, opened, [7], loader="me")
    store.batches.seal("b1", loader="me")
    record = store.batches.read("b1")
    assert record is not None
    assert record.cancelled is None
    window(store, 4)
    due(store)
    assert row in in_flight(store)


def test_rows_of_a_batch_that_an_older_release_has_made_can_be_read_and_run(store: Store):
    open_for(store)
    store.batches.seal("b1")
    serial = store.client.hget(store.keys.batch("b1"), "serial")
    store.client.hdel(store.keys.batch("b1"), "serial")
    store.client.delete(store.keys.serial(str(serial)))
    opened = open_for(store, loader="me")
    rows = add_rows(store, opened, [1, 2], loader="me")
    store.batches.seal("b1", loader="me")
    assert [record is not None and record.spec.custom_id for record in store.runs.read_many(rows)] == [
        "c1",
        "c2",
    ]
    assert store.runs.cancel(rows[1], "test") == "CANCELLED"


@pytest.mark.parametrize("sizes", [(1, 6), (6, 1), (3, 4)])
def test_rows_that_ended_for_two_reasons_all_wait_again_in_their_order(store: Store, sizes: tuple[int, int]):
    before = load_rows(store, sizes[0], max_in_flight=1, at=store.watch.server_ms() + 3_600_000)
    store.batches.drop("b1", StopReason.COST_BUDGET)
    opened = open_for(store)
    after = add_rows(store, opened, range(100, 100 + sizes[1]))
    store.batches.seal("b1")
    store.batches.cancel("b1", "test")
    assert store.batches.revive("b1") == 7
    assert waiting(store) == [*before, *after]
    assert store.batches.drop("b1", StopReason.TOKEN_BUDGET) == 7
    check_invariants(store, [])


# ── caps ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_that_is_delayed_keeps_its_place_below_its_batchs_cap(store: Store):
    load_rows(store, 5, max_in_flight=1)
    window(store, 4)
    due(store)
    (run_id,) = in_flight(store)
    store.runs.release(claim_run(store, run_id).lease, delay_ms=60_000)
    due(store)
    assert not in_flight(store), "with the delayed one two would be at work"
    check_invariants(store, [run_id])


# ── slots ────────────────────────────────────────────────────────────────────────────────────────────


def test_slots_of_runs_that_an_older_worker_has_ended_are_found_by_the_tick(store: Store):
    load_rows(store, 10)
    window(store, 2)
    due(store)
    for run_id in in_flight(store):
        # A release that knows no slots ends it.
        store.client.hset(store.keys.run(run_id), mapping={"state": "ended", "stop_reason": "finished"})
        store.client.zrem(store.keys.watch, run_id)
    due(store)
    due(store)
    live = {run_id for run_id in in_flight(store) if state_of(store, run_id) != "ended"}
    assert len(live) == 2
    assert in_flight(store) == live


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("what", ["records", "messages"])
def test_a_row_that_is_admitted_while_it_is_read_is_there(
    store: Store, monkeypatch: pytest.MonkeyPatch, what: str
):
    rows = load_rows(store, 3)
    window(store, 3)

    def late_rows(client: redis.Redis, keys: Keys, run_ids: Sequence[str]) -> dict[str, RunRecord]:
        due(store)
        return read_rows(client, keys, run_ids)

    def late_messages(client: redis.Redis, keys: Keys, run_ids: Sequence[str]) -> dict[str, list[str]]:
        due(store)
        return row_messages(client, keys, run_ids)

    monkeypatch.setattr(runreads, "read_rows", late_rows)
    monkeypatch.setattr(runreads, "row_messages", late_messages)
    if what == "records":
        assert all(record is not None for record in store.runs.read_many(rows))
    else:
        assert store.runs.messages(rows) == [[HELLO]] * 3


def test_results_and_retries_know_the_runs_that_an_older_release_has_ended(store: Store):
    rows = load_rows(store, 4)
    window(store, 4)
    due(store)
    for run_id in rows[:3]:
        finish(store, run_id, reason=StopReason.MODEL_ERROR)
    assert list(store.batches.unlisted("b1")) == []
    store.client.lrem(store.keys.batch("b1", "done"), 0, rows[1])
    assert list(store.batches.unlisted("b1")) == [rows[1]]
    assert {result.run_id for result in Batch(store, "b1").results("completed")} == set(rows[:3])
    retried = retry_batch(store, "b1", by="me")
    assert rows[1] in {*retried.runs, *retried.refused}


# ── limits ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_limit_that_somebody_gives_a_row_holds_when_it_is_a_run(store: Store):
    opened = open_for(store)
    entries = [row_entry(number, opened.serial, usd="500") for number in (1, 2)]
    store.batches.add("b1", entries, {"t": template()})
    store.batches.seal("b1")
    (row,) = waiting(store)
    store.ledger.set_limit(f"run:{row}", usd=7, actor=by())
    window(store, 4)
    due(store)
    assert row in in_flight(store)
    assert store.ledger.account(f"run:{row}").limit_nano == 7
    assert claim_run(store, row).limits == (7, None)


# ── times ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_row_that_is_paused_and_resumed_does_not_begin_before_its_batch(store: Store):
    later = store.watch.server_ms() + 3_600_000
    rows = load_rows(store, 3, at=later)
    window(store, 4)
    assert not in_flight(store)
    call(store, "run_pause", rows[0], "me")
    call(store, "run_resume", rows[0], 1)
    due(store)
    assert not in_flight(store)
    assert call(store, "step_claim", rows[0], "", "n1", LEASE_MS, "", 1)[0] == "NOT_YET"
    check_invariants(store, [rows[0]])
