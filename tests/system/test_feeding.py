"""The feeder beside real workers: how much is in the queue and at work, whoever dies, and how much may be."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from signal import SIGKILL
from typing import TYPE_CHECKING

import pytest

from agentq.worker.embedded import EmbeddedServer
from tests.support.bulk import (
    APP,
    at_work,
    begins,
    calls,
    check_whole,
    close_gate,
    let_ticks_pass,
    open_gate,
    submit,
)
from tests.support.wait import wait_until

pytest_plugins = ["tests.support.fleet"]
pytestmark = pytest.mark.system

if TYPE_CHECKING:  # pytest imports the plugin itself
    from tests.support.fleet import Fleet

    MakeFleet = Callable[..., Fleet]

LISTS = ("steps", "steps\x06\x161")
"""kombu's lists of the queue: a tenant's below its share, and all others."""


class Sampler:
    """Looks all along how long the broker's lists are, how many slots are taken, how wide the window is."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.looks = self.most_queued = self.most_slots = self.widest = 0

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(10)

    def _look(self) -> None:
        store = self._fleet.app.store
        while not self._over.wait(0.005):
            pipeline = store.client.pipeline(transaction=True)
            for name in LISTS:
                pipeline.llen(f"{store.keys.broker_prefix}{name}")
            pipeline.scard(store.keys.slots)
            pipeline.hget(store.keys.feeder, "window")
            first, second, slots, window = pipeline.execute()
            self.looks += 1
            self.most_queued = max(self.most_queued, first + second)
            self.most_slots = max(self.most_slots, slots)
            self.widest = max(self.widest, int(window or 0))


def test_the_brokers_lists_hold_no_more_than_the_window_whoever_dies_and_comes(make_fleet: MakeFleet):
    fleet = make_fleet(app=APP, lease_seconds=3)
    dying = fleet.start_worker(concurrency=6)
    fleet.start_worker(concurrency=6)
    with Sampler(fleet) as sampler:
        batch = submit(fleet, "b", 2_000)
        wait_until(lambda: batch.record().ended > 300, "some to have ended", 60)
        dying.signal_group(SIGKILL)
        wait_until(lambda: batch.record().ended > 700, "the other to go on", 60)
        fleet.start_worker(concurrency=6)
        batch.wait(100)
    assert sampler.looks > 100
    assert 18 <= sampler.widest <= 27, "a dead worker counts until its sign-on is over"
    assert 0 < sampler.most_queued <= sampler.widest + 1
    assert 0 < sampler.most_slots <= sampler.widest + 1
    check_whole(fleet, "b", 2_000)


def test_workers_are_killed_again_and_again_and_each_row_ends_once(make_fleet: MakeFleet):
    fleet = make_fleet(app=APP, lease_seconds=2)
    chance, workers = (
        random.Random(17),
        [fleet.start_worker(concurrency=6), fleet.start_worker(concurrency=6)],
    )
    batches = [submit(fleet, name, 250, name, seconds=0.03) for name in ("a", "b")]

    def ended() -> int:
        return sum(batch.record().ended for batch in batches)

    for _ in range(4):
        until = min(ended() + chance.randint(20, 60), 480)
        wait_until(lambda n=until: ended() >= n, "some to have ended", 60)  # type: ignore[misc]
        workers.pop(0).signal_group(SIGKILL)
        workers.append(fleet.start_worker(concurrency=6))
    for batch in batches:
        batch.wait(100)
    for batch in batches:
        check_whole(fleet, batch.name, 250)
        assert batch.stop_reasons() == {"finished": 250}
    twice = [call for call, count in Counter(calls(fleet)).items() if call[0] == "+" and count > 1]
    assert twice, "nobody was killed in the middle of a call"


def test_with_a_broker_of_its_own_rows_are_admitted_by_the_tick(make_fleet: MakeFleet, tmp_path_factory):
    broker = EmbeddedServer.start(Path(tmp_path_factory.mktemp("broker")))
    try:
        fleet = make_fleet(app=APP, broker_url=broker.broker_url)
        fleet.start_worker(concurrency=8)
        batch = submit(fleet, "b", 60)
        batch.wait(100)
        check_whole(fleet, "b", 60)
        store = fleet.app.store
        assert not [key for key in store.client.keys("*") if "mq:" in str(key)], "no hint came here"
        fleet.end()
    finally:
        broker.stop()


# ── caps: every call waits at the gate, so that those at work can be counted ─────────────────────────


def assert_at_work(fleet: Fleet, **expected: int) -> None:
    """So many calls begin, by whose they are, and no more."""
    wait_until(lambda: at_work(fleet) == expected, f"{expected} to be at work", 60)
    let_ticks_pass(fleet)
    assert at_work(fleet) == expected


