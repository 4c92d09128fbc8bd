"""Removing a batch that is over: all of its keys go, some runs at a time, and nothing that is live."""

from __future__ import annotations

import pytest

from agentq.core.lifecycle import StopReason
from agentq.core.records import Delta
from agentq.store import Store, purge
from agentq.store.checkup import examine
from agentq.store.purge import over_for_ms, purge_batch
from tests.support.harness import (
    RETENTION_MS,
    call,
    claim_run,
    dump,
    open_batch,
    reserve,
    submit_run,
    untouched,
)


def over(store: Store, name: str = "b1", *, rows: int = 3) -> None:
    """A batch whose runs have ended, each with something in its books."""
    open_batch(store, name, usd=10**6)
    for number in range(rows):
        run = f"{name}_{number}"
        submit_run(store, run, batch=name, custom_id=run)
    store.batches.seal(name)
    for number in range(rows):
        lease = claim_run(store, f"{name}_{number}").lease
        reserve(store, lease, usd=7, tokens=7)
        store.runs.commit_end(lease, Delta("{}", ('{"role":"user"}',)), None, StopReason.FINISHED)


def keys_of(store: Store, name: str) -> set[str]:
    """What is left of a batch and its runs. What ends within this millisecond is gone."""
    store.client.time()
    return {
        key
        for key in dump(store)
        if name in key
        and not key.startswith("scope:batch:")
        and store.client.pttl(store.keys.prefix + key) != 0
    }


def test_all_keys_of_a_batch_and_its_runs_are_gone(store: Store) -> None:
    over(store)
    assert purge_batch(store, "b1")
    assert keys_of(store, "b1") == set()
    assert store.batches.names() == []
    assert store.batches.read("b1") is None
    assert purge_batch(store, "b1"), "again: there is nothing left to do"


def test_what_was_spent_stays_in_the_books_and_they_agree(store: Store) -> None:
    over(store)
    before = store.ledger.account("tenant:acme")
    assert before.forfeited_nano == 21
    purge_batch(store, "b1")
    assert store.ledger.account("tenant:acme") == before
    assert store.audit.verify().agrees
    assert not examine(store).findings


def test_a_batch_of_the_same_name_begins_anew(store: Store) -> None:
    over(store)
    purge_batch(store, "b1")
    open_batch(store, "b1")
    submit_run(store, "r9", batch="b1", custom_id="b1_0")
    record = store.batches.read("b1")
    assert record is not None
    assert (record.total, record.ended) == (1, 0)
    assert store.ledger.account("batch:b1").spent_nano == 0


def test_it_is_done_in_chunks_and_can_be_interrupted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    over(store, rows=5)
    assert call(store, "batch_purge", "b1", 0, 2) == ["MORE", "2"]
    assert [record is None for record in store.runs.read_many([f"b1_{n}" for n in range(5)])] == [
        *(True, True),
        *(False, False, False),
    ]
    record = store.batches.read("b1")
    assert record is not None
    assert record.total == 5
    assert not examine(store).findings, "it stands as one whose runs have expired"
    monkeypatch.setattr(purge, "CHUNK", 2)
    assert purge_batch(store, "b1"), "begun anew"
    assert keys_of(store, "b1") == set()


def test_what_runs_have_started_goes_with_them_within_the_same_bound(store: Store) -> None:
    over(store, rows=1)
    for number in range(5):
        child = f"child_b1_{number}"
        store.client.hset(store.keys.run("b1_0", "children"), child, f"h {child}")
        store.client.hset(store.keys.run(child), mapping={"state": "ended"})
    replies: list[list[str]] = []
    done = 0
    while not replies or replies[-1][0] == "MORE":
        replies.append(call(store, "batch_purge", "b1", done, 2))
    assert [reply[0] for reply in replies] == ["MORE", "MORE", "DONE"]
    assert keys_of(store, "b1") == set()


def test_threads_go_and_results_stay(store: Store) -> None:
    over(store)
    runs = [f"b1_{number}" for number in range(3)]
    records, batch = store.runs.read_many(runs), store.batches.read("b1")
    ends = {key: store.client.pexpiretime(store.keys.prefix + key) for key in keys_of(store, "b1")}
    for run in runs:
        for part in ("trace", "cache", "kept"):
            store.client.hset(store.keys.run(run, part), "k", "v")
    assert purge_batch(store, "b1", only_threads=True)
    assert store.runs.read_many(runs) == records
    assert store.batches.read("b1") == batch
    assert store.runs.messages(runs) == [[], [], []]
    left = {key: store.client.pexpiretime(store.keys.prefix + key) for key in keys_of(store, "b1")}
    assert left == {key: end for key, end in ends.items() if not key.endswith(":msgs")}
    assert store.audit.verify().agrees
    assert not examine(store).findings
    assert purge_batch(store, "b1", only_threads=True), "again: there is nothing left to do"
    assert purge_batch(store, "b1")
    assert keys_of(store, "b1") == set()


def test_threads_of_what_runs_have_started_go_within_the_same_bound(store: Store) -> None:
    over(store, rows=1)
    children = [f"child_b1_{number}" for number in range(5)]
    for child in children:
        store.client.hset(store.keys.run("b1_0", "children"), child, f"h {child}")
        store.client.hset(store.keys.run(child), mapping={"state": "ended"})
        store.client.rpush(store.keys.run(child, "msgs"), "{}")
    replies: list[list[str]] = []
    done = 0
    while not replies or replies[-1][0] == "MORE":
        replies.append(call(store, "batch_purge", "b1", done, 2, 1))
    assert [reply[0] for reply in replies] == ["MORE", "MORE", "DONE"]
    assert store.runs.messages(["b1_0", *children]) == [[]] * 6
    assert all(store.client.exists(store.keys.run(child)) for child in children)


def test_nothing_of_what_is_live_is_touched(store: Store) -> None:
    open_batch(store, "loading")
    over(store, "over")
    open_batch(store, "running")
    submit_run(store, "r1", batch="running")
    store.batches.seal("running")
    over(store, "parent")
    store.client.hset(store.keys.batch("parent"), "descendants", 1)
    for name in ("loading", "running", "parent"):
        with untouched(store):
            assert not purge_batch(store, name), name
            assert not purge_batch(store, name, only_threads=True), name
    assert purge_batch(store, "over")


def test_rows_that_are_added_meanwhile_keep_the_batch(store: Store) -> None:
    over(store)
    call(store, "batch_purge", "b1", 0, 2)
    open_batch(store, "b1", usd=10**6)
    submit_run(store, "r9", batch="b1", custom_id="new")
    with untouched(store):
        assert not purge_batch(store, "b1")


def test_for_how_long_a_batch_has_been_over_is_known_from_its_end(store: Store) -> None:
    open_batch(store, "live")
    for name in ("late", "early"):
        over(store, name)
    store.client.pexpire(store.keys.batch("early"), RETENTION_MS - 600_000)
    found = over_for_ms(store, ["live", "late", "early", "nothing"])
    assert found.keys() == {"late", "early"}
    assert found["late"] < 300_000
    assert 600_000 <= found["early"] < 900_000
