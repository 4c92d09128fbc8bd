"""How far a batch is, in numbers, and the exit code that follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentq.cli.console import plural
from agentq.core.lifecycle import StopReason
from agentq.core.money import format_usd

if TYPE_CHECKING:
    from agentq.app import Batch
    from agentq.core.records import Parked
    from agentq.engine.forecast import Forecast

OK = 0
FAILED_ROWS = 3
BUDGET_ROWS = 4
WAITING_FOR_APPROVAL = 5
TIMED_OUT = 6
PROVIDER = 8

_REFUSALS = ("provider_auth", "provider_quota", "AuthError")  # the last as an older release wrote it


@dataclass(frozen=True, slots=True)
class Tally:
    """A batch at one moment."""

    name: str
    total: int
    queued: int = 0
    running: int = 0
    parked: int = 0
    dry: int = 0
    """The parked ones for which no call in flight will make room: somebody must, or the next day."""
    waiting: int = 0
    held: int = 0
    """Paused: they go on when somebody lets them."""
    ended: int = 0
    spent_nano: int = 0
    reserved_nano: int = 0
    escrowed_nano: int = 0
    stop_reasons: Mapping[str, int] = field(default_factory=dict)
    money: Mapping[Parked, int] = field(default_factory=dict)
    rows: int = 0
    """Of those queued, how many have not begun."""
    limit_nano: int | None = None
    loader: str | None = None
    """Who is loading it, or was."""
    loading: int = 0
    """Of the rows, how many are of that load: none of them begins before it is complete."""
    broken_off: bool = False
    """Nothing is heard of the loader any more: somebody must submit the same again."""
    paused_by: str | None = None
    starts_ms: int | None = None
    """No row begins before."""
    pilot: int | None = None
    """So many rows must end before the others begin."""
    blocked: bool = False
    """No row begins until one of the runs that have begun goes on or ends."""
    refused: int = 0
    """Runs that failed because a provider refused the key or its quota."""
    forecast: Forecast | None = field(default=None, compare=False)

    @classmethod
    def read(cls, batch: Batch) -> Tally:
        """Count the batch now. Rows that have not begun, and runs that have ended, are not looked at."""
        record = batch.record()
        counts = batch.counts(record)
        account = batch.account()
        money = batch.parked() if counts["parked"] or record.descendants else {}
        # Who waits for children that are all parked is counted as running until they are asked.
        waits = max(0, sum(money.values()) - counts["parked"])
        return cls(
            name=batch.name,
            total=record.total,
            queued=counts["queued"],
            running=max(0, counts["running"] + counts["cancelling"] - waits),
            parked=counts["parked"] + waits,
            dry=sum(count for parked, count in money.items() if parked.is_dry),
            waiting=counts["waiting"],
            held=counts["held"],
            ended=record.ended,
            spent_nano=account.spent_nano,
            reserved_nano=account.reserved_nano,
            escrowed_nano=account.escrowed_nano,
            stop_reasons=dict(record.stop_reasons),
            money=money,
            rows=record.rows,
            limit_nano=account.limit_nano,
            loader=record.loader,
            loading=record.loading,
            broken_off=record.loader_gone,
            paused_by=record.paused,
            starts_ms=record.starts_ms,
            pilot=record.pilot,
            blocked=record.dry is not None
            or record.pilot is not None
            or (record.max_open is not None and record.open >= record.max_open),
            refused=record.counters.get("refused", 0),
            forecast=batch.forecast(),
        )

    @property
    def is_settled(self) -> bool:
        """Whether nothing moves any more unless a person acts."""
        if self.loader is not None and not self.broken_off:
            return False  # more rows may come, also when all that are there have ended
        stuck_rows = self.rows if self._rows_are_stuck else self.loading if self.broken_off else 0
        return self._stuck + self.ended + stuck_rows >= self.total

    @property
    def _stuck(self) -> int:
        """Runs that have begun and for which somebody must do something."""
        return self.waiting + self.dry + self.held

    @property
    def _rows_are_stuck(self) -> bool:
        """Whether the rows that have not begun will not, unless a person acts."""
        begun = self.total - self.ended - self.rows
        return self.paused_by is not None or (self.blocked and 0 < begun == self._stuck)

    @property
    def failed(self) -> int:
        """Runs that ended as failures."""
        return sum(count for reason, count in self.stop_reasons.items() if StopReason(reason).is_failure)

    @property
    def over_budget(self) -> int:
        """Runs that a budget stopped."""
        return sum(count for reason, count in self.stop_reasons.items() if StopReason(reason).is_budget)

    def exit_code(self) -> int:
        """The first rule that applies to a batch in which nothing moves."""
        if self.refused:
            return PROVIDER
        if self.waiting or self.held or self.broken_off or (self.paused_by is not None and self.rows):
            return WAITING_FOR_APPROVAL
        if self.failed:
            return FAILED_ROWS
        return BUDGET_ROWS if self.over_budget or self.dry else OK

    def as_dict(self) -> dict[str, Any]:
        """For JSON: money as decimal text."""
        return {
            "batch": self.name,
            "total": self.total,
            "queued": self.queued,
            "rows": self.rows,
            "running": self.running,
            "parked": self.parked,
            "parked_for": [
                {"scope": parked.scope, "unit": parked.unit, "kind": parked.kind, "runs": count}
                for parked, count in self.money.items()
            ],
            "waiting": self.waiting,
            "held": self.held,
            "ended": self.ended,
            "failed": self.failed,
            "loading": self.loader,
            "broken_off": self.broken_off,
            "paused_by": self.paused_by,
            "starts_at": None if self.starts_ms is None else self.starts_ms / 1000,
            "pilot": self.pilot,
            "stop_reasons": dict(self.stop_reasons),
            "spent_usd": format_usd(self.spent_nano),
            "reserved_usd": format_usd(self.reserved_nano),
            "escrowed_usd": format_usd(self.escrowed_nano),
            "limit_usd": None if self.limit_nano is None else format_usd(self.limit_nano),
            "forecast": None if self.forecast is None else self.forecast.as_dict(),
        }

    def live(self) -> list[str]:
        """What has not ended, in words, each with how many it is."""
        return [
            f"{count} {word}"
            for word, count in (
                ("running", self.running),
                ("queued", self.queued - self.rows),
                ("parked for money", self.parked),
                ("waiting for approval", self.waiting),
                ("paused", self.held),
                ("not begun", self.rows),
            )
            if count > 0
        ]

    def __str__(self) -> str:
        ended = f"{self.ended} of {self.total} ended"
        return ", ".join([ended, *self.live(), f"{format_usd(self.spent_nano)} USD"])


def money_lines(money: Mapping[Parked, int]) -> list[str]:
    """What parked runs wait for, a line for each scope, and what to type."""
    lines = []
    for parked, count in money.items():
        lines += [f"{plural(count, 'run')} parked: {wanted(parked)}", *(f"  {line}" for line in cure(parked))]
    return lines


def wanted(parked: Parked) -> str:
    """What a parked run waits for, in words."""
    unit = "tokens" if parked.unit == "tokens" else "USD"
    return {
        "wait": f"the {unit} of {parked.scope} are held by calls in flight",
        "winddown": f"the {unit} of {parked.scope} are held by runs that wait",
        "frozen": f"{parked.scope} is frozen",
    }.get(parked.kind, f"the {unit} of {parked.scope} are used up")


def cure(parked: Parked) -> list[str]:
    """What to type so that parked runs go on, or end; of a window, when they try by themselves."""
    if parked.kind == "wait":
        return ["goes on by itself"]
    if parked.kind == "frozen":
        return [f"agentq budget unfreeze {parked.scope}"]
    option = "--tokens" if parked.unit == "tokens" else "--usd"
    new = ""
    if parked.scope.endswith("@day"):
        new = "; tries by itself at 00:00 UTC"
    elif parked.scope.endswith("@month"):
        new = "; tries by itself on the 1st, 00:00 UTC"
    return [
        f"agentq budget topup {parked.scope} {option} N   goes on{new}",
        f"agentq budget winddown {parked.scope}   answers with what it has",
    ]


def is_refusal(detail: str | None) -> bool:
    """Whether a model error's detail says that the key or its quota was refused."""
    return bool(detail) and str(detail).startswith(_REFUSALS)
