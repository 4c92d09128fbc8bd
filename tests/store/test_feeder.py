"""Whose row is admitted next, and how many: priority and order, caps, turns by tokens, times, money."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from agentq.core.lifecycle import StopReason
from agentq.core.records import Parked
from agentq.store import Store
from tests.support import feeding
from tests.support.harness import (
    LEASE_MS,
    SECOND,
    age,
    by,
    call,
    check_runs,
    claim_run,
    due,
    dump,
    hints_in,
    reserve,
    state_of,
    submit_run,
    twice,
)
from tests.support.rows import add_rows, finish, in_flight, load_rows, open_for, waiting, window


def check(store: Store) -> None:
    """Slots, rows and turns are as they must be."""
    feeding.check(dump(store, without=()), store.watch.server_ms())
    check_runs(store)


class Line:
    """The runs in flight in the order in which they were admitted: the first is done first."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._line: list[str] = []

    def work(
        self, count: int, tokens: Mapping[str, int] | None = None, *, by: str = "tenant"
    ) -> Counter[str]:
        """Finish so many runs, each with the tokens of its tenant or batch; how many of each there were."""
        done: Counter[str] = Counter()
        for _ in range(count):
            due(self.store)
            self._line += sorted(in_flight(self.store) - set(self._line))
            run_id = self._line.pop(0)
            whose = str(self.store.client.hget(self.store.keys.run(run_id), by))
            done[whose] += 1
            finish(self.store, run_id, tokens=(tokens or {}).get(whose, 1000))
        return done


# ── order ────────────────────────────────────────────────────────────────────────────────────────────


def test_rows_are_admitted_by_priority_and_then_in_their_order(store: Store):
    ids = load_rows(store, 6, priorities=[0, 9, 3])
    assert waiting(store) == [ids[n] for n in (4, 2, 5, 0, 3)], "the first of an idle tenant was admitted"
    assert in_flight(store) == {ids[1]}
    order = []
    for run_id in (ids[n] for n in (1, 4, 2, 5, 0, 3)):
        assert in_flight(store) == {run_id}
        finish(store, run_id)
        order.append(run_id)
    assert list(store.batches.done("b1")) == order
    check(store)


def test_nothing_of_a_batch_is_admitted_before_all_of_it_is_there(store: Store):
    window(store, 10)
    opened = open_for(store)
    add_rows(store, opened, range(3))
    due(store)
    assert in_flight(store) == set()
    store.batches.seal("b1")
    assert len(in_flight(store)) == 3
    check(store)


def test_later_rows_go_behind_those_that_wait_but_for_their_priority(store: Store):
    first = load_rows(store, 3)
    opened = open_for(store)
    late = add_rows(store, opened, [3, 4])
    urgent = add_rows(store, opened, [5], priority=9)
    store.batches.seal("b1")
    assert waiting(store) == [*urgent, *first[1:], *late]
    check(store)


def test_a_batch_of_higher_priority_goes_before_the_others_of_its_tenant_only(store: Store):
    load_rows(store, 9, "b1")
    load_rows(store, 9, "b2", priority=5)
    load_rows(store, 9, "b3", tenant="other")
    window(store, 9)
    due(store)
    assert {name: 9 - len(waiting(store, name)) for name in ("b1", "b2", "b3")} == {"b1": 1, "b2": 4, "b3": 4}
    check(store)


# ── how many ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("slots, window_of", [(1, 2), (2, 3), (10, 15), (7, 11)])
def test_half_as_many_runs_as_there_are_hands_wait_in_the_queue(store: Store, slots: int, window_of: int):
    load_rows(store, 30)
    store.watch.sign_on("w1", 60, slots=slots)
    assert store.feeder.window() == window_of
    due(store)
    assert store.feeder.in_flight() == len(in_flight(store)) == window_of
    store.watch.sign_on("w2", 60, slots=slots)
    assert store.feeder.window() >= 2 * window_of - 1
    check(store)


def test_the_hands_of_a_worker_that_is_gone_do_not_count(store: Store):
    store.watch.sign_on("w1", 60, slots=10)
    store.client.zadd(store.keys.workers, {"w1": 1})
    store.watch.sign_on("w2", 60, slots=2)
    assert store.feeder.window() == 3
    store.watch.sign_off("w2")
    store.watch.sign_on("w3", 60, slots=4)
    assert store.feeder.window() == 6


