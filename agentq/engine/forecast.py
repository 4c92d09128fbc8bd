"""What a batch will have cost when it has ended, and when that will be, from what has ended so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import ceil
from typing import Any

from agentq.core.money import format_usd

LEAST = 5
"""So many runs must have ended before anything is said."""
Z = Decimal("1.96")
"""19 of 20 batches stay inside the interval, if their rows are alike and there are some dozens of them."""
WINDOW_MS = 120_000
"""The ends of the last two minutes make the rate, or the last few where there were fewer."""
FEW = 8
_MICRO = 1_000
"""Nano-USD in one micro-USD."""

Ends = Sequence[tuple[int, int]]
"""For some of the last ends, the latest first: how many there were since (with it), and when it was (ms)."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the whole batch comes to. Money is nano-USD; the interval is one of 95 per cent."""

    usd_nano: int
    low_nano: int
    high_nano: int
    per_minute: float
    """Rows that end in a minute, by the last minutes."""
    seconds: int | None
    """Until the last row ends, at that rate; None while none ends. So are `soonest` and `latest`."""
    soonest: int | None
    latest: int | None
    """None also where the rate is known too badly to say."""
    based_on: int
    """How many runs it is made from."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON: money as decimal text."""
        return {
            "usd": format_usd(self.usd_nano),
            "usd_low": format_usd(self.low_nano),
            "usd_high": format_usd(self.high_nano),
            "ends_in_s": self.seconds,
            "ends_in_low_s": self.soonest,
            "ends_in_high_s": self.latest,
            "rate_per_min": round(self.per_minute, 1),
            "based_on": self.based_on,
        }


def forecast(
    counters: Mapping[str, int], *, left: int, spent_nano: int, now_ms: int, ends: Ends
) -> Forecast | None:
    """The forecast, or None before enough runs have ended.

    What is spent is known, what each of the `left` rows will cost varies as it did up to now, and the mean
    that is measured is itself off by some: the interval has both.

    Args:
        counters: of the runs that have ended: `steps:<n>` (runs), `usd` (nano-USD) and `usd2` (the sum of the
            squares of what they cost, in micro-USD²).
        left: rows that have not ended.
        spent_nano: what is booked on the batch so far: the least that it can come to.
        now_ms: the server's clock.
        ends: see `Ends`.
    """
    runs = sum(count for name, count in counters.items() if name.startswith("steps:"))
    if runs < LEAST:
        return None
    spent = Decimal(counters.get("usd", 0)) / _MICRO
    mean = spent / runs
    variance = max(Decimal(0), (Decimal(counters.get("usd2", 0)) - spent * mean) / (runs - 1))
    expected = spent + left * mean
    off = Z * (variance * (left + Decimal(left * left) / runs)).sqrt()

    def nano(micro: Decimal) -> int:
        return max(spent_nano, int((micro * _MICRO).to_integral_value()))

    seen, spell_ms = pace(now_ms, ends)
    return Forecast(
        usd_nano=nano(expected),
        low_nano=nano(expected - off),
        high_nano=nano(expected + off),
        per_minute=seen * 60_000 / spell_ms if spell_ms else 0.0,
        seconds=_seconds(left, seen, spell_ms),
        soonest=_seconds(left, seen + float(Z) * seen**0.5, spell_ms),
        latest=_seconds(left, seen - float(Z) * seen**0.5, spell_ms),
        based_on=runs,
    )


def pace(now_ms: int, ends: Ends) -> tuple[int, int]:
    """How many rows have ended in the last so many milliseconds; 0 in 0 where too few have ended."""
    chosen: tuple[int, int] | None = None
    for back, ended_ms in ends:
        if chosen is None or back <= FEW or now_ms - ended_ms <= WINDOW_MS:
            chosen = (back, ended_ms)
    if chosen is None or chosen[0] == 1:
        return 0, 0
    # The first of them begins the spell and is not in it.
    return chosen[0] - 1, max(1, now_ms - chosen[1])


def _seconds(left: int, seen: float, spell_ms: int) -> int | None:
    if left == 0:
        return 0
    return ceil(left * spell_ms / seen / 1000) if seen > 0 else None
