"""A repeated call is warned about, then stopped."""

from __future__ import annotations

import json

import pytest

from agentq.agent.loopdetect import LoopDetector, Verdict, digest


def test_the_second_is_warned_about_and_the_third_stops() -> None:
    """Other calls in between do not matter."""
    detector = LoopDetector()
    assert detector.observe("a", "x") is Verdict.OK
    assert detector.observe("b", "x") is Verdict.OK
    assert detector.observe("a", "x") is Verdict.WARN
    assert detector.observe("a", "x") is Verdict.STOP
    assert detector.observe("b", "x") is Verdict.WARN


def test_another_result_begins_the_count_again() -> None:
    """Progress is not a loop."""
    detector = LoopDetector()
    verdicts = [detector.observe("a", result) for result in ("x", "x", "y", "y", "y")]
    assert verdicts == [Verdict.OK, Verdict.WARN, Verdict.OK, Verdict.WARN, Verdict.STOP]


def test_a_result_that_keeps_changing_stops_at_its_own_threshold() -> None:
    """Polling has an end too, without warnings."""
    detector = LoopDetector(changing_stop_at=4)
    verdicts = [detector.observe("poll", str(n)) for n in range(4)]
    assert verdicts == [Verdict.OK, Verdict.OK, Verdict.OK, Verdict.STOP]


def test_counts_can_be_folded_from_digests() -> None:
    """As the distributed store does from the trace."""
    direct, folded = LoopDetector(), LoopDetector()
    for result in ("x", "x", "y", "x"):
        assert direct.observe("a", result) is folded.observe_digest("a", digest(result))
    assert direct == folded
    assert len(digest("x")) == 8


def test_thresholds_and_counts_survive_json() -> None:
    """A resumed run goes on counting where it was."""
    detector = LoopDetector(warn_at=3, stop_at=4, changing_stop_at=9)
    for result in ("x", "y", "y"):
        detector.observe("a", result)
    again = LoopDetector.from_dict(json.loads(json.dumps(detector.as_dict())))
    assert again == detector
    assert again.observe("a", "y") is Verdict.WARN
    fresh = again.fresh()
    assert (fresh.warn_at, fresh.stop_at, fresh.changing_stop_at, fresh.counts) == (3, 4, 9, {})
    assert again.counts


@pytest.mark.parametrize("name", ["warn_at", "stop_at", "changing_stop_at"])
def test_a_threshold_that_fires_at_first_sight_is_refused(name: str) -> None:
    """Nothing repeats the first time."""
    with pytest.raises(ValueError, match="use 2 or more"):
        LoopDetector(**{name: 1})  # type: ignore[arg-type]
