"""Crash points: all of them are in the table, and a mistake in the variable is refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from signal import SIGKILL

import pytest

from agentq.core.errors import UsageError
from agentq.core.failpoints import FAILPOINTS, FailpointError, check_failpoints, failpoint, passes

PACKAGE = Path(__file__).parents[3] / "agentq"
_CALL = re.compile(r"\bfailpoint\(\"([\w.]+)\"\)")


def test_the_table_and_the_calls_in_the_code_are_the_same_points():
    found = {name for path in PACKAGE.rglob("*.py") for name in _CALL.findall(path.read_text("utf-8"))}
    assert found == set(FAILPOINTS)


def test_a_point_that_is_not_armed_does_nothing(monkeypatch):
    failpoint("step.after_claim")
    monkeypatch.setenv("AGENTQ_FAILPOINTS", "step.after_model=raise")
    failpoint("step.after_claim")
    with pytest.raises(FailpointError):
        failpoint("step.after_model")


def test_an_action_with_a_number_acts_on_that_pass_only(monkeypatch):
    monkeypatch.setenv("AGENTQ_FAILPOINTS", "rescue.before=raise#2")
    before = passes().get("rescue.before", 0)
    assert before == 0
    failpoint("rescue.before")
    with pytest.raises(FailpointError):
        failpoint("rescue.before")
    failpoint("rescue.before")
    assert passes()["rescue.before"] == 3


def test_an_action_with_a_chance_acts_on_some_passes_and_not_on_others(monkeypatch):
    monkeypatch.setenv("AGENTQ_FAILPOINTS", "rescue.after=raise:0.5")
    raised = 0
    for _ in range(400):
        try:
            failpoint("rescue.after")
        except FailpointError:
            raised += 1
    assert 100 < raised < 300


def test_counting_does_nothing_else(monkeypatch):
    monkeypatch.setenv("AGENTQ_FAILPOINTS", "tick.before=count")
    before = passes().get("tick.before", 0)
    failpoint("tick.before")
    assert passes()["tick.before"] == before + 1


@pytest.mark.parametrize(
    "spec, sentence",
    [
        (
            "step.after_modell=kill",
            "there is no crash point 'step.after_modell' (did you mean 'step.after_model",
        ),
        ("step.after_model=kil", "step.after_model=kil is no action (did you mean 'kill'?)"),
        ("step.after_model=kill#0", "step.after_model=kill#0 is no action"),
    ],
)
def test_a_point_or_an_action_that_does_not_exist_is_refused(monkeypatch, spec, sentence):
    monkeypatch.setenv("AGENTQ_FAILPOINTS", spec)
    with pytest.raises(UsageError) as refused:
        check_failpoints()
    assert sentence in str(refused.value)


def test_kill_ends_the_process_as_kill_nine_does():
    done = subprocess.run(
        [sys.executable, "-c", "from agentq.core.failpoints import failpoint; failpoint('tick.before')"],
        env={**os.environ, "AGENTQ_FAILPOINTS": "tick.before=kill", "PYTHONPATH": str(PACKAGE.parent)},
        timeout=60,
        check=False,
    )
    assert done.returncode == -SIGKILL
