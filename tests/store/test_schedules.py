"""schedule_*.lua: a schedule is kept whole, one worker at a time makes its batch, and it moves on once."""

from __future__ import annotations

import json

import pytest

from agentq.core.errors import ConflictError, StoreError
from agentq.store import Store, keys
from agentq.store.owners import STAYS, owner_of
from agentq.store.schedules import Claim, ScheduleRecord
from tests.support.harness import call, due, dump, twice, untouched

SPEC = '{"cron":"0 8 * * *","zone":"UTC"}'
FAR = 4_000_000_000_000
LEASE_MS = 15_000


def put(store: Store, name: str = "s", *, next_ms: int = FAR, digest: str = "d1") -> bool:
    return store.schedules.set(name, SPEC, digest=digest, rows=2, chunks=["one", "two"], next_ms=next_ms)


def read(store: Store, name: str = "s") -> ScheduleRecord:
    record = store.schedules.read(name)
    assert record is not None
    return record


def rank(store: Store, name: str = "s") -> float | None:
    return store.client.zscore(store.keys.schedules, name)


def take(store: Store) -> Claim:
    claim = store.schedules.claim(LEASE_MS)
    assert claim is not None
    return claim


def lapse(store: Store, name: str = "s") -> None:
    """The claim on it was not heard of for too long."""
    store.client.zadd(store.keys.schedules, {name: 1}, xx=True)


def made(store: Store, claim: Claim, *, next_ms: int | None = FAR) -> bool:
    return store.schedules.settle(
        claim, time_ms=claim.due_ms, batch=f"{claim.name}.1", outcome="made", next_ms=next_ms
    )


def test_a_schedule_is_kept_with_its_rows_and_due_at_its_first_time(store: Store):
    assert put(store)
    record = read(store)
    assert (record.spec, record.rows, record.bytes, record.next_ms) == (SPEC, 2, 6, FAR)
    assert (record.last, record.outcome, record.made, record.paused) == (None, "", 0, None)
    assert list(store.schedules.chunks("s", record.part)) == ["one", "two"]
    assert rank(store) == FAR
    assert not any(end for _, end in dump(store).values())
    assert store.schedules.claim(LEASE_MS) is None


def test_the_same_again_is_left_alone_and_another_is_a_conflict_that_leaves_no_rows(store: Store):
    put(store)
    with untouched(store):
        assert not put(store)
        with pytest.raises(ConflictError, match="schedule 's' with other rows") as refused:
            put(store, digest="d2")
    assert "agentq schedules remove s" in refused.value.hint


def test_a_lost_reply_to_the_first_is_asked_for_again(store: Store):
    store.client.rpush(store.keys.schedule("s", "rows:ab"), "one")
    assert twice(store, "schedule_set", "s", SPEC, "d1", 1, 3, "ab", 1, FAR) == ["SET", str(FAR)]


def test_rows_that_are_not_whole_make_no_schedule_and_have_an_end(store: Store):
    store.client.rpush(store.keys.schedule("s", "rows:ab"), "one")
    assert call(store, "schedule_set", "s", SPEC, "d1", 2, 3, "ab", 2, FAR) == ["LOST"]
    assert store.schedules.read("s") is None


