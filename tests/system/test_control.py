"""What people do to many runs at once, beside real workers: cancel, pause, resume, retry."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from agentq.core.lifecycle import StopReason
from agentq.engine.retry import retry_runs
from agentq.store.checkup import examine
from tests.support.wait import wait_until

pytest_plugins = ["tests.support.fleet"]
pytestmark = pytest.mark.system

if TYPE_CHECKING:  # pytest imports the plugin itself
    from tests.support.fleet import Fleet

    MakeFleet = Callable[..., Fleet]


def running(fleet: Fleet) -> int:
    return fleet.app.batch("b").counts()["running"]


def test_a_batch_of_ten_thousand_is_cancelled_at_once_and_says_where_its_runs_were(make_fleet: MakeFleet):
    fleet = make_fleet()
    batch = fleet.submit(10_000, 1, seconds=20)
    fleet.start_worker(concurrency=50)
    wait_until(lambda: running(fleet) == 50, "fifty runs at work", 60)
    before = time.monotonic()
    cancelled = batch.cancel()
    took = time.monotonic() - before
    begun = len(fleet.lines("bill"))
    assert took < 15, f"{took:.1f} s"
    assert cancelled.live == 10_000
    assert list(cancelled.stopped_at.values()) == ["step 1, in its model call"] * 50
    assert batch.counts()["cancelling"] == 50
    wait_until(batch.done, "the calls in flight to come back", 60)
    assert batch.stop_reasons() == {"cancelled": 10_000}
    assert len(fleet.lines("bill")) == begun == 50, "nothing was started afterwards"
    # A lease may end before its call: charged in full then, until its bill comes.
    account = fleet.app.store.ledger.account
    wait_until(lambda: account("batch:b").spent_nano == fleet.billed_nano(), "the bills to be booked", 60)
    run = next(iter(cancelled.stopped_at))
    assert "stopped at step 1, in its model call" in fleet.type("show", run).stdout
    assert fleet.app.store.watch.live() == {}


def test_a_paused_batch_finishes_its_steps_starts_none_and_goes_on_as_if_nothing_had_been(
    make_fleet: MakeFleet,
):
    fleet = make_fleet()
    fleet.start_worker()
    batch = fleet.submit(40, 4, seconds=0.1)
    wait_until(lambda: len(fleet.lines("bill")) > 20, "work to have begun", 30)
    told = fleet.type("pause", "b", "-y", "--by", "ann").stdout
    assert told.startswith("b is paused: ")
    fleet.submit(60, 4, seconds=0.1)

    def all_held() -> bool:
        """What was begun is held, and all else waits for its turn as rows."""
        counts = batch.counts()
        return counts["held"] + counts["rows"] == 60 - counts["ended"]

    wait_until(all_held, "all to be held", 30)
    begun = len(fleet.lines("bill"))
    assert "paused by ann" in fleet.type("status", "b").stdout
    assert "paused by ann: " in fleet.type("wait", "b", code=5).stderr
    assert len(fleet.lines("bill")) == begun
    assert examine(fleet.app.store).findings == []
    assert fleet.type("resume", "b", "-y").stdout.startswith("b goes on: ")
    batch.wait(60)
    fleet.check("b", steps=4)
    assert len(fleet.lines("bill")) == 60 * 4, "no step was done twice"


def test_what_was_cancelled_is_retried_from_where_it_was_and_its_new_result_appended(make_fleet: MakeFleet):
    fleet = make_fleet()
    fleet.start_worker()
    batch = fleet.submit(30, 4, seconds=0.3)
    wait_until(lambda: batch.counts()["ended"] >= 3, "the first to have finished", 30)
    assert batch.cancel()
    wait_until(batch.done, "the calls in flight to come back", 30)
    reasons = batch.stop_reasons()
    assert sum(reasons.values()) == 30
    fleet.type("results", "b", "-o", "out.jsonl")
    steps = {run.id: run.record().steps for run in batch.runs()}
    told = json.loads(fleet.type("retry", "b", "-y", "--json").stdout)
    assert (told["retried"] + told["rows"], told["refused"]) == (
        reasons["cancelled"],
        {"have_finished": reasons["finished"]},
    )
    assert told["rows"] > 0, "some had never begun"
    batch.wait(60)
    fleet.check("b", steps=4)
    marks = [tuple(line) for line in fleet.lines("marks")]
    assert len(marks) <= 30 * 3 + reasons["cancelled"], "only what was under way is done again"
    assert any(0 < steps[run] < 4 for run in told["runs"]), "some were in the middle"
    said = fleet.type("results", "b", "-o", "out.jsonl").stderr
    assert f"{reasons['cancelled']} results written, 30 were there" in said
    lines = [json.loads(line) for line in (fleet.home / "out.jsonl").read_text().splitlines()]
    latest = {line["id"]: line["agentq"]["stop_reason"] for line in lines}
    assert len(lines) == 30 + reasons["cancelled"]
    assert set(latest.values()) == {"finished"}


def test_a_filter_means_live_runs_of_any_batch_and_for_a_retry_those_of_one(make_fleet: MakeFleet):
    fleet = make_fleet()
    for name in ("b", "c"):
        fleet.submit(3, 1, batch=name)
    asked = fleet.type("cancel", "--where", "batch=c", "state=queued", code=2)
    assert "3 runs of batch=c state=queued" in asked.stderr
    assert "-y says yes" in asked.stderr
    assert "2 held" in fleet.type("pause", "-y", "--where", "custom_id=1").stdout
    assert "2 runs resumed" in fleet.type("resume", "-y", "--where", "state=held").stdout
    assert "3 runs cancelled" in fleet.type("cancel", "-y", "--where", "batch=c").stdout
    assert "no live run is meant" in fleet.type("cancel", "-y", "--where", "batch=c").stdout
    assert "1 run retried" in fleet.type("retry", "-y", "--where", "batch=c custom_id=2").stdout
    assert fleet.app.batch("c").counts()["queued"] == 1
    assert fleet.app.batch("b").counts()["queued"] == 3
    assert examine(fleet.app.store).findings == []


def test_a_fork_is_asked_about_what_it_may_do_again_and_goes_on_by_itself(make_fleet: MakeFleet):
    fleet = make_fleet()
    fleet.start_worker()
    batch = fleet.submit(1, 4)
    batch.wait(60)
    (run,) = batch.runs()
    refused = fleet.type("retry", run.id, code=2)
    assert f"agentq retry {run.id} --from-step N" in refused.stderr
    assert (
        "a new run keeps 0 to 3 of them, not 9"
        in fleet.type("retry", run.id, "--from-step", "9", code=2).stderr
    )
    forked = fleet.type("retry", run.id, "--from-step", "2").stdout.split()[0]
    fork = fleet.app.run(forked)
    assert fork.result(60).stop_reason is StopReason.FINISHED
    assert fork.record().steps == 4
    assert len(fleet.lines("marks")) == 4, "one turn, the third, was made anew"
    assert len(batch.record().stop_reasons) == 1
    assert retry_runs(fleet.app.store, [forked], by="me").groups() == {"have finished": 1}
    assert examine(fleet.app.store).findings == []
