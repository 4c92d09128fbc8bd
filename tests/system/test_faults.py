"""Processes die, freeze and lose their messages; the runs do not notice."""

from __future__ import annotations

import os
import sys
from collections import Counter
from functools import partial
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM

import pytest

from agentq.core.lifecycle import RunState, StopReason
from agentq.provider.types import Role
from tests.support.processes import ProcessGroup, is_alive
from tests.support.wait import wait_until

pytestmark = pytest.mark.system

pytest_plugins = ["tests.support.fleet"]


def moved_on(fleet, held):
    """Whether each of these runs has left the hands that held it."""
    store = fleet.app.store
    return all(store.client.hget(store.keys.run(run_id), "fence") != fence for run_id, fence in held.items())


@pytest.mark.timeout(400)
def test_two_hundred_runs_survive_a_worker_killed_every_few_seconds(make_fleet):
    """Every run finishes, each step is committed once, the books cover the bill."""
    fleet = make_fleet()
    workers = [fleet.start_worker(), fleet.start_worker()]
    batch = fleet.submit(200, 10, seconds=0.15)
    for kill in range(6):
        wait_until(lambda: batch.done() or len(fleet.held()) > 8, "both workers to be busy", 60)
        if batch.done():
            break
        victim, held = workers.pop(0), fleet.held()
        victim.signal_group(SIGKILL)
        victim.wait()
        workers.append(fleet.start_worker())
        if kill % 2:
            wait_until(partial(moved_on, fleet, held), "the killed worker's steps to be taken up", 20)
    assert kill >= 3
    batch.wait(240)
    assert batch.counts()["ended"] == 200
    assert batch.account().forfeited_nano > 0
    fleet.check("b", steps=10)
    assert len(Counter(tuple(line) for line in fleet.lines("marks"))) == 200 * 9


@pytest.fixture
def minute_app():
    """The fleet's agents, whose calls take a minute while there is a file `slow`."""
    from tests.support.fleet import APP  # only now: an earlier import would go past pytest's rewriting

    nap = "time.sleep(60 if os.path.exists(os.path.join(HERE, 'slow')) else float("
    assert APP.count("time.sleep(float(") == 1
    return APP.replace("time.sleep(float(", nap)


def test_a_killed_workers_step_is_taken_up_within_twenty_seconds(make_fleet, minute_app):
    """In the middle of a minute's call, with the default lease of 15 s and a second worker at hand."""
    fleet = make_fleet(app=minute_app)
    slow = fleet.home / "slow"
    slow.touch()
    victim = fleet.start_worker(concurrency=4)
    batch = fleet.submit(4, 3)
    wait_until(lambda: len(fleet.lines("bill")) == 4, "the calls to be under way")
    held = fleet.held()
    bystander = fleet.start_worker(concurrency=4)
    victim.signal_group(SIGKILL)
    slow.unlink()
    wait_until(lambda: len(fleet.lines("bill")) >= 8, "the calls to be made again", 20)
    assert moved_on(fleet, held)
    batch.wait(60)
    fleet.check("b", steps=3)
    assert {record.attempts for record in fleet.records()} == {2}
    assert bystander.returncode is None


def test_a_worker_frozen_past_its_lease_can_change_nothing_when_it_thaws(make_fleet):
    """Its commit is refused, its bill is booked as it was, and the run has each step once."""
    fleet = make_fleet(lease_seconds=2)
    frozen = fleet.start_worker(concurrency=1)
    batch = fleet.submit(1, 4, seconds=0.4)
    wait_until(lambda: len(fleet.lines("bill")) == 2, "the second call to be under way")
    frozen.signal_group(SIGSTOP)
    fleet.start_worker(concurrency=1)
    batch.wait(60)
    before = fleet.app.batch("b").account()
    assert before.forfeited_nano > 0
    frozen.signal_group(SIGCONT)
    wait_until(
        lambda: fleet.app.batch("b").account().forfeited_nano == 0,
        "the thawed worker to book what its call cost",
    )
    fleet.check("b", steps=4)
    assert len(fleet.lines("bill")) == 5
    assert fleet.app.batch("b").account().spent_nano == fleet.billed_nano()