def test_without_workers_a_tenant_with_nothing_in_flight_has_one_run(store: Store):
    ids = load_rows(store, 3)
    assert in_flight(store) == {ids[0]}
    due(store)
    assert in_flight(store) == {ids[0]}
    others = load_rows(store, 3, "b2", tenant="other")
    assert in_flight(store) == {ids[0], others[0]}
    check(store)


def test_a_tenant_with_nothing_in_flight_has_one_run_at_once_above_the_window(store: Store):
    window(store, 4)
    load_rows(store, 20, "b1")
    assert len(in_flight(store)) == 4
    (first, *_) = load_rows(store, 20, "b2", tenant="other")
    assert in_flight(store, "t", "other") == {first}
    assert len(in_flight(store)) == 5
    finish(store, first)
    assert len(in_flight(store, "t", "other")) == 1
    check(store)


# The options of a batch, the knobs of a tenant, those of all, and how many may be in flight then.
CAPS: dict[str, tuple[dict[str, Any], tuple[str, dict[str, Any]] | None, dict[str, Any] | None, int]] = {
    "of a batch": ({"max_in_flight": 3}, None, None, 3),
    "of its open runs": ({"max_open": 2}, None, None, 2),
    "of a tenant": ({}, ("acme", {"max": 4}), None, 4),
    "of each tenant": ({}, None, {"tenant_max": 5}, 5),
    "of a tenant over that of each": ({}, ("acme", {"max": 6}), {"tenant_max": 5}, 6),
    "of all": ({}, None, {"max": 7}, 7),
    "the least of all": ({"max_in_flight": 3}, ("acme", {"max": 2}), {"max": 7}, 2),
}


@pytest.mark.parametrize("cap", CAPS)
def test_no_more_are_admitted_than_a_cap_allows_also_when_runs_end(store: Store, cap: str):
    options, of_tenant, of_all, most = CAPS[cap]
    window(store, 10)
    if of_tenant:
        store.feeder.tune(*of_tenant)
    if of_all:
        store.feeder.tune("", of_all)
    load_rows(store, 12, **options)
    for _ in range(4):
        due(store)
        assert len(in_flight(store)) == most
        check(store)
        finish(store, min(in_flight(store)))
    for _ in range(8):
        due(store)
        assert len(in_flight(store)) <= most
        finish(store, min(in_flight(store)))
    assert in_flight(store) == set()
    check(store)


def test_open_runs_that_wait_count_for_the_cap_of_open_ones_and_not_for_that_in_flight(store: Store):
    window(store, 10)
    (first, *_) = load_rows(store, 5, max_open=2, max_in_flight=1)
    store.control.pause_many([first], "ann")
    assert (len(in_flight(store)), len(store.batches.live("b1"))) == (1, 2)
    (second,) = in_flight(store)
    store.control.pause_many([second], "ann")
    assert in_flight(store) == set()
    store.runs.cancel(second, "ann")
    assert len(in_flight(store)) == 1
    check(store)


# ── turns ────────────────────────────────────────────────────────────────────────────────────────────


def test_two_tenants_have_equal_tokens_and_not_equal_runs(store: Store):
    window(store, 10)
    load_rows(store, 400, "b1", tenant="ann")
    load_rows(store, 400, "b2", tenant="bob")
    line, tokens = Line(store), {"ann": 500, "bob": 2000}
    line.work(60, tokens)  # until both are known
    done = line.work(200, tokens)
    assert done["ann"] * 500 == pytest.approx(done["bob"] * 2000, rel=0.2)
    check(store)


@pytest.mark.parametrize("weight", [2, 5])
def test_a_weight_is_so_many_times_the_tokens(store: Store, weight: int):
    store.feeder.tune("ann", {"weight": weight})
    window(store, 12)
    load_rows(store, 400, "b1", tenant="ann")
    load_rows(store, 400, "b2", tenant="bob")
    line = Line(store)
    line.work(40)
    done = line.work(180)
    assert done["ann"] / done["bob"] == pytest.approx(weight, rel=0.2)
    check(store)


