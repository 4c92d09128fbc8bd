from __future__ import annotations

import pytest

from tests.support.wait import wait_until


def test_the_answer_is_returned():
    answers = iter([None, 0, "done"])
    assert wait_until(lambda: next(answers), "an answer") == "done"


def test_the_failure_says_what_was_waited_for():
    with pytest.raises(AssertionError, match=r"waited 0\.05 s for the moon; last answer: 0"):
        wait_until(lambda: 0, "the moon", timeout=0.05)
