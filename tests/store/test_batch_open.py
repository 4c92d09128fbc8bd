"""batch_open.lua: a batch is created once, and taken up again only as what it is."""

from __future__ import annotations

import pytest
import redis

from agentq.core.errors import ConflictError
from agentq.store import Store
from tests.support.harness import (
    RETENTION_MS,
    call,
    dump,
    entries_of,
    open_batch,
    submit_run,
    untouched,
)

ME = ("me", 15_000, "", 0)
"""Who loads, for how long he need not be heard of, nobody who is dead, no options."""


def opened(store: Store, *asked: str | int, who: tuple[str | int, ...] = ME) -> list[str]:
    """The reply without the time; a second call says the same and changes only how long it is held."""
    first = call(store, "batch_open", "b1", *asked, *who)
    before = dump(store)
    again = call(store, "batch_open", "b1", *asked, *who)
    after = dump(store)
    for state in (before, after):
        state["batch:b1"][0].pop("loader")
    assert (again[:-1], after) == (first[:-1], before)
    assert int(first[-1]) <= int(again[-1]) <= store.watch.server_ms()
    return first[:-1]


def test_a_new_batch_is_empty_and_has_its_limits(store: Store):
    assert opened(store, "a", "acme", "1000", "50", RETENTION_MS) == ["OPEN", "0", "1"]
    state = dump(store)
    batch, has_end = state["batch:b1"]
    created = int(batch.pop("created"))
    who, until, was = batch.pop("loader").split()
    assert (who, was) == ("me", "0")
    assert int(until) - created == pytest.approx(15_000, abs=10_000)
    assert batch == {
        "agent": "a",
        "tenant": "acme",
        "total": "0",
        "ended": "0",
        "ttl": str(RETENTION_MS),
        "serial": "1",
    }
    assert not has_end
    assert (state["serial:1"], state["feeder"]) == (("b1", False), ({"serial": "1"}, False))
    assert state["scope:batch:b1"] == ({"ul": "1000", "tl": "50"}, False)
    assert state["batches"] == ([("b1", created)], False)
    assert set(state) == {"batch:b1", "scope:batch:b1", "batches", "ledger", "log", "serial:1", "feeder"}
    assert set(state["ledger"][0]) == {"born"}
    assert [(entry["o"], entry["s"], entry["w"]) for entry in entries_of(store)] == [
        ("open", "batch:b1", "ul - 1000, tl - 50")
    ]


def test_a_batch_without_limits_has_no_account_yet(store: Store):
    assert opened(store, "a", "acme", "", "", RETENTION_MS) == ["OPEN", "0", "1"]
    assert "scope:batch:b1" not in dump(store)


@pytest.mark.parametrize(
    "asked, answer",
    [
        (("b", "acme", "1000", "50"), ["CONFLICT", "agent", "a"]),
        (("a", "other", "1000", "50"), ["CONFLICT", "tenant", "acme"]),
        (("a", "acme", "2000", "50"), ["CONFLICT", "ul", "1000"]),
        (("a", "acme", "1000", "51"), ["CONFLICT", "tl", "50"]),
    ],
)
def test_a_batch_that_is_another_one_is_a_conflict_and_stays_as_it_is(store: Store, asked, answer):
    call(store, "batch_open", "b1", "a", "acme", "1000", "50", RETENTION_MS, *ME)
    with untouched(store):
        assert call(store, "batch_open", "b1", *asked, RETENTION_MS, *ME) == answer


@pytest.mark.parametrize("first, then", [("", "a"), ("a", ""), ("", "")])
def test_a_batch_of_several_agents_takes_rows_of_any(store: Store, first: str, then: str):
    call(store, "batch_open", "b1", first, "acme", "", "", RETENTION_MS, *ME)
    assert opened(store, then, "acme", "", "", RETENTION_MS) == ["OPEN", "0", "1"]
    assert dump(store)["batch:b1"][0]["agent"] == first


def test_a_cap_cannot_be_put_on_a_batch_that_has_none(store: Store):
    open_batch(store)
    with untouched(store), pytest.raises(ConflictError, match="another limit: none") as refused:
        open_batch(store, usd=1)
    assert "agentq budget set batch:b1 --max-usd" in refused.value.hint
    with untouched(store), pytest.raises(ConflictError, match="another limit in tokens: none") as refused:
        open_batch(store, tokens=1)
    assert "agentq budget set batch:b1 --max-tokens" in refused.value.hint


def test_a_batch_is_taken_up_again_without_naming_its_caps(store: Store):
    open_batch(store, usd=1000)
    submit_run(store, batch="b1")
    open_batch(store)
    assert store.ledger.account("batch:b1").limit_nano == 1000


def test_a_batch_that_is_over_has_no_end_while_it_is_open_again(store: Store):
    open_batch(store, usd=1000)
    submit_run(store, "r1", batch="b1", custom_id="x")
    store.runs.cancel("r1", "test")
    store.batches.seal("b1")
    over = dump(store)
    kept = ("batch:b1", "batch:b1:ids", "batch:b1:runs", "scope:batch:b1")
    assert [over[name][1] for name in kept] == [True] * 4
    assert opened(store, "a", "acme", "1000", "", RETENTION_MS) == ["OPEN", "1", "1"]
    again = dump(store)
    assert [again[name][1] for name in kept] == [False] * 4
    record = store.batches.read("b1")
    assert record is not None
    assert not record.sealed


@pytest.mark.parametrize("bad", ["-1", "01", "1e3", "12345678901234567", "9007199254740992"])
@pytest.mark.parametrize("place", [0, 1])
def test_a_limit_that_is_no_amount_is_refused_before_anything_is_written(store: Store, place: int, bad: str):
    limits = ["5", "5"]
    limits[place] = bad
    with untouched(store), pytest.raises(redis.exceptions.ResponseError, match="not an amount"):
        call(store, "batch_open", "b1", "a", "acme", *limits, RETENTION_MS, *ME)


def test_a_new_batch_has_nothing_of_one_that_had_its_name_and_is_about_to_vanish(store: Store):
    """Its cap would go with the old account, and the batch would spend without one."""
    scope = store.keys.scope("batch:b1")
    store.client.hset(scope, mapping={"us": 7, "ul": 9, "uo": 1})
    store.client.expire(scope, 100)
    store.client.hset(store.keys.checkpoint("batch:b1"), "us", 7)
    store.client.expire(store.keys.checkpoint("batch:b1"), 100)
    open_batch(store, usd=50)
    state = dump(store)
    assert state["scope:batch:b1"] == ({"ul": "50"}, False)
    assert "checkpoint:batch:b1" not in state


def test_a_limit_that_was_set_for_a_batch_to_come_is_kept(store: Store):
    store.ledger.set_limit("batch:b1", usd=9)
    open_batch(store)
    assert store.ledger.account("batch:b1").limit_nano == 9


def test_a_batch_whose_keys_are_gone_is_no_longer_listed(store: Store):
    open_batch(store, "b1")
    open_batch(store, "b2")
    store.client.delete(store.keys.batch("b1"))
    assert store.batches.names() == ["b2"]
    assert dump(store)["batches"][0][0][0] == "b2"
