"""budget_topup, budget_freeze, budget_book, budget_winddown: done once, and the log says by whom."""

from __future__ import annotations

import json

import pytest

from agentq.core.errors import UsageError
from agentq.core.records import Delta, Denied, Granted, Lease, Parked, Settlement
from agentq.store import Store
from tests.support.harness import (
    by,
    call,
    check_invariants,
    claim_run,
    due,
    dump,
    entries_of,
    money,
    open_batch,
    ready,
    reserve,
    state_of,
    submit_run,
    turn,
    twice,
    untouched,
    window,
)

EMPTY = Delta("{}")
TENANT = "tenant:acme"
LARGEST = 2**53 - 1


def last(store: Store) -> dict[str, str]:
    """The latest entry of the log, without its time."""
    return {name: value for name, value in entries_of(store)[-1].items() if name != "m"}


def parked(store: Store, run_id: str = "r1", usd: int = 50) -> None:
    """A run that waits for so much of a batch in which nothing is left; it holds an escrow of 10."""
    if store.batches.read("b1") is None:
        open_batch(store, usd=1000)
        store.ledger.book("batch:b1", "charge", usd=990, actor=by())
    submit_run(store, run_id, batch="b1")
    lease = claim_run(store, run_id).lease
    room = store.ledger.account("batch:b1").left_nano or 0
    store.ledger.topup("batch:b1", usd=10 - room, actor=by())
    assert isinstance(reserve(store, lease, usd=0, tokens=1, escrow_usd=10), Granted)
    store.runs.commit_tools(lease, EMPTY, Settlement(f"{lease.fence}:1", "release"))
    answer = reserve(store, lease, 2, usd=usd, tokens=1, escrow_usd=10, policy="park")
    assert isinstance(answer, Parked)


# ── topup ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "usd, tokens, after", [(50, 5, (150, 25)), (-100, 0, (0, 20)), (0, -20, (100, 0)), (0, 0, (100, 20))]
)
def test_limits_are_raised_and_lowered_by_an_amount(store: Store, usd: int, tokens: int, after):
    store.ledger.set_limit(TENANT, usd=100, tokens=20, actor=by())
    answer = twice(store, "budget_topup", "o1", "ann", "why", TENANT, usd, tokens)
    assert answer == ["OK", *map(str, after)]
    account = store.ledger.account(TENANT)
    assert (account.limit_nano, account.tokens_limit) == after
    check_invariants(store, [])


def test_a_top_up_is_in_the_log_with_actor_and_reason(store: Store):
    store.ledger.set_limit(TENANT, usd=100, actor=by())
    call(store, "budget_topup", "o1", "ann", "it is paid", TENANT, 50, 0)
    assert last(store) == {
        "o": "topup", "i": TENANT, "s": TENANT, "d": "", "w": "ul 100 150", "a": "ann", "r": "it is paid",
    }  # fmt: skip


@pytest.mark.parametrize("usd, words", [(-101, "cannot be lowered"), (LARGEST, "too large")])
def test_a_limit_that_cannot_be_is_refused_and_nothing_is_written(store: Store, usd: int, words: str):
    store.ledger.set_limit(TENANT, usd=100, tokens=20, actor=by())
    with untouched(store), pytest.raises(UsageError, match=words):
        store.ledger.topup(TENANT, usd=usd, tokens=5, actor=by())


def test_a_scope_without_a_limit_cannot_be_topped_up_and_the_same_operation_may_come_again(store: Store):
    actor = by()
    with untouched(store), pytest.raises(UsageError, match="no limit"):
        store.ledger.topup(TENANT, usd=5, actor=actor)
    store.ledger.set_limit(TENANT, usd=100, actor=by())
    store.ledger.topup(TENANT, usd=5, actor=actor)
    assert store.ledger.account(TENANT).limit_nano == 105


@pytest.mark.parametrize("more, state", [(49, "parked"), (50, "queued")])
def test_a_top_up_lets_the_run_go_on_that_fits_then(store: Store, more: int, state: str):
    parked(store)
    store.ledger.topup("batch:b1", usd=more, actor=by())
    assert state_of(store) == state
    check_invariants(store, ["r1"])


