"""The chaos kit, played: our own agents and the demo's hold every invariant, and a planted bug is found.

These are short forms; `make chaos` plays every case of every agent.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from agentq.testing import make_plan, run_chaos
from tests.chaos.agents import SCRIPTS, app

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
JOBS = 12


def type_chaos(folder, *args):
    """`agentq chaos …` as a person types it in a folder, away from a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "agentq", "chaos", "--jobs", str(JOBS), *args],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def sentences(report):
    return [f"{v.case} {v.run} {v.invariant}: {v.sentence}" for v in report.violations]


def test_a_run_with_every_kind_of_tool_survives_killed_and_frozen_workers():
    """Each crash point at its first two passes, once killed and once frozen past the lease."""
    plan = make_plan(app, agent="writer", script=SCRIPTS["writer"])
    report = run_chaos("tests.chaos.agents:app", app, plan, only=["*/none", "*/freeze"], passes=2, jobs=JOBS)
    assert sentences(report) == []
    assert {outcome.case.point for outcome in report.outcomes} >= {
        "submit.after_write",
        "effect.after_begin",
        "effect.after_tool",
        "effect.after_done",
        "step.after_tools",
        "tick.after_due",
        "rescue.after",
    }


def test_an_answer_that_is_repaired_and_a_run_that_is_summed_up_survive_killed_and_frozen_workers():
    """All that happens around the two calls that are no step."""
    for agent, point in (("reporter", "step.after_repair"), ("reader", "step.after_summary")):
        plan = make_plan(app, agent=agent, script=SCRIPTS[agent])
        only = [f"{point}/*", "step.after_reserve*/none", "step.after_commit*/none"]
        report = run_chaos("tests.chaos.agents:app", app, plan, only=only, passes=4, jobs=JOBS)
        assert sentences(report) == []
        assert point not in report.unreached
        assert point in {outcome.case.point for outcome in report.outcomes}


def test_runs_that_wait_for_people_and_for_children_or_are_stopped_survive_beside_each_other():
    """Three runs in each case; whichever comes by the point first takes the worker of all of them with it."""
    names = ("asker", "stopped", "parent")
    rows = [{"input": "go on", "agent": name, "metadata": {"script": SCRIPTS[name]}} for name in names]
    report = run_chaos(
        "tests.chaos.agents:app", app, make_plan(app, rows=rows), only=["step.*/none"], passes=1, jobs=JOBS
    )
    assert sentences(report) == []
    assert {outcome.case.point for outcome in report.outcomes} >= {
        "step.after_wait",
        "step.after_spawn",
        "step.after_gather",
        "step.after_convert",
        "step.after_closing",
    }
    # None of these agents has an output, or outgrows its window.
    unreached = {point for point in report.unreached if point.startswith("step.")}
    assert unreached == {"step.after_repair", "step.after_summary"}


def test_the_demo_s_agent_survives_lost_late_and_doubled_hints(tmp_path):
    """From the command line, with arguments made from the tools' schemas."""
    done = type_chaos(tmp_path, "-A", "agentq.demo.agents:app", "--agent", "orders", "--only", "effect.*")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "violations = 0"
    assert "cancel_order" in done.stderr
    assert any(line.split() == ["effect.after_tool", *["ok"] * 5] for line in done.stdout.splitlines())


FORGETFUL = dedent(
    '''
    """An app in whose workers the journal of side effects is never asked."""
    from agentq import AgentQ, tool
    from agentq.tools import executor, running

    executor._StepCalls._begin = lambda self, call: None
    running.Running.note = lambda self, result, *, late: None

    @tool(side_effect=True)
    def note(text: str) -> str:
        """Note something. Changes data."""
        return text

    app = AgentQ("forgetful")
    app.agent("desk", model="scripted", tools=[note])
    '''
)


def test_a_side_effect_that_is_not_journalled_is_found_and_said_in_a_sentence(tmp_path):
    """The exit code is 1, and the case can be played again by its name."""
    (tmp_path / "forgetful.py").write_text(FORGETFUL)
    case = "effect.after_tool/none"
    done = type_chaos(tmp_path, "-A", "forgetful:app", "--only", case)
    assert done.returncode == 1, done.stdout + done.stderr
    *_, again, logs, count, last = done.stdout.splitlines()
    assert last == "violations = 1"
    assert count.startswith("1 case in ")
    assert again == f"  agentq chaos -A forgetful:app --passes 3 --only '{case}'"
    folder = Path(logs.removeprefix("  its logs: "))
    assert (folder / "work-2.log").exists()
    shutil.rmtree(folder.parent)
    assert 'note({"text": "text"}) acted 2 times' in done.stdout


@pytest.mark.parametrize(
    "args, sentence",
    [
        (["-A", "agentq.demo.agents:app", "--only", "step.after_modle/*"], "matches no case"),
        (
            ["-A", "agentq.demo.agents:app", "--agent", "order"],
            "there is no agent 'order' (did you mean 'orders'?)",
        ),
        (["-A", "agentq.demo.agents:app", "--script", "none.json"], "--script none.json: No such file"),
        (["-A", "agentq.demo.agents:app", "none.jsonl"], "none.jsonl: no such file or directory"),
        ([], "agentq chaos needs your agents"),
    ],
)
def test_what_cannot_be_played_is_refused_in_a_sentence(tmp_path, args, sentence):
    done = type_chaos(tmp_path, *args)
    assert done.returncode == 2
    assert sentence in done.stderr
    for never in ("Traceback", "The tools really run", "nothing was submitted"):
        assert never not in done.stderr


def test_a_script_that_fails_by_itself_is_refused_before_anything_is_killed(tmp_path):
    (tmp_path / "turns.json").write_text('[[["get_order"]]]')
    done = type_chaos(tmp_path, "-A", "agentq.demo.agents:app", "--agent", "orders", "--script", "turns.json")
    assert done.returncode == 1
    assert "the undisturbed case fails already: agent orders" in done.stderr
    assert "to play" not in done.stderr
