"""scope_limit.lua: the limits of a scope are set, and taken away."""

from __future__ import annotations

import pytest
import redis

from agentq.store import Store
from tests.support.harness import call, dump, money, twice, untouched


def test_both_limits_are_set_and_taken_away(store: Store):
    assert twice(store, "scope_limit", "global", "1000", "50") == ["OK"]
    assert dump(store) == {"scope:global": ({"ul": "1000", "tl": "50"}, False)}
    assert twice(store, "scope_limit", "global", "", "60") == ["OK"]
    account = store.ledger.account("global")
    assert (account.limit_nano, account.tokens_limit) == (None, 60)
    assert twice(store, "scope_limit", "global", "", "") == ["OK"]
    assert dump(store) == {}


def test_a_limit_leaves_what_was_spent_alone(store: Store):
    store.client.hset(store.keys.scope("global"), mapping={"us": 7, "ts": 3})
    store.ledger.set_limit("global", usd=0, tokens=None)
    assert money(store, "global") == {"us": 7, "ts": 3}
    assert store.ledger.account("global").left_nano == -7


def test_the_largest_amount_is_kept_exactly(store: Store):
    largest = 2**53 - 1
    store.ledger.set_limit("global", usd=largest, tokens=largest)
    account = store.ledger.account("global")
    assert (account.limit_nano, account.tokens_limit) == (largest, largest)


@pytest.mark.parametrize("bad", ["-1", "01", "1e3", "12345678901234567", str(2**53), "-0", "1.5"])
@pytest.mark.parametrize("place", [0, 1])
def test_a_limit_that_is_no_amount_is_refused_before_anything_is_written(store: Store, place: int, bad: str):
    store.ledger.set_limit("global", usd=5, tokens=5)
    limits = ["7", "7"]
    limits[place] = bad
    with untouched(store), pytest.raises(redis.exceptions.ResponseError, match="not an amount"):
        call(store, "scope_limit", "global", *limits)
