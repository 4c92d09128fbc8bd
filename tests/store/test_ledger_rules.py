"""One test for each rule of the ledger whose breach would cost somebody money, over all scripts.

`tests/mutants/` plants the breach of each and shows that it is noticed here.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from agentq.core.lifecycle import StopReason
from agentq.core.records import Actor, Delta, Granted, Lease, Parked, Recovering, Settlement, Size
from agentq.store import Store
from tests.support.harness import (
    LEASE_MS,
    age,
    call,
    claim_run,
    money,
    open_batch,
    reserve,
    reserve_args,
    state_of,
    steady,
    submit_run,
    untouched,
)

EMPTY = Delta("{}")
TENANT = "tenant:acme"
DAY, MONTH = f"{TENANT}@day", f"{TENANT}@month"


@pytest.fixture
def lease(store: Store) -> Lease:
    """A claimed run in a batch of its own, without limits."""
    open_batch(store)
    submit_run(store, batch="b1")
    return claim_run(store).lease


def actor(operation: str) -> Actor:
    return Actor(operation, "ann", "a test")


def another(store: Store, run_id: str) -> Lease:
    """One more claimed run of the same tenant."""
    submit_run(store, run_id)
    return claim_run(store, run_id).lease


def closing(lease: Lease, n: int, how: str, usd: int = 0, tokens: int = 0) -> Settlement:
    return Settlement(f"{lease.fence}:{n}", how, usd, tokens)


def taken_over(store: Store, lease: Lease) -> Lease:
    """The holder is taken for dead, and somebody else claims the step."""
    steady(store)
    age(store, lease.run_id)
    assert store.watch.rescue(lease.run_id, LEASE_MS).verdict == "RESCUED"
    return claim_run(store, lease.run_id).lease


# ── who may write ────────────────────────────────────────────────────────────────────────────────────


def test_only_the_holder_of_the_fence_commits(store: Store, lease: Lease):
    present = taken_over(store, lease)
    nothing, lost = closing(lease, 1, "release"), Delta('{"from":"the dead"}')
    with untouched(store):
        assert store.runs.commit_tools(lease, lost, nothing) == "STALE"
        assert store.runs.commit_continue(lease, lost, nothing) == "STALE"
    assert store.runs.commit_tools(present, EMPTY, closing(present, 1, "release")) == "OK"


@pytest.mark.parametrize("how", ["release", "settle", "forfeit"])
def test_a_request_that_was_closed_may_not_be_sent_when_it_is_reserved_again(
    store: Store, lease: Lease, how: str
):
    args = reserve_args(lease, 1, (64, 70, 7, 30, 3))
    assert call(store, "budget_reserve", *args)[0] == "OK"
    store.runs.commit_tools(lease, EMPTY, closing(lease, 1, how, 5, 5))
    with untouched(store):
        assert call(store, "budget_reserve", *args) == ["CLOSED"]


def test_a_top_up_and_a_charge_count_once_however_often_they_are_sent(store: Store, lease: Lease):
    store.ledger.set_limit("global", usd=100, tokens=10)
    for _ in range(3):
        store.ledger.topup("global", usd=50, tokens=5, actor=actor("op-1"))
        store.ledger.book(TENANT, "charge", usd=7, tokens=1, actor=actor("op-2"))
    account = store.ledger.account("global")
    assert (account.limit_nano, account.tokens_limit) == (150, 15)
    assert (account.spent_nano, account.tokens_spent) == (7, 1)


# ── what may be reserved ─────────────────────────────────────────────────────────────────────────────


def test_nothing_is_reserved_in_a_frozen_scope_and_what_is_sent_is_still_booked(store: Store, lease: Lease):
    assert isinstance(reserve(store, lease, 1, usd=10, tokens=1), Granted)
    store.ledger.freeze(TENANT, actor=actor("stop"))
    store.runs.commit_tools(lease, EMPTY, closing(lease, 1, "settle", 10, 1))
    assert money(store, TENANT) == {"us": 10, "ts": 1}
    assert reserve(store, lease, 2, usd=1, tokens=1) == Parked(TENANT, "usd", "frozen")
    assert money(store, TENANT) == {"us": 10, "ts": 1}
    store.ledger.freeze(TENANT, actor=actor("go"), frozen=False)
    assert state_of(store) == "queued"


def test_a_ledger_that_is_missing_refuses(store: Store, lease: Lease):
    store.client.delete(store.keys.ledger)
    with untouched(store):
        assert reserve(store, lease, 1, usd=1, tokens=1) == Recovering(0)


# ── how a reservation closes ─────────────────────────────────────────────────────────────────────────


def test_what_a_call_cost_above_its_bound_is_booked_whole_and_shown_beside(store: Store, lease: Lease):
    store.ledger.set_limit("batch:b1", usd=100)
    reserve(store, lease, 1, usd=90, tokens=9)
    store.runs.commit_tools(lease, EMPTY, closing(lease, 1, "settle", 150, 15))
    for scope in lease.scopes.split():
        assert money(store, scope) == {"us": 150, "ts": 15, "uo": 60}, scope


def test_the_escrow_ends_with_its_run(store: Store, lease: Lease):
    reserve(store, lease, 1, usd=10, tokens=1, escrow_usd=30, escrow_tokens=3)
    store.runs.commit_end(lease, EMPTY, closing(lease, 1, "settle", 10, 1), StopReason.FINISHED)
    for scope in lease.scopes.split():
        assert money(store, scope) == {"us": 10, "ts": 1}, scope


def test_what_is_restored_does_not_replace_an_escrow_that_is_there(store: Store, lease: Lease):
    reserve(store, lease, 1, usd=70, tokens=7, escrow_usd=30, escrow_tokens=3)
    store.runs.commit_tools(lease, EMPTY, closing(lease, 1, "restore"))
    assert store.ledger.open_reservations("r1") == {"escrow": (30, 3)}
    assert money(store, "global") == {"ue": 30, "te": 3}


def test_the_closing_turn_is_paid_out_of_the_escrow_and_not_beside_it(store: Store, lease: Lease):
    reserve(store, lease, 1, usd=60, tokens=6, escrow_usd=30, escrow_tokens=3)
    store.runs.commit_tools(lease, EMPTY, closing(lease, 1, "settle", 50, 5))
    assert store.ledger.convert(lease, 2) == Granted(f"{lease.fence}:2", 30, 3)
    assert store.ledger.open_reservations("r1") == {f"{lease.fence}:2": (30, 3)}
    assert money(store, "global") == {"us": 50, "ts": 5, "ur": 30, "tr": 3}
    store.runs.commit_tools(lease, EMPTY, closing(lease, 2, "settle", 30, 3))
    assert store.ledger.convert(lease, 3) is None


# ── windows ──────────────────────────────────────────────────────────────────────────────────────────


def windows(store: Store) -> tuple[str, str]:
    """The names of the tenant's windows that run now."""
    now = datetime.fromtimestamp(store.watch.server_ms() / 1000, UTC)
    return f"{DAY}:{now:%Y-%m-%d}", f"{MONTH}:{now:%Y-%m}"


