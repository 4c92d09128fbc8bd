"""What a batch will come to: exact where rows are alike, and honest about what it cannot know."""

from __future__ import annotations

import random
from decimal import Decimal

import pytest

from agentq.engine.forecast import Ends, Forecast, forecast, pace

USD = 10**9
NOW = 1_000_000_000


def counters(*costs: int) -> dict[str, int]:
    """What a batch has counted of runs that cost so many nano-USD."""
    squares = sum(int((Decimal(cost) / 1000) ** 2 + Decimal("0.5")) for cost in costs)
    return {"steps:2": len(costs), "usd": sum(costs), "usd2": squares}


def made(counted: dict[str, int], left: int, spent_nano: int = 0, ends: Ends = ()) -> Forecast:
    found = forecast(counted, left=left, spent_nano=spent_nano, now_ms=NOW, ends=ends)
    assert found is not None
    return found


def test_before_five_runs_have_ended_nothing_is_said():
    assert forecast(counters(1, 2, 3, 4), left=9, spent_nano=10, now_ms=NOW, ends=[]) is None
    assert made(counters(1, 2, 3, 4, 5), 9).based_on == 5
    assert forecast({}, left=9, spent_nano=0, now_ms=NOW, ends=[]) is None


def test_rows_that_cost_the_same_leave_no_doubt():
    found = made(counters(*[1_500_400] * 10), left=90)
    assert (found.low_nano, found.usd_nano, found.high_nano) == (150_040_000,) * 3


def test_the_interval_is_that_of_the_rows_that_are_left_and_of_the_mean():
    """Costs of 1 and 3: mean 2, variance 4/3 of four; 100 left: 1.96 √(s² (100 + 100²/6))."""
    found = made(counters(*[USD, 3 * USD] * 3), left=100)
    assert found.usd_nano == 12 * USD + 200 * USD
    off = Decimal("1.96") * (Decimal(6) / 5 * (100 + Decimal(10_000) / 6)).sqrt() * USD
    assert abs(found.high_nano - (found.usd_nano + off)) < 1000
    assert abs(found.low_nano - (found.usd_nano - off)) < 1000


def test_it_cannot_come_to_less_than_is_spent():
    found = made(counters(*[USD] * 5), left=1, spent_nano=9 * USD)
    assert (found.low_nano, found.usd_nano, found.high_nano) == (9 * USD,) * 3


def test_when_all_have_ended_it_is_what_they_cost():
    found = made(counters(1 * USD, 2 * USD, 3 * USD, 4 * USD, 5 * USD), left=0, spent_nano=15 * USD)
    assert (found.low_nano, found.usd_nano, found.high_nano, found.seconds) == (15 * USD,) * 3 + (0,)


def test_sums_larger_than_an_integer_of_64_bits_are_no_trouble():
    costs = [90_000 * USD, 100_000 * USD] * 40
    found = made(counters(*costs), left=80)
    assert found.usd_nano == 2 * sum(costs)
    assert found.low_nano < found.usd_nano < found.high_nano


def test_nineteen_of_twenty_batches_end_inside_the_interval():
    drawn, inside = random.Random(6), 0
    for _ in range(200):
        costs = [round(drawn.lognormvariate(0, 0.5) * USD / 1000) for _ in range(300)]
        found = made(counters(*costs[:60]), left=240, spent_nano=sum(costs[:60]))
        inside += found.low_nano <= sum(costs) <= found.high_nano
    assert 180 <= inside <= 198


@pytest.mark.parametrize(
    "ends, expected",
    [
        ([], (0, 0)),
        ([(1, NOW - 5)], (0, 0)),
        ([(1, NOW - 5), (2, NOW - 2_000)], (1, 2_000)),
        # The last two minutes, although there is more.
        ([(2**n, NOW - 2**n * 1_000) for n in range(10)], (63, 64_000)),
        # Fewer in two minutes than a few: the last few, however long ago.
        ([(1, NOW - 600_000), (2, NOW - 700_000), (4, NOW - 800_000), (8, NOW - 900_000)], (7, 900_000)),
        ([(8, NOW - 900_000), (16, NOW - 950_000)], (7, 900_000)),
        # All at the same instant.
        ([(4, NOW)], (3, 1)),
    ],
)
def test_the_pace_is_that_of_the_last_minutes_or_of_the_last_few(ends, expected):
    assert pace(NOW, ends) == expected


def test_the_time_that_is_left_and_its_interval():
    found = made(counters(*[USD] * 20), left=50, ends=[(1, NOW), (17, NOW - 32_000)])
    assert (found.per_minute, found.seconds) == (30.0, 100)
    assert found.soonest == 68  # at (16 + 1.96 · 4) in 32 s
    assert found.latest == 197


def test_a_rate_that_is_known_too_badly_has_no_latest_end_and_none_at_all_no_end():
    few = made(counters(*[USD] * 20), left=50, ends=[(1, NOW), (2, NOW - 2_000)])
    assert (few.seconds, few.latest) == (100, None)
    none = made(counters(*[USD] * 20), left=50)
    assert (none.per_minute, none.seconds, none.soonest, none.latest) == (0.0, None, None, None)


def test_as_json_money_is_text():
    told = made(counters(*[1_500_000] * 5), left=5, ends=[(1, NOW), (5, NOW - 4_000)]).as_dict()
    assert told == {
        "usd": "0.015000",
        "usd_low": "0.015000",
        "usd_high": "0.015000",
        "ends_in_s": 5,
        "ends_in_low_s": 3,
        "ends_in_high_s": 250,
        "rate_per_min": 60.0,
        "based_on": 5,
    }
