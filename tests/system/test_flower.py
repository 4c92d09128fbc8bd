"""Celery's own commands on the user's module: its worker does the steps, its monitor shows them."""

from __future__ import annotations

import json
import socket
import sys
from http.client import HTTPConnection

import pytest

from tests.support.processes import ProcessGroup
from tests.support.wait import wait_until

pytestmark = pytest.mark.system

pytest_plugins = ["tests.support.fleet"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(port, path):
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except OSError:
        return 0, ""
    finally:
        connection.close()


def seen_workers(port):
    status, body = get(port, "/api/workers?refresh=1")
    return json.loads(body) if status == 200 else {}


def tasks(port):
    status, body = get(port, "/api/tasks?limit=100")
    return json.loads(body) if status == 200 else {}


@pytest.mark.parametrize("started_by", ["celery", "agentq up"])
def test_flower_shows_each_step_with_its_run(make_fleet, started_by):
    """Run and step stand in the arguments and the task's id, never in the task's name."""
    fleet, port = make_fleet(), free_port()
    env = {**fleet.env, "FLOWER_UNAUTHENTICATED_API": "1"}
    celery = [sys.executable, "-m", "celery", "-A", "fleet_app:celery"]
    if started_by == "celery":
        programs = [
            [*celery, "worker", "--task-events"],
            [*celery, "flower", "--address=127.0.0.1", f"--port={port}"],
        ]
    else:
        programs = [
            [sys.executable, "-m", "agentq", "up", "-A", "fleet_app:app", "--flower", "--port", str(port)]
        ]
    processes = [ProcessGroup(program, env=env, cwd=fleet.home) for program in programs]
    try:
        wait_until(fleet.app.workers, "the worker to sign on", 30)
        wait_until(lambda: get(port, "/healthcheck")[0] == 200, "Flower to answer", 30)
        wait_until(lambda: seen_workers(port), "Flower to see the worker", 30)
        fleet.submit(2, 3).wait(60)
        wait_until(lambda: len(tasks(port)) == 6, "Flower to show the six steps", 30)
        shown = tasks(port)
        fleet.check("b", steps=3)
    finally:
        for process in processes:
            process.end()
    for run in fleet.app.batch("b").runs():
        steps = {task["kwargs"]: uuid for uuid, task in shown.items() if run.id in task["kwargs"]}
        assert set(steps) == {f"{{'run_id': '{run.id}', 'step': {step}}}" for step in range(3)}
        assert all(uuid.startswith(f"{run.id}.") for uuid in steps.values())
    assert {task["name"] for task in shown.values()} == {"agentq.step"}
    assert {task["state"] for task in shown.values()} == {"SUCCESS"}