def test_rows_whose_schedule_was_never_set_go_by_themselves(store: Store, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> list[str]:
        raise StoreError("killed here")

    monkeypatch.setattr(store.schedules._scripts, "call", refuse)
    with pytest.raises(StoreError):
        put(store)
    ((_, has_end),) = dump(store).values()
    assert has_end


def test_one_worker_at_a_time_has_a_schedule_that_is_due(store: Store):
    put(store, next_ms=5)
    put(store, "later")
    claim = take(store)
    assert (claim.name, claim.due_ms, claim.is_asked, claim.last) == ("s", 5, False, None)
    assert (claim.spec, claim.rows, claim.part) == (SPEC, 2, read(store).part)
    assert abs(claim.begun_ms - store.watch.server_ms()) < 60_000
    assert read(store).is_claimed
    assert store.schedules.claim(LEASE_MS) is None
    assert made(store, claim)
    record = read(store)
    assert (record.last, record.last_ms, record.made, record.outcome) == ("s.1", 5, 1, "made")
    assert (record.next_ms, rank(store), record.is_claimed) == (FAR, FAR, False)


def test_after_a_dead_worker_the_next_finds_the_same_time_and_the_dead_one_has_no_say_any_more(store: Store):
    put(store, next_ms=5)
    dead = take(store)
    lapse(store)
    alive = take(store)
    assert (alive.due_ms, alive.rows) == (dead.due_ms, dead.rows)
    with untouched(store):
        assert not store.schedules.renew(dead, LEASE_MS)
        assert not made(store, dead)
    assert store.schedules.renew(alive, 10 * LEASE_MS)
    renewed = rank(store)
    assert renewed is not None
    assert renewed > store.watch.server_ms() + 5 * LEASE_MS
    assert made(store, alive)
    assert read(store).made == 1
    with untouched(store):
        assert not made(store, alive), "it is settled"


def test_a_failed_time_is_tried_again_and_counted_until_it_is_settled(store: Store):
    put(store, next_ms=5)
    for tries in range(2):
        claim = take(store)
        assert (claim.tries, claim.due_ms) == (tries, 5)
        assert store.schedules.defer(claim, time_ms=5, why="no price", retry_ms=30_000)
        assert (read(store).outcome, read(store).detail, read(store).tries) == (
            "retry",
            "no price",
            tries + 1,
        )
        assert store.schedules.claim(LEASE_MS) is None
        lapse(store)
    claim = take(store)
    assert store.schedules.settle(
        claim, time_ms=5, batch=None, outcome="failed", detail="no price", next_ms=FAR
    )
    record = read(store)
    assert (record.tries, record.next_ms, record.last, record.made) == (0, FAR, None, 0)
    (event,) = due(store).events
    assert {k: v for k, v in event.items() if k != "at"} == {
        "event": "schedule_failed", "schedule": "s", "time": "5", "batch": "", "detail": "no price",
    }  # fmt: skip


def test_what_went_well_is_no_event(store: Store):
    put(store, next_ms=5)
    made(store, take(store))
    assert due(store).events == []


def test_a_schedule_whose_times_are_over_is_never_due(store: Store):
    put(store, next_ms=5)
    made(store, take(store), next_ms=None)
    assert (read(store).next_ms, rank(store)) == (None, float("inf"))
    assert store.schedules.claim(LEASE_MS) is None


def test_a_paused_schedule_is_not_due_before_it_is_resumed(store: Store):
    put(store, next_ms=5)
    assert twice(store, "schedule_pause", "s", "ann", "") == ["OK"]
    assert store.schedules.pause("s", "bob")
    assert (read(store).paused, rank(store)) == ("ann", float("inf"))
    assert store.schedules.claim(LEASE_MS) is None
    assert twice(store, "schedule_pause", "s", "", 7) == ["OK"]
    assert (read(store).paused, read(store).next_ms, rank(store)) == (None, 7, 7.0)
    assert take(store).due_ms == 7


def test_resuming_one_that_is_not_paused_changes_nothing(store: Store):
    put(store, next_ms=5)
    with untouched(store):
        assert store.schedules.resume("s", 99)


def test_one_that_is_paused_at_work_finishes_and_then_rests(store: Store):
    put(store, next_ms=5)
    claim = take(store)
    store.schedules.pause("s", "ann")
    assert rank(store) != float("inf"), "its worker may die"
    assert made(store, claim)
    assert rank(store) == float("inf")


def test_one_that_is_paused_and_resumed_at_work_is_finished_by_whoever_follows_and_not_before_its_time(
    store: Store,
):
    put(store, next_ms=5)
    dead = take(store)
    store.schedules.pause("s", "ann")
    store.schedules.resume("s", FAR)
    lapse(store)
    claim = take(store)
    assert (claim.due_ms, claim.begun_ms) == (5, dead.begun_ms)
    assert made(store, claim)
    assert (read(store).next_ms, read(store).paused, rank(store)) == (FAR, None, FAR)


def test_one_that_is_resumed_while_a_batch_is_made_by_hand_leaves_out_what_was_due(store: Store):
    put(store, next_ms=5)
    store.schedules.pause("s", "ann")
    store.schedules.ask("s")
    claim = take(store)
    store.schedules.resume("s", FAR)
    assert made(store, claim, next_ms=8)
    assert (read(store).next_ms, rank(store)) == (FAR, FAR)


def test_a_time_is_begun_once_however_often_it_is_taken_on(store: Store):
    put(store, next_ms=5)
    first = take(store)
    key = store.keys.schedule("s")
    store.client.hset(key, "begun", "5 1000")
    lapse(store)
    assert take(store).begun_ms == 1000, "by another, after this one has died"
    lapse(store)
    claim = take(store)
    store.schedules.defer(claim, time_ms=5, why="no", retry_ms=1)
    lapse(store)
    claim = take(store)
    assert claim.begun_ms == 1000, "when it is tried again"
    made(store, claim, next_ms=7)
    assert take(store).begun_ms >= first.begun_ms, "the next time is begun anew"


def test_one_that_is_paused_between_two_tries_is_not_tried_again(store: Store):
    put(store, next_ms=5)
    claim = take(store)
    store.schedules.pause("s", "ann")
    store.schedules.defer(claim, time_ms=5, why="no", retry_ms=1)
    assert rank(store) == float("inf")
    store.schedules.resume("s", FAR)
    record = read(store)
    assert (record.outcome, record.detail, record.tries, rank(store)) == ("failed", "no", 0, FAR)


def test_a_batch_may_be_asked_for_once_also_of_one_that_is_paused(store: Store):
    put(store)
    store.schedules.pause("s", "ann")
    asked = store.schedules.ask("s")
    assert asked is not None
    assert store.schedules.ask("s") == asked
    claim = take(store)
    assert (claim.is_asked, claim.due_ms) == (True, asked)
    assert made(store, claim, next_ms=8)
    record = read(store)
    assert (record.asked_ms, record.next_ms, record.last_ms) == (None, FAR, asked)
    assert rank(store) == float("inf")


def test_what_is_asked_for_while_one_is_made_comes_after_it(store: Store):
    put(store, next_ms=5)
    claim = take(store)
    asked = store.schedules.ask("s")
    assert store.schedules.claim(LEASE_MS) is None
    made(store, claim)
    assert take(store).due_ms == asked


def test_a_removed_schedule_leaves_nothing_and_its_claim_is_lost(store: Store):
    put(store, next_ms=5)
    claim = take(store)
    assert store.schedules.remove("s")
    assert store.schedules.names() == []
    assert not [name for name in dump(store) if name.startswith("schedule")]
    assert not made(store, claim)
    assert not store.schedules.renew(claim, LEASE_MS)
    assert list(store.schedules.chunks("s", claim.part)) == []


def test_one_that_there_is_not_is_missing_everywhere(store: Store):
    with untouched(store):
        assert not store.schedules.pause("s", "ann")
        assert not store.schedules.resume("s", 1)
        assert not store.schedules.remove("s")
        assert store.schedules.ask("s") is None
        assert store.schedules.read("s") is None


def test_an_entry_without_its_schedule_is_dropped_and_hides_nobody(store: Store):
    store.client.zadd(store.keys.schedules, {"ghost": 1})
    put(store, next_ms=5)
    assert store.schedules.claim(LEASE_MS) is None
    assert take(store).name == "s"
    assert store.schedules.names() == ["s"]


def test_each_key_is_in_the_table_with_its_fields_and_goes_with_its_schedule(store: Store):
    put(store, next_ms=5)
    claim = take(store)
    store.schedules.ask("s")
    store.schedules.pause("s", "ann")
    told = set(str(keys.__doc__).replace(",", " ").split())
    fields = {str(name) for name in store.client.hkeys(store.keys.schedule("s"))}
    store.schedules.defer(claim, time_ms=5, why="no", retry_ms=1)
    fields |= {str(name) for name in store.client.hkeys(store.keys.schedule("s"))}
    lapse(store)
    made(store, take(store))
    fields |= {str(name) for name in store.client.hkeys(store.keys.schedule("s"))}
    assert fields - told == set()
    owners = {name: owner_of(name) for name in dump(store)}
    assert {owners.pop(f"schedule:s:rows:{read(store).part}"), *owners.values()} == {"schedule:s", STAYS}


def test_events_are_json_of_text(store: Store):
    put(store, next_ms=5)
    store.schedules.settle(take(store), time_ms=5, batch=None, outcome="skipped", detail="s.0", next_ms=FAR)
    (event,) = (json.loads(text) for text in store.client.lrange(f"{store.keys.prefix}events", 0, -1))
    assert event["event"] == "schedule_skipped"
