"""The matrix of cases, and how some of them are chosen."""

from __future__ import annotations

import pytest

from agentq.core.errors import UsageError
from agentq.core.failpoints import FAILPOINTS, armed
from agentq.testing.case import FAULTS, Case, chosen, matrix, possible

PASSED = {"step.after_claim": 3, "step.after_model": 1, "submit.after_write": 1, "tick.before": 40}


def names(cases):
    return [case.name for case in cases]


def test_each_point_that_is_passed_is_crossed_with_each_fault():
    found = names(matrix(PASSED, passes=1))
    assert [name for name in found if name.startswith("step.")] == [
        f"{point}/{fault}" for point in ("step.after_claim", "step.after_model") for fault in FAULTS
    ]
    assert not [name for name in found if name.startswith("effect.")]


def test_later_passes_are_killed_and_frozen_as_often_as_there_are_such():
    found = names(matrix(PASSED, passes=2))
    assert "step.after_claim#2/none" in found
    assert "step.after_claim#2/freeze" in found
    assert "step.after_claim#2/lost" not in found
    assert "step.after_claim#3/none" not in found
    assert "step.after_model#2/none" not in found


def test_what_a_worker_does_all_the_time_is_killed_when_it_has_something_to_lose():
    assert [name for name in names(matrix(PASSED, passes=1)) if name.startswith("tick.")] == [
        f"tick.before#3/{fault}" for fault in FAULTS
    ]


def test_a_rescue_is_always_played_and_has_somebody_to_rescue():
    (case,) = [case for case in matrix({}, passes=1) if case.name == "rescue.after/none"]
    assert case.work_arms == ("step.after_claim=kill", "rescue.after=kill#1")


def test_who_submits_dies_in_the_process_that_submits():
    case = Case("submit.after_write")
    assert (case.submit_arms, case.work_arms) == (("submit.after_write=kill#1",), ())


def test_every_case_is_armed_with_what_there_is():
    for case in matrix(dict.fromkeys(FAILPOINTS, 9), passes=9):
        for arm in case.submit_arms + case.work_arms:
            assert armed(arm)


@pytest.mark.parametrize(
    "pattern, count", [("step.after_claim", 5), ("*/late", 6), ("step.after_m*/none", 1)]
)
def test_cases_are_chosen_by_a_pattern_or_by_how_they_begin(pattern, count):
    assert len(chosen(matrix(PASSED, passes=1), [pattern])) == count


def test_a_pattern_that_chooses_nothing_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match=r"did you mean 'step\.after_claim/lost'"):
        chosen(matrix(PASSED, passes=1), ["step.*", "step.after_clam/lost"])


def test_several_patterns_choose_what_any_of_them_does_and_none_chooses_all():
    cases = matrix(PASSED, passes=1)
    assert chosen(cases, []) == cases
    assert names(chosen(cases, ["*claim/lost", "step.after_claim/none"])) == [
        "step.after_claim/none",
        "step.after_claim/lost",
    ]


def test_whatever_cases_an_app_has_are_among_the_possible_ones():
    assert set(matrix(PASSED, passes=2)) < set(possible(2))
    assert chosen(possible(2), ["step.after_claim#2/freeze"])
    with pytest.raises(UsageError, match=r"--only 'foo.\*' matches no case"):
        chosen(possible(2), ["foo.*"])
