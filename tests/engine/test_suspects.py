"""Suspects: of the steps that may kill their process, a process has one at a time; the others go on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

from agentq.engine.step import execute_step
from tests.support.harness import LEASE_MS, Moody, Rig, age, claim_run, finish_or_fail, ready, state_of
from tests.support.wait import wait_until

PATIENCE_S = 30


def kill_twice(rig: Rig, run: str) -> None:
    """Two processes have died in the run's step."""
    for verdict in ("RESCUED", "SUSPECT"):
        claim_run(rig.store, run)
        assert [rescue.verdict for rescue in rig.revive(run)] == [verdict]
        ready(rig.store, run)
    rig.queue.clear()


def test_a_process_has_one_suspect_at_a_time_and_goes_on_with_the_others(rig: Rig):
    answer = Event()
    fast = Moody(["done"])
    rig.agent(Moody(["done"], moods=[lambda _: None if answer.wait(PATIENCE_S) else ValueError("late")]))
    rig.agent(fast, name="b")
    slow, other, innocent = rig.submit(), rig.submit(agent="b"), rig.submit(agent="b")
    for run in (slow, other):
        kill_twice(rig, run)
    bench = rig.bench
    with ThreadPoolExecutor(1) as pool:
        at_work = pool.submit(execute_step, slow, 0, bench=bench)
        wait_until(lambda: state_of(rig.store, slow) == "running", "the first suspect to be at work")
        execute_step(other, 0, bench=bench)
        assert (fast.call_count, state_of(rig.store, other)) == (0, "queued")
        execute_step(innocent, 0, bench=bench)
        assert rig.record(innocent).stop_reason == "finished"
        execute_step(other, 0, bench=rig.bench)  # another process
        assert rig.record(other).stop_reason == "finished"
        answer.set()
        at_work.result(PATIENCE_S)
    assert rig.record(slow).stop_reason == "finished"
    rig.check()


def test_a_suspect_that_was_refused_comes_back_by_itself(rig: Rig):
    rig.agent(Moody(["done"]))
    run = rig.submit()
    kill_twice(rig, run)
    bench = rig.bench
    with bench.suspects.place():
        execute_step(run, 0, bench=bench)
    assert state_of(rig.store, run) == "queued"
    age(rig.store, run)
    rig.rescue()
    assert rig.queue == [(run, 0)]
    execute_step(*rig.queue.pop(), bench=bench)
    assert rig.record(run).stop_reason == "finished"
    rig.check()


def test_the_place_is_free_again_after_each_step_whatever_became_of_it(rig: Rig):
    rig.agent(Moody(["done"], moods=[ValueError("no")]))
    bench = rig.bench
    for _ in range(3):
        run = rig.submit()
        kill_twice(rig, run)
        execute_step(run, 0, bench=bench)
        with bench.suspects.place() as place:
            assert place.is_free


def test_a_run_whose_agent_is_not_known_here_keeps_no_place(rig: Rig):
    rig.agent(Moody(["done"]))
    run = rig.submit()
    kill_twice(rig, run)
    del rig.agents["a"]
    bench = rig.bench
    execute_step(run, 0, bench=bench)
    with bench.suspects.place() as place:
        assert place.is_free
    assert rig.store.client.hget(rig.store.keys.run(run), "suspect") is None
    rig.check()


def test_the_neighbours_of_a_run_that_kills_its_process_end_well(rig: Rig):
    """Each dies as often as the run that kills, and none is taken for it."""
    rig.agent(Moody(["done"]))
    killer, *neighbours = (rig.submit() for _ in range(6))
    rig.queue.clear()
    for _ in range(10):
        if state_of(rig.store, killer) == "ended":
            break
        # One process, which holds all that it may, and dies.
        alone = False
        for run in (killer, *neighbours):
            claim = rig.store.runs.claim(run, None, LEASE_MS, may_suspect=not alone)
            alone = alone or bool(claim and claim.is_suspect)
        for run in (killer, *neighbours):
            if state_of(rig.store, run) == "running":
                rig.revive(run)
            if state_of(rig.store, run) == "queued":
                ready(rig.store, run)
    assert rig.record(killer).stop_reason == "attempts_exhausted"
    for run in neighbours:
        rig.queue.append((run, 0))
        assert finish_or_fail(rig, run).stop_reason == "finished"
    rig.check()
