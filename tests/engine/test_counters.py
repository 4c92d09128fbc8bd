"""What a batch counts when its runs end is what their threads say, whatever the end, and however often."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentq.agent import Budgets, LoopDetector, StopReason, run_metrics
from agentq.agent.metrics import Counts
from agentq.app import Batch, Run
from agentq.core.lifecycle import RunState
from agentq.engine.cancel import cancel_run
from agentq.engine.decide import Answer, decide
from agentq.engine.retry import retry_run
from agentq.provider.errors import InvalidRequest
from agentq.store.checkup import examine
from agentq.tools import tool
from tests.support.harness import (
    HELLO,
    LEASE_MS,
    Moody,
    Rig,
    age,
    claim_run,
    finish_or_fail,
    open_batch,
    ready,
    steady,
)
from tests.support.rows import finish, in_flight, load_rows, window

LOOK, FAIL, REFUND = [("look", '{"id": "1"}')], [("fail", "{}")], [("refund", "{}")]


@tool
def look(id: str) -> str:
    """Look something up."""
    return f"thing {id}"


@tool
def fail() -> str:
    """Never work."""
    raise RuntimeError("broken")


@tool(side_effect=True, requires_approval=True)
def refund() -> str:
    """Give money back."""
    return "refunded"


def same(rig: Rig) -> None:
    """The counters say what the threads of the runs that have ended say."""
    batch = Batch(rig.store, "b1")
    threads = [run.thread() for run in batch.runs() if run.done()]
    assert batch.metrics() == run_metrics(threads)
    counted = sum(int(n) for name, n in batch.record().counters.items() if name.startswith("steps:"))
    assert counted == len(threads)
    rig.check()


def play(rig: Rig, script: list, *, name: str, **options) -> str:
    """A run of its own agent in the batch, worked on until it can go no further."""
    rig.agent(Moody(script), look, fail, refund, name=name, **options)
    run = rig.submit(agent=name, batch="b1")
    rig.drain()
    return run


def test_every_end_counts_as_its_thread_says(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    open_batch(rig.store)
    free = Budgets(max_steps=50, max_tokens=None)
    reasons = set()

    def over(run: str) -> str:
        record = rig.record(run)
        assert record.state is RunState.ENDED, record
        reasons.add(record.stop_reason)
        same(rig)
        return run

    over(play(rig, [LOOK, FAIL, LOOK, "done"], name="recovers"))
    over(play(rig, ["done"], name="short"))
    over(play(rig, [LOOK] * 9, name="loops", loop_detector=LoopDetector()))
    over(play(rig, [FAIL] * 9, name="fails", max_tool_errors=2, loop_detector=None))
    steps = over(play(rig, [LOOK] * 9, name="steps", budgets=Budgets(max_steps=2, max_tokens=None)))
    rig.agent(Moody([LOOK, "x"], moods=[None, InvalidRequest("no", provider="p")]), look, name="model")
    over(finish_or_fail(rig, rig.submit(agent="model", batch="b1")).id)

    waiting = play(rig, [[*LOOK, *FAIL], REFUND, "done"], name="asks", budgets=free)
    assert rig.record(waiting).state is RunState.WAITING
    cancel_run(rig.store, waiting, by="ann")
    over(waiting)
    refused = play(rig, [REFUND, "done"], name="refused", budgets=free)
    decide(rig.store, refused, rig.record(refused).pending[0].id, Answer("deny", "ann"))
    rig.rescue()
    rig.drain()
    over(refused)
    assert run_metrics([Run(rig.store, refused).thread()]).recovery_rate == 1.0
    expired = play(rig, [LOOK, REFUND, "done"], name="late", budgets=free, on_expired="stop")
    age(rig.store, expired)
    rig.rescue()
    over(expired)

    rig.agent(Moody([LOOK, LOOK, "done"]), look, name="deadly", budgets=free)
    deadly = rig.submit(agent="deadly", batch="b1")
    rig.step()
    while rig.record(deadly).state is not RunState.ENDED:
        ready(rig.store, deadly)
        claim_run(rig.store, deadly)
        steady(rig.store)
        age(rig.store, deadly)
        rig.store.watch.rescue(deadly, LEASE_MS)
    rig.queue.clear()
    over(deadly)
    assert {
        "finished",
        "loop_detected",
        "step_budget",
        "tool_error_ceiling",
        "model_error",
        "cancelled",
    } <= reasons
    assert {"approval_expired", "attempts_exhausted"} <= reasons

    before = Batch(rig.store, "b1").metrics()
    retry_run(rig.store, steps, by="ann", budgets={"max_steps": 4})
    assert Batch(rig.store, "b1").metrics().runs == before.runs - 1
    same(rig)
    rig.rescue()
    rig.drain()
    over(steps)


def test_a_retry_takes_back_what_the_run_has_added_and_nothing_else(rig: Rig):
    open_batch(rig.store)
    first = play(
        rig, [LOOK, FAIL, FAIL], name="a", budgets=Budgets(max_steps=3, max_tokens=None), loop_detector=None
    )
    one = Batch(rig.store, "b1").record().counters
    play(rig, [FAIL, FAIL, "done"], name="b")
    both = Batch(rig.store, "b1").record().counters
    assert both["steps:3"] == 2
    # A bill that comes after the end is not in the counters, and is not taken out of them.
    rig.store.client.hincrby(rig.store.keys.scope(f"run:{first}"), "us", 5)
    retry_run(rig.store, first, by="ann", budgets={"max_steps": 9})
    left = Batch(rig.store, "b1").record().counters
    assert left == {name: n - one.get(name, 0) for name, n in both.items() if n != one.get(name, 0)}
    assert rig.store.client.hexists(rig.store.keys.run(first), "counted") is False


def test_a_cancelled_retry_counts_what_was_done_before_too(rig: Rig):
    open_batch(rig.store)
    run = play(rig, [LOOK, FAIL], name="a", budgets=Budgets(max_steps=2, max_tokens=None))
    retry_run(rig.store, run, by="ann", budgets={"max_steps": 9})
    cancel_run(rig.store, run, by="ann")
    assert rig.record(run).stop_reason is StopReason.CANCELLED
    same(rig)


def test_what_a_step_that_went_wrong_has_not_kept_is_not_counted(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    open_batch(rig.store)
    rig.agent(Moody([LOOK, LOOK, "done"]), look, name="a")
    run = rig.submit(agent="a", batch="b1")
    rig.step()
    monkeypatch.setattr("agentq.engine.acting.failpoint", _broken)
    finish_or_fail(rig, run)
    assert rig.record(run).stop_reason is StopReason.MODEL_ERROR
    same(rig)


def _broken(point: str) -> None:
    if point == "step.after_tools":
        raise RuntimeError("broken")


def test_a_run_of_more_steps_than_the_histogram_has_is_in_its_last_bucket(rig: Rig):
    open_batch(rig.store)
    many = 205
    turns = [[("look", f'{{"id": "{n}"}}')] for n in range(many)]
    rig.agent(
        Moody([*turns, "done"]), look, budgets=Budgets(max_steps=300, max_tokens=None, max_seconds=None)
    )
    rig.submit(batch="b1")
    rig.drain(most=300)
    counters = Batch(rig.store, "b1").record().counters
    assert (counters["steps:200"], counters["results"]) == (1, many)
    assert Batch(rig.store, "b1").metrics().steps_p95 == 200.0


def test_children_are_not_counted(rig: Rig):
    rig.agent(Moody(["done"]), name="child")
    open_batch(rig.store)
    parent = play(rig, [REFUND, "done"], name="parent", budgets=Budgets(max_tokens=None))
    child = replace(rig.record(parent).spec, agent="child", ancestors=(parent,), custom_id=None)
    rig.store.runs.submit([("kid", child, [HELLO])], heads=["{}"], retention_ms=1000)
    rig.submitted.append("kid")
    cancel_run(rig.store, "kid", by="ann")
    assert Batch(rig.store, "b1").record().counters == {}
    cancel_run(rig.store, parent, by="ann")
    assert Counts.stored(Batch(rig.store, "b1").record().counters, {"cancelled": 1}).metrics().runs == 1
    same(rig)


def test_rows_that_never_became_runs_count_with_their_reason_and_nothing_else(rig: Rig):
    window(rig.store, 4)
    load_rows(rig.store, 10)
    for run_id in sorted(in_flight(rig.store)):
        finish(rig.store, run_id, tokens=5)
    begun = {run.id for run in Batch(rig.store, "b1").runs() if not run.record().is_row}
    dropped = rig.store.batches.drop("b1", StopReason.COST_BUDGET)
    for run_id in sorted(in_flight(rig.store)):
        finish(rig.store, run_id)
    assert (len(begun), dropped) == (8, 2)
    metrics = Batch(rig.store, "b1").metrics()
    assert (metrics.runs, metrics.completion_rate, metrics.budget_stop_rate) == (10, 0.8, 0.2)
    assert Batch(rig.store, "b1").record().counters == {"steps:0": 8}


def test_counters_that_no_run_bears_out_are_found_and_put_right(rig: Rig):
    open_batch(rig.store)
    play(rig, [LOOK, FAIL, "done"], name="a")
    right = Batch(rig.store, "b1").record().counters
    key = rig.store.keys.batch("b1")
    for field, wrong in (("m:results", 9), ("m:steps:7", 1), ("m:usd", 1)):
        rig.store.client.hset(key, field, str(wrong))
        assert [finding.code for finding in examine(rig.store).findings] == ["counter"]
        assert examine(rig.store, repair=True).repaired == 1
        assert Batch(rig.store, "b1").record().counters == right
    rig.check()
