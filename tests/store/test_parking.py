"""budget_reserve.lua, where there is no money: who is parked, and who is sent to the closing turn."""

from __future__ import annotations

import pytest

from agentq.core.records import Delta, Denied, Granted, Lease, Parked, Recovering, RunSpec, Settlement
from agentq.store import Store
from tests.support.harness import (
    HELLO,
    LEASE_MS,
    RETENTION_MS,
    age,
    by,
    call,
    check_invariants,
    claim_run,
    due,
    dump,
    fence_of,
    open_batch,
    reserve,
    reserve_args,
    state_of,
    submit_run,
    twice,
    unswept,
    untouched,
)

EMPTY = Delta("{}")
NEED = 40
BLOCKS = {"wait": "a call", "winddown": "an idle escrow", "exhausted": "spent", "never": "the limit"}


def blocked(store: Store, kind: str, scope: str = "batch:b1", *, admitted: bool = True) -> Lease:
    """A run for which a scope of 100 has no room, of this kind. Its escrow is 10, if it has one."""
    open_batch(store)
    submit_run(store, "r1", batch="b1")
    lease = claim_run(store).lease
    if admitted:
        assert isinstance(reserve(store, lease, 1, usd=1, tokens=1, escrow_usd=10), Granted)
        store.runs.commit_tools(lease, EMPTY, Settlement(f"{lease.fence}:1", "release"))
    child = RunSpec(agent="a", tenant="acme", batch="b1", ancestors=("r1",))
    store.runs.submit([("r2", child, [HELLO])], heads=["{}"], retention_ms=RETENTION_MS)
    other = claim_run(store, "r2").lease
    store.ledger.set_limit(scope, usd=30 if kind == "never" else 100, actor=by())
    match kind:
        case "wait":
            assert isinstance(reserve(store, other, usd=75, tokens=1), Granted)
        case "winddown":
            assert isinstance(reserve(store, other, usd=5, tokens=1, escrow_usd=75), Granted)
            store.runs.commit_wait(other, EMPTY, Settlement(f"{other.fence}:1", "release"), [], 60_000)
        case "exhausted":
            assert isinstance(reserve(store, other, usd=75, tokens=1), Granted)
            store.runs.commit_continue(other, EMPTY, Settlement(f"{other.fence}:1", "settle", 75, 1))
    return lease


def ask(store: Store, lease: Lease, policy: str) -> object:
    return reserve(store, lease, 2, usd=NEED - 10, tokens=1, escrow_usd=10, policy=policy)


PARKS = {
    # policy: the kinds at which a run with an escrow is parked, and at which one without is
    "park": ({"wait", "winddown", "exhausted"}, {"wait", "winddown", "exhausted"}),
    "winddown": ({"wait", "exhausted"}, {"wait", "winddown", "exhausted"}),
    "stop": ({"wait"}, {"wait", "winddown"}),
    "deny": (set(), set()),
}


@pytest.mark.parametrize("admitted", [True, False])
@pytest.mark.parametrize("policy", PARKS)
@pytest.mark.parametrize("kind", BLOCKS)
def test_whether_a_run_is_parked_depends_on_its_policy_and_the_kind(store, kind, policy, admitted):
    lease = blocked(store, kind, admitted=admitted)
    if kind in PARKS[policy][0 if admitted else 1]:
        assert ask(store, lease, policy) == Parked("batch:b1", "usd", kind)
        assert state_of(store) == "parked"
        assert store.ledger.parked("batch:b1") == ["r1"]
    else:
        with untouched(store):
            assert ask(store, lease, policy) == Denied("batch:b1", "usd", kind, admitted)
    check_invariants(store, ["r1", "r2"], capped=kind != "never")


@pytest.mark.parametrize("policy", PARKS)
@pytest.mark.parametrize("word", ["park", "stop", "winddown"])
@pytest.mark.parametrize("kind", ["winddown", "exhausted"])
def test_what_a_scope_says_goes_before_what_the_run_says(store: Store, kind: str, word: str, policy: str):
    lease = blocked(store, kind)
    store.ledger.set_limit("batch:b1", on_exhausted=word, actor=by())
    parks = policy != "deny" and kind in PARKS[word][0]
    answer = ask(store, lease, policy)
    assert answer == (Parked("batch:b1", "usd", kind) if parks else Denied("batch:b1", "usd", kind, True))


