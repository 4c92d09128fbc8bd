"""What the governor finds out of a provider's limits, by a clock that does not wait."""

from __future__ import annotations

from typing import Any

import pytest

from agentq.core.records import Granted, Lease, Pace, Paced, Size, Taken
from agentq.store import Store
from tests.support.harness import claim_run, submit_run, twice
from tests.support.lanes import Buckets, Load, play

LANE = "p:k:m"
ALIKE = Load(200, lambda rng: rng.randint(100, 200), lambda rng: rng.randint(20, 60))
VARYING = Load(
    200, lambda rng: min(2_000, int(rng.lognormvariate(6.0, 0.6))), lambda rng: rng.randint(30, 200)
)
LOADS = [pytest.param(ALIKE, id="requests bind"), pytest.param(VARYING, id="tokens bind")]


@pytest.mark.parametrize("load", LOADS)
def test_a_hidden_limit_is_found_and_used_with_few_refusals(store: Store, load: Load):
    limits = Buckets(600, 200_000)
    seen = play(store, load, limits, seconds=80)
    assert seen.used(limits, 30, 80) > 0.9
    assert seen.refusals(30, 80) < 0.02
    assert sum(at < 30 for at in seen.refused) < 20, "and finding it takes few"


@pytest.mark.parametrize("load", LOADS)
def test_a_limit_that_is_halved_is_found_again(store: Store, load: Load):
    limits = Buckets(600, 200_000)

    def changes(now: float) -> None:
        if now >= 40:
            limits.rates = [300 / 60, 100_000 / 60]

    seen = play(store, load, limits, seconds=130, changes=changes)
    assert seen.used(limits, 70, 130) > 0.8
    assert seen.refusals(70, 130) < 0.03


def test_a_limit_that_rises_is_found_within_two_minutes(store: Store):
    limits = Buckets(300, 100_000)

    def changes(now: float) -> None:
        if now >= 30:
            limits.rates = [600 / 60, 200_000 / 60]

    seen = play(store, ALIKE, limits, seconds=180, changes=changes)
    assert seen.used(limits, 150, 180) > 0.9


def test_nobody_waits_much_longer_than_the_line_is_long(store: Store):
    seen = play(store, ALIKE, Buckets(600, 200_000), seconds=90)
    assert seen.longest_wait(40, 90) < 30, "200 callers, ten a second"


def test_many_callers_of_a_lane_without_limits_are_soon_let_in(store: Store):
    seen = play(store, ALIKE, Buckets(1e6, 1e9), seconds=15)
    assert not seen.refused
    assert sum(at > 10 for at, _ in seen.let_in) > 500


# ── single rules ─────────────────────────────────────────────────────────────────────────────────────


def put(store: Store, **fields: float) -> None:
    now = store.watch.server_ms()
    zero = dict.fromkeys(("turn", "taken", "refused", "fails", "r_n", "t_n"), 0)
    known = {"at": now, "mark": now, "output": 50, "r_cut": 1, "t_cut": 1}
    rates = {"r_rate": 10, "r_level": 10, "t_rate": 1000, "t_level": 1000}
    mapping: dict[Any, Any] = {**zero, **known, **rates, **fields}
    store.client.hset(store.keys.lane(LANE), mapping=mapping)


def field(store: Store, name: str) -> str | None:
    return store.client.hget(store.keys.lane(LANE), name)  # type: ignore[return-value]


@pytest.fixture
def lease(store: Store) -> Lease:
    submit_run(store, usd=100, tokens=10)
    return claim_run(store).lease


def test_a_repeated_reservation_says_again_what_its_lane_has_given(store: Store, lease: Lease):
    put(store)
    args: list[str | int] = [
        lease.run_id,
        lease.fence,
        1,
        "me",
        0,
        "deny",
        "",
        60_000,
        0,
        5,
        50,
        70,
        7,
        30,
        3,
        0,
        LANE,
        100,
    ]
    assert twice(store, "budget_reserve", *args)[-1] == "150"
    assert field(store, "taken") == "1"


def test_a_repeated_conversion_says_again_what_its_lane_has_given(store: Store, lease: Lease):
    put(store)
    assert isinstance(store.ledger.reserve(lease, 1, [Size(40, 70, 7, 30, 3)]), Granted)
    args: list[str | int] = [lease.run_id, lease.fence, 2, "me", 0, 60_000, 0, LANE, 100]
    assert twice(store, "budget_convert", *args)[-1] == "140"
    assert field(store, "taken") == "1"


def test_what_a_refused_call_had_taken_is_there_for_others(store: Store):
    put(store, back=store.watch.server_ms())
    taken = store.governor.take("c", Pace(LANE, 850), 50)
    assert isinstance(taken, Taken)
    store.governor.hear_limited(LANE, taken=taken.tokens, retry_after_s=0)
    assert float(field(store, "t_level") or 0) > 950


@pytest.mark.parametrize("tokens, tight", [(900, "t"), (20, "r")])
def test_the_sizes_of_refused_calls_say_which_limit_binds(store: Store, tokens: int, tight: str):
    for _ in range(5):
        put(store, call=200, apart=50, back=1)
        store.governor.hear_limited(LANE, taken=tokens, retry_after_s=0)
    assert field(store, "tight") == tight


def test_who_has_not_come_back_is_waited_for_no_longer(store: Store):
    put(store, r_level=0, r_rate=0.01)
    assert isinstance(store.governor.take("gone", Pace(LANE, 1), 1), Paced)
    store.client.zadd(store.keys.waits(LANE), {"gone": store.watch.server_ms() - 61_000})
    assert isinstance(store.governor.take("here", Pace(LANE, 1), 1), Paced)
    assert store.client.zrange(f"{store.keys.prefix}line:{LANE}", 0, -1) == ["here"]


def test_a_queue_of_any_length_asks_no_more_often_than_it_should(store: Store):
    put(store, r_level=0, r_rate=0.01)
    waits = [store.governor.take(f"c{number}", Pace(LANE, 1), 1) for number in range(1_500)]
    told = [paced.wait_ms for paced in waits if isinstance(paced, Paced)]
    assert len(told) == 1_500
    assert sum(1000 / wait for wait in told[500:]) < 60
    assert max(told) <= 45_000


def test_who_is_far_back_in_the_line_goes_only_when_room_would_be_lost(store: Store):
    put(store, r_level=0, r_rate=0.01)
    for number in range(50):
        assert isinstance(store.governor.take(f"c{number}", Pace(LANE, 1), 1), Paced)
    put(store, t_level=700, booked=0)
    assert isinstance(store.governor.take("last", Pace(LANE, 1), 1), Paced)
    put(store, booked=0)
    assert isinstance(store.governor.take("last", Pace(LANE, 1), 1), Taken)