# ── freeze ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("scope", ["global", TENANT, "batch:b1", "run:r1"])
@pytest.mark.parametrize("policy", ["park", "stop", "winddown", "deny"])
def test_in_a_frozen_scope_nothing_is_reserved_and_what_is_sent_is_booked(
    store: Store, scope: str, policy: str
):
    open_batch(store)
    submit_run(store, batch="b1")
    lease = claim_run(store).lease
    assert isinstance(reserve(store, lease, usd=70, tokens=7, escrow_usd=30), Granted)
    assert twice(store, "budget_freeze", "o1", "ann", "stop it", scope, 1) == ["OK"]
    assert last(store) == {"o": "freeze", "i": scope, "s": scope, "d": "", "a": "ann", "r": "stop it"}
    store.runs.commit_tools(lease, EMPTY, Settlement(f"{lease.fence}:1", "settle", 60, 6))
    assert money(store, scope) == {"us": 60, "ts": 6, "ue": 30}
    assert reserve(store, lease, 2, usd=1, tokens=1, policy=policy) == Parked(scope, "usd", "frozen")
    check_invariants(store, ["r1"])
    assert twice(store, "budget_freeze", "o2", "ann", "", scope, 0) == ["OK"]
    assert state_of(store) == "queued"
    assert isinstance(reserve(store, claim_run(store).lease, usd=1, tokens=1), Granted)
    check_invariants(store, ["r1"])


def test_a_closing_turn_waits_in_a_frozen_scope_and_is_made_when_it_goes_on(store: Store):
    open_batch(store)
    submit_run(store, batch="b1")
    lease = claim_run(store).lease
    reserve(store, lease, usd=70, tokens=7, escrow_usd=30, escrow_tokens=3)
    store.runs.commit_continue(lease, EMPTY, Settlement(f"{lease.fence}:1", "settle", 70, 7))
    store.ledger.freeze("batch:b1", actor=by())
    lease = claim_run(store).lease
    args = ("r1", lease.fence, 1, "me", 0, 60_000, 2, "head", '{"closing":"x"}')
    assert twice(store, "budget_convert", *args) == ["PARKED", "batch:b1", "usd", "frozen"]
    assert dump(store)["run:r1"][0]["head"] == '{"closing":"x"}'
    assert store.ledger.open_reservations("r1") == {"escrow": (30, 3)}
    check_invariants(store, ["r1"])
    # The scope is over its limit by now: a closing turn out of its escrow is not refused for that.
    store.ledger.set_limit("batch:b1", usd=1, actor=by())
    assert state_of(store) == "parked"
    store.ledger.freeze("batch:b1", actor=by(), frozen=False)
    assert state_of(store) == "queued"
    assert isinstance(store.ledger.convert(claim_run(store).lease, 1), Granted)
    check_invariants(store, ["r1"], capped=False)


def test_who_has_waited_too_long_in_a_frozen_scope_is_not_tried_again_in_each_tick(store: Store):
    submit_run(store)
    lease = claim_run(store).lease
    reserve(store, lease, usd=70, tokens=7, escrow_usd=30)
    store.ledger.freeze(TENANT, actor=by())
    before = store.watch.server_ms()
    assert store.ledger.convert(lease, 2, park_ms=0) == Parked(TENANT, "usd", "frozen")
    assert store.watch.live()["r1"] >= before + 60_000
    assert due(store).runs == []
    check_invariants(store, ["r1"])


