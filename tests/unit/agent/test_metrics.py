"""What a set of runs says, exactly."""

from __future__ import annotations

from decimal import Decimal

from agentq.agent import Spend, StopReason, Thread, run_metrics


def thread(reason: StopReason, steps: int, *results: bool, usd: str = "0", unpriced: int = 0) -> Thread:
    made = Thread(
        stop_reason=reason.value, spend=Spend(steps=steps, usd=Decimal(usd)), unpriced_calls=unpriced
    )
    for ok in results:
        made.record("tool_result", "t:ok" if ok else "t:timeout", ok=ok)
    return made


def test_the_keys_are_the_seeds_in_its_order_and_new_ones_follow() -> None:
    """A reader of the seed finds what it expects."""
    assert list(run_metrics([]).as_dict()) == [
        "runs",
        "completion_rate",
        "steps_p50",
        "steps_p95",
        "tool_error_rate",
        "loop_rate",
        "budget_stop_rate",
        "recovery_rate",
        "mean_usd",
        "unpriced_calls",
    ]


def test_rates_are_shares_of_runs_and_of_results() -> None:
    """Recovery is over the runs that met an error, and only those."""
    metrics = run_metrics(
        [
            thread(StopReason.FINISHED, 2, True, False, True, usd="0.000001"),
            thread(StopReason.FINISHED, 2, True, unpriced=2),
            thread(StopReason.LOOP_DETECTED, 3, False, usd="0.000002"),
            thread(StopReason.STEP_BUDGET, 8, True, unpriced=1),
            thread(StopReason.COST_BUDGET, 4),
            thread(StopReason.MODEL_ERROR, 1),
        ]
    )
    assert metrics.as_dict() == {
        "runs": 6,
        "completion_rate": 0.333,
        "steps_p50": 2.5,
        "steps_p95": 8.0,
        "tool_error_rate": 0.333,
        "loop_rate": 0.167,
        "budget_stop_rate": 0.333,
        "recovery_rate": 0.5,
        "mean_usd": "0.000000",
        "unpriced_calls": 3,
    }


def test_p95_is_the_nearest_rank() -> None:
    """Of 20 runs the 19th, of 21 the 20th."""
    twenty = [thread(StopReason.FINISHED, n) for n in range(1, 21)]
    assert run_metrics(twenty).steps_p95 == 19.0
    assert run_metrics([*twenty, thread(StopReason.FINISHED, 21)]).steps_p95 == 20.0


def test_without_an_error_recovery_is_whole() -> None:
    """There was nothing that a run did not survive."""
    assert run_metrics([thread(StopReason.STEP_BUDGET, 1)]).recovery_rate == 1.0
    assert run_metrics([]).recovery_rate == 1.0
    assert run_metrics([thread(StopReason.FINISHED, 1, usd="0.0015")]).mean_usd == "0.001500"


def test_what_a_person_refused_is_no_error_and_needs_no_recovery() -> None:
    """It is a result like any other."""
    refused = thread(StopReason.STEP_BUDGET, 2, True)
    for code in ("approval_denied", "approval_expired"):
        refused.record("tool_result", f"cancel_order:{code}", ok=False)
    metrics = run_metrics([refused, thread(StopReason.FINISHED, 2, False)])
    assert (metrics.tool_error_rate, metrics.recovery_rate) == (0.25, 1.0)
