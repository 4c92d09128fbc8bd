"""Times that lie ahead, as people type them."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from agentq.cli.when import parse_when, say_when
from agentq.core.errors import UsageError

NOW = 1_796_025_600_000  # 2026-11-30 08:00 UTC, a Monday


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.mark.parametrize(
    "text, zone, moment",
    [
        ("2026-12-01T08:00", "UTC", "2026-12-01T08:00+00:00"),
        ("2026-12-01 08:00", "Europe/Berlin", "2026-12-01T07:00+00:00"),
        ("2026-12-01", "America/New_York", "2026-12-01T05:00+00:00"),
        ("2026-12-01T08:00+03:00", "Europe/Berlin", "2026-12-01T05:00+00:00"),
        ("2026-12-01T08:00Z", "Europe/Berlin", "2026-12-01T08:00+00:00"),
        ("08:01", "UTC", "2026-11-30T08:01+00:00"),
        ("8:00", "UTC", "2026-12-01T08:00+00:00"),
        ("09:30", "Europe/Berlin", "2026-11-30T08:30+00:00"),
        ("08:30:15", "Europe/Berlin", "2026-12-01T07:30:15+00:00"),
        ("01:00", "Asia/Tokyo", "2026-11-30T16:00+00:00"),
        (" in  2h ", "UTC", "2026-11-30T10:00+00:00"),
        ("in 1.5d", "UTC", "2026-12-01T20:00+00:00"),
        ("2027-03-28T02:30", "Europe/Berlin", "2027-03-28T01:30+00:00"),  # clocks go from 2:00 to 3:00
        ("2027-10-31T02:30", "Europe/Berlin", "2027-10-31T00:30+00:00"),  # it comes twice: the first
    ],
)
def test_a_time_is_read_in_its_own_zone_or_the_one_that_is_given(text: str, zone: str, moment: str) -> None:
    # Not by ==: a time that comes twice is equal to none of another zone.
    assert parse_when(text, NOW, zone).timestamp() == at(moment).timestamp()


def test_without_a_zone_it_is_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        found = parse_when("2026-12-01T08:00", NOW)
        assert found == at("2026-11-30T23:00+00:00")
        assert say_when(found, NOW) == "Tue 2026-12-01 08:00 JST, in 15 h"
        assert parse_when("18:00", NOW) == at("2026-11-30T09:00+00:00")
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "text", ["", "tomorrow", "25:00", "08:60", "2026-13-01", "in", "in 2 years", "in two hours", "2h"]
)
def test_what_is_no_time_is_met_with_examples(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_when(text, NOW, "UTC")
    assert "for example" in refused.value.hint


def test_what_is_over_is_refused_and_says_when_it_was() -> None:
    with pytest.raises(UsageError, match="is over: that was Mon 2026-11-30 07:00 UTC, 1 h ago"):
        parse_when("2026-11-30T07:00", NOW, "UTC")
    with pytest.raises(UsageError, match="is over"):
        parse_when("in 0s", NOW, "UTC")


@pytest.mark.parametrize("text", ["2206-12-01", "in 999999999w", "in 9999w"])
def test_what_is_ten_years_away_is_taken_for_a_mistake(text: str) -> None:
    with pytest.raises(UsageError, match="away"):
        parse_when(text, NOW, "UTC")


def test_a_zone_that_there_is_not_is_met_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"no time zone 'Europe/Berlni' \(did you mean 'Europe/Berlin'\?\)"):
        parse_when("08:00", NOW, "Europe/Berlni")
    for name in ("../etc/passwd", "", "Europe"):
        with pytest.raises(UsageError, match="no time zone"):
            parse_when("08:00", NOW, name)


@pytest.mark.parametrize(
    "moment, words",
    [
        ("2026-11-30T08:00:05+00:00", "Mon 2026-11-30 08:00:05 UTC, in 5 s"),
        ("2026-11-30T11:20+00:00", "Mon 2026-11-30 11:20 UTC, in 3 h 20 min"),
        ("2026-12-03T08:00+00:00", "Thu 2026-12-03 08:00 UTC, in 3 d"),
        ("2026-11-28T07:58+00:00", "Sat 2026-11-28 07:58 UTC, 2 d ago"),
        ("2026-11-30T07:58+00:00", "Mon 2026-11-30 07:58 UTC, 2 min ago"),
    ],
)
def test_a_time_is_said_with_its_zone_and_how_far_away_it_is(moment: str, words: str) -> None:
    assert say_when(at(moment).astimezone(UTC), NOW) == words