# ── charge and adjust ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "scope, booked",
    [
        ("global", ["global"]),
        (TENANT, ["global", TENANT, "day"]),
        ("batch:b1", ["global", TENANT, "day", "batch:b1"]),
        ("run:r1", ["global", TENANT, "day", "batch:b1", "run:r1"]),
        ("agent:x", ["global", "agent:x"]),
    ],
)
def test_what_is_booked_by_hand_counts_in_the_scope_and_in_those_around_it(store: Store, scope: str, booked):
    store.ledger.set_limit(f"{TENANT}@day", usd=10**6, actor=by())
    open_batch(store)
    submit_run(store, batch="b1")
    answer = twice(store, "budget_book", "o1", "ann", "a bill", scope, "charge", 70, 7)
    assert answer == ["OK", "70", "7"]
    accounts = {"day": window(store, TENANT, "day")}
    everywhere = ["global", TENANT, "day", "batch:b1", "run:r1", "agent:x"]
    for account in everywhere:
        assert money(store, accounts.get(account, account)) == (
            {"us": 70, "ts": 7} if account in booked else {}
        )
    entry = last(store)
    assert (entry["o"], entry["i"], entry["a"], entry["r"]) == ("charge", scope, "ann", "a bill")
    check_invariants(store, ["r1"])


def test_a_correction_has_a_sign_and_cannot_take_back_more_than_was_spent_anywhere(store: Store):
    store.ledger.set_limit(f"{TENANT}@day", usd=10**6, actor=by())
    store.ledger.book(TENANT, "charge", usd=70, tokens=7, actor=by())
    assert twice(store, "budget_book", "o1", "ann", "", TENANT, "adjust", -30, -7) == ["OK", "40", "0"]
    turn(store)
    # Today nothing was spent that could be taken back.
    with untouched(store), pytest.raises(UsageError, match=f"{TENANT}@day.* has not spent"):
        store.ledger.book(TENANT, "adjust", usd=-1, actor=by())
    with untouched(store), pytest.raises(UsageError, match="global has not spent"):
        store.ledger.book(TENANT, "adjust", usd=-41, actor=by())
    check_invariants(store, [])


@pytest.mark.parametrize("scope", ["run:nobody", "batch:nothing"])
def test_what_is_not_there_cannot_be_charged(store: Store, scope: str):
    with pytest.raises(UsageError, match="there is no"):
        store.ledger.book(scope, "charge", usd=1, actor=by())
    assert entries_of(store) == []


def test_a_charge_is_a_fact_also_above_the_limit_and_a_refund_lets_runs_go_on(store: Store):
    parked(store)
    store.ledger.book("batch:b1", "charge", usd=500, actor=by())
    assert (store.ledger.account("batch:b1").left_nano or 0) < 0
    store.ledger.book("batch:b1", "adjust", usd=-500, actor=by())
    assert state_of(store) == "parked"
    store.ledger.topup("batch:b1", usd=50, actor=by())
    assert state_of(store) == "queued"


def test_a_charge_on_a_run_that_has_ended_leaves_no_key_without_an_end(store: Store):
    submit_run(store)
    store.runs.cancel("r1", "test")
    store.ledger.book("run:r1", "charge", usd=5, actor=by())
    assert money(store, "run:r1") == {"us": 5}
    check_invariants(store, ["r1"])


# ── alerts ───────────────────────────────────────────────────────────────────────────────────────────


def alerts(store: Store) -> list[tuple[str, str]]:
    return [(entry["i"], entry["w"]) for entry in entries_of(store) if entry["o"] == "alert"]


def test_half_four_fifths_and_all_of_a_limit_are_said_once_each(store: Store):
    store.ledger.set_limit(TENANT, usd=100, actor=by())
    said = []
    for amount in (49, 1, 29, 1, 19, 1, 50, -60, 30):
        before = len(alerts(store))
        store.ledger.book(TENANT, "adjust", usd=amount, actor=by())
        said.append([words for _, words in alerts(store)[before:]])
    assert said == [[], ["usd 50%"], [], ["usd 80%"], [], ["usd 100%"], [], [], []]
    events = due(store).events
    assert [(event["event"], event["scope"], event["percent"]) for event in events] == [
        ("budget_alert", TENANT, percent) for percent in (50, 80, 100)
    ]
    assert due(store).events == [], "an event is logged by one tick"


def test_a_jump_over_several_levels_says_the_highest(store: Store):
    store.ledger.set_limit(TENANT, tokens=100, actor=by())
    store.ledger.book(TENANT, "charge", tokens=85, actor=by())
    assert alerts(store) == [(TENANT, "tokens 80%")]