@pytest.mark.parametrize("tokens", [0, 50, 1000, 50_000])
def test_who_comes_later_is_neither_behind_nor_ahead(store: Store, tokens: int):
    window(store, 10)
    load_rows(store, 300, "b1", tenant="ann")
    line, each = Line(store), {"ann": tokens, "bob": tokens}
    line.work(60, each)
    load_rows(store, 300, "b2", tenant="bob")
    line.work(20, each)
    done = line.work(100, each)
    assert done["ann"] == pytest.approx(50, abs=12)
    check(store)


def test_runs_that_cost_nothing_do_not_take_all_turns(store: Store):
    """As where a provider refuses each call at once: nothing is spent, and others must not wait for it."""
    window(store, 10)
    load_rows(store, 400, "b1", tenant="ann")
    load_rows(store, 400, "b2", tenant="bob")
    line, tokens = Line(store), {"ann": 0, "bob": 100}
    line.work(40, tokens)
    assert line.work(100, tokens)["bob"] >= 40
    check(store)


def test_many_batches_of_a_tenant_have_no_more_turns_than_one_of_another(store: Store):
    window(store, 8)
    for number in range(200):
        load_rows(store, 2, f"many{number}", tenant="ann")
    load_rows(store, 100, "one", tenant="bob")
    line = Line(store)
    line.work(16)
    done = line.work(80)
    assert done["bob"] == pytest.approx(40, abs=8)
    check(store)


def test_batches_of_one_tenant_take_turns_too(store: Store):
    window(store, 6)
    for name in ("b1", "b2", "b3"):
        load_rows(store, 100, name)
    line = Line(store)
    line.work(12, by="batch")
    done = line.work(60, by="batch")
    assert all(count == pytest.approx(20, abs=5) for count in done.values()), done
    check(store)


def test_a_tenant_whose_cap_is_full_does_not_start_anew_each_time_that_it_is_not(store: Store):
    """Else it would take each slot that one of its own leaves, and the other none."""
    window(store, 10)
    store.feeder.tune("ann", {"max": 9})
    load_rows(store, 400, "b1", tenant="ann")
    load_rows(store, 400, "b2", tenant="bob")
    line = Line(store)
    line.work(60)
    done = line.work(200)
    assert done["ann"] == pytest.approx(100, abs=15)
    check(store)


def test_a_batch_whose_cap_is_full_does_not_start_anew_each_time_that_it_is_not(store: Store):
    window(store, 10)
    load_rows(store, 400, "b1", max_in_flight=9)
    load_rows(store, 400, "b2")
    line = Line(store)
    line.work(60, by="batch")
    done = line.work(200, by="batch")
    assert done["b1"] == pytest.approx(100, abs=15)
    check(store)


# ── hints ────────────────────────────────────────────────────────────────────────────────────────────


def test_the_hint_of_an_admitted_row_is_sent_by_the_script_that_admits_it(store: Store):
    queue = f"{store.keys.broker_prefix}q"
    store.watch.sign_on("w1", 60, slots=2, hint=(queue, 'run "@run@" of a row'))
    ids = load_rows(store, 5)
    assert hints_in(store, queue) == [f'run "{run_id}" of a row' for run_id in ids[:3]]
    assert due(store).hints == [], "nobody sends it again at once"
    age(store, ids[0])
    assert due(store).hints == [(ids[0], 0)], "it may be lost"
    finish(store, ids[0])
    assert hints_in(store, queue)[-1] == f'run "{ids[3]}" of a row'
    assert store.client.llen(queue) == 0, "nobody else is there, whose share it could be below"
    check(store)


def test_without_a_queue_that_scripts_reach_the_tick_sends_the_hint(store: Store):
    store.watch.sign_on("w1", 60, slots=2, hint=(f"{store.keys.broker_prefix}q", "@run@"))
    store.watch.sign_on("w1", 60, slots=2)
    ids = load_rows(store, 5)
    assert due(store).hints == [(run_id, 0) for run_id in ids[:3]]
    assert due(store).hints == []
    check(store)


