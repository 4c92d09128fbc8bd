"""What becomes of hints: twice, late, or lost the first time."""

from __future__ import annotations

import pytest

from agentq.testing.delivery import FaultyDispatch


@pytest.mark.parametrize(
    "fault, first, second",
    [("none", 1, 1), ("duplicate", 2, 2), ("lost", 0, 1)],
)
def test_a_hint_and_its_repetition_arrive_so_often(fault, first, second, tmp_path):
    sent: list[tuple[str, int]] = []
    dispatch = FaultyDispatch(
        lambda run_id, step: sent.append((run_id, step)), fault, late_seconds=60, folder=tmp_path
    )
    dispatch("r1", 0)
    assert sent == [("r1", 0)] * first
    dispatch("r1", 0)
    assert sent == [("r1", 0)] * (first + second)


def test_each_step_s_first_hint_is_lost_and_only_in_one_of_the_processes(tmp_path):
    sent: list[tuple[str, int]] = []
    dispatch = FaultyDispatch(
        lambda run_id, step: sent.append((run_id, step)), "lost", late_seconds=60, folder=tmp_path
    )
    for step in (0, 1, 1):
        dispatch("r1", step)
    assert sent == [("r1", 1)]
    another = FaultyDispatch(
        lambda run_id, step: sent.append((run_id, step)), "lost", late_seconds=60, folder=tmp_path
    )
    another("r1", 0)
    assert sent == [("r1", 1), ("r1", 0)]


def test_a_late_hint_arrives_after_its_repetition(tmp_path):
    sent: list[int] = []
    dispatch = FaultyDispatch(
        lambda run_id, step: sent.append(step), "late", late_seconds=0.05, folder=tmp_path
    )
    dispatch("r1", 0)
    assert sent == []
    dispatch("r1", 0)
    assert sent == [0]
    dispatch.drain()
    assert sent == [0, 0]
