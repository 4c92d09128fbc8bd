"""Tools in processes of their own on real Celery workers: killed in time, and gone with their worker."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from agentq.core.lifecycle import StopReason
from tests.support.processes import is_alive
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from tests.support.fleet import Fleet

pytestmark = pytest.mark.system

pytest_plugins = ["tests.support.fleet"]

APP = dedent(
    """
    import os, subprocess, time
    from agentq import AgentQ, CallContext, tool

    HERE = os.path.dirname(os.path.abspath(__file__))

    def note(*pids):
        with open(os.path.join(HERE, "pids"), "a") as file:
            file.write("".join(f"{pid}\\n" for pid in pids))

    @tool(isolation="process", timeout_s=1)
    def hang() -> str:
        '''Hang.'''
        note(os.getpid(), subprocess.Popen(["sleep", "600"], start_new_session=True).pid)
        time.sleep(60)
        return "awake"

    @tool(isolation="process", timeout_s=60, side_effect=True)
    def hang_long() -> str:
        '''Hang for long.'''
        note(os.getpid(), subprocess.Popen(["sleep", "600"], start_new_session=True).pid)
        time.sleep(60)
        return "awake"

    @tool(isolation="process", timeout_s=60, spill=True, max_result_chars=10)
    def long(ctx: CallContext) -> str:
        '''Be long.'''
        return f"{ctx.run_id} {os.getppid() != os.getpid()} " + "x" * 500

    app = AgentQ("fleet")
    celery = app.celery
    app.agent("a", model="scripted", tools=[hang, hang_long, long])
    """
)


def noted(fleet: Fleet) -> list[int]:
    path: Path = fleet.home / "pids"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_runs_go_on_without_tools_that_hang_and_nothing_of_them_is_left(make_fleet: Any):
    fleet: Fleet = make_fleet(app=APP)
    fleet.start_worker()
    script = [[["long", "{}"]], [["hang", "{}"]], "done"]
    rows = [{"input": f"row {n}", "metadata": {"script": script}} for n in range(6)]
    batch = fleet.app.submit_many("a", rows, batch="b")
    batch.wait(timeout=90)
    for run in batch.runs():
        assert run.record().stop_reason is StopReason.FINISHED, run.record()
        results = [json.loads(m.content) for m in run.thread().messages if m.tool_call_id]
        assert [result["error_code"] for result in results] == [None, "timeout"], results
        assert results[0]["content"].startswith("[kept: ")
        assert next(iter(run.thread().kept.values())).startswith(f"{run.id} True xxx")
    # A call may have been over before its process was there; what has begun is gone.
    assert [pid for pid in noted(fleet) if is_alive(pid)] == []
    fleet.check_closed("b")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_ends_takes_its_tools_with_it(make_fleet: Any, number: signal.Signals):
    fleet: Fleet = make_fleet(app=APP, drain_seconds=1)
    worker = fleet.start_worker()
    fleet.app.submit("a", "hang", metadata={"script": [[["hang_long", "{}"]], "done"]})
    wait_until(lambda: len(noted(fleet)) == 2, "the tool to begin", 30)
    os.kill(worker.pid, number)
    wait_until(lambda: not any(is_alive(pid) for pid in noted(fleet)), "the tool to end", 30)
    worker.wait()
