"""After an outage nobody is rescued too early, and whatever is looked at is looked at later next time."""

from __future__ import annotations

import pytest

from agentq.core.records import Delta
from agentq.store import Store
from agentq.store.watch import LONGEST_GRACE_MS, Due
from tests.support.harness import (
    GRACE_MS,
    LEASE_MS,
    age,
    check_invariants,
    claim_run,
    due,
    dump,
    ready,
    state_of,
    steady,
    submit_run,
)


def clock(store: Store, *, tick: int, patience: int = 0, granted: int = 0) -> None:
    """When the last tick was, and when patience was given; milliseconds from now."""
    now = store.watch.server_ms()
    fields = {"tick": tick, "patience": patience, "granted": granted}
    store.client.hset(store.keys.clock, mapping={k: now + v if v else 0 for k, v in fields.items()})


def dead_attempt(store: Store, run_id: str = "r1") -> None:
    submit_run(store, run_id)
    claim_run(store, run_id)
    age(store, run_id)


GAPS = {"a gap of more than 5 s": -5_500, "time that went back": 60_000, "no tick ever": -(10**9)}


@pytest.mark.parametrize("tick", GAPS.values(), ids=GAPS)
@pytest.mark.parametrize("first", ["tick", "rescue"])
def test_after_a_gap_every_lease_has_one_full_term_to_be_renewed(store: Store, tick: int, first: str):
    dead_attempt(store, "r1")
    dead_attempt(store, "r2")
    clock(store, tick=tick)
    now = store.watch.server_ms()
    if first == "tick":
        assert due(store).runs == ["r1", "r2"]
    for run_id in ("r1", "r2"):
        assert store.watch.rescue(run_id, LEASE_MS).verdict == "PATIENT"
        assert state_of(store, run_id) == "running"
    assert set(store.watch.live().values()) == {int(store.client.hget(store.keys.clock, "patience") or 0)}
    assert now + LEASE_MS <= store.watch.live()["r1"] <= store.watch.server_ms() + LEASE_MS
    assert due(store) == Due([], [])
    check_invariants(store, ["r1", "r2"])


def test_a_gap_of_less_than_five_seconds_is_none(store: Store):
    dead_attempt(store)
    clock(store, tick=-4_000)
    assert store.watch.rescue("r1", LEASE_MS).verdict == "RESCUED"


def test_when_the_term_is_over_the_dead_are_rescued(store: Store):
    dead_attempt(store)
    clock(store, tick=-100, patience=-1, granted=-LEASE_MS)
    assert store.watch.rescue("r1", LEASE_MS).verdict == "RESCUED"


@pytest.mark.parametrize("tick", [-6_000, 60_000])
def test_patience_is_given_at_most_once_in_three_leases(store: Store, tick: int):
    dead_attempt(store)
    clock(store, tick=tick, patience=-1, granted=-3 * LEASE_MS + 1_000)
    assert store.watch.rescue("r1", LEASE_MS).verdict == "RESCUED"
    claim_run(store)
    age(store, "r1")
    clock(store, tick=tick, patience=-1, granted=-3 * LEASE_MS - 1)
    assert store.watch.rescue("r1", LEASE_MS).verdict == "PATIENT"


def test_a_grant_from_a_future_that_did_not_come_counts_for_nothing(store: Store):
    dead_attempt(store)
    clock(store, tick=3_600_000, patience=3_600_000, granted=3_600_000)
    now = store.watch.server_ms()
    assert store.watch.rescue("r1", LEASE_MS).verdict == "PATIENT"
    assert store.watch.live()["r1"] <= now + LEASE_MS + 1_000


def test_a_second_gap_within_the_term_does_not_lengthen_it(store: Store):
    dead_attempt(store)
    clock(store, tick=-6_000, patience=2_000, granted=-LEASE_MS + 2_000)
    till = int(store.client.hget(store.keys.clock, "patience") or 0)
    assert store.watch.rescue("r1", LEASE_MS).verdict == "PATIENT"
    assert store.watch.live()["r1"] == till


