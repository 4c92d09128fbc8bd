"""budget_set.lua: limits of scopes and windows; no default goes over what an operator has set."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from agentq.core.records import Delta, Granted, Lease, Parked, Settlement
from agentq.store import Store
from tests.support.harness import (
    by,
    call,
    check_invariants,
    claim_run,
    dump,
    entries_of,
    money,
    open_batch,
    reserve,
    state_of,
    submit_run,
    twice,
    untouched,
)


def words(store: Store, scope: str) -> Any:
    return store.client.hget(store.keys.scope(scope), "c")


def logged(store: Store) -> list[tuple[str, str]]:
    """What was said of limits, and in which scope."""
    return [(entry["s"], entry["w"]) for entry in entries_of(store) if entry["o"] == "limit"]


# ── limits ───────────────────────────────────────────────────────────────────────────────────────────


def test_both_limits_are_set_and_taken_away_and_the_log_says_by_whom(store: Store):
    assert twice(store, "budget_set", "o1", "ann", "why", "global", "1000", "50", "=", 0) == ["OK"]
    account = store.ledger.account("global")
    assert (account.limit_nano, account.tokens_limit) == (1000, 50)
    assert twice(store, "budget_set", "o2", "ann", "", "global", "", "60", "=", 0) == ["OK"]
    account = store.ledger.account("global")
    assert (account.limit_nano, account.tokens_limit) == (None, 60)
    assert twice(store, "budget_set", "o3", "ben", "", "global", "", "", "=", 0) == ["OK"]
    account = store.ledger.account("global")
    assert (account.limit_nano, account.tokens_limit) == (None, None)
    assert logged(store) == [
        ("global", "ul - 1000, tl - 50"),
        ("global", "ul 1000 -, tl 50 60"),
        ("global", "tl 60 -"),
    ]
    assert [(entry["a"], entry["r"]) for entry in entries_of(store)] == [
        ("ann", "why"),
        ("ann", ""),
        ("ben", ""),
    ]
    check_invariants(store, [])


def test_what_is_left_out_stays_as_it_is(store: Store):
    store.ledger.set_limit("global", usd=1000, tokens=50, on_exhausted="stop", actor=by())
    store.ledger.set_limit("global", usd=2000, actor=by())
    account = store.ledger.account("global")
    assert (account.limit_nano, account.tokens_limit, set(account.words)) == (2000, 50, {"stop"})


def test_a_limit_leaves_what_was_spent_alone(store: Store):
    store.ledger.book("global", "charge", usd=7, tokens=3, actor=by())
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
    for default in (0, 1):
        with untouched(store), pytest.raises(redis.exceptions.ResponseError, match="not an amount"):
            call(store, "budget_set", "o1", "ann", "", "global", *limits, "=", default)


def test_an_operation_is_done_once_whatever_came_after_it(store: Store):
    first = by()
    store.ledger.set_limit("global", usd=10, actor=first)
    store.ledger.set_limit("global", usd=20, actor=by())
    with untouched(store):
        store.ledger.set_limit("global", usd=10, actor=first)
    assert store.ledger.account("global").limit_nano == 20


# ── defaults ─────────────────────────────────────────────────────────────────────────────────────────


def default(store: Store, usd: int | None, on_exhausted: str | None = "=") -> int | None:
    """A worker's settings speak; the limit that stands then."""
    store.ledger.set_limit("global", usd=usd, on_exhausted=on_exhausted)
    return store.ledger.account("global").limit_nano


def test_a_default_stands_until_another_one_comes(store: Store):
    assert [default(store, usd) for usd in (100, 100, 200, None, 50)] == [100, 100, 200, None, 50]
    assert [words for _, words in logged(store)] == ["ul - 100", "ul 100 200", "ul 200 -", "ul - 50"]


@pytest.mark.parametrize("operator", [5, 100, 500, None])
@pytest.mark.parametrize("before", [True, False])
def test_a_default_never_goes_over_what_an_operator_has_set(
    store: Store, operator: int | None, *, before: bool
):
    if before:
        default(store, 100)
    store.ledger.set_limit("global", usd=operator, actor=by())
    assert [default(store, usd) for usd in (100, 200, None)] == [operator] * 3


def test_a_default_never_goes_over_a_top_up(store: Store):
    default(store, 100)
    store.ledger.topup("global", usd=5, actor=by())
    assert default(store, 100) == 105
    assert default(store, 200) == 105


def test_a_default_word_never_goes_over_an_operator_s(store: Store):
    default(store, 100, "stop")
    assert words(store, "global") == "stop"
    default(store, 100, "winddown")
    assert words(store, "global") == "winddown"
    store.ledger.set_limit("global", on_exhausted="park", actor=by())
    default(store, 100, "stop")
    assert words(store, "global") == "park"
    store.ledger.set_limit("global", on_exhausted=None, actor=by())
    default(store, 100, "stop")
    assert words(store, "global") is None


def test_a_default_that_changes_nothing_says_nothing(store: Store):
    default(store, 100, "stop")
    with untouched(store):
        default(store, 100, "stop")


# ── windows and words ────────────────────────────────────────────────────────────────────────────────


