"""What the whole has to say about points at which nothing was killed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

from agentq.core.failpoints import FAILPOINTS
from agentq.testing.acts import Act
from agentq.testing.case import Case
from agentq.testing.chaos import WHY_NOT, Outcome, _missed, _play_all
from agentq.testing.verdict import Facts, Violation

NOTHING = Facts([], 0, [], 0, [], {}, 0, 0, {}, [], [])
ALL = dict.fromkeys(FAILPOINTS, 1)


def missed(passed, facts):
    return [violation.sentence.split()[5].rstrip(",") for violation in _missed(passed, facts)]


def test_a_point_that_every_run_comes_by_must_have_been_passed():
    assert missed(ALL, NOTHING) == []
    assert missed({**ALL, "step.after_model": 0}, NOTHING) == ["step.after_model"]


def test_a_point_that_only_some_apps_come_by_need_not_be_passed():
    assert missed({point: 1 for point in FAILPOINTS if point not in WHY_NOT}, NOTHING) == []


def test_where_a_tool_has_acted_its_points_must_have_been_passed():
    acted = replace(NOTHING, acts=[Act("r1", "note", "r1:note:0", 1)])
    passed = {point: 1 for point in FAILPOINTS if not point.startswith("effect.")}
    assert missed(passed, NOTHING) == []
    assert missed(passed, acted) == ["effect.after_begin", "effect.after_tool", "effect.after_done"]


def test_every_point_is_either_always_passed_or_has_a_reason_not_to_be():
    assert set(WHY_NOT) <= set(FAILPOINTS)


class Stage:
    """Plays nothing: of each case it is given, from one play to the next, whether it was tested."""

    def __init__(self, tested):
        self._tested = {Case(point): iter(plays) for point, plays in tested.items()}
        self.stopping = Event()

    def outcome(self, case, undisturbed, *, again=False):
        tested = next(self._tested[case])
        found = [] if tested else [Violation(case.name, "", "end", "nothing was tested")]
        return Outcome(case, 1.0, found, Path("again" if again else "first"), untested=not tested)


def told(tested):
    outcomes: list[Outcome] = []
    stage: Any = Stage(tested)
    _play_all(stage, [Case(point) for point in tested], NOTHING, 1, outcomes.append)
    return [(o.case.point, bool(o.violations), str(o.folder)) for o in outcomes]


def test_a_case_in_which_nothing_was_tested_is_played_once_more_by_itself_before_it_is_told():
    assert told({"a": [False, True], "b": [True], "c": [False, True]}) == [
        ("b", False, "first"),
        ("a", False, "again"),
        ("c", False, "again"),
    ]


def test_when_a_case_comes_to_no_more_by_itself_the_others_are_told_as_they_were():
    assert told({"a": [False, False], "b": [True], "c": [False]}) == [
        ("b", False, "first"),
        ("a", True, "again"),
        ("c", True, "first"),
    ]
