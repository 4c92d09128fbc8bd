"""A checkup beside real workers: what it finds must be so, also while everything moves and processes die."""

from __future__ import annotations

import threading
from signal import SIGKILL

import pytest

from agentq.core.money import NANO
from agentq.core.records import Actor
from agentq.store.checkup import examine
from tests.support.harness import check_runs
from tests.support.wait import wait_until
from tests.system.test_children import APP

pytestmark = pytest.mark.system

pytest_plugins = ["tests.support.fleet"]


def rows(count):
    return [{"input": "go", "custom_id": str(row)} for row in range(count)]


@pytest.mark.timeout(300)
def test_a_busy_system_has_no_findings_while_workers_are_killed_and_batches_paused_and_cancelled(make_fleet):
    """Trees of runs, runs that wait for money, a pause, a cancel and two kills, looked at all the while."""
    fleet = make_fleet(app=APP, lease_seconds=3)
    store, found, looks, done = fleet.app.store, [], [], threading.Event()

    def watch():
        while not done.is_set():
            checkup = examine(store)
            looks.append(checkup)
            found.extend(checkup.findings)

    trees = fleet.app.submit_many("top", rows(6), batch="trees")
    dry = fleet.app.submit_many("kid", rows(30), batch="dry", max_usd="0.02")
    doomed = fleet.app.submit_many("kid", rows(30), batch="doomed")
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        workers = [fleet.start_worker(concurrency=8), fleet.start_worker(concurrency=8)]
        wait_until(lambda: dry.counts()["parked"], "runs to wait for money", 60)
        dry.pause()
        for _ in range(2):
            wait_until(lambda: trees.counts()["running"] >= 4 or trees.done(), "trees to be at work", 60)
            victim = workers.pop(0)
            victim.signal_group(SIGKILL)
            victim.wait()
            workers.append(fleet.start_worker(concurrency=8))
        doomed.cancel()
        store.ledger.topup("batch:dry", usd=NANO, actor=Actor("more", "ann"))
        dry.resume()
        for batch in (trees, dry, doomed):
            batch.wait(120)
        wait_until(lambda: not store.watch.live(), "everything to have ended", 60)
    finally:
        done.set()
        watcher.join()
    assert not found, found
    states = {state for checkup in looks for state in checkup.runs}
    assert states >= {"queued", "running", "parked", "waiting", "ended"}
    assert sum(checkup.runs["running"] > 0 for checkup in looks) > 20
    check_runs(store, besides=())