def test_each_unit_and_each_day_have_alerts_of_their_own(store: Store):
    store.ledger.set_limit(f"{TENANT}@day", usd=100, tokens=100, actor=by())
    for _ in range(2):
        store.ledger.book(TENANT, "charge", usd=50, tokens=80, actor=by())
        today = window(store, TENANT, "day")
        assert alerts(store)[-2:] == [(today, "usd 50%"), (today, "tokens 80%")]
        turn(store)
    assert len(alerts(store)) == 4


def test_a_settlement_alerts_in_every_limited_scope_but_the_run_s_own(store: Store):
    open_batch(store, usd=100)
    submit_run(store, batch="b1", usd=100)
    lease = claim_run(store).lease
    reserve(store, lease, usd=60, tokens=1)
    assert alerts(store) == []
    store.runs.commit_tools(lease, EMPTY, Settlement(f"{lease.fence}:1", "settle", 55, 1))
    assert alerts(store) == [("batch:b1", "usd 50%")]
    check_invariants(store, ["r1"])


def test_what_cost_more_than_its_bound_is_told(store: Store):
    submit_run(store)
    lease = claim_run(store).lease
    reserve(store, lease, usd=60, tokens=1)
    store.runs.commit_tools(lease, EMPTY, Settlement(f"{lease.fence}:1", "settle", 75, 1))
    (event,) = due(store).events
    assert (event["event"], event["reservation"], event["nano_usd"]) == (
        "overage",
        f"r1:{lease.fence}:1",
        "15",
    )
    assert json.dumps(event), "it is written in a log line"
    check_invariants(store, ["r1"])


def test_what_nobody_counted_is_marked_in_the_log(store: Store):
    submit_run(store)
    lease = claim_run(store).lease
    for n, how in enumerate(("settle", "estimate"), start=1):
        reserve(store, lease, n, usd=60, tokens=1)
        store.runs.commit_tools(lease, EMPTY, Settlement(f"{lease.fence}:{n}", how, 60, 1))
        store.client.hdel(store.keys.run("r1"), "op")
    assert [entry.get("e") for entry in entries_of(store) if entry["o"] == "settle"] == [None, "1"]
    assert money(store, "global") == {"us": 120, "ts": 2}


# ── winddown ─────────────────────────────────────────────────────────────────────────────────────────


def test_runs_are_wound_down_the_longest_waiting_first_and_no_more_than_asked_for(store: Store):
    for run_id in ("r1", "r2", "r3"):
        parked(store, run_id)
    order = store.ledger.parked("batch:b1")
    assert twice(store, "budget_winddown", "batch:b1", 2, "ann", "over", "o1") == ["OK", 2, 1]
    assert store.ledger.parked("batch:b1") == order[2:]
    entry = last(store)
    assert (entry["o"], entry["s"], entry["w"]) == ("winddown", "batch:b1", "2 runs")
    assert (entry["a"], entry["r"]) == ("ann", "over")
    for run_id in order[:2]:
        ready(store, run_id)
        claim = claim_run(store, run_id)
        assert claim.wind == ("usd", "batch:b1")
        # It waits for nothing any more, and its escrow is there for its closing turn.
        answer = reserve(store, claim.lease, usd=50, tokens=1, escrow_usd=10, policy="deny")
        assert isinstance(answer, Denied)
        assert isinstance(store.ledger.convert(claim.lease, 1), Granted)
    check_invariants(store, ["r1", "r2", "r3"])


def test_where_nobody_waits_nothing_is_written_but_that_it_was_asked(store: Store):
    assert store.ledger.winddown("batch:b1", actor=by()) == (0, 0)
    assert entries_of(store) == []


def test_a_wound_down_run_s_claim_says_so_until_it_has_ended(store: Store):
    parked(store)
    store.ledger.winddown("batch:b1", actor=by())
    ready(store, "r1")
    lease = claim_run(store).lease
    store.runs.release(lease, delay_ms=0)
    assert claim_run(store).wind == ("usd", "batch:b1")
    store.runs.cancel("r1", "test")
    store.runs.release(Lease("r1", lease.fence, 0), delay_ms=0)