@pytest.mark.parametrize("policy", ["park", "winddown", "stop"])
@pytest.mark.parametrize("kind", BLOCKS)
def test_its_own_budget_parks_a_run_only_while_its_children_spend(store: Store, kind: str, policy: str):
    lease = blocked(store, kind, "run:r1")
    answer = ask(store, lease, policy)
    assert answer == (
        Parked("run:r1", "usd", kind) if kind == "wait" else Denied("run:r1", "usd", kind, True)
    )
    check_invariants(store, ["r1", "r2"], capped=kind != "never")


def test_a_parked_run_has_no_lease_keeps_its_escrow_and_says_what_it_needs(store: Store):
    lease = blocked(store, "exhausted")
    fence, before = fence_of(store), store.watch.server_ms()
    sizes = (64, NEED - 10, 7, 10, 1), (32, NEED - 15, 7, 10, 1)
    args = reserve_args(lease, 2, *sizes, policy="park", park_ms=60_000)
    args[8:9] = [2, "head", '{"closing":"x"}']
    assert twice(store, "budget_reserve", *args) == ["PARKED", "batch:b1", "usd", "exhausted"]
    run = dump(store)["run:r1"][0]
    since = int(run["parked"])
    assert before <= since <= store.watch.server_ms()
    assert (run["park_need"], run["park_policy"], run["park_till"]) == ("35 8", "park", str(since + 60_000))
    assert (run["head"], run["state"]) == ('{"closing":"x"}', "parked")
    assert fence_of(store) == fence + 1
    assert store.watch.live()["r1"] == since + 60_000
    assert store.ledger.open_reservations("r1") == {"escrow": (10, 0)}
    assert store.ledger.account("batch:b1").idle_nano == 10
    assert store.watch.renew([lease], LEASE_MS) == ["LOST"]
    assert store.runs.commit_tools(lease, EMPTY, Settlement("", "release")) == "STALE"
    assert store.runs.claim("r1", None, LEASE_MS) is None
    check_invariants(store, ["r1", "r2"])


def test_what_is_open_when_a_run_is_parked_is_charged_in_full(store: Store):
    lease = blocked(store, "exhausted")
    assert isinstance(reserve(store, lease, 2, usd=5, tokens=1, escrow_usd=10), Granted)
    assert isinstance(reserve(store, lease, 3, usd=NEED, tokens=1, policy="park"), Parked)
    assert store.ledger.account("run:r1").forfeited_nano == 5
    check_invariants(store, ["r1", "r2"])


def test_a_replay_after_the_run_has_gone_on_is_stale(store: Store):
    lease = blocked(store, "exhausted")
    args = reserve_args(lease, 2, (0, NEED, 1, 0, 0), policy="park")
    assert call(store, "budget_reserve", *args)[0] == "PARKED"
    store.ledger.topup("batch:b1", usd=100, actor=by())
    assert state_of(store) == "queued"
    with untouched(store):
        assert call(store, "budget_reserve", *args) == ["STALE"]
    claim_run(store)
    with untouched(store):
        assert call(store, "budget_reserve", *args) == ["STALE"]


def test_who_has_waited_as_long_as_it_may_is_sent_to_its_closing_turn(store: Store):
    lease = blocked(store, "exhausted")
    args = reserve_args(lease, 2, (0, NEED, 1, 0, 0), policy="park", park_ms=0)
    assert call(store, "budget_reserve", *args)[0] == "PARKED"
    assert due(store).runs == ["r1"]
    assert store.watch.rescue("r1", LEASE_MS).verdict == "WOKEN"
    claim = claim_run(store)
    assert claim.wind == ("usd", "batch:b1")
    assert isinstance(store.ledger.convert(claim.lease, 1), Granted)
    check_invariants(store, ["r1", "r2"])