def test_who_is_below_its_share_does_not_wait_behind_what_others_have_queued(store: Store):
    queue = f"{store.keys.broker_prefix}q"
    store.watch.sign_on("w1", 60, slots=4, hint=(queue, "@run@"))
    ann = load_rows(store, 20, "b1", tenant="ann")
    due(store)
    bob = load_rows(store, 20, "b2", tenant="bob")
    assert store.client.llen(queue + SECOND) == 6, "alone a tenant has all there is, which is its share"
    assert hints_in(store, queue) == [bob[0], *ann[:6]]
    check(store)


# ── who is not fed ───────────────────────────────────────────────────────────────────────────────────


def test_a_batch_that_starts_later_is_admitted_when_its_time_has_come(store: Store):
    window(store, 10)
    load_rows(store, 3, at=store.watch.server_ms() + 60_000)
    due(store)
    assert in_flight(store) == set()
    store.client.hset(store.keys.batch("b1"), "at", 1)  # a minute later
    store.client.zadd(f"{store.keys.prefix}starts", {"b1": 1})
    due(store)
    assert len(in_flight(store)) == 3
    check(store)


def test_a_paused_batch_admits_nothing_and_holds_nobody_up(store: Store):
    load_rows(store, 5, "b1")
    load_rows(store, 5, "b2")
    store.batches.pause("b1", "ann")
    window(store, 10)
    due(store)
    assert (len(waiting(store, "b1")), len(waiting(store, "b2"))) == (4, 0)
    store.batches.resume("b1")
    due(store)
    assert waiting(store, "b1") == []
    check(store)


def test_a_batch_that_is_paused_while_it_is_loaded_is_not_admitted(store: Store):
    window(store, 10)
    opened = open_for(store)
    add_rows(store, opened, range(3))
    store.batches.pause("b1", "ann")
    store.batches.seal("b1")
    assert in_flight(store) == set()
    store.batches.resume("b1")
    assert len(in_flight(store)) == 3
    check(store)


# ── money ────────────────────────────────────────────────────────────────────────────────────────────


def park(store: Store, run_id: str, *, escrow: int = 0, scope: str = "tenant:acme") -> None:
    """A run at work finds that this scope is used up."""
    lease = claim_run(store, run_id).lease
    if escrow:
        reserve(store, lease, 1, usd=1, tokens=1, escrow_usd=escrow, escrow_tokens=1)
    store.ledger.set_limit(scope, usd=1_000, actor=by())
    store.ledger.book(scope, "charge", usd=990, actor=by())
    assert isinstance(reserve(store, lease, 2, usd=100, tokens=1, policy="park"), Parked)


def more_money(store: Store) -> None:
    store.ledger.set_limit("tenant:acme", usd=10**9, actor=by())


def test_where_there_is_no_money_the_rows_behind_stay_rows_until_the_run_goes_on(store: Store):
    window(store, 1)
    ids = load_rows(store, 4)
    park(store, ids[0])
    record = store.batches.read("b1")
    assert record is not None
    assert (record.dry, in_flight(store), len(waiting(store))) == (ids[0], set(), 3)
    due(store)
    assert in_flight(store) == set()
    check(store)
    more_money(store)
    assert state_of(store, ids[0]) == "queued"
    check(store)
    window(store, 3)
    due(store)
    assert in_flight(store) == set(ids[:3]), "they do not wait until the run is over"


def test_where_the_run_that_waits_is_cancelled_another_finds_out_whether_there_is_money(store: Store):
    window(store, 1)
    ids = load_rows(store, 4)
    park(store, ids[0])
    store.runs.cancel(ids[0], "ann")
    assert in_flight(store) == {ids[1]}
    check(store)


def test_of_several_that_wait_the_first_is_named_and_each_that_goes_on_lets_one_more_try(store: Store):
    window(store, 2)
    ids = load_rows(store, 5)
    park(store, ids[0])
    park(store, ids[1])
    record = store.batches.read("b1")
    assert record is not None
    assert record.dry == ids[0]
    store.runs.cancel(ids[1], "ann")
    assert in_flight(store) == set(), "the first still waits"
    store.runs.cancel(ids[0], "ann")
    assert len(in_flight(store)) == 2
    check(store)