def test_caps_of_a_batch_a_tenant_and_all_hold_together_and_can_be_moved(make_fleet: MakeFleet):
    fleet = make_fleet(app=APP, max_in_flight=9, tenant_max_in_flight=7)
    fleet.type("tenants", "set", "t1", "--max-in-flight", "5", "--new")
    close_gate(fleet)
    fleet.start_worker(concurrency=20)
    submit(fleet, "x", 30, "x", tenant="t1", max_in_flight=2)
    assert_at_work(fleet, x=2)
    submit(fleet, "y", 30, "y", tenant="t1")
    assert_at_work(fleet, x=2, y=3)
    submit(fleet, "z", 30, "z", tenant="t2")
    assert_at_work(fleet, x=2, y=3, z=4)
    submit(fleet, "w", 30, "w", tenant="t3")
    assert_at_work(fleet, x=2, y=3, z=4, w=1)  # one of a tenant with nothing in flight, in any case
    fleet.type("tune", "x", "--max-in-flight", "1")
    fleet.type("tenants", "set", "t1", "--max-in-flight", "none")
    assert_at_work(fleet, x=2, y=3, z=4, w=1)  # nobody is stopped, and all has its own cap
    listed = fleet.type("tenants", "list").stdout.splitlines()
    assert listed[0] == "10 runs in flight, the window is 9"
    assert listed[2].split() == ["t1", "5", "7", "55", "1", "1"], "x is at its cap: it takes no turns"
    open_gate(fleet)
    for name in "xyzw":
        fleet.app.batch(name).wait(100)
    for name in "xyzw":
        check_whole(fleet, name, 30)
    assert peak(fleet, "x") == 2
    assert peak(fleet, "x", "y") <= 7
    assert peak(fleet, *"xyzw") <= 9 + 3


def test_a_batch_without_a_cap_takes_what_the_workers_can_and_one_can_be_set_and_lifted(
    make_fleet: MakeFleet,
):
    fleet = make_fleet(app=APP)
    close_gate(fleet)
    fleet.start_worker(concurrency=6)
    batch = submit(fleet, "b", 60, "b", max_in_flight=2)
    assert_at_work(fleet, b=2)
    fleet.type("tune", "b", "--max-in-flight", "4")
    assert_at_work(fleet, b=4)
    fleet.type("tune", "b", "--max-in-flight", "none")
    assert_at_work(fleet, b=6)
    assert fleet.app.store.feeder.in_flight() == 9, "half as many again wait in the queue"
    open_gate(fleet)
    batch.wait(60)
    check_whole(fleet, "b", 60)
    assert peak(fleet, "b") == 6


def peak(fleet: Fleet, *whose: str) -> int:
    """The most calls of these that were ever under way together."""
    now = most = 0
    for sign, name, _ in calls(fleet):
        if name in whose:
            now += 1 if sign == "+" else -1
            most = max(most, now)
    return most


def test_no_more_runs_are_open_than_a_batch_may_have_though_they_only_wait(make_fleet: MakeFleet):
    fleet = make_fleet(app=APP)
    fleet.start_worker(concurrency=8)
    batch = submit(fleet, "b", 10, asks=True, max_open=3)
    wait_until(lambda: batch.counts()["waiting"] == 3, "three to ask", 60)
    let_ticks_pass(fleet)
    assert (batch.record().open, batch.record().rows, batch.record().in_flight) == (3, 7, 0)
    assert len(begins(fleet)) == 3
    first, _, _ = fleet.app.approvals()
    first.approve(by="test")
    wait_until(lambda: batch.record().ended == 1 and batch.counts()["waiting"] == 3, "the next to ask", 60)
    assert batch.record().rows == 6
    fleet.type("tune", "b", "--max-open", "none")
    wait_until(lambda: batch.counts()["waiting"] == 9, "all to ask", 60)
    fleet.app.approve_all("batch=b", by="test")
    batch.wait(60)
    check_whole(fleet, "b", 10)


def test_a_batch_waits_for_its_time_which_can_be_moved(make_fleet: MakeFleet):
    fleet = make_fleet(app=APP)
    fleet.start_worker()
    later = datetime.now(UTC) + timedelta(hours=3)
    moved, due = submit(fleet, "moved", 20, "moved", at=later), submit(fleet, "due", 20, "due", at=later)
    let_ticks_pass(fleet)
    assert begins(fleet) == []
    assert "starts" in fleet.type("tune", "moved").stdout
    fleet.type("tune", "moved", "--at", "now")
    moved.wait(60)
    assert set(begins(fleet)) == {"moved"}
    fleet.type("tune", "due", "--at", "in 1s")  # and then it is the tick that starts it
    due.wait(60)
    for name in ("moved", "due"):
        check_whole(fleet, name, 20)
