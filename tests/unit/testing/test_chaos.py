"""What the whole has to say about points at which nothing was killed."""

from __future__ import annotations

from dataclasses import replace

from agentq.core.failpoints import FAILPOINTS
from agentq.testing.acts import Act
from agentq.testing.chaos import WHY_NOT, _missed
from agentq.testing.verdict import Facts

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