def overnight(store: Store, lease: Lease, today: str) -> str:
    """What the run holds in today's window was reserved on a day that is over; answers that day's account."""
    then = f"{DAY}:2001-01-01"
    store.client.rename(store.keys.scope(today), store.keys.scope(then))
    held = store.keys.run(lease.run_id, "open")
    for name, text in store.client.hgetall(held).items():
        store.client.hset(held, str(name), str(text).replace(today, then))
    return then


@pytest.mark.parametrize("limited, place", [(DAY, 0), (MONTH, 1)])
def test_a_call_counts_in_the_day_or_the_month_that_is_limited(
    store: Store, lease: Lease, limited: str, place: int
):
    store.ledger.set_limit(limited, usd=1000)
    before = windows(store)[place]
    reserve(store, lease, 1, usd=60, tokens=6)
    after = windows(store)[place]
    (written,) = store.client.scan_iter(f"{store.keys.scope(TENANT)}@*:*", count=1000)
    assert written in {store.keys.scope(before), store.keys.scope(after)}
    store.runs.commit_tools(lease, EMPTY, closing(lease, 1, "settle", 50, 5))
    assert store.client.hmget(str(written), "us", "ur", "ts", "tr") == ["50", "0", "5", "0"]


def test_a_call_is_settled_in_the_day_in_which_it_was_reserved(store: Store, lease: Lease):
    store.ledger.set_limit(DAY, usd=1000)
    reserve(store, lease, 1, usd=60, tokens=6)
    today, _ = windows(store)
    then = overnight(store, lease, today)
    reserve(store, another(store, "r2"), 1, usd=5, tokens=1)
    store.runs.commit_tools(lease, EMPTY, closing(lease, 1, "settle", 50, 5))
    assert money(store, then) == {"us": 50, "ts": 5}
    assert money(store, today) == {"ur": 5, "tr": 1}
    assert money(store, TENANT) == {"us": 50, "ts": 5, "ur": 5, "tr": 1}


