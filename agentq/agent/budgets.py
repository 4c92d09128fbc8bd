"""The four budgets of a run, what it has spent of them, and how large a call still fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from decimal import Decimal
from typing import Any, Self

from agentq.core.lifecycle import StopReason
from agentq.core.money import NANO, check_tokens, to_nano


@dataclass(slots=True)
class Spend:
    """What a thread has used so far. `seconds` adds up over resumes; time spent waiting is not in it."""

    steps: int = 0
    tokens: int = 0
    usd: Decimal = Decimal(0)
    seconds: float = 0.0
    tool_errors: int = 0

    def as_dict(self) -> dict[str, Any]:
        """A JSON object; the money is text, so that it stays exact."""
        return asdict(self) | {"usd": f"{self.usd:f}"}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Spend:
        """The inverse of `as_dict`."""
        return cls(**{**data, "usd": Decimal(data.get("usd", 0))})


@dataclass(frozen=True, slots=True)
class Budgets:
    """The limits of a run; None is no limit. Money is USD, exact; time is seconds.

    `max_tokens` and `max_usd` include the closing turn. `max_steps` counts model-and-tools steps; the
    closing turn comes after them.

    Raises:
        TypeError: for money given as float.
        ValueError: for a limit that leaves no room at all, or money finer than a nano-USD.
    """

    max_steps: int | None = 12
    max_tokens: int | None = 120_000
    max_usd: Decimal | str | int | None = None
    max_seconds: float | None = 120.0
    named: frozenset[str] = field(init=False, repr=False, compare=False)
    """Those that somebody has named, and that no default of an installation replaces."""

    def __new__(cls, *args: Any, **named: Any) -> Self:
        """Note what is named; the rest is the dataclass's."""
        self = object.__new__(cls)
        in_order = [entry.name for entry in fields(cls)][: len(args)]
        object.__setattr__(self, "named", frozenset([*in_order, *named]))
        return self

    def __post_init__(self) -> None:
        for name in ("max_steps", "max_tokens", "max_seconds"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise ValueError(
                    f"{name}={limit} leaves no room for any work: it must be more than 0, or None"
                )
        if self.max_tokens is not None:
            check_tokens(self.max_tokens)
        if self.max_usd is not None:
            object.__setattr__(self, "max_usd", _usd(self.max_usd))

    def exceeded_by(self, spend: Spend) -> StopReason | None:
        """The first budget that is used up, in the order steps, tokens, cost, time."""
        if self.max_steps is not None and spend.steps >= self.max_steps:
            return StopReason.STEP_BUDGET
        if self.max_tokens is not None and spend.tokens >= self.max_tokens:
            return StopReason.TOKEN_BUDGET
        if self.max_usd is not None and spend.usd >= Decimal(self.max_usd):
            return StopReason.COST_BUDGET
        if self.max_seconds is not None and spend.seconds >= self.max_seconds:
            return StopReason.TIME_BUDGET
        return None

    def over(self, defaults: Budgets) -> Budgets:
        """These, and in place of each that nobody has named that of `defaults`."""
        return replace(defaults, **{name: getattr(self, name) for name in self.named})

    def as_dict(self) -> dict[str, Any]:
        """A JSON object; the money is text, so that it stays exact."""
        limits = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.init}
        return limits | {"max_usd": None if self.max_usd is None else f"{self.max_usd:f}"}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Budgets:
        """The inverse of `as_dict`."""
        return cls(**data)


@dataclass(frozen=True, slots=True)
class Need:
    """What must be free before a call: its worst case, and that of a closing turn that may follow it.

    `usd` and `escrow_usd` are whole nano-USD, the others tokens.
    """

    usd: int
    tokens: int
    escrow_usd: int
    escrow_tokens: int


@dataclass(frozen=True, slots=True)
class Rung:
    """One size of a call: its output cap, and what must be free for it."""

    output_tokens: int
    need: Need


def first_fitting(budgets: Budgets, spend: Spend, rungs: Sequence[Rung]) -> Rung | StopReason:
    """The largest rung that fits what is left, or the budget (tokens before cost) that refuses the smallest.

    Args:
        budgets: what the run may spend.
        spend: what it has spent.
        rungs: at least one, the largest first.

    Raises:
        ValueError: without a rung.
    """
    refused = None
    for rung in rungs:
        refused = refused_by(budgets, spend, rung.need)
        if refused is None:
            return rung
    if refused is None:
        raise ValueError("there is no rung: a call has at least one size")
    return refused


def refused_by(budgets: Budgets, spend: Spend, need: Need) -> StopReason | None:
    """The budget in which the need does not fit, or None when it may be spent."""
    if (
        budgets.max_tokens is not None
        and spend.tokens + need.tokens + need.escrow_tokens > budgets.max_tokens
    ):
        return StopReason.TOKEN_BUDGET
    if budgets.max_usd is not None:
        needed = to_nano(spend.usd) + need.usd + need.escrow_usd
        if needed > to_nano(budgets.max_usd):
            return StopReason.COST_BUDGET
    return None


def _usd(amount: Decimal | str | int) -> Decimal:
    limit = to_nano(amount)
    if limit == 0:
        raise ValueError("max_usd=0 leaves no room for any work: it must be more than 0, or None")
    if Decimal(amount) * NANO != limit:
        raise ValueError(f"max_usd={amount} is finer than a nano-USD (nine decimal places)")
    return Decimal(amount)
