"""The governor: calls that share a rate limit take from one lane, and wait together."""

from __future__ import annotations

from typing import Any

import pytest

from agentq.core.records import Delta, Granted, Lease, Limit, Pace, Paced, Settlement, Size, Taken
from agentq.store import Store
from tests.support.harness import check_invariants, claim_run, dump, money, submit_run, untouched

LANE = "openai:k1:gpt"
OTHER = "openai:k1:gpt-mini"
CALL = Pace(LANE, 100)


@pytest.fixture
def lease(store: Store) -> Lease:
    submit_run(store, usd=100, tokens=10)
    return claim_run(store).lease


def state(store: Store, lane: str = LANE) -> dict[str, float]:
    found = store.client.hgetall(store.keys.lane(lane))
    return {str(name): float(value) for name, value in found.items() if name != "book"}


def put(store: Store, **fields: float) -> None:
    """A lane after some time, filled up: at ten requests and a thousand tokens a second."""
    now = store.watch.server_ms()
    kept: dict[str, float] = {
        "at": now,
        "mark": now,
        "turn": 0,
        "taken": 0,
        "refused": 0,
        "fails": 0,
        "output": 50,
        "r_rate": 10,
        "r_level": 10,
        "r_n": 0,
        "t_rate": 1_000,
        "t_level": 1_000,
        "t_n": 0,
        "r_cut": 1,
        "t_cut": 1,
    }
    mapping: dict[Any, Any] = {**kept, **fields}
    store.client.hset(store.keys.lane(LANE), mapping=mapping)


def take(store: Store, times: int = 1, pace: Pace = CALL, cap: int = 50) -> list[Taken | Paced]:
    """So many callers ask, each once."""
    return [store.governor.take(f"caller{i}", pace, cap) for i in range(times)]


def refused(store: Store, retry_after_s: float | None = None, *, taken: int = 150, lane: str = LANE) -> None:
    store.governor.hear_limited(lane, taken=taken, retry_after_s=retry_after_s)


def test_an_unknown_lane_lets_a_few_calls_go_and_the_rest_come_back_at_spread_times(store: Store):
    answers = take(store, 60)
    going = [answer for answer in answers if isinstance(answer, Taken)]
    waits = [answer.wait_ms for answer in answers if isinstance(answer, Paced)]
    assert 2 <= len(going) <= 12
    assert len(set(waits)) > len(waits) // 2, "they do not come back together"
    assert all(1 <= wait <= 30_000 for wait in waits)


def test_a_lane_lets_as_many_go_as_its_rate_allows_and_never_more(store: Store):
    put(store)
    answers = take(store, 40, cap=0, pace=Pace(LANE, 1))
    assert 9 <= sum(isinstance(answer, Taken) for answer in answers) <= 12
    store.client.delete(store.keys.waits(LANE), store.keys.lane(LANE))
    put(store, r_rate=1_000, r_level=1_000)
    answers = take(store, 40, cap=0, pace=Pace(LANE, 100))
    assert 8 <= sum(isinstance(answer, Taken) for answer in answers) <= 12, "tokens bind here"


def test_who_waits_is_let_in_before_who_comes_later(store: Store):
    put(store, r_level=0)
    (first,) = take(store)
    assert isinstance(first, Paced)
    put(store, r_level=1)
    store.client.zadd(store.keys.waits(LANE), {"caller0": store.watch.server_ms()})
    assert isinstance(store.governor.take("late", CALL, 50), Paced)
    assert isinstance(store.governor.take("caller0", CALL, 50), Taken)


def test_one_refusal_stops_the_whole_lane_for_as_long_as_the_provider_says_and_no_other_lane(store: Store):
    refused(store, 20)
    (answer,) = take(store)
    assert isinstance(answer, Paced)
    assert (answer.why, answer.wait_ms > 9_000) == ("limited", True)
    assert isinstance(take(store, pace=Pace(OTHER, 1))[0], Taken)
    (lane, _) = store.governor.lanes()
    assert (lane.refused, lane.wait_ms > 19_000, lane.waiting) == (1, True, 1)