def test_a_lost_message_costs_seconds_not_the_run(make_fleet):
    """The broker's list is deleted by hand; the tick sends the hint again."""
    fleet = make_fleet()
    fleet.admit()
    batch, queue = fleet.submit(3, 3), fleet.queue
    assert fleet.app.store.client.llen(queue) == 3
    assert fleet.app.store.client.delete(queue) == 1
    fleet.start_worker()
    batch.wait(30)
    fleet.check("b", steps=3)


def test_a_message_lost_in_the_middle_of_a_run_is_sent_again(make_fleet):
    """The worker dies right after a commit, and the broker loses the hint that the commit had pushed."""
    fleet = make_fleet()
    first = fleet.start_worker(concurrency=1, AGENTQ_FAILPOINTS="step.after_commit=kill")
    batch = fleet.submit(1, 3)
    first.wait(30)
    assert fleet.records()[0].state is RunState.QUEUED
    assert fleet.records()[0].step == 1
    assert fleet.app.store.client.delete(fleet.queue) == 1
    fleet.start_worker()
    batch.wait(30)
    fleet.check("b", steps=3)
    assert len(fleet.lines("bill")) == 3


def test_a_message_that_comes_late_finds_nothing_to_do(make_fleet):
    """The hints of every first step are withheld, sent again by the tick, and come when all is over."""
    fleet = make_fleet()
    fleet.admit()
    queue, client = fleet.queue, fleet.app.store.client
    batch = fleet.submit(5, 3)
    late = client.lpop(queue, 5)
    assert len(late) == 5
    fleet.start_worker()
    batch.wait(30)
    client.rpush(queue, *late)
    wait_until(lambda: client.llen(queue) == 0, "the late messages to be taken")
    # Those before them are done with when one that comes after them is.
    fleet.submit(1, 1, batch="after").wait(30)
    fleet.check("b", steps=3)
    assert len(fleet.lines("bill")) == 5 * 3 + 1
    assert {record.attempts for record in fleet.records()} == {1}


@pytest.fixture
def greedy_app():
    """The fleet's agents under a limit of memory, for which the tool of row 0 and the model of row 1 ask."""
    from tests.support.fleet import APP  # only now: an earlier import would go past pytest's rewriting

    changes = {
        "import json, os, time": "import json, os, resource, time",
        "class BilledClient": (
            'if "MEMORY" in os.environ:\n'
            '    resource.setrlimit(resource.RLIMIT_AS, (int(os.environ["MEMORY"]),) * 2)\n\n'
            "class BilledClient"
        ),
        "time.sleep(float(": 'bytes(8 << 30 if req.metadata["row"] == 1 else 8)\n        time.sleep(float(',
        'append("marks"': 'bytes(8 << 30 if row == 0 else 8)\n    append("marks"',
    }
    app = APP
    for old, new in changes.items():
        assert app.count(old) == 1
        app = app.replace(old, new)
    return app


def test_a_worker_that_has_no_memory_for_one_run_goes_on_with_the_others(make_fleet, greedy_app):
    """The model hears that its tool has failed; a client that never has room ends its run, booked in full."""
    fleet = make_fleet(app=greedy_app)
    worker = fleet.start_worker(concurrency=8, MEMORY=str(4 << 30))
    batch = fleet.submit(8, 3, seconds=0.2)
    batch.wait(60)
    reasons = [record.stop_reason for record in fleet.records()]
    assert reasons == [StopReason.MODEL_ERROR if row == 1 else StopReason.FINISHED for row in range(8)]
    assert "MemoryError" in fleet.records()[1].stop_detail
    assert len(told(fleet)) == 2
    assert all("MemoryError" in text for text in told(fleet))
    fleet.check_closed("b")
    assert worker.returncode is None


