"""Pilots: of a batch a sample runs first. What it costs decides whether the rest follows unasked."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial

from agentq.core.errors import UsageError
from agentq.core.lifecycle import StopReason
from agentq.core.money import format_usd
from agentq.engine.forecast import LEAST, Forecast, forecast
from agentq.engine.rows import PRIORITY_MAX
from agentq.store.connect import Store

log = logging.getLogger("agentq.pilot")

_SHARE = re.compile(r"(\d{1,3}(?:\.\d{1,3})?) ?%")
_COUNT = re.compile(r"\d{1,9}")
EXAMPLES = "for example --pilot 1% or --pilot 50"


@dataclass(frozen=True, slots=True)
class Pilot:
    """How large the sample is: a share of the rows in per cent, or how many they are."""

    per_cent: Decimal | None = None
    count: int | None = None

    def size(self, rows: int) -> int:
        """How many of these rows are the sample: at least 5, or nothing can be told from it.

        0 when it would be all of them: then there is nothing to decide.
        """
        asked = self.count if self.per_cent is None else round(rows * self.per_cent / 100)
        size = max(LEAST, asked or 0)
        return size if size < rows else 0


def parse_pilot(text: str) -> Pilot:
    """A sample as people type it: `1%` or `50`.

    Raises:
        UsageError: when it is neither, or no part of the rows.
    """
    word = text.strip()
    if found := _SHARE.fullmatch(word):
        share = Decimal(found[1])
        if 0 < share < 100:
            return Pilot(per_cent=share)
    elif _COUNT.fullmatch(word) and int(word) > 0:
        return Pilot(count=int(word))
    raise UsageError(f"{text!r} is no sample of the rows", hint=EXAMPLES)


def is_sample(place: int, size: int, rows: int) -> bool:
    """Whether the row at this place, from 0, is in a sample of this size: spread evenly, always the same."""
    return (place + 1) * size // rows > place * size // rows


def placed(priority: int, place: int, size: int, rows: int) -> int:
    """The priority with which a row waits: above all others, when it is in the sample."""
    return PRIORITY_MAX + 1 if is_sample(place, size, rows) else priority


def doubt(
    found: Forecast | None,
    *,
    limit_nano: int | None,
    confirm_above_nano: int | None,
    reasons: Mapping[str, int],
) -> str:
    """Why a person is to be asked, in words that follow `paused by`; empty when the batch may go on.

    It is asked when it may cost more than its limit: when the upper end of the interval is above that. Also
    when all of the sample has failed, as with a key that is refused: that costs little, and so will the rest.

    Args:
        found: what the pilot says.
        limit_nano: the batch's, in nano-USD.
        confirm_above_nano: the same, of a batch without a limit.
        reasons: how many runs have ended for each reason.
    """
    ended = sum(reasons.values())
    if ended and all(StopReason(reason).is_failure for reason in reasons):
        why = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        return f"its pilot: all {ended} runs of it have failed ({why})"
    if found is None:
        return f"its pilot: only {ended} of its runs have ended, too few to say what the batch will cost"
    most = confirm_above_nano if limit_nano is None else limit_nano
    if most is None or found.high_nano <= most:
        return ""
    usd, low, high, than = map(
        partial(format_usd, places=4), (found.usd_nano, found.low_nano, found.high_nano, most)
    )
    what = "may not be more without a yes than" if limit_nano is None else "its limit is"
    return f"its pilot: the batch will cost {usd} USD ({low} to {high}), and {what} {than} USD"


def decide_pilot(store: Store, name: str) -> None:
    """Decide about a batch whose pilot is over. Any number of workers may do this at once: one decides."""
    record = store.batches.read(name)
    if record is None or record.pilot is None:
        return
    account = store.ledger.account(f"batch:{name}")
    now_ms, ends = store.batches.recent_ends(name)
    found = forecast(
        record.counters,
        left=record.total - record.ended,
        spent_nano=account.spent_nano,
        now_ms=now_ms,
        ends=ends,
    )
    why = doubt(
        found,
        limit_nano=account.limit_nano,
        confirm_above_nano=record.confirm_above_nano,
        reasons=record.stop_reasons,
    )
    if store.batches.decide(name, record.ended, why):
        log.info("pilot_decided batch=%s ended=%d paused=%r", name, record.ended, why)
