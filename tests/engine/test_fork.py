"""Forking: a new run out of the first steps of another one, which stays as it was."""

from __future__ import annotations

import json

import pytest

from agentq.agent import Budgets
from agentq.app import Run
from agentq.core.errors import UsageError
from agentq.core.failpoints import FailpointError
from agentq.core.lifecycle import StopReason
from agentq.core.records import RunSpec, ThreadParts
from agentq.engine.fork import MadeCall
from agentq.provider.types import Role
from agentq.store.approvals import Wanted
from agentq.tools import tool
from tests.support.harness import CALL_NANO, HELLO, Moody, Rig, dump, open_batch

FREE = Budgets(max_steps=20, max_tokens=None, max_usd=None)
LOOKS = [[("look", f'{{"id": "{n}"}}')] for n in range(6)]


@tool
def look(id: str) -> str:
    """Look something up."""
    return f"thing {id}"


@tool
def fail() -> str:
    """Never work."""
    raise RuntimeError("broken")


class Shop:
    """A tool that acts, and what it has done."""

    def __init__(self) -> None:
        self.sold: list[str] = []

        @tool(side_effect=True)
        def sell(what: str) -> str:
            """Sell something."""
            self.sold.append(what)
            return f"sold {what}"

        self.sell = sell


def sells(what: str) -> list[tuple[str, str]]:
    return [("sell", f'{{"what": "{what}"}}')]


def forked(rig: Rig, run: Run, step: int, *, max_steps: int | None = None) -> Run:
    """The fork, known to the rig and not yet begun."""
    new = run.fork(step, max_steps=max_steps)
    rig.submitted.append(new.id)
    return new


def work(rig: Rig, run: Run) -> None:
    rig.queue.append((run.id, run.record().step))
    rig.drain()


def test_a_fork_goes_on_behind_its_step_and_the_old_run_stays_as_it_was(rig: Rig):
    shop = Shop()
    rig.agent(Moody([sells("a"), sells("b"), LOOKS[0], "old"]), shop.sell, look, budgets=FREE)
    run = Run(rig.store, rig.submit(metadata={"mine": 1}, context={"user_id": "u"}))
    rig.drain()
    before = {key: value for key, value in dump(rig.store).items() if run.id in key}
    rig.agent(Moody([[], [], LOOKS[1], sells("a"), "new"]), shop.sell, look, budgets=FREE)
    new = forked(rig, run, 2)
    record = new.record()
    assert (record.state, record.step, record.steps, record.usd_nano) == ("queued", 2, 2, 0)
    assert dict(record.spec.metadata) == {"mine": 1, "forked_from": run.id}
    assert record.spec.context == {"user_id": "u"}
    assert new.thread().messages == run.thread().messages[:5]
    rig.check()
    work(rig, new)
    record = new.record()
    assert (record.stop_reason, record.answer, record.steps) == ("finished", "new", 5)
    assert record.usd_nano == 3 * CALL_NANO
    assert shop.sold == ["a", "b"], "what its own past has done is not done again"
    assert [e.detail for e in new.trace() if e.kind in {"step", "forked"}] == [
        "step 1", "step 2", f"from {run.id} behind step 2, by python", "step 3", "step 4", "step 5",
    ]  # fmt: skip
    assert {key: value for key, value in dump(rig.store).items() if run.id in key} == before
    rig.check()


def test_what_tools_did_behind_the_step_is_listed_and_may_be_done_again(rig: Rig):
    shop = Shop()
    agent = rig.agent(Moody([sells("a"), LOOKS[0], sells("b"), "done"]), shop.sell, look, budgets=FREE)
    run = Run(rig.store, rig.submit())
    rig.drain()
    assert run.calls_after(1, agent) == [MadeCall(3, "sell", '{"what": "b"}', "sold b")]
    assert [(call.step, call.tool) for call in run.calls_after(1)] == [(2, "look"), (3, "sell")]
    assert [call.step for call in run.calls_after(0, agent)] == [1, 3]
    assert run.calls_after(3, agent) == []
    with pytest.raises(UsageError, match="needs the agent itself, not 'a'"):
        run.calls_after(0, "a")  # type: ignore[arg-type]
    work(rig, forked(rig, run, 1))
    assert shop.sold == ["a", "b", "b"]
    rig.check()


