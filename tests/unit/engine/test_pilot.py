"""Which rows a pilot is of, and when a person is asked about the others."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from itertools import pairwise

import pytest

from agentq.core.errors import UsageError
from agentq.engine.forecast import Forecast
from agentq.engine.pilot import Pilot, doubt, is_sample, parse_pilot, placed


def test_a_sample_is_a_share_or_a_count():
    assert parse_pilot("1%") == Pilot(per_cent=Decimal(1))
    assert parse_pilot(" 0.5 % ") == Pilot(per_cent=Decimal("0.5"))
    assert parse_pilot("50") == Pilot(count=50)


@pytest.mark.parametrize("text", ["", "x", "0", "0%", "100%", "150%", "-1", "1.5", "1%%"])
def test_anything_else_is_refused_with_examples(text: str):
    with pytest.raises(UsageError) as refused:
        parse_pilot(text)
    assert refused.value.hint == "for example --pilot 1% or --pilot 50"


@pytest.mark.parametrize(
    "text, rows, size",
    [
        ("1%", 5_000, 50),
        ("1%", 100, 5),
        ("50", 5_000, 50),
        ("3", 100, 5),
        ("50", 50, 0),
        ("5", 6, 5),
        ("1%", 0, 0),
    ],
)
def test_a_sample_has_five_rows_at_least_and_is_none_where_it_is_all(text: str, rows: int, size: int):
    assert parse_pilot(text).size(rows) == size


@pytest.mark.parametrize("size, rows", [(5, 6), (5, 20), (7, 1000), (50, 5001), (999, 1000)])
def test_it_has_exactly_its_size_and_is_spread_evenly(size: int, rows: int):
    places = [place for place in range(rows) if is_sample(place, size, rows)]
    assert len(places) == size
    gaps = {after - before for before, after in pairwise(places)}
    assert max(gaps) - min(gaps) <= 1
    assert (places[0] <= rows / size, rows - places[-1] <= rows / size) == (True, True)


def test_its_rows_stand_before_all_priorities():
    assert [placed(3, place, 2, 4) for place in range(4)] == [3, 10, 3, 10]


FOUND = Forecast(20 * 10**9, 18 * 10**9, 22 * 10**9, 1.0, 1, 1, 1, 10)


@pytest.mark.parametrize(
    "limit, confirm, asks",
    [
        (22, None, False),
        (21, None, True),
        (None, 22, False),
        (None, 21, True),
        (None, None, False),
        (22, 1, False),
    ],
)
def test_a_person_is_asked_when_it_may_come_to_more_than_the_limit_or_without_one_than_the_amount(
    limit: int | None, confirm: int | None, asks: bool
):
    said = doubt(
        FOUND,
        limit_nano=None if limit is None else limit * 10**9,
        confirm_above_nano=None if confirm is None else confirm * 10**9,
        reasons={"finished": 9, "model_error": 1},
    )
    assert bool(said) is asks
    if asks:
        assert "20.0000 USD (18.0000 to 22.0000)" in said
        assert "21.0000 USD" in said


def test_without_a_forecast_a_person_is_asked():
    said = doubt(None, limit_nano=None, confirm_above_nano=None, reasons={"cancelled": 1, "finished": 2})
    assert "only 3 of its runs" in said


def test_a_person_is_asked_when_all_of_the_sample_has_failed_however_cheap_that_was():
    cheap = replace(FOUND, usd_nano=0, low_nano=0, high_nano=0)
    failed = {"loop_detected": 1, "model_error": 9}
    assert doubt(cheap, limit_nano=10**9, confirm_above_nano=None, reasons=failed) == (
        "its pilot: all 10 runs of it have failed (1 loop_detected, 9 model_error)"
    )
    for other in ("finished", "cost_budget", "cancelled"):
        assert doubt(cheap, limit_nano=10**9, confirm_above_nano=None, reasons={**failed, other: 1}) == ""