def test_queued_and_waiting_runs_are_not_made_to_wait(store: Store):
    submit_run(store, "r1")
    submit_run(store, "r2")
    store.runs.commit_wait(claim_run(store, "r2").lease, Delta("{}"), None, [], 60_000)
    for run_id in ("r1", "r2"):
        age(store, run_id)
    clock(store, tick=-60_000)
    assert due(store) == Due([("r1", 0)], ["r2"])
    assert store.watch.rescue("r2", LEASE_MS).reason == "approval_expired"


def test_a_cancelled_run_waits_for_its_worker_as_long_as_any(store: Store):
    dead_attempt(store)
    store.runs.cancel("r1", "test")
    clock(store, tick=-60_000)
    assert store.watch.rescue("r1", LEASE_MS).verdict == "PATIENT"
    steady(store)
    age(store, "r1")
    assert store.watch.rescue("r1", LEASE_MS).reason == "cancelled"


def hint_waits(store: Store, wait_ms: int) -> None:
    """The run's next hint is sent by a tick, and the one after it not before so long."""
    age(store, "r1")
    before = store.watch.server_ms()
    assert due(store).hints == [("r1", 0)]
    assert before + wait_ms <= store.watch.live()["r1"] <= store.watch.server_ms() + wait_ms


def test_hints_are_sent_ever_more_rarely_up_to_a_cap_and_anew_after_a_claim(store: Store):
    submit_run(store)
    expected = [min(GRACE_MS * 2**n, LONGEST_GRACE_MS) for n in range(1, 10)]
    assert expected[-1] == LONGEST_GRACE_MS
    for wait_ms in expected:
        hint_waits(store, wait_ms)
    store.runs.release(claim_run(store).lease, delay_ms=0)
    hint_waits(store, GRACE_MS * 2)


def test_a_cap_holds_after_very_many_hints(store: Store):
    submit_run(store)
    store.client.hset(store.keys.run("r1"), "hints", 5_000)
    age(store, "r1")
    before = store.watch.server_ms()
    assert due(store).hints == [("r1", 0)]
    assert before <= store.watch.live()["r1"] - LONGEST_GRACE_MS <= store.watch.server_ms()


def test_a_full_worker_sends_nothing_again_and_looks_again_soon(store: Store):
    submit_run(store)
    age(store, "r1")
    before = store.watch.server_ms()
    assert due(store, room=0) == Due([], [])
    assert before <= store.watch.live()["r1"] - GRACE_MS <= store.watch.server_ms()
    assert "hints" not in dump(store)["run:r1"][0]


def test_a_delayed_run_gets_its_first_message_also_from_a_full_worker(store: Store):
    submit_run(store)
    store.runs.release(claim_run(store).lease, delay_ms=60_000)
    ready(store, "r1")
    assert due(store, room=0).hints == [("r1", 0)]
    age(store, "r1")
    assert due(store, room=0).hints == []


@pytest.mark.parametrize("state", ["queued", "running", "patient", "cancelling"])
def test_whatever_is_due_becomes_due_later_so_nothing_hides_the_rest(store: Store, state: str):
    submit_run(store)
    if state != "queued":
        claim_run(store)
    if state == "cancelling":
        store.runs.cancel("r1", "test")
    age(store, "r1")
    clock(store, tick=-60_000 if state == "patient" else -100)
    now = store.watch.server_ms()
    for run_id in due(store).runs:
        store.watch.rescue(run_id, LEASE_MS)
    assert all(then > now for then in store.watch.live().values())
    assert due(store) == Due([], [])
    assert ("r1" in store.watch.live()) == (dump(store)["run:r1"][0]["state"] != "ended")


def test_a_gap_of_more_than_a_lease_is_always_followed_by_a_term(store: Store):
    dead_attempt(store)
    clock(store, tick=-LEASE_MS - 1_000, patience=-1, granted=-LEASE_MS - 2_000)
    assert store.watch.rescue("r1", LEASE_MS).verdict == "PATIENT"


def test_the_first_tick_of_all_follows_no_gap(store: Store):
    submit_run(store)
    due(store)
    assert store.client.hget(store.keys.clock, "granted") is None
