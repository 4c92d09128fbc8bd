"""Workers that are told to stop: what is at hand is finished or given back, and nothing has to be rescued."""

from __future__ import annotations

import os
import sys
import time
from signal import SIGCONT, SIGINT, SIGQUIT, SIGSTOP, SIGTERM
from typing import Any

import pytest

from agentq.core.lifecycle import RunState
from tests.support.processes import StartProcess, is_alive
from tests.support.wait import wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

pytest_plugins = ["tests.support.fleet"]


@pytest.fixture
def slow_app() -> str:
    """The fleet's agents, whose calls take a minute while the file `slow` exists; their tools, `slow-tool`.

    Who takes a step up again need not wait as well.
    """
    from tests.support.fleet import APP  # only now: an earlier import would go past pytest's rewriting

    changes = {
        "class BilledClient": "def nap(name):\n"
        "    if os.path.exists(os.path.join(HERE, name)):\n"
        "        time.sleep(60)\n\n"
        "class BilledClient",
        "time.sleep(float(": "nap('slow')\n        time.sleep(float(",
        'append("marks", f"{row} {turn}")': "append('marks', f'{row} {turn}')\n    nap('slow-tool')",
        "@tool\n": "@tool(side_effect=True, timeout_s=100)\n",
    }
    app = APP
    for old, new in changes.items():
        assert app.count(old) == 1
        app = app.replace(old, new)
    return app


def at_work(fleet: Any, calls: int) -> None:
    """Wait until so many calls were made and are under way."""
    wait_until(lambda: len(fleet.lines("bill")) == calls, f"{calls} calls to be under way", 30)


def attempts(fleet: Any) -> set[int]:
    return {record.attempts for record in fleet.records()}


def test_a_step_at_hand_is_finished_and_nothing_more_is_taken(make_fleet: Any):
    """Runs that are submitted during the drain are another worker's, at once and not by a rescue."""
    fleet = make_fleet()
    stopping = fleet.start_worker(concurrency=4)
    batch = fleet.submit(1, 2, seconds=3)
    at_work(fleet, 1)
    stopping.signal(SIGTERM)
    wait_until(lambda: "Warm shutdown" in stopping.output, "the worker to be told")
    time.sleep(0.3)  # its event loop looks around every 50 ms: now it has heard of it
    late = fleet.submit(5, 2, batch="late")
    assert stopping.wait(40) == 0
    assert "drained: 1 step done, 0 handed back" in stopping.output
    assert "USD" not in stopping.output
    assert fleet.app.workers() == []
    assert len(fleet.lines("bill")) == 1
    assert {record.state for record in fleet.records("late")} == {RunState.QUEUED}
    fleet.start_worker()
    batch.wait(60)
    late.wait(60)
    assert attempts(fleet) == {1}
    assert fleet.app.store.ledger.account("global").spent_nano == fleet.billed_nano()
    assert fleet.app.store.ledger.account("global").forfeited_nano == 0
    fleet.check("b", steps=2)
    fleet.check("late", steps=2)


@pytest.mark.parametrize("launcher", ["agentq.worker", "celery"])
def test_a_call_that_outlives_the_drain_is_cut_booked_and_taken_up_by_another_at_once(
    make_fleet: Any, slow_app: str, start_process: StartProcess, launcher: str
):
    """Without waiting for a lease (15 s) or for a tick that misses the hint."""
    fleet = make_fleet(app=slow_app, drain_seconds=2)
    (fleet.home / "slow").touch()
    if launcher == "celery":
        argv = [sys.executable, "-m", "celery", "-A", "fleet_app:celery", "worker", "-P", "threads"]
        stopping = start_process(argv, env=fleet.env, cwd=fleet.home)
    else:
        stopping = fleet.start_worker(concurrency=2)
    batch = fleet.submit(1, 2)
    at_work(fleet, 1)
    (fleet.home / "slow").unlink()
    reserved = fleet.app.store.ledger.account("batch:b").reserved_nano
    other = fleet.start_worker(concurrency=2)
    stopping.signal(SIGTERM)
    assert stopping.wait(40) == 0
    wait_until(lambda: len(fleet.lines("bill")) >= 2, "another worker to make the call", 10)
    batch.wait(30)
    assert attempts(fleet) == {1}
    assert "RESCUED" not in other.output
    assert batch.account().forfeited_nano == reserved > 0
    assert f"step_cut run={fleet.records()[0].id} step=0 doing='its model call'" in stopping.output
    assert "drained: 0 steps done, 1 handed back, 0." in stopping.output
    assert "USD of cut calls booked in full until their bill is known" in stopping.output
    assert "Traceback" not in stopping.output
    fleet.check("b", steps=2)
    assert len(fleet.lines("bill")) == 3


@pytest.mark.parametrize("signals", [(SIGTERM, SIGTERM), (SIGINT, SIGINT), (SIGQUIT, SIGTERM)])
def test_a_second_signal_gives_the_steps_back_without_waiting_for_them(
    make_fleet: Any, slow_app: str, signals: Any
):
    fleet = make_fleet(app=slow_app, drain_seconds=600)
    (fleet.home / "slow").touch()
    stopping = fleet.start_worker(concurrency=4)
    batch = fleet.submit(3, 2)
    at_work(fleet, 3)
    (fleet.home / "slow").unlink()
    stopping.signal(signals[0])
    wait_until(lambda: "Warm shutdown" in stopping.output, "the worker to be told")
    time.sleep(1)
    assert stopping.returncode is None
    stopping.signal(signals[1])
    # Celery's own code after Ctrl-C is 1.
    assert stopping.wait(40) == (1 if signals[0] is SIGINT else 0)
    assert {record.state for record in fleet.records()} == {RunState.QUEUED}
    assert stopping.output.count("step_cut") == 3
    assert "drained: 0 steps done, 3 handed back" in stopping.output
    assert "Traceback" not in stopping.output
    fleet.start_worker()
    batch.wait(30)
    assert attempts(fleet) == {1}
    fleet.check("b", steps=2)


