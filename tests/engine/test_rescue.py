"""The tick's work, with workers that died and messages that were lost."""

from __future__ import annotations

from agentq.engine.rescue import rescue_due
from agentq.provider.errors import RateLimited
from agentq.store.watch import Rescue
from agentq.tools import tool
from tests.support.harness import (
    LEASE_MS,
    Moody,
    Rig,
    age,
    claim_run,
    finish_or_fail,
    ready,
    state_of,
    steady,
)


@tool
def look(id: str) -> str:
    """Look."""
    return id


def test_each_kind_of_due_run_is_put_right_in_one_tick(rig: Rig):
    rig.agent(Moody(["done"]), look)
    lost, dead, cancelled, fine = (rig.submit() for _ in range(4))
    rig.queue.clear()
    claim_run(rig.store, dead)
    claim_run(rig.store, cancelled)
    rig.store.runs.cancel(cancelled, "me")
    steady(rig.store)
    for run in (lost, dead, cancelled):
        age(rig.store, run)
    done = rig.rescue()
    assert sorted((item.verdict, item.step, item.reason) for item in done) == [
        ("ENDED", None, "cancelled"),
        ("RESCUED", 0, None),
    ]
    assert {item.run_id for item in done} == {dead, cancelled}
    assert sorted(rig.queue) == sorted([(lost, 0), (dead, 0)])
    assert [state_of(rig.store, run) for run in (lost, dead, cancelled, fine)] == [
        "queued", "queued", "ended", "queued",
    ]  # fmt: skip
    assert rig.rescue() == []
    rig.check()


def test_a_full_worker_still_rescues_and_sends_no_hint(rig: Rig):
    rig.agent(Moody(["done"]), look)
    lost, dead = rig.submit(), rig.submit()
    rig.queue.clear()
    claim_run(rig.store, dead)
    steady(rig.store)
    for run in (lost, dead):
        age(rig.store, run)
    bench = rig.bench
    assert rescue_due(rig.store.watch, rig.store.ledger, bench.dispatch, lease_ms=LEASE_MS, room=0) == [
        Rescue("RESCUED", step=0)
    ]
    assert rig.queue == [(dead, 0)]


def test_a_run_that_waited_for_its_provider_goes_on_although_every_worker_is_full(rig: Rig):
    rig.agent(Moody(["done"], moods=[RateLimited("slow")]), look)
    run = rig.submit()
    rig.drain()
    ready(rig.store, run)
    rescue_due(rig.store.watch, rig.store.ledger, rig.bench.dispatch, lease_ms=LEASE_MS, room=0)
    rig.drain()
    assert rig.record(run).stop_reason == "finished"


def test_a_step_that_kills_every_worker_ends_its_run(rig: Rig):
    rig.agent(Moody(["done"]), look)
    run = rig.submit()
    for verdict in ("RESCUED", "SUSPECT", "SUSPECT", "SUSPECT", "ENDED"):
        claim_run(rig.store, run)
        done = rig.revive(run)
        assert [item.verdict for item in done] == [verdict]
        ready(rig.store, run)
    assert done == [Rescue("ENDED", reason="attempts_exhausted")]
    rig.drain()
    assert rig.record(run).stop_reason == "attempts_exhausted"
    rig.check()


def test_a_hint_that_cannot_be_sent_is_sent_by_a_later_tick(rig: Rig):
    rig.agent(Moody(["done"]), look)
    run = rig.submit()
    rig.queue.clear()
    age(rig.store, run)
    assert rescue_due(rig.store.watch, rig.store.ledger, lambda *_: None, lease_ms=LEASE_MS, room=10) == []
    assert finish_or_fail(rig, run).stop_reason == "finished"
