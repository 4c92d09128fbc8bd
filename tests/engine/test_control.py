"""Pausing and resuming runs and batches, with scripted models on a real server."""

from __future__ import annotations

import json

import pytest

from agentq.app import Batch, Run
from agentq.core.records import Actor, RunSpec
from agentq.engine.cancel import cancel_batch, cancel_run
from agentq.provider.types import Role
from agentq.store.approvals import Wanted
from agentq.tools import tool
from tests.support.harness import HELLO, Moody, Rig, age, nano, open_batch, state_of

ONE = [("look", '{"id": "1"}')]
TWO = [("look", '{"id": "2"}')]
PAY = [("pay", "{}")]


@tool
def look(id: str) -> str:
    """Look something up."""
    return f"thing {id}"


@tool(side_effect=True, requires_approval=True)
def pay() -> str:
    """Pay."""
    return "paid"


def resumed(rig: Rig) -> None:
    """A tick sends the hints of what was let go, and the worker follows them."""
    rig.rescue()
    rig.drain()


def test_a_queued_run_is_held_at_once_and_goes_on_when_it_is_resumed(rig: Rig):
    client = Moody(["done"])
    rig.agent(client, look)
    run = Run(rig.store, rig.submit())
    assert run.pause(by="ann")
    assert (run.state, run.record().paused) == ("held", "ann")
    rig.drain()
    assert client.call_count == 0
    assert not rig.store.watch.live()[run.id] <= rig.store.watch.server_ms()
    assert run.resume()
    assert (run.state, run.record().paused) == ("queued", None)
    resumed(rig)
    assert run.answer == "done"
    rig.check()


def test_a_run_at_work_finishes_its_step_and_is_held_before_the_next(rig: Rig):
    client = Moody([ONE, TWO, "done"])
    rig.agent(client, look)
    run = Run(rig.store, rig.submit())
    client.moods = [lambda request: run.pause() and None]
    rig.drain()
    assert (run.state, run.record().steps, client.call_count) == ("held", 1, 1)
    rig.check()
    run.resume()
    resumed(rig)
    assert (run.answer, client.call_count) == ("done", 3)
    rig.check()


def test_a_held_run_keeps_its_escrow_and_gives_it_back_when_it_is_cancelled(rig: Rig):
    client = Moody([ONE, "done"])
    rig.agent(client, look)
    run = Run(rig.store, rig.submit())
    client.moods = [lambda request: run.pause() and None]
    rig.drain()
    account = rig.store.ledger.account("global")
    assert account.escrowed_nano == account.idle_nano > 0
    assert cancel_run(rig.store, run.id, by="me")
    account = rig.store.ledger.account("global")
    assert (account.escrowed_nano, account.idle_nano) == (0, 0)
    assert run.record().stopped_at == "before step 2"
    rig.check()


def test_a_decision_is_taken_while_its_run_is_paused_and_counts_when_it_goes_on(rig: Rig):
    rig.agent(Moody([PAY, "done"]), pay)
    run = Run(rig.store, rig.submit())
    rig.drain()
    assert (run.state, run.pause()) == ("waiting", True)
    assert run.state == "waiting"
    (pending,) = run.record().pending
    (taken,) = rig.store.approvals.decide([Wanted(run.id, pending.id, "approve", "ann")])
    assert taken.word == "DECIDED"
    resumed(rig)
    assert run.state == "held"
    run.resume()
    resumed(rig)
    assert run.answer == "done"
    assert [json.loads(m.content)["content"] for m in run.thread().messages if m.role is Role.TOOL] == [
        "paid"
    ]
    rig.check()


def test_a_parked_run_that_is_paused_is_held_when_there_is_money(rig: Rig):
    client = Moody([ONE, "done"])
    rig.agent(client, look)
    open_batch(rig.store, usd=10_000_000)
    rig.store.ledger.freeze("global", actor=Actor("f1", "ann", ""))
    run = Run(rig.store, rig.submit(batch="b1"))
    rig.drain()
    assert (run.state, run.pause()) == ("parked", True)
    rig.store.ledger.freeze("global", actor=Actor("f2", "ann", ""), frozen=False)
    rig.rescue()
    resumed(rig)
    assert (run.state, client.call_count) == ("held", 0)
    run.resume()
    resumed(rig)
    assert run.answer == "done"
    rig.check()


