"""What the metrics say, each value in a sentence of its own."""

from __future__ import annotations

from typing import Any

import pytest

from agentq.agent.metrics import Counts, RunMetrics
from agentq.cli.metrics import reading_lines
from agentq.cli.reading import read_metrics


def said(reasons: dict[str, int], counters: dict[str, int] | None = None, **changes: Any) -> dict[str, str]:
    """The sentences about a batch `b` that ended so."""
    counts = Counts.stored({"steps:2": sum(reasons.values()), **(counters or {})}, reasons)
    return read_metrics("b", counts.metrics().as_dict() | changes, counts)


def test_they_come_in_the_order_in_which_to_read_them():
    assert list(said({"finished": 1}))[:3] == ["loop_rate", "budget_stop_rate", "recovery_rate"]


def test_a_batch_in_which_all_went_well():
    assert said({"finished": 20}) == {
        "loop_rate": "no run goes in circles",
        "budget_stop_rate": "no run was cut off by a budget",
        "recovery_rate": "no run met an error of a tool, so there was nothing to recover from",
        "tool_error_rate": "no result of a tool was an error",
        "completion_rate": "all 20 runs finished their task",
        "steps_p50": "half of the runs take no more steps than that",
        "steps_p95": "19 of 20 runs take no more steps than that",
        "mean_usd": "1,000 rows like these cost 0.00 USD",
    }


def test_loops_are_counted_and_shown_where_they_are():
    found = said({"finished": 15, "loop_detected": 5})
    assert found["loop_rate"] == (
        "5 of 20 runs go in circles, and that inflates all that follows; "
        "look at agentq runs --where 'batch:b stop_reason:loop_detected'"
    )
    assert found["completion_rate"] == "15 of 20 runs finished their task"
    assert "inflates" not in said({"finished": 99, "loop_detected": 1})["loop_rate"]


def test_budget_stops_name_the_most_frequent_budget_and_come_after_the_loops():
    found = said({"finished": 5, "step_budget": 2, "cost_budget": 3})["budget_stop_rate"]
    assert found.startswith("5 of 10 were cut off: the budget is too tight, or the task too large; look at")
    assert "stop_reason:cost_budget" in found
    loops = said({"loop_detected": 5, "step_budget": 5})["budget_stop_rate"]
    assert "mend the loops first" in loops


@pytest.mark.parametrize(
    "changes, key, words",
    [
        ({"steps_p50": 2.0, "steps_p95": 7.0}, "steps_p95", "3.5 times as many as a usual one"),
        ({"mean_usd": "0.004950"}, "mean_usd", "cost 4.95 USD"),
        ({"unpriced_calls": 3}, "unpriced_calls", "the mean is too low"),
    ],
)
def test_values_that_are_out_of_the_ordinary(changes: dict[str, Any], key: str, words: str):
    assert words in said({"finished": 20}, **changes)[key]


@pytest.mark.parametrize(
    "counters, key, words",
    [
        ({"met": 2, "recovered": 2}, "recovery_rate", "every run that met an error of a tool finished"),
        ({"met": 2, "recovered": 1}, "recovery_rate", "1 of 2 runs that met an error of a tool finished"),
        ({"results": 80, "errors": 5}, "tool_error_rate", "one in 16 results"),
        # In a large batch the rates say 0 and 1.
        ({"results": 10**6, "errors": 9}, "tool_error_rate", "one in 111111 results"),
        ({"met": 10**4, "recovered": 9_999}, "recovery_rate", "9999 of 10000 runs that met an error"),
        ({"results": 10**6, "errors": 1, "met": 1}, "recovery_rate", "0 of 1 runs that met an error"),
    ],
)
def test_errors_of_tools_are_told_from_their_numbers(counters: dict[str, int], key: str, words: str):
    assert said({"finished": 20}, counters)[key].startswith(words)


def test_nothing_is_said_of_nothing():
    assert read_metrics("b", RunMetrics().as_dict(), Counts()) == {}


def test_each_sentence_stands_behind_its_value():
    metrics = RunMetrics(runs=4, loop_rate=0.25, completion_rate=0.75, unpriced_calls=1).as_dict()
    counts = Counts.stored({}, {"finished": 3, "loop_detected": 1})
    lines = reading_lines(metrics, read_metrics("b", metrics, counts))
    assert lines[0].startswith("  loop rate             25.0 %   1 of 4 runs go in circles")
    assert lines[-1].startswith("  unpriced calls             1   calls of a model without a price")
