"""People do all they can to batches that run, in any order, while workers die: nothing is lost or stuck."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from signal import SIGKILL
from typing import TYPE_CHECKING, Any

import pytest

from agentq.core.money import to_usd
from agentq.store.checkup import examine
from tests.support.bulk import APP, ROW_NANO, submit
from tests.support.wait import wait_until

pytest_plugins = ["tests.support.fleet"]
pytestmark = pytest.mark.system

if TYPE_CHECKING:  # pytest imports the plugin itself
    from agentq.app import Batch
    from tests.support.fleet import Fleet

    MakeFleet = Callable[..., Fleet]

SEED = int(os.environ.get("BULK_SEED", "6"))
TENANTS = {"a": "one", "b": "one", "c": "two", "d": "three"}
ROWS = 250
ACTS = 40


def act(fleet: Fleet, batch: Batch, chance: random.Random) -> None:
    """One thing that a person may do to a batch."""
    scope, ledger = f"batch:{batch.name}", fleet.app.store.ledger
    match chance.choice(
        [
            "pause",
            "resume",
            "resume",
            "caps",
            "priority",
            "cancel",
            "retry",
            "retry",
            "row",
            "cap",
            "money",
            "tenant",
        ]
    ):
        case "pause":
            batch.pause()
        case "resume":
            batch.resume()
        case "caps":
            batch.tune(max_in_flight=chance.choice([None, 1, 3]), max_open=chance.choice([None, 2, 20]))
        case "priority":
            batch.tune(priority=chance.randint(0, 9))
        case "cancel":
            batch.cancel()
        case "retry":
            batch.retry()
        case "row":
            run = chance.choice(list(batch.runs()))
            deeds: list[Callable[..., object]] = [run.cancel, run.pause, run.resume]
            chance.choice(deeds)()
        case "cap":
            policy = chance.choice(["park", "stop"])
            ledger.set_limit(scope, usd=ledger.account(scope).spent_nano + 20 * ROW_NANO, on_exhausted=policy)
        case "money":
            ledger.set_limit(scope, usd=None)
        case "tenant":
            knobs: dict[str, Any] = {"weight": chance.randint(1, 5), "max": chance.choice([None, 2, 6])}
            fleet.app.store.feeder.tune(TENANTS[batch.name], knobs)


def test_whatever_is_done_to_them_all_rows_end_once_and_nothing_is_left(make_fleet: MakeFleet):
    chance = random.Random(SEED)
    fleet = make_fleet(app=APP, lease_seconds=2)
    store = fleet.app.store
    workers = [fleet.start_worker(concurrency=5), fleet.start_worker(concurrency=5)]
    batches = [
        submit(fleet, name, ROWS, name, tenant=tenant, seconds=0.06) for name, tenant in TENANTS.items()
    ]
    for number in range(ACTS):
        act(fleet, chance.choice(batches), chance)
        time.sleep(chance.random() / 5)  # something may happen meanwhile; nothing is expected of it
        if number % 12 == 11:
            workers.pop(0).signal_group(SIGKILL)
            workers.append(fleet.start_worker(concurrency=5))
    for tenant in TENANTS.values():
        store.feeder.tune(tenant, {"weight": None, "max": None})
    for batch in batches:
        store.ledger.set_limit(f"batch:{batch.name}", usd=None)
        batch.tune(max_in_flight=None, max_open=None)
    for batch in batches:
        finish(batch)
        assert batch.stop_reasons() == {"finished": ROWS}
        record = batch.record()
        assert (record.rows, record.open, record.in_flight) == (0, 0, 0)
        done = list(store.batches.done(batch.name))
        assert len(set(done)) == ROWS
    assert store.feeder.in_flight() == 0
    assert store.watch.live() == {}
    assert not store.client.keys(f"{store.keys.prefix}turns*")
    assert examine(store).findings == []
    spent = store.ledger.account("global").spent_nano
    assert spent >= len(TENANTS) * ROWS * ROW_NANO, to_usd(spent)


def finish(batch: Batch) -> None:
    """Let all of a batch go on, and again what had ended otherwise, until all of it has finished."""
    for _ in range(20):
        batch.resume()
        for run in batch.runs():
            run.resume()
        wait_until(batch.done, f"batch {batch.name} to end: {batch.counts()}, {batch.record()}", 60)
        if batch.stop_reasons() == {"finished": ROWS}:
            return
        batch.retry()
    raise AssertionError(f"{batch.stop_reasons()}, {batch.retry().groups()}")
