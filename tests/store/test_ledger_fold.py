"""ledger_fold.lua: the log keeps its length, and loses nothing that anybody still needs."""

from __future__ import annotations

import json

import pytest

from agentq.core.records import Actor
from agentq.engine import rescue
from agentq.store import Store
from agentq.store.ledger import Ledger
from tests.support.harness import call, due, money, twice


@pytest.fixture(autouse=True)
def _entries(store: Store) -> None:
    """Entries 1 to 30, a nano-USD each."""
    for number in range(30):
        store.ledger.book("global", "charge", actor=Actor(f"op{number}", "boss"), usd=1)


def numbers(store: Store) -> list[int]:
    return [entry.seq for entry in store.journal.read(0)]


def test_what_is_above_the_length_that_is_kept_goes_into_the_checkpoint(store: Store):
    assert store.ledger.fold(kept=25, at_most=100) == 5
    assert numbers(store) == list(range(6, 31))
    assert store.client.hgetall(store.keys.checkpoint("global")) == {"us": "5"}
    assert store.journal.folded() == 5
    assert twice(store, "ledger_fold", 25, 100) == ["OK", 0]


def test_a_call_folds_no_more_than_it_may(store: Store):
    assert [store.ledger.fold(kept=20, at_most=4) for _ in range(4)] == [4, 4, 2, 0]
    assert store.client.hgetall(store.keys.checkpoint("global")) == {"us": "10"}


def test_nothing_is_folded_while_somebody_verifies(store: Store):
    store.audit.verify()
    assert store.ledger.fold(kept=0) == 0
    store.client.hset(store.keys.ledger, "pinned", store.watch.server_ms() - 1)
    assert store.ledger.fold(kept=0) == 30


def test_what_an_exporter_has_not_read_stays(store: Store):
    store.journal.mark(7)
    assert store.ledger.fold(kept=10) == 7
    assert store.ledger.fold(kept=10) == 0
    store.journal.mark(12)
    assert store.ledger.fold(kept=10) == 5
    store.journal.mark(None)
    assert store.ledger.fold(kept=10) == 8
    assert numbers(store) == list(range(21, 31))


def test_a_log_of_ten_times_the_length_is_folded_although_nobody_has_read_it(store: Store):
    store.journal.mark(1)
    assert store.ledger.fold(kept=2) == 10
    assert numbers(store) == list(range(11, 31))
    assert store.client.hgetall(store.keys.checkpoint("global")) == {"us": "10"}
    assert store.ledger.fold(kept=2) == 0
    [event] = [event for event in due(store).events if event["event"] == "ledger_export_overrun"]
    assert (event["exported"], event["folded"]) == ("1", "10")
    for number in range(3):
        store.ledger.book("global", "charge", actor=Actor(f"more{number}", "boss"), usd=1)
    assert store.ledger.fold(kept=2) == 3
    assert due(store).events == []  # said once an hour


def test_an_account_that_has_expired_gets_no_checkpoint(store: Store):
    store.ledger.book("tenant:gone", "charge", actor=Actor("x", "boss"), usd=1)
    store.client.delete(store.keys.scope("tenant:gone"))
    assert store.ledger.fold(kept=0) == 31
    assert not store.client.exists(store.keys.checkpoint("tenant:gone"))


def test_a_checkpoint_ends_with_its_account(store: Store):
    store.ledger.book("tenant:brief", "charge", actor=Actor("x", "boss"), usd=1)
    store.client.pexpire(store.keys.scope("tenant:brief"), 60_000)
    store.ledger.fold(kept=0)
    assert 0 < store.client.pttl(store.keys.checkpoint("tenant:brief")) <= 60_000
    assert store.client.pttl(store.keys.checkpoint("global")) == -1


def test_amounts_up_to_the_largest_are_added_exactly(store: Store):
    largest = 2**53 - 1 - money(store, "tenant:rich").get("us", 0)
    store.ledger.book("tenant:rich", "charge", actor=Actor("x", "boss"), usd=largest - 31)
    store.ledger.fold(kept=0)
    assert store.client.hget(store.keys.checkpoint("tenant:rich"), "us") == str(largest - 31)
    store.ledger.book("tenant:rich", "adjust", actor=Actor("y", "boss"), usd=31 - largest)
    store.ledger.fold(kept=0)
    assert store.client.hget(store.keys.checkpoint("tenant:rich"), "us") == "0"
    assert store.audit.verify().agrees


def test_a_tick_folds_until_the_log_is_short(store: Store, monkeypatch: pytest.MonkeyPatch):
    def small(self: Ledger, *, kept: int = 8, at_most: int = 5) -> int:
        return int(call(store, "ledger_fold", kept, at_most)[1])

    monkeypatch.setattr(Ledger, "fold", small)
    monkeypatch.setattr(rescue, "FOLD", 5)
    rescue.rescue_due(store.watch, store.ledger, lambda run_id, step: None, lease_ms=15_000, room=1)
    assert due(store).events == []
    assert numbers(store) == list(range(23, 31))


def test_a_mark_is_a_number(store: Store):
    assert twice(store, "ledger_mark", "7") == ["OK"]
    assert json.loads(str(store.client.hget(store.keys.ledger, "exported"))) == 7
    assert twice(store, "ledger_mark", "") == ["OK"]
    assert store.client.hget(store.keys.ledger, "exported") is None
