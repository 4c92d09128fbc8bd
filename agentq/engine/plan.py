"""What a schedule says: when its batches are made, and how; and the rows that they are made of."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from cronsim import CronSim, CronSimError

from agentq.core.errors import UsageError
from agentq.core.ids import check_name
from agentq.core.zones import zone_of
from agentq.engine.rows import Row

OVERLAP = ("skip", "allow")
"""What is done when the batch before is not over yet."""
BYTES_MAX = 50_000_000
"""What the rows of a schedule may take in Redis, compressed."""
CHUNK_CHARS = 1_000_000
"""So much text, or one row, is compressed at once."""
CRON_CHARS_MAX = 200
LOOKS = 200
"""So many times are looked at for one that lies ahead: where clocks are set back, some may not."""
NAME_CHARS_MAX = 82
"""`.20261201-0800` and, where an hour comes twice, `-2` are put behind it."""
CRON_HINT = "minute hour day month weekday, as '0 8 * * 1-5': at 8:00 from Monday to Friday"

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_sorted = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A schedule, without its name and its rows. Money is dollars as text, as in a row."""

    cron: str
    zone: str
    overlap: str = "skip"
    agent: str | None = None
    tenant: str | None = None
    budgets: Mapping[str, Any] | None = None
    """Each run's, as `Budgets.as_dict` has them."""
    max_usd: str | None = None
    """The limit of each batch; likewise `max_tokens`."""
    max_tokens: int | None = None
    on_exhausted: str | None = None
    options: Mapping[str, str | int] = field(default_factory=dict)
    """Of each batch: max_in_flight, max_open, priority, notify."""

    def to_json(self) -> str:
        """Compact JSON, the same for the same plan."""
        return _sorted({name: value for name, value in asdict(self).items() if value not in (None, {})})

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The inverse of `to_json`."""
        return cls(**json.loads(text))


def check_schedule(name: str) -> str:
    """The name itself, when batches can be called after it.

    Raises:
        UsageError: when it is none, or too long for that.
    """
    check_name("schedule", name)
    if len(name) > NAME_CHARS_MAX:
        raise UsageError(
            f"the name of a schedule is up to {NAME_CHARS_MAX} characters: batches have the time behind it",
            hint="--batch NAME gives it a shorter one",
        )
    return name


def check_plan(plan: Plan, now_ms: int) -> int:
    """The first time of a plan, in milliseconds since 1970.

    Raises:
        UsageError: when it says no times, no time zone, or none that lies ahead.
    """
    if plan.overlap not in OVERLAP:
        raise UsageError(
            f"overlap={plan.overlap!r} must be {' or '.join(map(repr, OVERLAP))}",
            hint="skip makes no batch while the one before is not over, allow makes it all the same",
        )
    zone_of(plan.zone)
    if not isinstance(plan.cron, str):
        raise UsageError(f"{plan.cron!r} is no cron expression", hint=CRON_HINT)
    if len(plan.cron) > CRON_CHARS_MAX or len(plan.cron.split()) != 5:
        raise UsageError(f"{plan.cron[:CRON_CHARS_MAX]!r} is no cron expression", hint=CRON_HINT)
    try:
        first = next_time(plan, now_ms)
    except CronSimError as error:
        raise UsageError(f"{plan.cron!r} is no cron expression: {error}", hint=CRON_HINT) from None
    if first is None:
        raise UsageError(f"{plan.cron!r} is at no time in the next 50 years", hint=CRON_HINT)
    return first


def next_time(plan: Plan, after_ms: int) -> int | None:
    """The first time of a plan after this one, both in milliseconds since 1970; None when there is none."""
    return _look(plan, after_ms, after_ms, 1)


def last_time(plan: Plan, due_ms: int, now_ms: int) -> int:
    """The last time of a plan up to now, not before `due_ms`: those in between were missed."""
    found = max(due_ms, _look(plan, now_ms + 1, now_ms, -1) or due_ms)
    # Backwards a time may be left out where clocks are set back by half an hour.
    while (following := next_time(plan, found)) is not None and following <= now_ms:
        found = following
    return found


def _look(plan: Plan, start_ms: int, bound_ms: int, step: int) -> int | None:
    """From `start_ms` on the first time beyond (1), or the last not beyond (-1), the bound."""
    start = datetime.fromtimestamp(start_ms / 1000, UTC).astimezone(zone_of(plan.zone))
    for _, moment in zip(range(LOOKS), CronSim(plan.cron, start, reverse=step < 0), strict=False):
        found = round(moment.timestamp() * 1000)
        if found > bound_ms if step > 0 else found <= bound_ms:
            return found
    return None


def batch_at(name: str, plan: Plan, time_ms: int) -> str:
    """What the batch of this time is called: `orders.20261201-0800`, in the schedule's time zone.

    Of an hour that comes twice, when clocks are set back, the second has `-2` behind it.
    """
    moment = datetime.fromtimestamp(time_ms / 1000, UTC).astimezone(zone_of(plan.zone))
    return f"{name}.{moment:%Y%m%d-%H%M}" + ("-2" if moment.fold else "")


class RowPack:
    """The rows of a schedule on their way into Redis: `add` them, then take `chunks` and `digest`."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._chars = 0
        self._chunks: list[str] = []
        self._hash = hashlib.sha256()
        self.rows = 0
        self.bytes = 0
        """What is compressed so far takes in Redis."""

    def add(self, row: Row) -> None:
        """Take one more.

        Raises:
            UsageError: when they are more than a schedule may keep.
        """
        line = _encode(
            {
                "input": row.input,
                "custom_id": row.custom_id,
                "agent": row.agent,
                "metadata": row.metadata,
                "context": row.context,
                "max_usd": None if row.max_usd is None else str(row.max_usd),
                "priority": row.priority,
                "call": row.call,
                "where": row.where,
                "line_hash": row.line_hash,
            }
        )
        self._hash.update(f"{row.custom_id}\t{row.derived_id}\t{row.content_hash}\t{row.priority}\n".encode())
        self._open.append(line)
        self._chars += len(line)
        self.rows += 1
        if self._chars >= CHUNK_CHARS:
            self._compress()

    def chunks(self) -> list[str]:
        """All of them, as text.

        Raises:
            UsageError: when they are more than a schedule may keep.
        """
        if self._open:
            self._compress()
        return self._chunks

    def digest(self, plan: Plan) -> str:
        """Equal for the same rows under the same plan."""
        return hashlib.sha256(f"{plan.to_json()}\n{self._hash.hexdigest()}".encode()).hexdigest()[:32]

    def _compress(self) -> None:
        packed = zlib.compress("\n".join(self._open).encode())
        self._chunks.append(base64.b64encode(packed).decode())
        self.bytes += len(self._chunks[-1])
        self._open.clear()
        self._chars = 0
        if self.bytes > BYTES_MAX:
            raise UsageError(
                f"the rows take more than {BYTES_MAX // 1_000_000} MB in Redis: a schedule keeps no more",
                hint="have a cron job type `agentq submit FILE --batch NAME-$(date +%F)` where the file is",
            )


def unpack_rows(chunks: Iterable[str]) -> Iterator[Row]:
    """The rows in these chunks, as they were checked when the schedule was made."""
    for chunk in chunks:
        for line in zlib.decompress(base64.b64decode(chunk)).decode().split("\n"):
            fields = json.loads(line)
            max_usd = fields.pop("max_usd")
            yield Row(**fields, max_usd=None if max_usd is None else Decimal(max_usd))