@pytest.mark.parametrize(
    "point", ["step.after_claim", "step.after_reserve", "step.after_model", "step.after_tools"]
)
def test_a_worker_that_dies_anywhere_in_a_step_leaves_a_run_that_finishes(make_fleet, point):
    """Each step is committed once and the books cover the bill, wherever it died."""
    fleet = make_fleet(lease_seconds=1, tick_seconds=0.2)
    doomed = fleet.start_worker(concurrency=1, AGENTQ_FAILPOINTS=f"{point}=kill")
    batch = fleet.submit(1, 3)
    doomed.wait(30)
    assert doomed.returncode == -SIGKILL
    fleet.start_worker()
    batch.wait(60)
    fleet.check("b", steps=3)
    # A reply that was committed is never bought again.
    assert len(fleet.lines("bill")) == (4 if point == "step.after_model" else 3)


@pytest.fixture
def acting_app():
    """The fleet's agents with a tool that acts; its second call waits while there is a file `slow`."""
    from tests.support.fleet import APP  # only now: an earlier import would go past pytest's rewriting

    changes = {
        "@tool\n": "@tool(side_effect=True, timeout_s=100)\n",
        'append("marks", f"{row} {turn}")': (
            'append("marks", f"{row} {turn}")\n'
            "    while turn == 1 and os.path.exists(os.path.join(HERE, 'slow')):\n"
            "        time.sleep(0.05)"
        ),
    }
    app = APP
    for old, new in changes.items():
        assert app.count(old) == 1
        app = app.replace(old, new)
    return app


def told(fleet, row=0):
    """What the model of this row was told about its tools, call by call."""
    thread = fleet.app.run(fleet.records()[row].id).thread()
    return [message.content for message in thread.messages if message.role is Role.TOOL]


@pytest.mark.parametrize("point", ["effect.after_begin", "effect.after_tool", "effect.after_done"])
def test_a_side_effect_is_not_repeated_wherever_its_worker_dies(make_fleet, acting_app, point):
    """The model is told that the outcome is unknown, unless it was written down."""
    fleet = make_fleet(app=acting_app, lease_seconds=1, tick_seconds=0.2)
    doomed = fleet.start_worker(concurrency=1, AGENTQ_FAILPOINTS=f"{point}=kill#2")
    batch = fleet.submit(1, 4)
    assert doomed.wait(30) == -SIGKILL
    fleet.start_worker()
    batch.wait(60)
    fleet.check("b", steps=4)
    acted = [0, 2] if point == "effect.after_begin" else [0, 1, 2]
    assert fleet.lines("marks") == [["0", str(turn)] for turn in acted]
    unknown = ["may have taken effect" in text for text in told(fleet)]
    assert unknown == [False, point != "effect.after_done", False]


def test_what_a_frozen_worker_has_done_is_in_the_trace_when_it_thaws(make_fleet, acting_app):
    """Its tool has acted once; the run went on without knowing, and the fact is not lost."""
    fleet = make_fleet(app=acting_app, lease_seconds=2, tick_seconds=0.2)
    slow = fleet.home / "slow"
    slow.touch()
    frozen = fleet.start_worker(concurrency=1)
    batch = fleet.submit(1, 4)
    wait_until(lambda: len(fleet.lines("marks")) == 2, "the second tool to be at work")
    frozen.signal_group(SIGSTOP)
    slow.unlink()
    fleet.start_worker(concurrency=1)
    batch.wait(60)
    frozen.signal_group(SIGCONT)
    (run,) = batch.runs()
    wait_until(lambda: "late_result" in {event.kind for event in run.thread().trace}, "the late fact")
    fleet.check("b", steps=4)
    assert fleet.lines("marks") == [["0", "0"], ["0", "1"], ["0", "2"]]
    assert "may have taken effect" in told(fleet)[1]