def test_who_is_looked_at_before_only_tries_again(store: Store):
    lease = blocked(store, "exhausted")
    assert isinstance(ask(store, lease, "park"), Parked)
    age(store, "r1")
    assert store.watch.rescue("r1", LEASE_MS).verdict == "WOKEN"
    assert claim_run(store).wind is None


def test_the_time_for_which_it_waits_is_that_of_all_its_parks_together(store: Store):
    lease = blocked(store, "exhausted")
    assert isinstance(ask(store, lease, "park"), Parked)
    run = store.keys.run("r1")
    since = store.client.hget(run, "parked")
    for _ in range(2):
        till = store.client.hget(run, "park_till")
        store.ledger.set_limit("batch:b1", usd=1000, actor=by())
        store.ledger.set_limit("batch:b1", usd=100, actor=by())
        assert state_of(store) == "queued"
        lease = claim_run(store).lease
        answer = reserve(store, lease, 1, usd=NEED, tokens=1, policy="park")
        assert answer == Parked("batch:b1", "usd", "exhausted")
        assert (store.client.hget(run, "parked"), store.client.hget(run, "park_till")) == (since, till)


def test_a_run_that_is_cancelled_while_it_is_parked_leaves_its_list_and_gives_its_escrow_back(store: Store):
    lease = blocked(store, "exhausted")
    assert isinstance(ask(store, lease, "park"), Parked)
    assert store.runs.cancel("r1", "test") == "CANCELLED"
    assert store.ledger.parked("batch:b1") == []
    assert store.ledger.open_reservations("r1") == {}
    check_invariants(store, ["r1", "r2"])


# ── the size of a request ────────────────────────────────────────────────────────────────────────────

LADDER = ((64, 60, 6, 20, 2), (32, 40, 4, 20, 2), (16, 25, 3, 15, 2))


@pytest.mark.parametrize(
    "spent, place", [(0, 1), (20, 1), (21, 2), (40, 2), (41, 3), (60, 3), (61, None), (100, None)]
)
def test_the_first_size_for_which_there_is_money_is_taken(store: Store, spent: int, place: int | None):
    open_batch(store, usd=100)
    store.ledger.book("batch:b1", "charge", usd=spent, actor=by())
    submit_run(store, batch="b1")
    lease = claim_run(store).lease
    answer = twice(store, "budget_reserve", *reserve_args(lease, 1, *LADDER))
    if place is None:
        assert answer[:4] == ["DENIED", "batch:b1", "usd", "exhausted"]
        return
    cap, usd, tokens, escrow, escrow_tokens = LADDER[place - 1]
    assert answer == ["OK", f"{lease.fence}:1", place, "1", "0"]
    assert store.ledger.open_reservations("r1") == {
        f"{lease.fence}:1": (usd, tokens),
        "escrow": (escrow, escrow_tokens),
    }
    # The closing turn is sent with the cap that its money was set aside for.
    assert str(store.client.hget(store.keys.run("r1", "open"), "escrow")).split()[2] == str(cap)
    check_invariants(store, ["r1"])


def test_both_units_of_every_scope_must_fit(store: Store):
    submit_run(store, usd=79)
    lease = claim_run(store).lease
    store.ledger.set_limit("global", tokens=5, actor=by())
    assert call(store, "budget_reserve", *reserve_args(lease, 1, *LADDER))[2] == 3


def test_a_call_in_flight_is_waited_for_and_no_smaller_size_is_taken(store: Store):
    open_batch(store, usd=100)
    for run_id in ("r1", "r2"):
        submit_run(store, run_id, batch="b1")
    other = claim_run(store, "r2").lease
    assert isinstance(reserve(store, other, usd=50, tokens=1), Granted)
    lease = claim_run(store).lease
    with untouched(store):
        answer = call(store, "budget_reserve", *reserve_args(lease, 1, *LADDER))
        assert answer == ["DENIED", "batch:b1", "usd", "wait", "0"]


def test_a_replay_answers_the_size_that_was_taken_although_a_larger_one_fits_by_now(store: Store):
    open_batch(store, usd=70)
    submit_run(store, batch="b1")
    lease = claim_run(store).lease
    args = reserve_args(lease, 1, *LADDER)
    assert call(store, "budget_reserve", *args)[2] == 2
    store.ledger.topup("batch:b1", usd=1000, actor=by())
    with untouched(store):
        assert call(store, "budget_reserve", *args)[2] == 2


