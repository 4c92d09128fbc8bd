"""Rows that are no runs yet: read as the runs that they will be, and acted upon one by one."""

from __future__ import annotations

import json

import pytest

from agentq.core.lifecycle import RunState, StopReason
from agentq.core.records import Retrial
from agentq.store import Store
from agentq.store.rows import read_rows
from tests.support import feeding
from tests.support.harness import HELLO, age, call, check_runs, claim_run, due, dump, state_of, untouched
from tests.support.rows import (
    add_rows,
    finish,
    in_flight,
    load_rows,
    open_for,
    row_entry,
    row_id,
    template,
    waiting,
    window,
)


def check(store: Store) -> None:
    feeding.check(dump(store, without=()), store.watch.server_ms())
    check_runs(store)


def test_a_row_is_a_queued_run_to_who_reads_it(store: Store):
    ids = load_rows(store, 2)
    run, row = store.runs.read_many(ids)
    assert run is not None
    assert row is not None
    assert (run.is_row, row.is_row) == (False, True)
    for record in (run, row):
        assert (record.state, record.step, record.created_ms, record.definition) == (
            RunState.QUEUED,
            0,
            1,
            "definition",
        )
        assert (record.spec.agent, record.spec.batch, record.spec.tenant) == ("a", "b1", "acme")
    assert (run.spec.custom_id, row.spec.custom_id) == ("c0", "c1")
    assert run.spec.scopes_of(run.id)[:-1] == row.spec.scopes_of(row.id)[:-1]


def test_the_run_is_what_the_row_was(store: Store):
    """Beside one that was submitted alone: each has the same fields."""
    opened = open_for(store)
    store.batches.add("b1", [row_entry(0, opened.serial, usd="77")], {"t": template(usd="99")})
    store.batches.seal("b1")
    state, run_id = dump(store), row_id(0, opened.serial)
    run = state[f"run:{run_id}"][0]
    assert json.loads(run["spec"])["custom_id"] == "c0"
    assert (run["scopes"], run["hash"], run["fence"], run["head"], run["ttl"]) == (
        f"global tenant:acme batch:b1 run:{run_id}",
        "h",
        "0-",
        "{}",
        state["batch:b1"][0]["ttl"],
    )
    assert state[f"run:{run_id}:msgs"][0] == [HELLO]
    assert state[f"scope:run:{run_id}"][0] == {"ul": "77"}, "its own limit goes before its template's"
    check(store)


def test_an_id_that_is_no_row_s_is_nothing(store: Store):
    (first, second) = load_rows(store, 2)
    odd = [
        "",
        "run_1",
        "run_x_1",
        "run_000000000009_1",
        "run_000000000001_2",
        f"{second}_1",
        f"{second}\n",
        "b1",
    ]
    assert store.runs.read_many(odd) == [None] * len(odd)
    assert read_rows(store.client, store.keys, [first]) == {}, "a run is none any more"


def test_a_row_that_is_cancelled_is_a_run_that_ended_so(store: Store):
    ids = load_rows(store, 4)
    assert store.runs.cancel_many([ids[2], ids[2]], "ann") == [("CANCELLED", "")] * 2
    assert waiting(store) == [ids[1], ids[3]]
    record = store.runs.read(ids[2])
    assert record is not None
    assert (record.is_row, record.stop_reason, record.stop_detail) == (
        False,
        StopReason.CANCELLED,
        "cancelled by ann",
    )
    check(store)


def test_a_row_that_is_paused_is_a_run_that_is_held_and_others_go_before_it(store: Store):
    ids = load_rows(store, 3)
    assert store.control.pause_many([ids[1]], "ann") == ["HELD"]
    assert (state_of(store, ids[1]), in_flight(store)) == ("held", {ids[0]})
    finish(store, ids[0])
    assert in_flight(store) == {ids[2]}
    store.control.resume_many([ids[1]], own=True)
    assert in_flight(store) == {ids[1], ids[2]}
    assert due(store).hints == [(ids[2], 0), (ids[1], 0)]
    check(store)


def test_a_row_that_is_resumed_stays_one(store: Store):
    ids = load_rows(store, 3)
    with untouched(store):
        assert store.control.resume_many([ids[1]], own=True) == ["RESUMED"]


@pytest.mark.parametrize("script", ["run_cancel", "run_pause"])
def test_rows_of_a_load_are_not_touched_one_by_one(store: Store, script: str):
    """The load may yet be taken back."""
    opened = open_for(store)
    (first, *_) = add_rows(store, opened, range(2))
    with untouched(store):
        assert call(store, script, first, "ann") == ["MISSING"]
    store.batches.abort("b1", 0)


