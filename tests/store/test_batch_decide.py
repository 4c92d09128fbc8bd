"""batch_decide.lua, and how a pilot is fed: its sample first, the others when that is decided, once."""

from __future__ import annotations

from typing import Any

import pytest

from agentq.core.lifecycle import StopReason
from agentq.core.records import BatchRecord, Delta, Settlement
from agentq.engine.pilot import decide_pilot, is_sample, placed
from agentq.store import Store
from tests.support.harness import call, check_runs, claim_run, due, money, reserve
from tests.support.rows import in_flight, open_for, row_entry, template, waiting, window

ROWS, SAMPLE = 20, 5


def load(
    store: Store, *, usd: int | None = None, rows: int = ROWS, seal: bool = True, **options: Any
) -> list[str]:
    """A batch whose sample of five waits in front of its other rows; answers the ids of its rows."""
    opened = open_for(store, usd=usd, pilot=SAMPLE, **options)
    entries = [
        row_entry(number, opened.serial, priority=placed(number % 10, number, SAMPLE, rows))
        for number in range(rows)
    ]
    store.batches.add("b1", entries, {"t": template()})
    if seal:
        store.batches.seal("b1")
    return [entry.run_id for entry in entries]


def record(store: Store) -> BatchRecord:
    found = store.batches.read("b1")
    assert found is not None
    return found


def pay(store: Store, run_id: str, usd: int, reason: StopReason = StopReason.FINISHED) -> None:
    """Let a run cost so many nano-USD, and end."""
    lease = claim_run(store, run_id).lease
    reserve(store, lease, 1, usd=usd, tokens=1)
    settled = Settlement(f"{lease.fence}:1", "settle", usd, 1)
    assert store.runs.commit_end(lease, Delta("{}"), settled, reason) == "OK"


def play(store: Store, *costs: int) -> None:
    """The sample ends, at these costs."""
    for run_id, usd in zip(sorted(in_flight(store)), costs, strict=True):
        pay(store, run_id, usd)


@pytest.fixture
def wide(store: Store) -> Store:
    """A server with room for all."""
    window(store, 100)
    return store


def test_only_the_sample_is_admitted_whatever_the_priorities_of_the_others(wide: Store):
    runs = load(wide)
    due(wide)
    sample = [run for place, run in enumerate(runs) if is_sample(place, SAMPLE, ROWS)]
    assert in_flight(wide) == set(sample)
    assert len(waiting(wide)) == ROWS - SAMPLE
    assert (record(wide).pilot, record(wide).rows) == (SAMPLE, ROWS - SAMPLE)


def test_while_one_of_the_sample_has_not_ended_nothing_is_decided_and_nothing_admitted(wide: Store):
    load(wide)
    first, *others = sorted(in_flight(wide))
    for run_id in others:
        pay(wide, run_id, 7)
        assert due(wide).pilots == []
    assert call(wide, "batch_decide", "b1", 4, "") == ["CHANGED"]
    assert in_flight(wide) == {first}
    pay(wide, first, 7)
    assert due(wide).pilots == ["b1"]
    assert in_flight(wide) == set()


def test_a_pilot_within_the_limit_lets_the_others_follow_at_once(wide: Store):
    runs = load(wide, usd=ROWS * 1_000)
    play(wide, *[1_000] * SAMPLE)
    decide_pilot(wide, "b1")
    assert (record(wide).pilot, record(wide).paused) == (None, None)
    for _ in range(5):
        due(wide)
    assert len(in_flight(wide)) == len(runs) - SAMPLE
    assert due(wide).pilots == []
    assert wide.client.exists(f"{wide.keys.prefix}pilots") == 0
    check_runs(wide)


def test_a_pilot_over_the_limit_pauses_the_batch_until_a_person_lets_it_go_on(wide: Store):
    load(wide, usd=ROWS * 1_000_000 - 1)
    play(wide, *[1_000_000] * SAMPLE)
    decide_pilot(wide, "b1")
    said = "its pilot: the batch will cost 0.0200 USD (0.0200 to 0.0200), and its limit is 0.0200 USD"
    assert record(wide).paused == said
    due(wide)
    assert in_flight(wide) == set()
    wide.batches.resume("b1")
    assert record(wide).paused is None
    for _ in range(5):
        due(wide)
    assert len(in_flight(wide)) == ROWS - SAMPLE
    assert due(wide).pilots == []
    assert money(wide, "batch:b1")["us"] == SAMPLE * 1_000_000


def test_without_a_limit_the_amount_above_which_to_ask_counts_and_without_that_nothing(wide: Store):
    load(wide, confirm_above=19_000)
    play(wide, *[1_000] * SAMPLE)
    decide_pilot(wide, "b1")
    assert "without a yes than 0.0001 USD" in str(record(wide).paused)


def test_a_sample_that_has_failed_altogether_asks_before_the_others_fail_too(wide: Store):
    load(wide, usd=10**9)
    for run_id in in_flight(wide):
        pay(wide, run_id, 1, StopReason.MODEL_ERROR)
    decide_pilot(wide, "b1")
    assert record(wide).paused == f"its pilot: all {SAMPLE} runs of it have failed ({SAMPLE} model_error)"
    due(wide)
    assert in_flight(wide) == set()


def test_it_is_decided_once_and_what_was_made_up_before_another_end_does_not_count(wide: Store):
    load(wide)
    play(wide, *[7] * SAMPLE)
    assert call(wide, "batch_decide", "b1", SAMPLE - 1, "why") == ["CHANGED"]
    assert call(wide, "batch_decide", "b1", SAMPLE, "") == ["OK"]
    assert call(wide, "batch_decide", "b1", SAMPLE, "why") == ["CHANGED"]
    decide_pilot(wide, "b1")
    assert record(wide).paused is None
    assert call(wide, "batch_decide", "b2", 0, "") == ["CHANGED"]
    decide_pilot(wide, "b2")


def test_before_all_rows_are_in_nothing_is_decided(wide: Store):
    load(wide, seal=False)
    assert due(wide).pilots == []
    assert call(wide, "batch_decide", "b1", 0, "") == ["CHANGED"]
    wide.batches.seal("b1")
    assert due(wide).pilots == []
    assert len(in_flight(wide)) == SAMPLE


def test_the_same_load_again_does_not_begin_another_pilot(wide: Store):
    load(wide)
    play(wide, *[7] * SAMPLE)
    decide_pilot(wide, "b1")
    opened = open_for(wide, pilot=SAMPLE)
    wide.batches.seal("b1")
    assert (opened.total, record(wide).pilot) == (ROWS, None)


def test_a_load_that_was_killed_and_is_resumed_is_still_a_pilot(wide: Store):
    load(wide, seal=False)
    open_for(wide, pilot=SAMPLE)
    wide.batches.seal("b1")
    due(wide)
    assert (record(wide).pilot, len(in_flight(wide))) == (SAMPLE, SAMPLE)


def test_a_pilot_whose_batch_is_gone_or_cancelled_is_forgotten(wide: Store):
    load(wide, seal=False)
    wide.batches.abort("b1", 0)
    assert due(wide).pilots == []
    assert wide.client.exists(f"{wide.keys.prefix}pilots") == 0
    load(wide)
    wide.batches.cancel("b1", "ann")
    for run_id in sorted(in_flight(wide)):
        wide.runs.cancel(run_id, "ann")
    assert due(wide).pilots == ["b1"]
    decide_pilot(wide, "b1")
    assert (record(wide).pilot, record(wide).paused) == (None, None)
    check_runs(wide)