# ── the queue ────────────────────────────────────────────────────────────────────────────────────────


def waiting_head(store: Store, kind: str = "wait") -> Lease:
    """`r1` is parked for 40 of 100; answers the lease of `r2`, which is what it waits for."""
    lease = blocked(store, kind, admitted=False)
    assert ask(store, lease, "park") == Parked("batch:b1", "usd", kind)
    return Lease("r2", str(store.client.hget(store.keys.run("r2"), "fence")), 0)


def another(store: Store, run_id: str, *, escrow: int | None = None) -> Lease:
    submit_run(store, run_id, batch="b1")
    lease = claim_run(store, run_id).lease
    if escrow is not None:
        store.client.hset(store.keys.run("r1"), "park_kind", "exhausted")
        assert isinstance(reserve(store, lease, 1, usd=0, tokens=1, escrow_usd=escrow), Granted)
        store.client.hset(store.keys.run("r1"), "park_kind", "wait")
    return lease


def make_old(store: Store, run_id: str, ms: int) -> None:
    since = store.watch.server_ms() - ms
    store.client.hset(store.keys.run(run_id), "parked", since)
    for name in store.client.smembers(f"{store.keys.prefix}parked"):
        store.client.zadd(store.keys.parked(str(name)), {run_id: since}, xx=True)


def test_nobody_is_admitted_past_a_run_that_waits_also_when_it_fits(store: Store):
    waiting_head(store)
    lease = another(store, "r3")
    assert reserve(store, lease, 1, usd=1, tokens=1, policy="park") == Parked("batch:b1", "usd", "wait")
    assert store.ledger.parked("batch:b1") == ["r1", "r3"]
    unswept(store)
    store.ledger.sweep("batch:b1")
    assert store.ledger.parked("batch:b1") == ["r1", "r3"]
    check_invariants(store, ["r1", "r2", "r3"])


def test_who_is_admitted_goes_past_it_for_a_minute_and_not_longer(store: Store):
    waiting_head(store)
    lease = another(store, "r3", escrow=5)
    assert isinstance(reserve(store, lease, 2, usd=2, tokens=1, escrow_usd=5, policy="park"), Granted)
    make_old(store, "r1", 61_000)
    assert reserve(store, lease, 3, usd=2, tokens=1, escrow_usd=5, policy="park") == Parked(
        "batch:b1", "usd", "wait"
    )
    check_invariants(store, ["r1", "r2", "r3"])


@pytest.mark.parametrize("kind", ["exhausted", "winddown"])
def test_a_run_that_no_call_in_flight_will_help_blocks_nobody(store: Store, kind: str):
    waiting_head(store, kind)
    make_old(store, "r1", 61_000)
    lease = another(store, "r3")
    assert isinstance(reserve(store, lease, 1, usd=1, tokens=1, policy="park"), Granted)


def test_who_has_waited_longer_is_not_held_up_by_who_came_later(store: Store):
    waiting_head(store)
    lease = another(store, "r3")
    store.client.hset(store.keys.run("r3"), "parked", 1)
    assert isinstance(reserve(store, lease, 1, usd=1, tokens=1, policy="park"), Granted)


# ── a ledger that recovers ───────────────────────────────────────────────────────────────────────────


def test_while_the_ledger_recovers_nothing_is_reserved_converted_or_claimed(store: Store):
    lease = blocked(store, "exhausted")
    submit_run(store, "r9")
    till = store.watch.server_ms() + 60_000
    store.client.hset(store.keys.ledger, "recovering", till)
    with untouched(store):
        assert reserve(store, lease, 2, usd=1, tokens=1) == Recovering(till)
        assert store.ledger.convert(lease, 2) == Recovering(till)
        assert store.runs.claim("r9", None, LEASE_MS) is None
    store.client.hset(store.keys.ledger, "recovering", store.watch.server_ms() - 1)
    assert isinstance(reserve(store, lease, 2, usd=1, tokens=1, escrow_usd=10), Granted)
