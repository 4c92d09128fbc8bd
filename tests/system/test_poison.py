"""Runs that kill their process again and again: they end, and those beside them finish."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from agentq.core.lifecycle import StopReason
from tests.support.processes import ProcessGroup, StartProcess
from tests.support.wait import wait_until

if TYPE_CHECKING:  # it is a plugin, and must not be imported before pytest does
    from tests.support.fleet import Fleet

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

pytest_plugins = ["tests.support.fleet"]

DEATHS = 5
PLACES = {"model": ('append("bill"', 'req.metadata["row"]'), "tool": ('append("marks"', "row")}
"""Where the fleet's app dies: before which line, and what the row is called there."""


def poisoned(rows: set[int], where: str) -> str:
    """The fleet's agents, of which these rows read at address 0.

    Until that has happened twice all calls take two seconds, so that each death takes every neighbour along.
    """
    from tests.support.fleet import APP  # only now: an earlier import would go past pytest's rewriting

    line, row = PLACES[where]
    indent = "        " if where == "model" else "    "
    changes = {
        "import json, os, time": "import ctypes, json, os, time",
        "class BilledClient": (
            "def segfault(row):\n"
            f"    if row in {rows}:\n"
            '        append("deaths", f"{row}")\n'
            "        time.sleep(1)\n"
            "        ctypes.string_at(0)\n\n"
            "def deaths():\n"
            '    path = os.path.join(HERE, "deaths")\n'
            "    return len(open(path).readlines()) if os.path.exists(path) else 0\n\n"
            "class BilledClient"
        ),
        line: f"segfault({row})\n{indent}{line}",
        "time.sleep(float(": "time.sleep(2 if deaths() < 2 else float(",
    }
    app = APP
    for old, new in changes.items():
        assert app.count(old) == 1
        app = app.replace(old, new)
    return app


def check(fleet: Fleet, poison: set[int]) -> None:
    """These have ended for their deaths, five each, and all others with an answer."""
    for record in fleet.records():
        fatal = record.spec.metadata["row"] in poison
        assert record.stop_reason is (StopReason.ATTEMPTS_EXHAUSTED if fatal else StopReason.FINISHED), record
    deaths = [int(row) for (row,) in fleet.lines("deaths")]
    assert {row: deaths.count(row) for row in poison} == dict.fromkeys(poison, DEATHS), deaths
    fleet.check_closed("b")


@pytest.mark.parametrize("where", PLACES)
def test_one_of_a_hundred_threads_that_kills_its_process_ends_and_the_others_finish(
    make_fleet: Any, start_process: StartProcess, where: str
):
    """Under the supervisor of `agentq up`, which starts the worker again each time."""
    fleet = make_fleet(app=poisoned({42}, where), lease_seconds=3, tick_seconds=0.2)
    argv = [sys.executable, "-m", "agentq", "up", "-A", "fleet_app:app", "--concurrency", "100"]
    up = start_process(argv, env=fleet.env, cwd=fleet.home)
    wait_until(fleet.app.workers, "the worker to sign on", 60)
    batch = fleet.submit(100, 2)
    batch.wait(200)
    check(fleet, {42})
    place = "its tools" if where == "tool" else "its model call"
    assert fleet.records()[42].stop_detail == f"the process died {DEATHS} times in step 1, in {place}"
    assert up.returncode is None, up.output


@pytest.mark.parametrize(
    "poison, rows, workers, concurrency",
    [
        pytest.param({17, 71}, 100, 1, 100, id="in one process"),
        pytest.param({3, 40, 100}, 120, 3, 16, id="one after another in three processes"),
    ],
)
def test_several_that_kill_their_processes_end_each_by_its_own_deaths(
    make_fleet: Any, poison: set[int], rows: int, workers: int, concurrency: int
):
    """No neighbour is taken for what has killed them all, also beside one that is no suspect yet."""
    fleet = make_fleet(app=poisoned(poison, "model"), lease_seconds=3, tick_seconds=0.2)
    alive: list[ProcessGroup] = []
    batch = fleet.submit(rows, 2)

    def done() -> bool:
        """Whether all is over; a worker that is gone is replaced until then."""
        alive[:] = [worker for worker in alive if worker.returncode is None]
        while len(alive) < workers:
            alive.append(fleet.start_worker(concurrency=concurrency))
        return batch.done()

    wait_until(done, "all to end", 200)
    check(fleet, poison)
