"""How a set of runs went. Read them in this order: loop rate, budget stop rate, recovery rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any

from agentq.agent.thread import Thread, TraceEvent
from agentq.core.lifecycle import StopReason
from agentq.core.money import to_usd
from agentq.tools.result import REFUSALS

_BUDGETS = frozenset(reason.value for reason in StopReason if reason.is_budget)
_STEPS = "steps:"


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """Rates are shares from 0 to 1, to three places; `mean_usd` is text with six.

    `steps_p50` is the median, `steps_p95` the nearest rank. `tool_error_rate` is over tool results; "not
    found" is a result, not an error, and neither is a person's refusal. `recovery_rate` is the share of
    finished runs among those that met a tool error, 1.0 when none did. `unpriced_calls` counts model calls
    whose price is unknown.
    """

    runs: int = 0
    completion_rate: float = 0.0
    steps_p50: float = 0.0
    steps_p95: float = 0.0
    tool_error_rate: float = 0.0
    loop_rate: float = 0.0
    budget_stop_rate: float = 0.0
    recovery_rate: float = 1.0
    mean_usd: str = "0.000000"
    unpriced_calls: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The metrics as a JSON object, in the order of the fields."""
        return asdict(self)


@dataclass(slots=True)
class Counts:
    """What runs add up to: all that their metrics need, whatever it was read from."""

    reasons: Counter[str] = field(default_factory=Counter)
    """How many runs ended for each reason."""
    steps: Counter[int] = field(default_factory=Counter)
    """How many runs took so many steps."""
    results: int = 0
    """Results of tools; `errors` of them were errors."""
    errors: int = 0
    met: int = 0
    """Runs that met an error of a tool; `recovered` of them finished."""
    recovered: int = 0
    unpriced: int = 0
    usd: Decimal = Decimal(0)

    def add(self, thread: Thread) -> None:
        """Count one more run by its thread."""
        results = [is_error(event) for event in thread.trace if event.kind == "tool_result"]
        self.reasons[thread.stop_reason or ""] += 1
        self.steps[thread.spend.steps] += 1
        self.results += len(results)
        self.errors += results.count(True)
        self.met += any(results)
        self.recovered += any(results) and thread.stop_reason == StopReason.FINISHED.value
        self.unpriced += thread.unpriced_calls
        self.usd += thread.spend.usd

    @classmethod
    def stored(cls, counters: Mapping[str, int], stop_reasons: Mapping[str, int]) -> Counts:
        """What a batch has counted of its runs when they ended.

        Args:
            counters: `steps:<n>` (runs of n steps; the last has all that are longer), `results`, `errors`,
                `met`, `recovered`, `unpriced` and `usd` (nano-USD).
            stop_reasons: how many rows ended for each reason. Those that never became runs took no step.
        """
        steps = Counter(
            {
                int(name.removeprefix(_STEPS)): runs
                for name, runs in counters.items()
                if name.startswith(_STEPS)
            }
        )
        reasons = Counter(stop_reasons)
        steps[0] += max(0, reasons.total() - steps.total())
        return cls(
            reasons=reasons,
            steps=+steps,
            usd=to_usd(counters.get("usd", 0)),
            **{name: counters.get(name, 0) for name in ("results", "errors", "met", "recovered", "unpriced")},
        )

    def metrics(self) -> RunMetrics:
        """The metrics; all rates are 0 when there are no runs."""
        runs = self.reasons.total()
        if not runs:
            return RunMetrics()
        return RunMetrics(
            runs=runs,
            completion_rate=_share(self.reasons[StopReason.FINISHED.value], runs),
            steps_p50=(self._steps_at((runs + 1) // 2) + self._steps_at(runs // 2 + 1)) / 2,
            steps_p95=float(self._steps_at(-(-95 * runs // 100))),
            tool_error_rate=_share(self.errors, self.results),
            loop_rate=_share(self.reasons[StopReason.LOOP_DETECTED.value], runs),
            budget_stop_rate=_share(sum(self.reasons[reason] for reason in _BUDGETS), runs),
            recovery_rate=_share(self.recovered, self.met) if self.met else 1.0,
            mean_usd=f"{self.usd / runs:.6f}",
            unpriced_calls=self.unpriced,
        )

    def _steps_at(self, rank: int) -> int:
        """The steps of the run at this place, from 1, when they are put in the order of their steps."""
        for steps in sorted(self.steps):
            rank -= self.steps[steps]
            if rank <= 0:
                return steps
        return 0


def run_metrics(threads: Iterable[Thread]) -> RunMetrics:
    """The metrics of these runs; all rates are 0 when there are none."""
    counts = Counts()
    for thread in threads:
        counts.add(thread)
    return counts.metrics()


def is_error(event: TraceEvent) -> bool:
    """Whether a tool's result was an error. What a person refused is none."""
    return not event.ok and event.detail.rpartition(":")[2] not in REFUSALS


def _share(part: int, whole: int) -> float:
    return round(part / whole, 3) if whole else 0.0
