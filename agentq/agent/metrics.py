"""How a set of runs went. Read them in this order: loop rate, budget stop rate, recovery rate."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

from agentq.agent.thread import Thread, TraceEvent
from agentq.core.lifecycle import StopReason
from agentq.tools.result import REFUSALS

_BUDGETS = frozenset(reason.value for reason in StopReason if reason.is_budget)


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


def run_metrics(threads: Iterable[Thread]) -> RunMetrics:
    """The metrics of these runs; all rates are 0 when there are none."""
    runs = list(threads)
    if not runs:
        return RunMetrics()
    steps = sorted(thread.spend.steps for thread in runs)
    reasons = [thread.stop_reason for thread in runs]
    results = [_is_error(event) for thread in runs for event in thread.trace if event.kind == "tool_result"]
    failed = [thread for thread in runs if _met_an_error(thread)]
    usd = sum((thread.spend.usd for thread in runs), Decimal(0)) / len(runs)
    return RunMetrics(
        runs=len(runs),
        completion_rate=_share(reasons.count(StopReason.FINISHED.value), len(runs)),
        steps_p50=float(statistics.median(steps)),
        steps_p95=float(steps[math.ceil(95 * len(steps) / 100) - 1]),
        tool_error_rate=_share(results.count(True), len(results)),
        loop_rate=_share(reasons.count(StopReason.LOOP_DETECTED.value), len(runs)),
        budget_stop_rate=_share(sum(reason in _BUDGETS for reason in reasons), len(runs)),
        recovery_rate=_recovery(failed),
        mean_usd=f"{usd:.6f}",
        unpriced_calls=sum(thread.unpriced_calls for thread in runs),
    )


def _met_an_error(thread: Thread) -> bool:
    return any(event.kind == "tool_result" and _is_error(event) for event in thread.trace)


def _is_error(event: TraceEvent) -> bool:
    return not event.ok and event.detail.rpartition(":")[2] not in REFUSALS


def _recovery(failed: list[Thread]) -> float:
    finished = sum(thread.stop_reason == StopReason.FINISHED.value for thread in failed)
    return _share(finished, len(failed)) if failed else 1.0


def _share(part: int, whole: int) -> float:
    return round(part / whole, 3) if whole else 0.0
