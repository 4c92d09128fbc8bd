"""Batches of schedules: each time once and whole, whoever makes it and whoever dies."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import redis

from agentq import AgentQ
from agentq.app.chores import AppMaker
from agentq.app.schedule import Schedule
from agentq.core.errors import ConflictError, InputError, UsageError
from agentq.core.failpoints import FailpointError
from agentq.engine import schedule as module
from agentq.engine.plan import batch_at, next_time
from agentq.engine.schedule import TRIES, make_due
from agentq.store.schedules import Claim
from agentq.worker.embedded import EmbeddedServer
from tests.support.harness import PRICING, due

LEASE_MS = 15_000
HOUR_MS = 3_600_000
HOURLY = "0 * * * *"


@pytest.fixture
def app(server: EmbeddedServer, namespace: str, redis_client: redis.Redis) -> Iterator[AgentQ]:
    """An app with an agent, and no worker."""
    made = AgentQ("t", redis_url=server.url, namespace=namespace, pricing=PRICING)
    made.agent("a", model="scripted")
    yield made
    made.store.client.close()
    made.celery.close()


def rows(count: int = 3) -> list[dict[str, Any]]:
    return [{"input": f"row {number}", "custom_id": f"c{number}"} for number in range(count)]


def hourly(app: AgentQ, name: str = "s", count: int = 3, **terms: Any) -> Schedule:
    return app.schedule(name, HOURLY, rows(count), agent="a", tz="UTC", **terms)


def back(app: AgentQ, name: str = "s", *, hours: float = 1) -> int:
    """Its next time is so many hours, less than one more, ago; answers it."""
    key = app.store.keys.schedule(name)
    whole = app.store.watch.server_ms() // HOUR_MS - int(hours)
    was = whole * HOUR_MS
    app.store.client.hset(key, "next", was)
    app.store.client.zadd(app.store.keys.schedules, {name: was})
    return was


def lapse(app: AgentQ, name: str = "s") -> None:
    app.store.client.zadd(app.store.keys.schedules, {name: 1}, xx=True)


def make(app: AgentQ, maker: Any = None) -> None:
    make_due(app.store, maker or AppMaker(app), lease_ms=LEASE_MS)


def batches(app: AgentQ) -> list[str]:
    return sorted(app.store.batches.names())


def name_at(app: AgentQ, time_ms: int, name: str = "s") -> str:
    return batch_at(name, Schedule(app, name).plan(), time_ms)


def test_nothing_is_made_before_its_time(app: AgentQ):
    schedule = hourly(app)
    make(app)
    assert batches(app) == []
    assert schedule.last is None
    assert schedule.next is not None
    assert schedule.next.timestamp() % 3600 == 0


def test_a_batch_is_made_of_all_rows_called_after_its_time(app: AgentQ):
    schedule = hourly(app, max_usd="0.50", max_in_flight=2, priority=3, tenant="acme")
    was = back(app, hours=0)
    make(app)
    make(app)
    name = f"s.{datetime.fromtimestamp(was / 1000, UTC):%Y%m%d-%H%M}"
    assert batches(app) == [name]
    record = app.batch(name).record()
    assert (record.total, record.sealed, record.tenant, record.agent) == (3, True, "acme", "a")
    assert (record.max_in_flight, record.priority) == (2, 3)
    assert app.store.ledger.account(f"batch:{name}").limit_nano == 500_000_000
    assert [run.custom_id for run in app.batch(name).runs()] == ["c0", "c1", "c2"]
    found = schedule.record()
    assert (found.last, found.last_ms, found.outcome, found.detail, found.made) == (name, was, "made", "", 1)
    assert found.next_ms == next_time(schedule.plan(), app.store.watch.server_ms())
    assert schedule.last is not None
    assert schedule.last.name == name
    assert due(app.store).events == []


def test_each_time_has_a_batch_and_a_limit_of_its_own(app: AgentQ):
    hourly(app, overlap="allow", max_usd="0.50")
    now = back(app, hours=0)
    make(app)
    asked = Schedule(app, "s").run()
    make(app)
    assert batches(app) == sorted({name_at(app, now), asked})
    for name in batches(app):
        assert app.store.ledger.account(f"batch:{name}").limit_nano == 500_000_000


def test_of_the_times_that_were_missed_only_the_last_is_made_and_somebody_hears_of_it(app: AgentQ):
    schedule = hourly(app)
    was = back(app, hours=30)
    make(app)
    now_hour = app.store.watch.server_ms() // HOUR_MS * HOUR_MS
    assert batches(app) == [name_at(app, now_hour)]
    record = schedule.record()
    assert (record.outcome, record.made) == ("late", 1)
    assert "were missed" in record.detail
    (event,) = due(app.store).events
    assert (event["event"], event["batch"]) == ("schedule_late", name_at(app, now_hour))
    assert was < now_hour


def test_while_the_batch_before_is_not_over_none_is_made_by_default(app: AgentQ):
    schedule = hourly(app)
    back(app, hours=0)
    make(app)
    (first,) = batches(app)
    # Another hour has come.
    app.store.client.hset(app.store.keys.schedule("s"), "last", "s.before")
    app.store.client.rename(app.store.keys.batch(first), app.store.keys.batch("s.before"))
    back(app, hours=0)
    make(app)
    record = schedule.record()
    assert (record.outcome, record.detail) == ("skipped", "s.before is not over yet")
    assert (record.last, record.made) == ("s.before", 1)
    assert [event["event"] for event in due(app.store).events] == ["schedule_skipped"]
    app.store.client.hset(app.store.keys.batch("s.before"), "ended", 3)
    back(app, hours=0)
    make(app)
    assert schedule.record().made == 2


@pytest.mark.parametrize("way", ["allow", "asked", "gone"])
def test_it_is_made_where_that_is_allowed_or_asked_for_or_the_last_is_kept_no_longer(app: AgentQ, way: str):
    schedule = hourly(app, overlap="allow" if way == "allow" else "skip")
    app.submit_many("a", rows(1), batch="before")
    app.store.client.hset(app.store.keys.schedule("s"), "last", "nothing" if way == "gone" else "before")
    if way == "asked":
        asked = schedule.run()
        make(app)
        assert schedule.record().last == asked
    else:
        back(app, hours=0)
        make(app)
    assert schedule.record().made == 1


def test_it_is_asked_for_by_hand_also_while_it_is_paused(app: AgentQ):
    schedule = hourly(app)
    schedule.pause("ann")
    assert schedule.next is None
    name = schedule.run()
    assert schedule.run() == name
    make(app)
    assert batches(app) == [name]
    assert schedule.record().paused == "ann"
    make(app)
    assert batches(app) == [name]
    following = schedule.resume()
    assert following is not None
    assert following.timestamp() * 1000 > app.store.watch.server_ms()


def test_resuming_makes_up_for_nothing(app: AgentQ):
    schedule = hourly(app)
    back(app, hours=5)
    schedule.pause()
    make(app)
    schedule.resume()
    make(app)
    assert batches(app) == []


POINTS = (
    "schedule.after_claim",
    "submit.after_open",
    "submit.after_chunk",
    "submit.after_write",
    "schedule.after_load",
)


@pytest.mark.parametrize("point", POINTS)
def test_a_worker_that_dies_anywhere_leaves_one_whole_batch_to_the_next(
    app: AgentQ, monkeypatch: pytest.MonkeyPatch, point: str
):
    monkeypatch.setattr("agentq.engine.spool.CHUNK", 2)
    schedule = hourly(app, count=5)
    was = back(app, hours=0)
    monkeypatch.setenv("AGENTQ_FAILPOINTS", f"{point}=raise")
    with pytest.raises(FailpointError):
        make(app)
    monkeypatch.delenv("AGENTQ_FAILPOINTS")
    make(app)
    assert schedule.record().made == 0, "it is the dead one's for a while"
    lapse(app)
    # A dead loader is known by its process; this one is the test's own.
    name = name_at(app, was)
    loader = app.store.client.hget(app.store.keys.batch(name), "loader")
    if loader is not None:
        who, _, was_sealed = str(loader).split()
        app.store.client.hset(app.store.keys.batch(name), "loader", f"{who} 1 {was_sealed}")
    make(app)
    record = app.batch(name).record()
    assert (record.total, record.sealed) == (5, True)
    assert batches(app) == [name]
    assert (schedule.record().made, schedule.record().outcome) == (1, "made")


def test_a_batch_that_was_begun_is_made_whole_also_when_the_next_time_has_come(
    app: AgentQ, monkeypatch: pytest.MonkeyPatch
):
    """Its worker dies in the middle, and the one that follows comes after the next time."""
    monkeypatch.setattr("agentq.engine.spool.CHUNK", 2)
    schedule = hourly(app, count=5)
    was = back(app, hours=1)
    app.store.client.hset(app.store.keys.schedule("s"), "begun", f"{was} {was + 1000}")
    monkeypatch.setenv("AGENTQ_FAILPOINTS", "submit.after_chunk=raise")
    with pytest.raises(FailpointError):
        make(app)
    monkeypatch.delenv("AGENTQ_FAILPOINTS")
    name = name_at(app, was)
    who, _, was_sealed = str(app.store.client.hget(app.store.keys.batch(name), "loader")).split()
    app.store.client.hset(app.store.keys.batch(name), "loader", f"{who} 1 {was_sealed}")
    lapse(app)
    make(app)
    assert (app.batch(name).record().total, app.batch(name).record().sealed) == (5, True)
    # The time that has come meanwhile is due at once.
    assert schedule.record().outcome == "skipped"
    assert schedule.record().detail == f"{name} is not over yet"
    assert batches(app) == [name]


def test_a_schedule_in_a_zone_that_this_machine_lacks_is_left_to_another_and_says_so(app: AgentQ):
    schedule = hourly(app)
    back(app, hours=0)
    key = app.store.keys.schedule("s")
    spec = app.store.client.hget(key, "spec")
    app.store.client.hset(key, "spec", str(spec).replace("UTC", "Mars/Base"))
    hourly(app, "t")
    back(app, "t", hours=0)
    make(app)
    assert [name.partition(".")[0] for name in batches(app)] == ["t"], "the others are made"
    record = schedule.record()
    assert (record.outcome, record.is_claimed, record.made) == ("retry", False, 0)
    assert record.detail.startswith("there is no time zone 'Mars/Base'")
    app.store.client.hset(key, "spec", str(spec))
    lapse(app)
    make(app)
    assert schedule.record().outcome == "made"


def test_two_workers_make_one_batch_when_the_first_is_only_slow(app: AgentQ):
    """The first is held up behind its load, and goes on when the second has made the batch."""
    schedule = hourly(app)
    was = back(app, hours=0)

    class Slow(AppMaker):
        def write(self, load: Any, plan: Any) -> None:
            super().write(load, plan)
            lapse(app)
            make(app)

    make(app, Slow(app))
    assert batches(app) == [name_at(app, was)]
    assert (app.batch(name_at(app, was)).record().total, schedule.record().made) == (3, 1)


def test_a_claim_that_is_lost_while_rows_are_checked_makes_nothing(
    app: AgentQ, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("agentq.engine.spool.CHUNK", 1)
    monkeypatch.setattr(module, "RENEWALS_A_LEASE", 10**9)
    schedule = hourly(app)
    back(app, hours=0)
    monkeypatch.setattr(app.store.schedules, "renew", lambda *_: False)
    make_due(app.store, AppMaker(app), lease_ms=LEASE_MS)
    assert batches(app) == []
    assert schedule.record().is_claimed, "by whoever has it now"


def test_a_claim_is_renewed_while_it_is_worked_on(app: AgentQ, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("agentq.engine.spool.CHUNK", 1)
    monkeypatch.setattr(module, "RENEWALS_A_LEASE", 10**9)
    hourly(app)
    back(app, hours=0)
    seen = []
    renew = app.store.schedules.renew

    def counted(claim: Claim, lease_ms: int) -> bool:
        seen.append(claim)
        return renew(claim, lease_ms)

    monkeypatch.setattr(app.store.schedules, "renew", counted)
    make(app)
    assert len(seen) >= 3


def test_a_schedule_that_is_removed_while_it_is_read_makes_no_half_batch(
    app: AgentQ, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("agentq.engine.plan.CHUNK_CHARS", 1)
    schedule = hourly(app)
    back(app, hours=0)
    chunks = app.store.schedules.chunks

    def remove_in_between(name: str, part: str) -> Iterator[str]:
        for chunk in chunks(name, part):
            yield chunk
            app.store.schedules.remove(name)

    monkeypatch.setattr(app.store.schedules, "chunks", remove_in_between)
    make(app)
    assert batches(app) == []
    with pytest.raises(UsageError, match="no schedule 's'"):
        schedule.record()


def test_what_cannot_be_made_is_tried_again_and_then_given_up_until_the_next_time(app: AgentQ):
    schedule = hourly(app)
    was = back(app, hours=0)
    agent = app.agents.pop("a")
    for tries in range(1, TRIES):
        make(app)
        record = schedule.record()
        assert (record.outcome, record.tries, record.next_ms) == ("retry", tries, was)
        assert "there is no agent 'a'" in record.detail
        make(app)
        assert schedule.record().tries == tries, "it is put off"
        lapse(app)
    make(app)
    record = schedule.record()
    assert (record.outcome, record.tries, record.made) == ("failed", 0, 0)
    assert record.next_ms == next_time(schedule.plan(), app.store.watch.server_ms())
    assert [event["event"] for event in due(app.store).events] == ["schedule_failed"]
    assert batches(app) == []
    app.agents["a"] = agent
    back(app, hours=0)
    make(app)
    assert schedule.record().outcome == "made"


def test_a_batch_of_that_name_with_other_content_is_left_as_it_is(app: AgentQ):
    schedule = hourly(app)
    was = back(app, hours=0)
    app.submit_many("a", [{"input": "mine", "custom_id": "c0"}], batch=name_at(app, was))
    make(app)
    record = schedule.record()
    assert record.outcome == "retry"
    assert "with other content" in record.detail
    assert app.batch(name_at(app, was)).record().total == 1


def test_several_that_are_due_are_made_in_one_round(app: AgentQ):
    for name in ("s", "t", "u"):
        hourly(app, name)
        back(app, name, hours=0)
    make(app)
    assert {name.partition(".")[0] for name in batches(app)} == {"s", "t", "u"}


def test_the_same_schedule_again_is_left_alone_and_another_is_a_conflict(app: AgentQ):
    schedule = hourly(app)
    created = schedule.record()
    assert hourly(app).record() == created
    with pytest.raises(ConflictError, match="schedule 's' with other rows or terms"):
        hourly(app, count=4)
    with pytest.raises(ConflictError):
        hourly(app, max_usd="1")
    assert schedule.record() == created
    schedule.remove()
    hourly(app, count=4)
    assert schedule.record().rows == 4
    assert [found.name for found in app.schedules()] == ["s"]


def test_rows_that_cannot_be_keep_nothing(app: AgentQ):
    with pytest.raises(InputError, match="row 2: the row has no 'input'"):
        app.schedule("s", HOURLY, [{"input": "x"}, {}], agent="a")
    with pytest.raises(InputError, match="no agent 'b'"):
        app.schedule("s", HOURLY, rows(), agent="b")
    with pytest.raises(UsageError, match="needs rows"):
        app.schedule("s", HOURLY, [], agent="a")
    with pytest.raises(UsageError, match="no cron expression"):
        app.schedule("s", "hourly", rows(), agent="a")
    with pytest.raises(UsageError, match="None is no cron expression"):
        app.schedule("s", None, rows(), agent="a")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no time zone 5"):
        app.schedule("s", HOURLY, rows(), agent="a", tz=5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no secret"):
        app.schedule("s", HOURLY, rows(), agent="a", notify="https://x.org")
    assert app.schedules() == []


def test_one_that_there_is_not_is_met_with_the_nearest(app: AgentQ):
    hourly(app, "orders")
    for act in (Schedule.record, Schedule.pause, Schedule.resume, Schedule.run, Schedule.remove):
        with pytest.raises(UsageError, match=r"no schedule 'odrers' \(did you mean 'orders'\?\)"):
            act(Schedule(app, "odrers"))


def test_rows_without_ids_have_the_same_ids_each_time(app: AgentQ):
    app.schedule("s", HOURLY, [{"input": "x"}, {"input": "x"}], agent="a", tz="UTC")
    was = back(app, hours=0)
    make(app)
    scheduled = [run.custom_id for run in app.batch(name_at(app, was)).runs()]
    app.submit_many("a", [{"input": "x"}, {"input": "x"}], batch="b")
    assert scheduled == [run.custom_id for run in app.batch("b").runs()]