@pytest.mark.parametrize("reason", ["cancelled", "cost_budget"])
def test_a_row_that_has_ended_stays_so_whoever_cancels_or_pauses_it(store: Store, reason: str):
    (row, *_) = load_rows(store, 1, at=10**15)
    if reason == "cancelled":
        store.batches.cancel("b1", "ann")
    else:
        store.batches.drop("b1", StopReason(reason))
    with untouched(store):
        assert call(store, "run_pause", row, "ann") == ["ENDED", reason]
        assert call(store, "run_resume", row, 1) == ["ENDED", reason]
        assert call(store, "run_cancel", row, "ann") in (["CANCELLED"], ["ENDED", reason])
    check(store)


def test_a_row_is_not_claimed_before_its_turn(store: Store):
    (_, row) = load_rows(store, 2)
    assert store.runs.claim(row, None, 1000) is None
    with untouched(store):
        assert call(store, "step_claim", row, "", "n", 1000, "", "0") == ["MISSING"]


def test_a_run_that_was_a_row_is_retried_like_any_other(store: Store):
    (run_id, *_) = load_rows(store, 2)
    finish(store, run_id, reason=StopReason.MODEL_ERROR)
    assert store.control.retry_many([Retrial(run_id, 0, "{}", 1, "[]", "ann")]) == [("RETRIED", "0")]
    assert run_id in in_flight(store)
    check(store)
    finish(store, run_id)
    check(store)


def test_a_batch_without_workers_is_worked_through_by_ticks_alone(store: Store):
    ids = load_rows(store, 12, "b1") + load_rows(store, 12, "b2", tenant="other")
    window(store, 3)
    for _ in range(40):
        for run_id, _step in due(store).hints:
            finish(store, run_id)
    ended = [record for record in store.runs.read_many(ids) if record and record.state is RunState.ENDED]
    assert len(ended) == 24
    assert not [name for name in dump(store) if name.startswith(("slots", "turns", "flying"))]
    check(store)


# ── loaders ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_load_whose_loader_was_killed_is_resumed_by_the_same_load(store: Store):
    window(store, 10)
    opened = open_for(store, loader="killed")
    add_rows(store, opened, range(4), loader="killed")
    again = open_for(store, loader="second", dead="killed")
    assert (again.total, again.serial) == (4, opened.serial)
    add_rows(store, again, range(6), loader="second")
    assert in_flight(store) == set()
    store.batches.seal("b1", loader="second")
    record = store.batches.read("b1")
    assert record is not None
    due(store)
    assert (record.total, record.loader, record.sealed) == (6, None, True)
    assert len(in_flight(store)) == 6
    check(store)


def test_a_loader_that_was_killed_while_it_sealed_is_resumed(store: Store):
    load_rows(store, 2)
    opened = open_for(store, loader="killed")
    add_rows(store, opened, range(10, 16), loader="killed")
    assert call(store, "batch_seal", "b1", "killed", 2) == ["MORE"]
    again = open_for(store, loader="second", dead="killed")
    add_rows(store, again, range(10, 16), loader="second")
    store.batches.seal("b1", loader="second")
    assert len(waiting(store)) == 7
    check(store)


def test_a_loader_that_nobody_has_heard_of_for_a_while_may_be_replaced(store: Store):
    opened = open_for(store, loader="frozen")
    add_rows(store, opened, [0], loader="frozen")
    reply = call(store, "batch_open", "b1", "a", "acme", "", "", 1000, "second", 1000, "", 0)
    assert reply == ["LOADING", "frozen"]
    store.client.hset(store.keys.batch("b1"), "loader", "frozen 1 0")
    assert open_for(store, loader="second").total == 1
    assert call(store, "batch_seal", "b1", "frozen", 10) == ["LOST"]
    check(store)


def test_rows_of_one_who_died_are_cancelled_with_their_batch(store: Store):
    add_rows(store, open_for(store, loader="killed"), range(3), loader="killed")
    assert store.batches.cancel("b1", "ann") == 3
    record = store.batches.read("b1")
    assert record is not None
    assert (record.ended, record.sealed, record.loader) == (3, True, None)
    assert all(end for name, (_, end) in dump(store).items() if name.startswith(("batch:", "serial:")))
    check(store)


def test_a_run_at_work_keeps_its_lease_while_its_batch_is_loaded_again(store: Store):
    (first, *_) = load_rows(store, 2)
    lease = claim_run(store, first).lease
    add_rows(store, open_for(store), [7])
    store.batches.seal("b1")
    assert store.watch.renew([lease], 1000) == ["OK"]
    age(store, first)
    check(store)
