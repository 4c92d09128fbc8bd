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

    @classmethod
    def read(cls, batch: Batch) -> Tally:
        """Count the batch now."""
        counts = batch.counts()
        account = batch.account()
        money = batch.parked() if counts["parked"] or batch.record().descendants else {}
        # Who waits for children that are all parked is counted as running until they are asked.
        waits = max(0, sum(money.values()) - counts["parked"])
        return cls(
            name=batch.name,
            total=counts["total"],
            queued=counts["queued"],
            running=max(0, counts["running"] + counts["cancelling"] - waits),
            parked=counts["parked"] + waits,
            dry=sum(count for parked, count in money.items() if parked.is_dry),
            waiting=counts["waiting"],
            held=counts["held"],
            ended=counts["ended"],
            spent_nano=account.spent_nano,
            reserved_nano=account.reserved_nano,
            escrowed_nano=account.escrowed_nano,
            stop_reasons=batch.stop_reasons(),
            money=money,
        )

    @property
    def is_settled(self) -> bool:
        """Whether nothing moves any more unless a person acts."""
        return self.ended + self.waiting + self.dry + self.held >= self.total

    @property
    def failed(self) -> int:
        """Runs that ended as failures."""
        return sum(count for reason, count in self.stop_reasons.items() if StopReason(reason).is_failure)

    @property
    def over_budget(self) -> int:
        """Runs that a budget stopped."""
        return sum(count for reason, count in self.stop_reasons.items() if StopReason(reason).is_budget)

    def exit_code(self, *, provider_refused: bool = False) -> int:
        """The first rule that applies to a batch in which nothing moves."""
        if provider_refused:
            return PROVIDER
        if self.waiting or self.held:
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
            "running": self.running,
            "parked": self.parked,
            "parked_for": [
                {"scope": parked.scope, "unit": parked.unit, "kind": parked.kind, "runs": count}
                for parked, count in self.money.items()
            ],
            "waiting": self.waiting,
            "held": self.held,
            "ended": self.ended,
            "stop_reasons": dict(self.stop_reasons),
            "spent_usd": format_usd(self.spent_nano),
            "reserved_usd": format_usd(self.reserved_nano),
            "escrowed_usd": format_usd(self.escrowed_nano),
        }

    def __str__(self) -> str:
        parts = [f"{self.ended} of {self.total} ended"]
        parts += [
            f"{count} {word}"
            for word, count in (
                ("running", self.running),
                ("queued", self.queued),
                ("parked for money", self.parked),
                ("waiting for approval", self.waiting),
                ("paused", self.held),
            )
            if count
        ]
        return ", ".join([*parts, f"{format_usd(self.spent_nano)} USD"])


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


def provider_refused(batch: Batch, tally: Tally) -> bool:
    """Whether a run failed because a provider refused the key or its quota."""
    if not tally.stop_reasons.get(StopReason.MODEL_ERROR.value):
        return False
    return any(result.error is not None and is_refusal(result.error["message"]) for result in batch.results())


def is_refusal(detail: str | None) -> bool:
    """Whether a model error's detail says that the key or its quota was refused."""
    return bool(detail) and str(detail).startswith(_REFUSALS)