def test_a_run_that_has_begun_and_waits_for_more_does_not_stop_the_others(store: Store):
    window(store, 1)
    ids = load_rows(store, 4)
    park(store, ids[0], escrow=5)
    record = store.batches.read("b1")
    assert record is not None
    assert (record.dry, in_flight(store)) == (None, {ids[1]})
    check(store)


def test_another_batch_of_the_tenant_finds_out_by_itself(store: Store):
    window(store, 2)
    first = load_rows(store, 3, "b1")
    second = load_rows(store, 3, "b2")
    park(store, first[0])
    assert in_flight(store) <= {first[1], *second[:2]}
    assert in_flight(store, "b", "b2")
    check(store)


# ── knobs ────────────────────────────────────────────────────────────────────────────────────────────


def test_knobs_are_set_and_taken_away(store: Store):
    assert twice(store, "feeder_tune", "acme", 4, "max", 3, "weight", 2) == ["OK"]
    assert twice(store, "feeder_tune", "", 4, "max", 30, "tenant_max", 5) == ["OK"]
    assert dump(store)["feeder"][0] == {
        "max:acme": "3",
        "weight:acme": "2",
        "max": "30",
        "tenant_max": "5",
    }
    (tenant,) = store.feeder.tenants()
    assert (tenant.name, tenant.in_flight, tenant.batches, tenant.weight, tenant.max_in_flight) == (
        "acme",
        0,
        0,
        2,
        3,
    )
    assert twice(store, "feeder_tune", "acme", 4, "max", "", "weight", "") == ["OK"]
    assert twice(store, "feeder_tune", "", 4, "max", "", "tenant_max", "") == ["OK"]
    assert "feeder" not in dump(store)
    assert store.feeder.tenants() == []


def test_a_tenant_whose_cap_is_raised_has_more_at_once_and_one_whose_cap_is_lowered_no_more(store: Store):
    window(store, 10)
    store.feeder.tune("acme", {"max": 1})
    load_rows(store, 8)
    assert len(in_flight(store)) == 1
    store.feeder.tune("acme", {"max": 5})
    assert len(in_flight(store)) == 5
    store.feeder.tune("acme", {"max": 2})
    for left in (4, 3, 2, 2):
        finish(store, min(in_flight(store)))
        assert len(in_flight(store)) == left
    check(store)


def test_who_is_named_has_something_in_flight_rows_or_a_knob(store: Store):
    load_rows(store, 3, "b1", tenant="ann")
    submit_run(store, "single", tenant="bob")
    store.feeder.tune("eve", {"weight": 3})
    assert [(t.name, t.in_flight, t.batches, t.weight) for t in store.feeder.tenants()] == [
        ("ann", 1, 1, 1),
        ("bob", 1, 0, 1),
        ("eve", 0, 0, 3),
    ]


@pytest.mark.parametrize("order", [("ann", "bob"), ("bob", "ann")])
def test_a_run_of_nobody_s_batch_takes_a_slot_like_any_other(store: Store, order: Sequence[str]):
    window(store, 2)
    submit_run(store, "single", tenant=order[0])
    load_rows(store, 3, tenant=order[1])
    assert len(in_flight(store)) == 2
    finish(store, "single")
    assert len(in_flight(store)) == 2, "its slot goes to whose turn it is, whoever left it"
    check(store)


def test_a_run_that_dies_with_its_worker_keeps_its_slot(store: Store):
    window(store, 1)
    ids = load_rows(store, 2)
    claim_run(store, ids[0])
    age(store, ids[0])
    call(store, "run_rescue", ids[0], LEASE_MS, 5_000, 0)
    assert in_flight(store) == {ids[0]}
    check(store)


def test_the_mean_of_what_runs_need_is_known_after_the_first(store: Store):
    (first, *_) = load_rows(store, 40)
    finish(store, first, tokens=5_000)
    assert store.client.hget(store.keys.batch("b1"), "mean") == "5000"
    for _ in range(32):
        finish(store, min(in_flight(store)), tokens=1_000, reason=StopReason.FINISHED)
    assert 1_000 < int(str(store.client.hget(store.keys.batch("b1"), "mean"))) < 2_000