def test_a_message_that_comes_three_times_does_each_step_once(make_fleet):
    """Claims decide; doubles find nothing to do."""
    fleet = make_fleet()
    fleet.admit()
    batch = fleet.submit(5, 4)
    for record in fleet.records():
        for _ in range(2):
            fleet.app.dispatch(record.id, 0)
    assert fleet.app.store.client.llen(fleet.queue) == 15
    fleet.start_worker()
    fleet.start_worker()
    batch.wait(60)
    fleet.check("b", steps=4)
    assert len(fleet.lines("bill")) == 5 * 4
    assert fleet.app.store.ledger.account("global").spent_nano == fleet.billed_nano()


def test_early_acknowledgement_survives_a_restarted_server_and_killed_connections(make_fleet):
    """Nothing is ever un-acknowledged, so a blip doubles nothing and a restart takes no worker down."""
    fleet = make_fleet(lease_seconds=3)
    worker = fleet.start_worker(concurrency=8)
    batch = fleet.submit(24, 4, seconds=0.5)
    unacked = fleet.app.store.keys.broker_prefix + "unacked"
    wait_until(lambda: len(fleet.held()) == 8, "the worker to be full")
    assert fleet.app.store.client.hlen(unacked) <= 1
    fleet.restart_server()
    wait_until(fleet.held, "the worker to come back", 30)
    assert fleet.app.store.client.hlen(unacked) <= 1
    fleet.app.store.client.client_kill_filter(skipme=True, _type="normal")
    batch.wait(90)
    fleet.check("b", steps=4)
    assert worker.returncode is None, worker.output


def test_a_worker_asked_to_stop_finishes_its_steps_and_leaves_zero(make_fleet):
    """SIGTERM: the step at hand is committed, the rest stays for others."""
    fleet = make_fleet()
    worker = fleet.start_worker(concurrency=2)
    batch = fleet.submit(2, 3, seconds=1)
    wait_until(lambda: len(fleet.held()) == 2, "the steps to be at work")
    worker.signal(SIGTERM)
    assert worker.wait(30) == 0
    assert fleet.held() == {}
    assert fleet.app.workers() == []
    assert fleet.app.batch("b").account().forfeited_nano == 0
    fleet.start_worker()
    batch.wait(60)
    fleet.check("b", steps=3)
    assert len(fleet.lines("bill")) == 6


def test_leases_are_renewed_until_the_last_step_of_a_stopping_worker_is_done(make_fleet):
    """A call that outlives the lease by far, and a worker that was asked to stop when it had just begun."""
    fleet = make_fleet(lease_seconds=1, tick_seconds=0.2)
    stopping = fleet.start_worker(concurrency=1)
    batch = fleet.submit(1, 2, seconds=4)
    wait_until(lambda: len(fleet.lines("bill")) == 1, "the call to be under way")
    stopping.signal(SIGTERM)
    fleet.start_worker()
    assert stopping.wait(30) == 0
    batch.wait(30)
    fleet.check("b", steps=2)
    assert len(fleet.lines("bill")) == 2
    assert batch.account().forfeited_nano == 0


def test_a_worker_whose_parent_and_server_are_both_gone_leaves_too(make_fleet):
    """A warm shutdown that waits for a broker which never comes back is not waited for for ever."""
    fleet = make_fleet()
    argv = [sys.executable, "-m", "agentq", "up", "-A", "fleet_app:app"]
    up = ProcessGroup(argv, env=fleet.env, cwd=fleet.home)
    try:
        (worker,) = wait_until(fleet.app.workers, "the worker to sign on", 30)
        pid = int(worker.partition(":")[2])
        os.kill(fleet.server.pid, SIGKILL)
    finally:
        up.end()
    wait_until(lambda: not is_alive(pid), "the worker to be gone", 60)


def test_messages_carry_ids_only_and_stay_under_two_kilobytes(make_fleet):
    """A long input is in the state, never in the broker."""
    fleet = make_fleet()
    fleet.app.submit("worker", "long " * 20_000, metadata={"row": 1, "steps": 1})
    (message,) = fleet.app.store.client.lrange(fleet.queue, 0, -1)
    assert len(message) < 2048
    assert "long" not in message