def test_a_refusal_stops_a_lane_for_two_minutes_at_most(store: Store):
    refused(store, 86_400)
    assert state(store)["until"] - store.watch.server_ms() <= 120_000


def test_of_refusals_that_were_under_way_together_only_the_first_lowers_the_rate(store: Store):
    now = store.watch.server_ms()
    put(store, mark=now - 10_000, r_n=101, t_n=10_100)
    refused(store)
    once = state(store)["r_rate"]
    for _ in range(5):
        refused(store)
    assert once < 10
    assert state(store)["r_rate"] == pytest.approx(once, rel=0.01)


def test_a_rate_that_is_known_steps_back_by_little(store: Store):
    now = store.watch.server_ms()
    put(store, mark=now - 10_000, r_n=101, t_n=9_900)
    refused(store)
    assert 9 <= state(store)["r_rate"] < 10


def test_a_rate_grows_only_while_calls_wait_for_it_and_faster_after_a_calm_time(store: Store):
    def rate_after(**fields: float) -> float:
        now = store.watch.server_ms()
        put(store, r_level=0, at=now - 1_000, **fields)
        take(store)
        return state(store)["r_rate"]

    now = store.watch.server_ms()
    assert rate_after(r_cut=now - 5_000) == pytest.approx(10, rel=1e-6)
    assert 10 < rate_after(r_cut=now - 5_000, r_lack=now) < 10.1
    assert rate_after(r_cut=now - 120_000, r_lack=now) > 10.4


def test_limits_that_the_provider_names_are_known_at_once(store: Store):
    store.governor.hear_limits(LANE, (Limit(600, 3, 500), Limit(60_000, 900, 500)))
    (found,) = store.governor.lanes()
    assert (found.name, found.account, found.model, found.is_named) == (LANE, "openai:k1", "gpt", True)
    assert found.requests_a_minute is not None
    assert 570 <= found.requests_a_minute <= 600
    assert found.tokens_a_minute is not None
    assert 57_000 <= found.tokens_a_minute <= 60_000
    assert state(store)["r_level"] <= 3


def test_of_the_limits_that_come_with_each_reply_one_a_second_is_passed_on_and_any_change(store: Store):
    store.governor.hear_limits(LANE, (Limit(600, 3, 500), None))
    with untouched(store):
        store.governor.hear_limits(LANE, (Limit(600, 1, 500), None))
    store.governor.hear_limits(LANE, (Limit(300, 2, 500), None))
    assert state(store)["r_rate"] <= 5


def test_what_a_call_was_expected_to_use_is_corrected_by_what_it_used(store: Store):
    put(store)
    (taken,) = take(store)
    assert taken == Taken("caller0", LANE, 150)
    assert isinstance(taken, Taken)
    assert state(store)["t_level"] == pytest.approx(850, abs=30)
    store.governor.settle(taken, tokens=400, output_tokens=300)
    lane = state(store)
    assert lane["t_level"] == pytest.approx(600, abs=90)
    assert lane["output"] > 50, "what answers are like is learned"


def test_a_call_larger_than_a_bucket_goes_when_it_is_full_and_the_next_one_waits_for_its_debt(store: Store):
    put(store)
    (big,) = take(store, pace=Pace(LANE, 5_000), cap=1)
    assert isinstance(big, Taken)
    small = store.governor.take("another", CALL, 50)
    assert isinstance(small, Paced)
    assert small.wait_ms >= 3_900


# ── accounts without quota ───────────────────────────────────────────────────────────────────────────