def test_a_paused_batch_holds_its_rows_also_those_that_come_later(rig: Rig):
    client = Moody()
    rig.agent(client, look)
    open_batch(rig.store)
    batch = Batch(rig.store, "b1")
    first = rig.submit(batch="b1", metadata={"script": ["one"]})
    batch.pause(by="ann")
    assert batch.record().paused == "ann"
    second = rig.submit(batch="b1", custom_id="x", metadata={"script": ["two"]})
    rig.drain()
    assert batch.counts()["held"] == 2
    assert client.call_count == 0
    assert batch.resume() == 2
    assert batch.record().paused is None
    resumed(rig)
    assert [rig.record(run).answer for run in (first, second)] == ["one", "two"]
    rig.check()


def test_resuming_a_batch_lets_no_run_go_that_was_paused_by_itself(rig: Rig):
    rig.agent(Moody(), look)
    open_batch(rig.store)
    batch = Batch(rig.store, "b1")
    mine = Run(rig.store, rig.submit(batch="b1", metadata={"script": ["mine"]}))
    other = Run(rig.store, rig.submit(batch="b1", custom_id="x", metadata={"script": ["other"]}))
    mine.pause()
    batch.pause()
    rig.drain()
    assert not mine.resume(), "its batch is paused"
    assert mine.state == "held"
    mine.pause()
    assert batch.resume() == 1
    resumed(rig)
    assert (mine.state, other.state) == ("held", "ended")
    assert mine.resume()
    resumed(rig)
    assert mine.answer == "mine"
    rig.check()


def test_what_a_resume_did_not_come_to_is_let_go_by_the_tick(rig: Rig):
    rig.agent(Moody(["done"]), look)
    open_batch(rig.store)
    run = Run(rig.store, rig.submit(batch="b1"))
    rig.store.batches.pause("b1", "ann")
    rig.drain()
    assert run.state == "held"
    age(rig.store, run.id)
    rig.rescue()
    assert run.state == "held", "it is paused still"
    rig.store.batches.resume("b1")  # and whoever did that died here
    age(rig.store, run.id)
    resumed(rig)
    assert run.answer == "done"
    rig.check()


def test_a_paused_parent_s_children_go_on(rig: Rig):
    rig.agent(Moody(["done"]), look)
    parent = Run(rig.store, rig.submit())
    parent.pause()
    assert state_of(rig.store, parent.id) == "held"
    rig.agent(Moody(["kid"]), look, name="kid")
    child = RunSpec(agent="kid", tenant="acme", ancestors=(parent.id,))
    rig.store.runs.submit([("c1", child, [HELLO])], heads=["{}"], retention_ms=1)
    rig.submitted.append("c1")
    rig.queue.append(("c1", 0))
    rig.drain()
    assert (state_of(rig.store, "c1"), parent.state) == ("ended", "held")
    rig.check()


@pytest.mark.parametrize("act", ["pause", "resume"])
def test_a_run_that_has_ended_is_neither_paused_nor_resumed(rig: Rig, act: str):
    rig.agent(Moody(["done"]), look)
    run = Run(rig.store, rig.submit())
    rig.drain()
    assert getattr(run, act)() is False
    assert run.record().paused is None
    rig.check()


def test_cancelling_a_paused_batch_ends_what_it_holds(rig: Rig):
    rig.agent(Moody(["done"]), look)
    open_batch(rig.store)
    run = Run(rig.store, rig.submit(batch="b1"))
    batch = Batch(rig.store, "b1")
    batch.pause()
    rig.drain()
    cancelled = cancel_batch(rig.store, "b1", by="me")
    assert (cancelled.live, cancelled.stopped_at) == (1, {})
    assert run.state == "ended"
    rig.check()


def test_a_cancel_says_of_each_run_at_work_where_it_was(rig: Rig):
    seen: dict[str, dict[str, str]] = {}

    @tool(side_effect=True)
    def act() -> str:
        """Act, while somebody cancels."""
        seen["tool"] = cancel_run(rig.store, run, by="me").stopped_at
        return "acted"

    client = Moody([ONE, [("act", "{}")]])
    rig.agent(client, look, act)
    run = rig.submit()
    rig.drain()
    assert seen["tool"] == {run: "step 2, in act"}
    record = rig.record(run)
    assert (record.stop_reason, record.stopped_at) == ("cancelled", "step 2, in act")
    rig.check()
    assert nano(record.usd_nano) == "0.003"
