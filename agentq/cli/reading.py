"""What the metrics of a batch say about its agent: each value in a sentence, with what to type next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from agentq.agent.metrics import Counts
from agentq.core.lifecycle import StopReason

_LONG_TAIL = 3
"""A long run is worth a look when it takes so many times the steps of a usual one."""
_MANY = 0.1

Reader = Callable[[str, Mapping[str, Any], Counts], str]
"""Of the batch's name, its metrics and what they were made from."""


def read_metrics(batch: str, metrics: Mapping[str, Any], counts: Counts) -> dict[str, str]:
    """For each metric, in the order in which to read them, what this value says.

    Args:
        batch: its name, for what to type.
        metrics: see `RunMetrics.as_dict`.
        counts: what they were made from: of a large batch a rate may be rounded to nothing, or to all.
    """
    if not metrics["runs"]:
        return {}
    said = {key: read(batch, metrics, counts) for key, read in _READERS.items()}
    if metrics["unpriced_calls"]:
        said["unpriced_calls"] = (
            "calls of a model without a price: the mean is too low (agentq prices check names them)"
        )
    return said


def _where(batch: str, reason: str) -> str:
    return f"agentq runs --where 'batch:{batch} stop_reason:{reason}'"


def _loops(batch: str, metrics: Mapping[str, Any], counts: Counts) -> str:
    loops, runs = counts.reasons[StopReason.LOOP_DETECTED.value], metrics["runs"]
    if not loops:
        return "no run goes in circles"
    inflates = ", and that inflates all that follows" if loops > _MANY * runs else ""
    return f"{loops} of {runs} runs go in circles{inflates}; look at {_where(batch, 'loop_detected')}"


def _budgets(batch: str, metrics: Mapping[str, Any], counts: Counts) -> str:
    stops = {reason: count for reason, count in counts.reasons.items() if StopReason(reason).is_budget}
    if not stops:
        return "no run was cut off by a budget"
    most = max(sorted(stops), key=stops.__getitem__)
    why = "the budget is too tight, or the task too large"
    if counts.reasons[StopReason.LOOP_DETECTED.value] >= sum(stops.values()):
        why = "mend the loops first: they use budgets up"
    return f"{sum(stops.values())} of {metrics['runs']} were cut off: {why}; look at {_where(batch, most)}"


def _recovery(batch: str, metrics: Mapping[str, Any], counts: Counts) -> str:  # noqa: ARG001
    if not counts.met:
        return "no run met an error of a tool, so there was nothing to recover from"
    if counts.recovered == counts.met:
        return "every run that met an error of a tool finished all the same"
    return (
        f"{counts.recovered} of {counts.met} runs that met an error of a tool finished; "
        "the others were not helped by what it says"
    )


def _errors(batch: str, metrics: Mapping[str, Any], counts: Counts) -> str:  # noqa: ARG001
    if not counts.errors:
        return "no result of a tool was an error"
    one_in = round(counts.results / counts.errors)
    return f"one in {one_in} results of tools was an error; not found is an answer, and none"


def _completion(batch: str, metrics: Mapping[str, Any], counts: Counts) -> str:  # noqa: ARG001
    done = counts.reasons[StopReason.FINISHED.value]
    if done == metrics["runs"]:
        return f"all {done} runs finished their task" if done > 1 else "the run finished its task"
    return f"{done} of {metrics['runs']} runs finished their task"


def _usual(batch: str, metrics: Mapping[str, Any], counts: Counts) -> str:  # noqa: ARG001
    return "half of the runs take no more steps than that"


def _long(batch: str, metrics: Mapping[str, Any], counts: Counts) -> str:  # noqa: ARG001
    said = "19 of 20 runs take no more steps than that"
    usual, long = metrics["steps_p50"], metrics["steps_p95"]
    if usual and long > _LONG_TAIL * usual:
        return f"{said}: a long one takes {long / usual:.1f} times as many as a usual one"
    return said


def _mean(batch: str, metrics: Mapping[str, Any], counts: Counts) -> str:  # noqa: ARG001
    return f"1,000 rows like these cost {1000 * Decimal(metrics['mean_usd']):.2f} USD"


_READERS: dict[str, Reader] = {
    "loop_rate": _loops,
    "budget_stop_rate": _budgets,
    "recovery_rate": _recovery,
    "tool_error_rate": _errors,
    "completion_rate": _completion,
    "steps_p50": _usual,
    "steps_p95": _long,
    "mean_usd": _mean,
}
