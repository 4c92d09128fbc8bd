"""Redis, the broker or the network is away for a while: workers wait for it, and nothing is done twice.

Where no worker has died, nothing may be rescued, forfeited or bought again, however long it was.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any

import pytest

from agentq.provider.types import Role
from agentq.worker.embedded import EmbeddedServer
from tests.support.proxy import proxied
from tests.support.wait import wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

pytest_plugins = ["tests.support.fleet"]

LEASE_SECONDS = 2
LONGER_SECONDS = 3 * LEASE_SECONDS


def at_work(fleet: Any, steps: int) -> None:
    """Wait until so many steps are held by workers."""
    wait_until(lambda: len(fleet.held()) >= steps, f"{steps} steps to be at work", 60)


def crashed(fleet: Any, seconds: float) -> None:
    """The server is killed, refuses connections for so long, and comes back with its data."""
    os.kill(fleet.server.pid, SIGKILL)
    fleet.server.stop()
    time.sleep(seconds)
    fleet.server = EmbeddedServer.start(fleet.home)


def frozen(fleet: Any, seconds: float) -> None:
    """The server answers nothing for so long, and then all at once."""
    os.kill(fleet.server.pid, SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(fleet.server.pid, SIGCONT)


@pytest.mark.parametrize("away, seconds", [(frozen, 45), (crashed, 20)])
def test_two_hundred_running_steps_outlive_a_server_that_is_away_for_longer_than_a_lease(
    make_fleet: Any, away: Any, seconds: float
):
    """With default leases; most calls come back meanwhile, and their replies are kept."""
    fleet = make_fleet()
    workers = [fleet.start_worker(concurrency=100) for _ in range(2)]
    batch = fleet.submit(200, 3, seconds=4)
    at_work(fleet, 200)
    away(fleet, seconds)
    batch.wait(120)
    fleet.check_undisturbed("b", rows=200, steps=3)
    assert all(worker.returncode is None for worker in workers)


@pytest.mark.parametrize("away", [frozen, crashed])
def test_who_holds_a_lease_keeps_it_when_the_server_was_away_for_longer(make_fleet: Any, away: Any):
    """Calls that are under way all the time, and others that come back when nobody is there."""
    fleet = make_fleet(lease_seconds=LEASE_SECONDS, tick_seconds=0.2)
    for _ in range(2):
        fleet.start_worker(concurrency=4)
    long = fleet.submit(4, 1, batch="long", seconds=LONGER_SECONDS + 4)
    batch = fleet.submit(4, 3, seconds=LEASE_SECONDS)
    at_work(fleet, 4)
    wait_until(lambda: len(fleet.held("long")) == 4, "the long calls to be under way")
    away(fleet, LONGER_SECONDS)
    long.wait(60)
    batch.wait(60)
    fleet.check("long", steps=1)
    fleet.check("b", steps=3)
    assert {r.attempts for name in ("long", "b") for r in fleet.records(name)} == {1}
    assert len(fleet.lines("bill")) == 4 + 4 * 3
    assert fleet.app.store.ledger.account("global").spent_nano == fleet.billed_nano()


@pytest.mark.parametrize("away", [frozen, crashed])
def test_tools_that_act_while_the_server_is_away_are_written_down_when_it_is_back(make_fleet: Any, away: Any):
    """Each acts once and its outcome is known, although its worker could not say so for three leases."""
    from tests.support.fleet import APP  # only now: an earlier import would go past pytest's rewriting

    tool, line = "@tool\n", 'append("marks", f"{row} {turn}")'
    assert APP.count(tool) == APP.count(line) == 1
    app = APP.replace(tool, "@tool(side_effect=True)\n").replace(line, f"time.sleep(1)\n    {line}")
    fleet = make_fleet(app=app, lease_seconds=LEASE_SECONDS, tick_seconds=0.2)
    for _ in range(2):
        fleet.start_worker(concurrency=6)
    batch = fleet.submit(24, 4)
    wait_until(lambda: len(fleet.lines("marks")) > 12, "tools to act", 60)
    at_work(fleet, 8)
    away(fleet, LONGER_SECONDS)
    batch.wait(60)
    fleet.check_undisturbed("b", rows=24, steps=4)
    acted = sorted((int(row), int(turn)) for row, turn in fleet.lines("marks"))
    assert acted == [(row, turn) for row in range(24) for turn in range(3)]
    messages = [message for run in batch.runs() for message in run.thread().messages]
    told = [json.loads(message.content) for message in messages if message.role is Role.TOOL]
    assert [answer["ok"] for answer in told] == [True] * 24 * 3


def test_nothing_is_rescued_when_every_worker_was_frozen_for_longer_than_a_lease(make_fleet: Any):
    """The first that looks around takes the others for late, not for dead."""
    fleet = make_fleet(lease_seconds=LEASE_SECONDS, tick_seconds=0.2)
    workers = [fleet.start_worker(concurrency=4) for _ in range(3)]
    batch = fleet.submit(12, 1, seconds=LONGER_SECONDS + 4)
    at_work(fleet, 12)
    for worker in workers:
        worker.signal_group(SIGSTOP)
    time.sleep(LONGER_SECONDS)
    for worker in workers:
        worker.signal_group(SIGCONT)
        time.sleep(0.3)  # it ticks before the next one can renew
    batch.wait(60)
    fleet.check_undisturbed("b", rows=12, steps=1)


@pytest.mark.parametrize("broken", ["the network", "by the server"])
def test_connections_that_break_again_and_again_under_load_double_nothing(make_fleet: Any, broken: str):
    """A request whose answer was lost is sent again, and does nothing more."""
    fleet = make_fleet()
    with proxied(fleet.server.url) as line:
        workers = [fleet.start_worker(concurrency=8, **line.env) for _ in range(2)]
        batch = fleet.submit(60, 5, seconds=0.3)
        for _ in range(8):
            at_work(fleet, 4)
            if broken == "the network":
                line.cut()
                time.sleep(0.5)
                line.mend()
            else:
                fleet.app.store.client.client_kill_filter(skipme=True, _type="normal")
                time.sleep(0.3)
        assert not batch.done()
        batch.wait(120)
    fleet.check_undisturbed("b", rows=60, steps=5)
    assert all(worker.returncode is None for worker in workers)


def test_a_worker_whose_network_is_gone_for_longer_than_its_lease_changes_nothing_when_it_is_back(
    make_fleet: Any,
):
    """What it had sent arrives late: its bill is booked as it was, and the run has each step once."""
    fleet = make_fleet(lease_seconds=LEASE_SECONDS, tick_seconds=0.2)
    with proxied(fleet.server.url) as line:
        lonely = fleet.start_worker(concurrency=1, **line.env)
        batch = fleet.submit(1, 4, seconds=0.4)
        wait_until(lambda: len(fleet.lines("bill")) == 2, "the second call to be under way")
        line.swallow()
        fleet.start_worker(concurrency=1)
        batch.wait(60)
        assert batch.account().forfeited_nano > 0
        line.mend()
        wait_until(lambda: batch.account().forfeited_nano == 0, "the bill of the cut call to be booked", 30)
        assert lonely.returncode is None
    fleet.check("b", steps=4)
    assert len(fleet.lines("bill")) == 5
    assert batch.account().spent_nano == fleet.billed_nano()


def test_a_server_whose_memory_is_full_for_a_while_holds_work_up_and_nothing_else(make_fleet: Any):
    """What is under way ends, nothing begins, and all goes on when there is room."""
    fleet = make_fleet()
    workers = [fleet.start_worker(concurrency=8) for _ in range(2)]
    batch = fleet.submit(60, 4, seconds=0.3)
    client = fleet.app.store.client
    for _ in range(2):
        at_work(fleet, 8)
        client.config_set("maxmemory", "1mb")
        wait_until(lambda: not fleet.held(), "the steps at hand to end", 30)
        client.config_set("maxmemory", "0")
    assert not batch.done()
    batch.wait(120)
    fleet.check_undisturbed("b", rows=60, steps=4)
    assert all(worker.returncode is None for worker in workers)


# ── a broker of its own ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def broker_home() -> Iterator[Path]:
    """The folder of a second server."""
    home = Path(tempfile.mkdtemp(prefix="aqb-", dir="/tmp"))
    yield home
    shutil.rmtree(home, ignore_errors=True)


@pytest.mark.parametrize("keeps", [True, False], ids=["with its messages", "empty"])
def test_a_broker_of_its_own_may_go_and_come_back_while_the_state_is_there(
    make_fleet: Any, broker_home: Path, *, keeps: bool
):
    """Steps at work are committed, rows are taken, and all of them go on when there are messages again."""
    broker = EmbeddedServer.start(broker_home)
    try:
        fleet = make_fleet(broker_url=broker.broker_url)
        workers = [fleet.start_worker(concurrency=8) for _ in range(2)]
        batch = fleet.submit(40, 4, seconds=0.5)
        at_work(fleet, 12)
        os.kill(broker.pid, SIGKILL)
        broker.stop()
        late = fleet.submit(20, 1, batch="late")
        wait_until(lambda: not fleet.held(), "the steps at work to be committed", 30)
        assert not batch.done()
        if not keeps:
            shutil.rmtree(broker_home / "redis")
        broker = EmbeddedServer.start(broker_home)
        batch.wait(120)
        late.wait(60)
        fleet.check("late", steps=1)
        fleet.check("b", steps=4)
        assert {record.attempts for record in fleet.records()} == {1}
        assert len(fleet.lines("bill")) == 40 * 4 + 20
        assert all(worker.returncode is None for worker in workers)
    finally:
        broker.stop()
