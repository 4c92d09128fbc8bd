"""Spans and moments as people type them."""

from __future__ import annotations

import pytest

from agentq.core.errors import UsageError
from agentq.core.timespan import parse_moment, parse_span

NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    "text, ms",
    [("90s", 90_000), ("15m", 900_000), ("2h", 7_200_000), ("1.5d", 129_600_000), (" 1w ", 604_800_000)],
)
def test_a_span_is_a_number_and_a_unit(text: str, ms: int) -> None:
    assert parse_span(text) == ms
    assert parse_moment(text, NOW) == NOW - ms


@pytest.mark.parametrize("text", ["", "2", "h", "2 h", "-2h", "2y", "1e3s", "9999999999s"])
def test_what_is_no_span_is_met_with_examples(text: str) -> None:
    with pytest.raises(UsageError, match="is no span of time") as refused:
        parse_span(text)
    assert "for example 90s, 15m, 2h" in refused.value.hint


@pytest.mark.parametrize(
    "text, ms",
    [
        ("2026-11-30", 1_795_996_800_000),
        ("2026-11-30T08:00", 1_796_025_600_000),
        ("2026-11-30T08:00:00+01:00", 1_796_022_000_000),
        ("2026-11-30 08:00:00.5Z", 1_796_025_600_500),
    ],
)
def test_a_date_without_a_zone_is_in_utc(text: str, ms: int) -> None:
    assert parse_moment(text, NOW) == ms


@pytest.mark.parametrize("text", ["yesterday", "30.11.2026", "2026-13-01", ""])
def test_what_is_no_moment_is_met_with_examples(text: str) -> None:
    with pytest.raises(UsageError, match="is no moment") as refused:
        parse_moment(text, NOW)
    assert "2026-11-30T08:00" in refused.value.hint
