"""Batches of many rows beside real workers: paused, cancelled, retried, tuned, and short of money."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from agentq.core.money import format_usd
from agentq.store.checkup import examine
from tests.support.bulk import (
    APP,
    ROW_NANO,
    at_work,
    begins,
    calls,
    check_whole,
    close_gate,
    let_ticks_pass,
    open_gate,
    rows,
    submit,
    write_rows,
)
from tests.support.wait import wait_until

pytest_plugins = ["tests.support.fleet"]
pytestmark = pytest.mark.system

if TYPE_CHECKING:  # pytest imports the plugin itself
    from agentq.app import Batch
    from tests.support.fleet import Fleet

    MakeFleet = Callable[..., Fleet]

CONCURRENCY = 8
WINDOW = 12


@pytest.fixture
def fleet(make_fleet: MakeFleet) -> Fleet:
    fleet = make_fleet(app=APP)
    fleet.start_worker(concurrency=CONCURRENCY)
    return fleet


def row_runs(fleet: Fleet) -> int:
    """How many rows have become runs."""
    store = fleet.app.store
    return sum(
        ":" not in str(key).rpartition("run:")[2] for key in store.client.keys(f"{store.keys.run('')}*")
    )


def stand_still(fleet: Fleet, batch: Batch) -> int:
    """Let some of a batch end, then have each hand in a call that does not; how many calls have begun."""
    wait_until(lambda: batch.record().ended > 50, "work to have begun", 60)
    close_gate(fleet)
    wait_until(lambda: at_work(fleet) == {"-": CONCURRENCY}, "all hands to be full", 60)
    return len(begins(fleet))


def test_a_paused_batch_starts_nothing_and_goes_on_where_it_was(fleet: Fleet):
    batch = submit(fleet, "b", 1_200, seconds=0.01)
    begun = stand_still(fleet, batch)
    fleet.type("pause", "b", "-y")
    open_gate(fleet)
    wait_until(
        lambda: not batch.counts()["running"] and not batch.counts()["queued"] - batch.record().rows, "rest"
    )
    let_ticks_pass(fleet)
    assert len(begins(fleet)) == begun, "only what had been claimed"
    waiting = batch.record()
    assert (waiting.ended, waiting.rows) == (begun, 1_200 - begun - (WINDOW - CONCURRENCY))
    assert (waiting.in_flight, fleet.app.store.client.exists(fleet.app.store.keys.turns())) == (0, 0)
    assert examine(fleet.app.store).findings == [], "in the middle, too"
    fleet.type("resume", "b", "-y")
    batch.wait(100)
    check_whole(fleet, "b", 1_200)
    assert len(begins(fleet)) == 1_200


def test_a_cancelled_batch_has_ended_at_once_and_a_retry_runs_what_is_left(fleet: Fleet):
    batch = submit(fleet, "b", 1_200, seconds=0.01)
    begun = stand_still(fleet, batch)
    fleet.type("cancel", "b", "-y")
    counts = batch.counts()
    assert (counts["rows"], counts["queued"], counts["running"]) == (0, 0, 0)
    assert (counts["ended"], counts["cancelling"]) == (1_200 - CONCURRENCY, CONCURRENCY)
    open_gate(fleet)
    wait_until(batch.done, "the calls in flight to come back", 60)
    let_ticks_pass(fleet)
    assert len(begins(fleet)) == begun
    reasons = batch.stop_reasons()
    assert reasons == {"finished": begun - CONCURRENCY, "cancelled": 1_200 - begun + CONCURRENCY}
    told = json.loads(fleet.type("retry", "b", "-y", "--json").stdout)
    assert told["refused"] == {"have_finished": reasons["finished"]}
    batch.wait(100)
    assert batch.stop_reasons() == {"finished": 1_200}
    assert {row for sign, _, row in calls(fleet) if sign == "-"} == {str(row) for row in range(1_200)}
    assert max(Counter(begins_by_row(fleet)).values()) <= 2, "only a call that was cut short is made again"
    assert examine(fleet.app.store).findings == []
    assert fleet.app.store.feeder.in_flight() == 0


def begins_by_row(fleet: Fleet) -> list[str]:
    return [row for sign, _, row in calls(fleet) if sign == "+"]


def test_a_run_of_a_row_may_be_cancelled_and_shown_before_its_turn(fleet: Fleet):
    close_gate(fleet)
    batch = submit(fleet, "b", 50)
    last = list(batch.runs())[-1]
    wait_until(lambda: at_work(fleet) == {"-": CONCURRENCY}, "all hands to be full", 60)
    assert "queued" in fleet.type("show", last.id).stdout
    fleet.type("cancel", last.id)
    assert last.record().state.value == "ended"
    open_gate(fleet)
    batch.wait(60)
    assert batch.stop_reasons() == {"finished": 49, "cancelled": 1}
    assert "49" not in begins_by_row(fleet)
    check_whole(fleet, "b", 50)


# ── money ────────────────────────────────────────────────────────────────────────────────────────────
FITS = 20
"""So many runs does the batch have money for, and a bit."""
LIMIT = FITS * ROW_NANO + ROW_NANO // 2


def test_a_batch_that_runs_dry_parks_few_runs_and_its_rows_wait_for_the_money(fleet: Fleet):
    write_rows(fleet, "rows.jsonl", rows(300))
    fleet.type(
        "submit", "rows.jsonl", "--batch", "b", "--max-usd", format_usd(LIMIT), "--on-exhausted", "park"
    )
    batch, store = fleet.app.batch("b"), fleet.app.store
    wait_until(lambda: batch.record().dry and not batch.counts()["running"], "the money to be used up", 60)
    wait_until(lambda: batch.counts()["queued"] == batch.record().rows, "nobody to be queued", 60)
    let_ticks_pass(fleet)
    ended = batch.record().ended
    parked = batch.counts()["parked"]
    assert 0 < parked <= WINDOW
    assert batch.record().rows == 300 - ended - parked
    assert 0 < ended <= FITS
    assert batch.account().spent_nano == ended * ROW_NANO <= LIMIT
    assert store.feeder.in_flight() == 0
    assert examine(store).findings == []
    begun = len(begins(fleet))
    let_ticks_pass(fleet)
    assert len(begins(fleet)) == begun
    fleet.type("budget", "topup", "batch:b", "--usd", format_usd(40 * ROW_NANO))
    wait_until(lambda: batch.record().ended > ended + 20, "it to go on", 60)
    wait_until(lambda: batch.record().dry and not batch.counts()["running"], "that to be used up too", 60)
    fleet.type("budget", "set", "batch:b", "--max-usd", "none")
    batch.wait(100)
    check_whole(fleet, "b", 300)
    assert batch.stop_reasons() == {"finished": 300}
    assert batch.account().spent_nano == 300 * ROW_NANO


def test_a_batch_that_stops_when_it_is_dry_is_over_and_its_rows_never_begin(fleet: Fleet):
    write_rows(fleet, "rows.jsonl", rows(400))
    typed = ("submit", "rows.jsonl", "--batch", "b", "--max-usd", format_usd(LIMIT), "--on-exhausted", "stop")
    fleet.type(*typed, "--wait", code=4)
    batch = fleet.app.batch("b")
    reasons = batch.stop_reasons()
    assert reasons.keys() == {"finished", "cost_budget"}
    assert 0 < reasons["finished"] <= FITS
    assert sum(reasons.values()) == 400
    assert batch.account().spent_nano <= LIMIT
    assert row_runs(fleet) <= FITS + 4 * WINDOW, "the others are rows that have ended"
    assert examine(fleet.app.store).findings == []
    assert fleet.app.store.feeder.in_flight() == 0
    results = [json.loads(line) for line in fleet.type("results", "b").stdout.splitlines()]
    assert Counter(line["agentq"]["stop_reason"] for line in results) == reasons
    fleet.type("budget", "set", "batch:b", "--max-usd", "none")
    fleet.type("retry", "b", "-y")
    batch.wait(100)
    assert batch.stop_reasons()["finished"] >= 400 - reasons["cost_budget"] + dropped_of(results)
    assert examine(fleet.app.store).findings == []


def dropped_of(results: list[dict[str, object]]) -> int:
    """How many of these were never started."""
    return sum(line["agentq"]["stop_detail"] == "it was never started" for line in results)  # type: ignore[index]


def test_a_tenant_without_money_does_not_hold_up_another(make_fleet: MakeFleet):
    fleet = make_fleet(app=APP)
    fleet.type("budget", "set", "tenant:poor", "--max-usd", format_usd(LIMIT))
    fleet.start_worker(concurrency=CONCURRENCY)
    poor = [submit(fleet, f"p{number}", 100, tenant="poor") for number in range(3)]
    rich = submit(fleet, "r", 200, tenant="rich")
    rich.wait(60)
    check_counts = sum(batch.record().ended for batch in poor)
    assert check_counts <= FITS
    assert sum(batch.counts()["parked"] for batch in poor) <= 3 * WINDOW
    fleet.type("budget", "set", "tenant:poor", "--max-usd", "none")
    for batch in poor:
        batch.wait(60)
    for batch in poor:
        check_whole(fleet, batch.name, 100)