def test_a_window_counts_while_it_has_a_limit(store: Store):
    store.ledger.set_limit("tenant:acme@day", usd=100, actor=by())
    store.ledger.set_limit("tenant:acme@month", tokens=100, actor=by())
    assert words(store, "tenant:acme") == "day month"
    store.ledger.set_limit("tenant:acme@day", tokens=5, actor=by())
    store.ledger.set_limit("tenant:acme@day", usd=None, actor=by())
    assert words(store, "tenant:acme") == "day month"
    store.ledger.set_limit("tenant:acme@day", tokens=None, actor=by())
    assert words(store, "tenant:acme") == "month"
    store.ledger.set_limit("tenant:acme@month", tokens=None, actor=by())
    assert words(store, "tenant:acme") is None


@pytest.mark.parametrize("word", ["park", "stop", "winddown"])
def test_one_word_says_what_a_dry_scope_means_and_the_others_stay(store: Store, word: str):
    store.ledger.set_limit("tenant:acme@day", usd=100, actor=by())
    store.ledger.freeze("tenant:acme", actor=by())
    for chosen in ("park", "stop", "winddown", word):
        assert twice(store, "budget_set", by().operation, "ann", "", "tenant:acme",
                     "=", "=", chosen, 0) == ["OK"]  # fmt: skip
    assert words(store, "tenant:acme") == " ".join(sorted(["day", "frozen", word]))
    store.ledger.set_limit("tenant:acme", on_exhausted=None, actor=by())
    assert words(store, "tenant:acme") == "day frozen"


@pytest.mark.parametrize("scope", ["agent:a", "model:gpt", "key:k1"])
def test_an_optional_scope_is_found_by_new_runs_while_it_has_a_limit(store: Store, scope: str):
    scopes = ["agent:a", "model:gpt", "key:k1"]
    assert store.ledger.limited(scopes) == []
    store.ledger.set_limit(scope, usd=1, actor=by())
    assert store.ledger.limited(scopes) == [scope]
    store.ledger.set_limit(f"{scope}@day", tokens=1, actor=by())
    store.ledger.set_limit(scope, usd=None, actor=by())
    assert store.ledger.limited(scopes) == [scope]
    store.ledger.set_limit(f"{scope}@day", tokens=None, actor=by())
    assert store.ledger.limited(scopes) == []
    assert "limited" not in dump(store)


def test_a_tenant_is_in_no_such_list(store: Store):
    store.ledger.set_limit("tenant:acme", usd=1, actor=by())
    assert "limited" not in dump(store)


# ── who goes on, and what is said ────────────────────────────────────────────────────────────────────


@pytest.fixture
def parked(store: Store) -> Lease:
    """A run that needs 50 nano-USD, of which its batch has spent 60 of 100."""
    open_batch(store, usd=100)
    submit_run(store, batch="b1")
    lease = claim_run(store).lease
    assert isinstance(reserve(store, lease, 1, usd=60, tokens=1, policy="park"), Granted)
    store.runs.commit_tools(lease, Delta("{}"), Settlement(f"{lease.fence}:1", "settle", 60, 1))
    answer = reserve(store, lease, 2, usd=40, tokens=1, escrow_usd=10, policy="park")
    assert answer == Parked("batch:b1", "usd", "exhausted")
    return lease


@pytest.mark.parametrize("limit, state", [(109, "parked"), (110, "queued"), (None, "queued")])
def test_a_higher_limit_lets_the_run_go_on_that_fits_then(store: Store, parked: Lease, limit, state):
    store.ledger.set_limit("batch:b1", usd=limit, actor=by())
    assert state_of(store) == state
    check_invariants(store, ["r1"])


def test_a_scope_that_says_stop_lets_the_run_go_on_to_its_closing_turn(store: Store, parked: Lease):
    store.ledger.set_limit("batch:b1", on_exhausted="stop", actor=by())
    assert state_of(store) == "queued"
    check_invariants(store, ["r1"])


def alerts(store: Store) -> list[tuple[str, str]]:
    return [(entry["i"], entry["w"]) for entry in entries_of(store) if entry["o"] == "alert"]


def test_alerts_begin_anew_from_where_the_account_stands(store: Store):
    store.ledger.set_limit("global", usd=100, actor=by())
    store.ledger.book("global", "charge", usd=85, actor=by())
    assert alerts(store) == [("global", "usd 80%")]
    store.ledger.set_limit("global", usd=160, actor=by())
    assert alerts(store) == [("global", "usd 80%")]
    store.ledger.book("global", "charge", usd=1, actor=by())
    assert alerts(store) == [("global", "usd 80%")]
    store.ledger.book("global", "charge", usd=42, actor=by())
    assert alerts(store) == [("global", "usd 80%"), ("global", "usd 80%")]


def test_a_limit_that_is_lowered_below_what_is_spent_is_told_at_once(store: Store):
    store.ledger.book("global", "charge", tokens=60, actor=by())
    store.ledger.set_limit("global", tokens=100, actor=by())
    assert alerts(store) == [("global", "tokens 50%")]
    store.ledger.set_limit("global", tokens=60, actor=by())
    assert alerts(store) == [("global", "tokens 50%"), ("global", "tokens 100%")]
