"""How far a batch is, in numbers, and the exit code that follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentq.core.lifecycle import StopReason
from agentq.core.money import format_usd

if TYPE_CHECKING:
    from agentq.app import Batch

OK = 0
FAILED_ROWS = 3
BUDGET_ROWS = 4
WAITING_FOR_APPROVAL = 5
TIMED_OUT = 6
PROVIDER = 8

_REFUSALS = ("AuthError", "provider_quota", "provider_auth")


@dataclass(frozen=True, slots=True)
class Tally:
    """A batch at one moment."""

    name: str
    total: int
    queued: int = 0
    running: int = 0
    waiting: int = 0
    ended: int = 0
    spent_nano: int = 0
    reserved_nano: int = 0
    escrowed_nano: int = 0
    stop_reasons: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, batch: Batch) -> Tally:
        """Count the batch now."""
        counts = batch.counts()
        account = batch.account()
        return cls(
            name=batch.name,
            total=counts["total"],
            queued=counts["queued"],
            running=counts["running"] + counts["cancelling"],
            waiting=counts["waiting"],
            ended=counts["ended"],
            spent_nano=account.spent_nano,
            reserved_nano=account.reserved_nano,
            escrowed_nano=account.escrowed_nano,
            stop_reasons=batch.stop_reasons(),
        )

    @property
    def is_settled(self) -> bool:
        """Whether nothing moves any more unless a person acts."""
        return self.ended + self.waiting >= self.total

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
        if self.waiting:
            return WAITING_FOR_APPROVAL
        if self.failed:
            return FAILED_ROWS
        return BUDGET_ROWS if self.over_budget else OK

    def as_dict(self) -> dict[str, Any]:
        """For JSON: money as decimal text."""
        return {
            "batch": self.name,
            "total": self.total,
            "queued": self.queued,
            "running": self.running,
            "waiting": self.waiting,
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
                ("waiting for approval", self.waiting),
            )
            if count
        ]
        return ", ".join([*parts, f"{format_usd(self.spent_nano)} USD"])


def provider_refused(batch: Batch, tally: Tally) -> bool:
    """Whether a run failed because a provider refused the key or its quota."""
    if not tally.stop_reasons.get(StopReason.MODEL_ERROR.value):
        return False
    return any(result.error is not None and is_refusal(result.error["message"]) for result in batch.results())


def is_refusal(detail: str | None) -> bool:
    """Whether a model error's detail says that the key or its quota was refused."""
    return bool(detail) and str(detail).startswith(_REFUSALS)
