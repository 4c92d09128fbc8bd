"""Pilots with real workers, and the live view as a terminal gets it."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL
from typing import TYPE_CHECKING

import pytest

from agentq import Batch
from agentq.core.money import NANO
from tests.support.harness import by
from tests.support.wait import wait_until

pytest_plugins = ["tests.support.fleet"]
pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

if TYPE_CHECKING:  # pytest imports the plugin itself
    from tests.support.fleet import Fleet

    MakeFleet = Callable[..., Fleet]

ROOT = Path(__file__).parents[2]

ROWS, SAMPLE, STEPS = 60, 6, 2


def ended(batch: Batch) -> int:
    return batch.record().ended


def test_a_pilot_that_breaks_the_limit_waits_for_a_yes_and_then_the_rest_runs(make_fleet: MakeFleet) -> None:
    fleet = make_fleet(lease_seconds=2, tick_seconds=0.2)
    fleet.start_worker()
    batch = fleet.submit(ROWS, STEPS, pilot=SAMPLE, max_usd="0.15")
    wait_until(lambda: batch.record().paused, "the pilot to be decided about", 60)
    assert ended(batch) == SAMPLE
    assert {int(row) for row, _, _ in fleet.lines("bill")} == {9, 19, 29, 39, 49, 59}
    said = fleet.type("wait", "b", code=5)
    assert re.search(
        r"paused by its pilot: the batch will cost 0\.15\d\d USD \(.*its limit is 0\.1500", said.stderr
    )
    assert "agentq resume b" in said.stderr
    assert ended(batch) == SAMPLE

    fleet.app.store.ledger.set_limit("batch:b", usd=5 * NANO, actor=by())
    batch.resume()
    batch.wait(60)
    fleet.check("b", steps=STEPS)
    assert fleet.billed_nano() == batch.account().spent_nano
    assert batch.metrics().steps_p95 == STEPS


def test_a_pilot_within_the_limit_goes_on_by_itself_whoever_is_killed(
    make_fleet: MakeFleet,
) -> None:
    fleet = make_fleet(lease_seconds=2, tick_seconds=0.2)
    first, second = fleet.start_worker(), fleet.start_worker()
    batch = fleet.submit(ROWS, STEPS, pilot=f"{SAMPLE / ROWS:.0%}", seconds=0.3, max_usd="5")
    wait_until(lambda: fleet.lines("bill"), "the sample to be at work", 60)
    first.signal_group(SIGKILL)
    second.signal_group(SIGKILL)
    assert ended(batch) <= SAMPLE
    fleet.start_worker()
    fleet.start_worker()
    batch.wait(90)
    record = batch.record()
    assert (record.pilot, record.paused, record.ended) == (None, None, ROWS)
    fleet.check("b", steps=STEPS)


def test_a_terminal_shows_the_batch_until_it_ends(make_fleet: MakeFleet) -> None:
    fleet = make_fleet(lease_seconds=2, tick_seconds=0.2)
    fleet.submit(ROWS, STEPS, max_usd="5")
    ours, theirs = pty.openpty()
    watch = subprocess.Popen(
        [sys.executable, "-m", "agentq", "watch", "b"],
        cwd=fleet.home,
        env={**os.environ, **fleet.env, "AGENTQ_NAMESPACE": "fleet", "PYTHONPATH": str(ROOT),
             "TERM": "xterm", "COLUMNS": "110", "LINES": "30"},
        stdin=theirs,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    fleet.start_worker(concurrency=2)
    drawn = b""
    try:
        while chunk := _read(ours):
            drawn += chunk
        assert watch.wait(30) == 0
    finally:
        watch.kill()
        watch.wait()
        os.close(ours)
    screen = drawn.decode(errors="replace")
    assert f"/{ROWS}" in screen
    assert f"{ROWS}/{ROWS}" in screen
    assert "of $5.00 spent" in screen
    assert "not begun" in screen
    assert "\x1b[1A" in screen, "it is drawn over, not below"


def _read(terminal: int) -> bytes:
    """What was written to a terminal, or nothing when all who could write are gone."""
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b""