@pytest.mark.parametrize("number,code", [(SIGTERM, 0), (SIGINT, 130)])
def test_agentq_worker_drains_and_says_by_its_exit_code_who_stopped_it(
    make_fleet: Any, start_process: StartProcess, number: Any, code: int
):
    fleet = make_fleet()
    argv = [sys.executable, "-m", "agentq", "worker", "-A", "fleet_app:app"]
    worker = start_process(argv, env=fleet.env, cwd=fleet.home)
    wait_until(fleet.app.workers, "the worker to sign on", 30)
    fleet.submit(1, 2, seconds=2)
    at_work(fleet, 1)
    worker.signal(number)
    assert worker.wait(40) == code
    assert "drained: 1 step done, 0 handed back" in worker.output
    assert fleet.app.workers() == []
    assert fleet.records()[0].steps == 1


def test_ctrl_c_twice_on_agentq_up_leaves_no_step_to_be_rescued(
    make_fleet: Any, slow_app: str, start_process: StartProcess
):
    fleet = make_fleet(app=slow_app, drain_seconds=600)
    (fleet.home / "slow").touch()
    argv = [sys.executable, "-m", "agentq", "up", "-A", "fleet_app:app", "--workers", "2"]
    up = start_process(argv, env=fleet.env, cwd=fleet.home)
    wait_until(lambda: len(fleet.app.workers()) == 2, "the workers to sign on", 60)
    pids = [int(name.rpartition(":")[2]) for name in fleet.app.workers()]
    batch = fleet.submit(4, 2)
    at_work(fleet, 4)
    (fleet.home / "slow").unlink()
    up.signal(SIGINT)
    wait_until(lambda: "once more gives them back at once" in up.output, "the first Ctrl-C to be heard")
    time.sleep(1)
    assert up.returncode is None
    up.signal(SIGINT)
    assert up.wait(40) == 130
    assert "is killed" not in up.output
    assert up.output.count("step_cut") == 4
    assert not any(is_alive(pid) for pid in pids)
    assert {record.state for record in fleet.records()} == {RunState.QUEUED}
    fleet.start_worker()
    batch.wait(30)
    assert attempts(fleet) == {1}
    fleet.check("b", steps=2)


@pytest.mark.parametrize("at_hand", [True, False])
def test_a_server_that_does_not_answer_keeps_no_worker_from_leaving(
    make_fleet: Any, slow_app: str, at_hand: bool
):
    fleet = make_fleet(app=slow_app, drain_seconds=1)
    (fleet.home / "slow").touch()
    stopping = fleet.start_worker(concurrency=2)
    if at_hand:
        batch = fleet.submit(1, 2)
        at_work(fleet, 1)
        (fleet.home / "slow").unlink()
    os.kill(fleet.server.pid, SIGSTOP)
    try:
        stopping.signal(SIGTERM)
        assert stopping.wait(40) == 0
    finally:
        os.kill(fleet.server.pid, SIGCONT)
    assert "Traceback" not in stopping.output
    if at_hand:
        assert "1 left to the end of their leases, since Redis did not answer" in stopping.output
        fleet.start_worker()
        batch.wait(60)
        fleet.check("b", steps=2)


def test_a_run_that_is_cut_in_a_tool_with_a_side_effect_goes_on_elsewhere(make_fleet: Any, slow_app: str):
    """Its reply is paid once; whether the tool is called again is the journal's business."""
    fleet = make_fleet(app=slow_app, drain_seconds=1)
    (fleet.home / "slow-tool").touch()
    stopping = fleet.start_worker(concurrency=2)
    batch = fleet.submit(1, 3)
    wait_until(lambda: fleet.lines("marks"), "the tool to be at work")
    (fleet.home / "slow-tool").unlink()
    fleet.start_worker(concurrency=2)
    stopping.signal(SIGTERM)
    assert stopping.wait(40) == 0
    assert "doing='its tool mark' booked_usd=0.000000" in stopping.output
    assert "drained: 0 steps done, 1 handed back\n" in stopping.output
    batch.wait(30)
    assert attempts(fleet) == {1}
    assert batch.account().forfeited_nano == 0
    assert len(fleet.lines("bill")) == 3
    fleet.check("b", steps=3)


def test_a_worker_that_is_older_than_the_state_finishes_what_it_has_and_stops(make_fleet: Any):
    fleet = make_fleet(lease_seconds=3)
    worker = fleet.start_worker(concurrency=2)
    fleet.submit(1, 2, seconds=4)
    at_work(fleet, 1)
    fleet.app.store.client.hset(fleet.app.store.keys.ledger, "schema", 99)
    assert worker.wait(40) == 0
    assert worker.output.count("this worker stops by itself: the state has the form 99") == 1
    assert "drained: 1 step done, 0 handed back" in worker.output
    assert (fleet.records()[0].state, fleet.records()[0].steps) == (RunState.QUEUED, 1)
    assert "Traceback" not in worker.output