def test_the_escrow_goes_with_the_next_call_into_the_day_that_runs(store: Store, lease: Lease):
    store.ledger.set_limit(DAY, usd=1000)
    reserve(store, lease, 1, usd=60, tokens=6, escrow_usd=30, escrow_tokens=3)
    today, _ = windows(store)
    then = overnight(store, lease, today)
    store.runs.commit_tools(lease, EMPTY, closing(lease, 1, "settle", 50, 5))
    reserve(store, lease, 2, usd=10, tokens=1, escrow_usd=40, escrow_tokens=4)
    assert money(store, then) == {"us": 50, "ts": 5}
    assert money(store, today) == {"ur": 10, "tr": 1, "ue": 40, "te": 4}
    assert money(store, TENANT) == {"us": 50, "ts": 5, "ur": 10, "tr": 1, "ue": 40, "te": 4}


# ── runs that wait for money ─────────────────────────────────────────────────────────────────────────


def dry(store: Store, *, left: int) -> None:
    """Of what the tenant may spend, so much is left."""
    store.ledger.set_limit(TENANT, usd=1000)
    store.ledger.book(TENANT, "charge", usd=1000 - left, actor=actor("spent before"))


def park(store: Store, lease: Lease, n: int, usd: int, *, escrow: int = 0) -> Parked:
    answer = reserve(store, lease, n, usd=usd, tokens=0, escrow_usd=escrow, policy="park")
    assert isinstance(answer, Parked), answer
    return answer


def test_a_run_that_goes_on_is_on_no_list_and_its_escrow_is_not_idle(store: Store, lease: Lease):
    dry(store, left=100)
    reserve(store, lease, 1, usd=60, tokens=0, escrow_usd=30)
    store.runs.commit_tools(lease, EMPTY, closing(lease, 1, "settle", 60))
    assert park(store, lease, 2, 60, escrow=30) == Parked(TENANT, "usd", "exhausted")
    assert store.ledger.parked(TENANT) == ["r1"]
    assert store.ledger.account(TENANT).idle_nano == 30
    store.ledger.topup(TENANT, usd=100, actor=actor("more"))
    assert state_of(store) == "queued"
    assert store.ledger.parked(TENANT) == []
    assert store.ledger.account(TENANT).idle_nano == 0


def test_money_that_is_not_enough_wakes_nobody(store: Store, lease: Lease):
    dry(store, left=50)
    park(store, lease, 1, 60)
    store.ledger.topup(TENANT, usd=9, actor=actor("too little"))
    assert state_of(store) == "parked"
    store.ledger.topup(TENANT, usd=1, actor=actor("enough"))
    assert state_of(store) == "queued"


def test_the_same_money_is_not_promised_to_two(store: Store, lease: Lease):
    dry(store, left=0)
    park(store, lease, 1, 60)
    park(store, another(store, "r2"), 1, 60)
    # Milliseconds decide who has waited longer; here it is r1.
    store.client.zadd(store.keys.parked(TENANT), {"r1": 1}, xx=True)
    store.ledger.topup(TENANT, usd=119, actor=actor("for one"))
    assert [state_of(store, run_id) for run_id in ("r1", "r2")] == ["queued", "parked"]


@pytest.mark.parametrize("cost, state", [(40, "queued"), (41, "parked")])
def test_a_settle_that_gives_back_enough_wakes_who_waits(store: Store, lease: Lease, cost: int, state: str):
    dry(store, left=100)
    reserve(store, lease, 1, usd=60, tokens=0)
    assert park(store, another(store, "r2"), 1, 60) == Parked(TENANT, "usd", "wait")
    store.runs.commit_tools(lease, EMPTY, closing(lease, 1, "settle", cost))
    assert state_of(store, "r2") == state


def test_a_refund_wakes_who_waits(store: Store, lease: Lease):
    dry(store, left=59)
    park(store, lease, 1, 60)
    store.ledger.book(TENANT, "adjust", usd=-1, actor=actor("a refund"))
    assert state_of(store) == "queued"


def test_nobody_is_admitted_past_one_who_waits_for_calls_in_flight(store: Store, lease: Lease):
    dry(store, left=100)
    reserve(store, lease, 1, usd=60, tokens=0)
    park(store, another(store, "r2"), 1, 60)
    store.client.zadd(store.keys.parked(TENANT), {"r2": store.watch.server_ms() - 5_000}, xx=True)
    assert park(store, another(store, "r3"), 1, 30) == Parked(TENANT, "usd", "wait")
    assert store.ledger.parked(TENANT) == ["r2", "r3"]