def test_a_call_of_which_nobody_knows_the_outcome_is_listed_without_one(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    shop = Shop()
    agent = rig.agent(Moody([LOOKS[0], sells("b"), "done"]), shop.sell, look, budgets=FREE)
    run = Run(rig.store, rig.submit())
    rig.step()
    monkeypatch.setenv("AGENTQ_FAILPOINTS", "effect.after_tool=raise")
    with pytest.raises(FailpointError):
        rig.step()
    assert run.calls_after(1, agent) == [MadeCall(2, "sell", '{"what": "b"}', None)]
    with pytest.raises(UsageError, match=r"has 1 whole step: a new run keeps 0 to 1 of them, not 2"):
        run.fork(2)


@pytest.mark.parametrize("step", [-1, 3, 99])
def test_a_step_that_is_none_is_refused_with_the_range(rig: Rig, step: int):
    rig.agent(Moody([LOOKS[0], LOOKS[1], "done"]), look, budgets=FREE)
    run = Run(rig.store, rig.submit())
    rig.drain()
    with pytest.raises(UsageError, match=f"has 2 whole steps: a new run keeps 0 to 2 of them, not {step}"):
        run.fork(step)
    with pytest.raises(UsageError, match="there is no run 'run_nobody'"):
        Run(rig.store, "run_nobody").fork(0)


def test_a_fork_behind_nothing_begins_as_the_run_was_submitted(rig: Rig):
    rig.agent(Moody([LOOKS[0], "done"]), look, budgets=FREE)
    run = Run(rig.store, rig.submit("hello"))
    rig.drain()
    new = forked(rig, run, 0)
    assert [message.content for message in new.thread().messages] == ["hello"]
    work(rig, new)
    assert (new.answer, new.record().steps) == ("done", 2)
    rig.check()


def test_replies_of_a_conversation_that_the_run_continues_are_none_of_its_steps(rig: Rig):
    rig.agent(Moody([LOOKS[0], "first", LOOKS[1], "second"]), look, budgets=FREE)
    first = Run(rig.store, rig.submit())
    rig.drain()
    run = Run(rig.store, rig.submit("and now", thread=first.thread()))
    rig.drain()
    assert run.answer == "second"
    assert [message.content for message in forked(rig, run, 0).thread().messages][-1] == "and now"
    assert forked(rig, run, 1).thread().messages == run.thread().messages[:-1]
    rig.check()


def test_the_closing_turn_of_a_run_is_no_step_and_its_errors_count_as_of_then(rig: Rig):
    bad = [("fail", "{}")]
    rig.agent(Moody([bad, bad, "closing"]), fail, budgets=FREE, max_tool_errors=2, loop_detector=None)
    run = Run(rig.store, rig.submit())
    rig.drain()
    assert run.stop_reason is StopReason.TOOL_ERROR_CEILING
    assert forked(rig, run, 2).thread().spend.tool_errors == 2
    new = forked(rig, run, 1)
    assert (new.thread().spend.tool_errors, len(new.thread().messages)) == (1, 3)
    rig.check()


def test_the_steps_that_a_fork_keeps_count_against_its_budget(rig: Rig):
    rig.agent(Moody([*LOOKS[:2], "cut short"]), look, budgets=Budgets(max_steps=2, max_tokens=None))
    run = Run(rig.store, rig.submit())
    rig.drain()
    with pytest.raises(UsageError, match="may make 2 steps: behind step 2 none is left"):
        run.fork(2)
    rig.agent(Moody([[], [], "new"]), look)
    new = forked(rig, run, 2, max_steps=3)
    work(rig, new)
    assert (new.answer, new.record().steps) == ("new", 3)
    rig.check()


def test_a_row_s_or_a_child_s_fork_is_a_run_by_itself(rig: Rig):
    rig.agent(Moody([LOOKS[0], "done"]), look, budgets=FREE)
    open_batch(rig.store)
    row = Run(rig.store, rig.submit(batch="b1", custom_id="x"))
    child = RunSpec(agent="a", tenant="acme", batch="b1", ancestors=(row.id,), budgets=FREE.as_dict())
    rig.store.runs.submit([("c1", child, [HELLO])], heads=["{}"], retention_ms=1)
    rig.submitted.append("c1")
    rig.queue.append(("c1", 0))
    rig.drain()
    spent = rig.store.ledger.account("batch:b1").spent_nano
    for source in (row, Run(rig.store, "c1")):
        new = forked(rig, source, 1)
        spec = new.record().spec
        assert (spec.batch, spec.custom_id, spec.parent, spec.tenant) == (None, None, None, "acme")
        work(rig, new)
        assert new.answer == "done"
        assert rig.store.client.ttl(rig.store.keys.run(new.id)) > 0
    assert rig.store.ledger.account("batch:b1").spent_nano == spent
    rig.check()


def test_a_call_that_a_person_has_changed_is_kept_as_it_was_made(rig: Rig):
    shop = Shop()

    @tool(side_effect=True, requires_approval=True)
    def sell(what: str) -> str:
        """Sell something, when a person says so."""
        shop.sold.append(what)
        return f"sold {what}"

    rig.agent(Moody([sells("a"), LOOKS[0], "done"]), sell, look, budgets=FREE)
    run = Run(rig.store, rig.submit())
    rig.drain()
    (pending,) = run.record().pending
    rig.store.approvals.decide([Wanted(run.id, pending.id, "approve", "ann", arguments='{"what": "b"}')])
    rig.rescue()
    rig.drain()
    assert (run.answer, shop.sold) == ("done", ["b"])
    (call,) = run.calls_after(0)[:1]
    assert json.loads(call.arguments) == {"what": "b"}
    rig.agent(Moody([[], sells("b"), "new"]), sell, look, budgets=FREE)
    new = forked(rig, run, 1)
    work(rig, new)
    assert (new.answer, shop.sold) == ("new", ["b"])
    assert [m.role for m in new.thread().messages].count(Role.TOOL) == 2
    rig.check()
    rig.agent(Moody([[], sells("b"), "newest"]), sell, look, budgets=FREE)
    newest = forked(rig, new, 1)
    (call,) = newest.calls_after(0)
    assert json.loads(call.arguments) == {"what": "b"}
    work(rig, newest)
    assert (newest.answer, shop.sold) == ("newest", ["b"]), "a fork of a fork knows it, too"
    rig.check()


@pytest.mark.parametrize("steps", [1, 3])
def test_a_run_that_goes_on_while_it_is_read_is_parted_where_its_steps_end(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, steps: int
):
    rig.agent(Moody([*LOOKS, "done"]), look, budgets=FREE)
    run = Run(rig.store, rig.submit())
    for _ in range(steps):
        rig.step()
    read = rig.store.runs.parts

    def meanwhile(run_id: str) -> ThreadParts | None:
        parts = read(run_id)
        monkeypatch.undo()
        rig.step()
        return parts

    monkeypatch.setattr(rig.store.runs, "parts", meanwhile)
    new = forked(rig, run, 1)
    assert new.thread().messages == run.thread().messages[:3]
    rig.check()