def test_an_empty_account_stops_all_its_lanes_with_one_alert_however_many_hear_of_it(store: Store):
    take(store)
    for _ in range(3):
        store.governor.hear_quota(LANE, "no money")
    for pace in (CALL, Pace(OTHER, 1)):
        (answer,) = take(store, pace=pace)
        assert isinstance(answer, Paced)
        assert (answer.why, answer.wait_ms <= 600_000) == ("quota", True)
    assert isinstance(take(store, pace=Pace("openai:k2:gpt", 1))[0], Taken)
    events = dump(store)["events"][0]
    assert sum("quota_stop" in event for event in events) == 1
    (lane,) = [lane for lane in store.governor.lanes() if lane.name == LANE]
    assert lane.stopped == "no money"


def test_one_call_finds_out_each_ten_minutes_and_its_answer_lifts_the_stop(store: Store):
    put(store)
    store.governor.hear_quota(LANE, "no money")
    store.client.hset(store.keys.account("openai:k1"), "probe", 1)
    first, second = take(store, 2)
    assert isinstance(first, Taken)
    assert isinstance(second, Paced)
    assert second.why == "quota"
    store.governor.settle(first, tokens=10, output_tokens=5)
    assert not store.client.exists(store.keys.account("openai:k1"))
    assert any("quota_back" in event for event in dump(store)["events"][0])


def test_a_person_lifts_a_stop_once(store: Store):
    store.governor.hear_quota(LANE, "no money")
    assert store.governor.resume("openai:k1", by="ann")
    assert not store.governor.resume("openai:k1", by="ann")
    assert isinstance(take(store)[0], Taken)


# ── runs ─────────────────────────────────────────────────────────────────────────────────────────────


def size(usd: int = 70, tokens: int = 7) -> list[Size]:
    return [Size(50, usd, tokens, 30, 3)]


def test_a_run_without_room_in_its_lane_has_nothing_set_aside(store: Store, lease: Lease):
    put(store, r_level=0, r_rate=0.1)
    answer = store.ledger.reserve(lease, 1, size(), pace=CALL)
    assert isinstance(answer, Paced)
    assert (answer.lane, answer.why) == (LANE, "pace")
    assert money(store, "run:r1") == {}
    check_invariants(store, ["r1"])


def test_a_run_without_money_takes_nothing_from_its_lane(store: Store, lease: Lease):
    put(store)
    store.ledger.reserve(lease, 1, size(usd=10**9), policy="deny", pace=CALL)
    assert state(store)["taken"] == 0


def test_a_commit_corrects_its_lane_once(store: Store, lease: Lease):
    put(store)
    granted = store.ledger.reserve(lease, 1, size(), pace=CALL)
    assert isinstance(granted, Granted)
    assert (granted.lane, granted.lane_tokens) == (LANE, 150)
    settlement = Settlement(granted.reservation, "settle", 50, 5, f"{LANE} 150 400 300")
    for _ in range(2):
        assert store.runs.commit_tools(lease, Delta("{}"), settlement) == "OK"
    assert state(store)["t_n"] == 400
    check_invariants(store, ["r1"])


def test_a_closing_turn_waits_for_its_lane_with_its_escrow(store: Store, lease: Lease):
    put(store)
    granted = store.ledger.reserve(lease, 1, size(), pace=CALL)
    assert isinstance(granted, Granted)
    put(store, r_level=0, r_rate=0.1)
    assert isinstance(store.ledger.convert(lease, 2, pace=CALL), Paced)
    assert store.ledger.open_reservations("r1")["escrow"] == (30, 3)
    put(store)
    assert isinstance(store.ledger.convert(lease, 2, pace=CALL), Granted)
    check_invariants(store, ["r1"])


def test_all_that_a_lane_leaves_has_an_end(store: Store):
    take(store, 30)
    store.governor.hear_quota(LANE, "no money")
    keys = store.keys
    for key in (keys.lane(LANE), keys.waits(LANE), keys.account("openai:k1"), keys.lanes):
        assert 0 < store.client.pttl(key) <= 86_400_000