def test_nobody_is_woken_past_one_who_waits_for_calls_in_flight(store: Store, lease: Lease):
    dry(store, left=100)
    reserve(store, lease, 1, usd=60, tokens=0)
    reserve(store, another(store, "r4"), 1, usd=30, tokens=0)
    park(store, another(store, "r2"), 1, 60)
    park(store, another(store, "r3"), 1, 30)
    store.client.zadd(store.keys.parked(TENANT), {"r2": store.watch.server_ms() - 5_000}, xx=True)
    store.runs.commit_tools(lease, EMPTY, closing(lease, 1, "settle", 20))
    assert [state_of(store, run_id) for run_id in ("r2", "r3")] == ["parked", "parked"]


@pytest.mark.parametrize("waited_ms, goes_on", [(5_000, True), (65_000, False)])
def test_a_run_that_holds_an_escrow_goes_on_until_somebody_has_waited_for_a_minute(
    store: Store, lease: Lease, waited_ms: int, *, goes_on: bool
):
    dry(store, left=100)
    reserve(store, lease, 1, usd=30, tokens=0, escrow_usd=10)
    reserve(store, another(store, "r3"), 1, usd=30, tokens=0)
    park(store, another(store, "r2"), 1, 60)
    waits_since = store.watch.server_ms() - waited_ms
    store.client.zadd(store.keys.parked(TENANT), {"r2": waits_since}, xx=True)
    store.runs.commit_tools(lease, EMPTY, closing(lease, 1, "settle", 10))
    answer = reserve(store, lease, 2, usd=20, tokens=0, escrow_usd=10, policy="park")
    assert isinstance(answer, Granted if goes_on else Parked)


# ── the log, and a server that was rolled back ───────────────────────────────────────────────────────


def test_the_checkpoint_says_what_the_log_said(store: Store, lease: Lease):
    reserve(store, lease, 1, usd=60, tokens=6, escrow_usd=30, escrow_tokens=3)
    store.runs.commit_tools(lease, EMPTY, closing(lease, 1, "settle", 70, 7))
    reserve(store, lease, 2, usd=20, tokens=2, escrow_usd=30, escrow_tokens=3)
    assert call(store, "ledger_fold", 0, 100)[0] == "OK"
    assert store.client.xlen(store.keys.log) == 0
    for scope in lease.scopes.split():
        folded = store.client.hgetall(f"{store.keys.prefix}checkpoint:{scope}")
        assert {name: int(amount) for name, amount in folded.items()} == money(store, scope)


def test_answers_that_overtake_each_other_hide_no_rollback(store: Store, lease: Lease):
    second, operations = another(store, "r2"), store.ledger.operations
    answers = []
    for holder in (lease, second):
        args = reserve_args(holder, 1, (0, 10, 1, 0, 0))
        args[3] = operations.process
        _, reservation, _, number, _ = call(store, "budget_reserve", *args)
        answers.append((int(number), holder, reservation, 10, 1))
    for answer in reversed(answers):
        operations.acknowledge(*answer)
    # The server is back where it knows the first of them only.
    store.client.hset(store.keys.ledger, f"op:{operations.process}", answers[0][0])
    assert isinstance(reserve(store, another(store, "r3"), 1, usd=10, tokens=1), Recovering)


def test_a_server_that_has_lost_a_reservation_grants_no_other(store: Store, lease: Lease):
    assert isinstance(reserve(store, lease, 1, usd=10, tokens=1), Granted)
    process, _ = store.ledger.operations.current()
    store.client.hdel(store.keys.ledger, f"op:{process}")
    second = another(store, "r2")
    answer = store.ledger.reserve(second, 1, [Size(0, 10, 1)])
    assert isinstance(answer, Recovering)
    assert answer.until_ms > store.watch.server_ms()
    assert store.ledger.open_reservations("r2") == {}
    # The incident stands, and nothing is reserved by anybody until it is over.
    assert store.client.llen(f"{store.keys.prefix}incidents") == 1
    assert isinstance(reserve(store, second, 1, usd=10, tokens=1), Recovering)


def test_a_bill_whose_reservation_was_lost_is_asserted_once(store: Store, lease: Lease):
    args: list[str | int] = ["r1", f"{lease.fence}:1", "settle", 40, 4, lease.scopes]
    assert call(store, "ledger_reassert", *args) == ["OK"]
    with untouched(store):
        assert call(store, "ledger_reassert", *args) == ["KNOWN"]
    assert money(store, "global") == {"us": 40, "ts": 4}
