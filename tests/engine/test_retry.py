"""Retrying: from the last committed step, with all that was spent and done."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentq.agent import Budgets
from agentq.app import Batch, Run
from agentq.core.errors import UsageError
from agentq.core.lifecycle import StopReason
from agentq.engine.cancel import cancel_run
from agentq.engine.retry import retry_batch, retry_runs
from agentq.provider.errors import InvalidRequest
from agentq.provider.types import ChatRequest, Role
from agentq.store.approvals import Wanted
from agentq.tools import tool
from tests.support.harness import CALL_NANO, Moody, Rig, by, nano, open_batch, steady

LOOKS = [[("look", f'{{"id": "{n}"}}')] for n in range(6)]
ACT = [("act", "{}")]
FREE = Budgets(max_steps=20, max_tokens=None, max_usd=None)


class Moving(Moody):
    """Answers its n-th call with the n-th turn, whatever the thread is like by then."""

    def _turn(self, req: ChatRequest) -> tuple[int, Any]:
        assert self.script is not None
        return len(self.requests), self.script[len(self.requests) - 1]


@tool
def look(id: str) -> str:
    """Look something up."""
    return f"thing {id}"


@tool
def fail() -> str:
    """Never work."""
    raise RuntimeError("broken")


def go_on(rig: Rig) -> None:
    """A tick sends the hint of what was reopened, and the worker follows it."""
    rig.rescue()
    rig.drain()


def results(run: Run) -> list[str]:
    """What the tools have given, as the model reads it."""
    return [json.loads(m.content)["content"] for m in run.thread().messages if m.role is Role.TOOL]


def kinds(run: Run) -> list[str]:
    return [event.kind for event in run.trace()]


def test_a_run_that_its_steps_have_stopped_goes_on_with_more_from_before_its_closing_turn(rig: Rig):
    client = Moving([*LOOKS[:2], "cut short", LOOKS[2], "done"])
    rig.agent(client, look, budgets=Budgets(max_steps=2, max_tokens=None))
    run = Run(rig.store, rig.submit())
    rig.drain()
    before = run.record()
    assert (before.stop_reason, before.answer, before.steps) == ("step_budget", "cut short", 2)
    said = [message.content for message in run.thread().messages]
    with pytest.raises(UsageError, match=r"has used 2 steps of 2 steps") as refused:
        run.retry()
    assert refused.value.hint == f"agentq retry {run.id} --max-steps N gives it a larger budget"
    with pytest.raises(UsageError, match="has used 2 steps of 1 steps"):
        run.retry(max_steps=1)
    assert run.record() == before
    assert run.retry("ann", max_steps=4) is run
    record = run.record()
    assert (record.state, record.stop_reason, record.answer, record.generation) == ("queued", None, None, 1)
    assert [message.content for message in run.thread().messages] == said[:-2], "without the closing turn"
    rig.check()
    go_on(rig)
    record = run.record()
    assert (record.stop_reason, record.answer, record.steps) == ("finished", "done", 4)
    assert record.usd_nano == client.bill_nano == 5 * CALL_NANO, "the closing turn stays paid"
    assert record.input_tokens + record.output_tokens == record.tokens
    assert "was step_budget" in next(event.detail for event in run.trace() if event.kind == "retried")
    assert record.spec.budgets["max_steps"] == 4
    rig.check()


def test_a_run_that_its_own_money_has_stopped_needs_more_of_it(rig: Rig):
    client = Moving([*LOOKS[:2], "cut short", "done"])
    rig.agent(client, look, budgets=FREE)
    run = Run(rig.store, rig.submit())
    rig.step()
    rig.store.ledger.set_limit(f"run:{run.id}", usd=3 * CALL_NANO, actor=by())
    rig.drain()
    assert run.stop_reason is StopReason.COST_BUDGET
    spent = run.record().usd_nano
    with pytest.raises(UsageError, match=rf"has used {nano(spent)[:6]}\d* USD of \d\.\d+ USD"):
        run.retry(max_usd=nano(spent))
    rig.store.ledger.set_limit(f"run:{run.id}", usd=spent, actor=by())
    with pytest.raises(UsageError, match="a retry would stop there again"):
        run.retry()
    run.retry(max_usd="1")
    assert rig.store.ledger.account(f"run:{run.id}").limit_nano == 10**9
    go_on(rig)
    assert run.answer == "done"
    rig.check()


def test_a_budget_that_an_operator_has_raised_since_is_enough(rig: Rig):
    client = Moving([LOOKS[0], "cut short", "done"])
    rig.agent(client, look, budgets=Budgets(max_steps=20, max_tokens=None, max_usd="0.06"))
    run = Run(rig.store, rig.submit())
    rig.step()
    rig.store.ledger.set_limit(f"run:{run.id}", usd=2 * CALL_NANO, actor=by())
    rig.drain()
    assert run.stop_reason is StopReason.COST_BUDGET
    rig.store.ledger.set_limit(f"run:{run.id}", usd=10**9, actor=by())
    run.retry()
    go_on(rig)
    assert run.answer == "done"
    rig.check()


def test_one_new_budget_leaves_the_others_as_they_are_by_now(rig: Rig):
    rig.agent(Moving([LOOKS[0]]), look, budgets=Budgets(max_steps=20, max_tokens=90_000, max_usd="1"))
    run = Run(rig.store, rig.submit())
    rig.step()
    rig.store.ledger.set_limit(f"run:{run.id}", usd=2 * 10**9, tokens=80_000, actor=by())
    cancel_run(rig.store, run.id, by="me")
    run.retry(max_usd="3")
    assert dict(run.record().spec.budgets) == {
        "max_steps": 20, "max_tokens": 80_000, "max_usd": "3", "max_seconds": 120.0,
    }  # fmt: skip
    account = rig.store.ledger.account(f"run:{run.id}")
    assert (account.limit_nano, account.tokens_limit) == (3 * 10**9, 80_000)
    rig.check()


def test_a_loop_that_ended_a_run_is_counted_anew_after_a_retry(rig: Rig):
    client = Moving([LOOKS[0]] * 3 + ["in a loop", LOOKS[0], LOOKS[0], "done"])
    rig.agent(client, look, budgets=FREE)
    run = Run(rig.store, rig.submit())
    rig.drain()
    assert run.stop_reason is StopReason.LOOP_DETECTED
    run.retry()
    go_on(rig)
    assert (run.stop_reason, run.answer) == (StopReason.FINISHED, "done")
    rig.check()


def test_errors_of_tools_that_ended_a_run_are_counted_anew_after_a_retry(rig: Rig):
    bad = [("fail", "{}")]
    client = Moving([bad, bad, "too many", bad, "done"])
    rig.agent(client, fail, budgets=FREE, max_tool_errors=2, loop_detector=None)
    run = Run(rig.store, rig.submit())
    rig.drain()
    assert run.stop_reason is StopReason.TOOL_ERROR_CEILING
    run.retry()
    go_on(rig)
    assert (run.stop_reason, run.answer) == (StopReason.FINISHED, "done")
    assert run.thread().spend.tool_errors == 1
    rig.check()


def test_a_model_error_is_tried_again(rig: Rig):
    client = Moving([LOOKS[0], "fails", "done"], moods=[None, InvalidRequest("no such model", billed=False)])
    rig.agent(client, look, budgets=FREE)
    run = Run(rig.store, rig.submit())
    rig.drain()
    assert run.stop_reason is StopReason.MODEL_ERROR
    run.retry()
    go_on(rig)
    assert (run.answer, run.record().steps) == ("done", 2)
    assert kinds(run).count("model_error") == 1
    rig.check()


def test_a_cancelled_run_goes_on_and_what_it_has_done_is_not_done_again(rig: Rig):
    acted = []

    @tool(side_effect=True)
    def act() -> str:
        """Act, and be cancelled meanwhile."""
        acted.append(1)
        if len(acted) == 1:
            cancel_run(rig.store, run.id, by="me")
        return "acted"

    rig.agent(Moving([ACT, "done"]), act, look, budgets=FREE)
    run = Run(rig.store, rig.submit())
    rig.drain()
    assert (run.stop_reason, acted) == (StopReason.CANCELLED, [1])
    assert run.record().phase == "tools"
    run.retry()
    assert run.record().stopped_at is None
    go_on(rig)
    assert (run.answer, acted) == ("done", [1])
    assert results(run) == ["acted"]
    rig.check()


def test_what_was_refused_is_asked_again_and_what_was_approved_is_not(rig: Rig):
    @tool(side_effect=True, requires_approval=True)
    def pay(sum: int) -> str:
        """Pay."""
        return f"paid {sum}"

    both = [("pay", '{"sum": 1}'), ("pay", '{"sum": 2}')]
    rig.agent(Moving([both, "done"]), pay, budgets=FREE, on_denied="stop")
    run = Run(rig.store, rig.submit())
    rig.drain()
    first, second = run.record().pending
    rig.store.approvals.decide(
        [Wanted(run.id, first.id, "approve", "ann"), Wanted(run.id, second.id, "deny", "ann")]
    )
    go_on(rig)
    assert run.stop_reason is StopReason.APPROVAL_DENIED
    run.retry()
    go_on(rig)
    assert run.state == "waiting"
    assert [call.arguments for call in run.record().pending] == ['{"sum": 2}']
    (again,) = run.record().pending
    rig.store.approvals.decide([Wanted(run.id, again.id, "approve", "bob")])
    go_on(rig)
    assert run.answer == "done"
    assert results(run) == ["paid 1", "paid 2"]
    rig.check()


def test_a_run_that_killed_its_processes_has_its_lives_back(rig: Rig):
    client = Moving(["done"])
    rig.agent(client, look, budgets=FREE)
    run = Run(rig.store, rig.submit())
    rig.store.client.hset(rig.store.keys.run(run.id), mapping={"deaths": 9})
    rig.store.client.hdel(rig.store.keys.run(run.id), "not_before")
    assert rig.store.runs.claim(run.id, None, 15_000) is not None
    steady(rig.store)
    rig.revive(run.id)
    assert run.stop_reason is StopReason.ATTEMPTS_EXHAUSTED
    run.retry()
    rig.queue.clear()
    go_on(rig)
    assert run.answer == "done"
    rig.check()


def test_a_call_on_which_nobody_decided_in_time_is_asked_about_again(rig: Rig):
    @tool(side_effect=True, requires_approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    rig.agent(Moving([[("pay", "{}")], "done"]), pay, budgets=FREE)
    run = Run(rig.store, rig.submit())
    rig.drain()
    rig.revive(run.id)
    assert run.stop_reason is StopReason.APPROVAL_EXPIRED
    run.retry()
    go_on(rig)
    (asked,) = run.record().pending
    rig.store.approvals.decide([Wanted(run.id, asked.id, "approve", "bob")])
    go_on(rig)
    assert (run.answer, results(run)) == ("done", ["paid"])
    rig.check()


def test_what_may_have_acted_when_its_run_was_given_up_is_not_done_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    acted = []

    @tool(side_effect=True)
    def act() -> str:
        """Act, and take the process down."""
        acted.append(1)
        return "acted"

    rig.agent(Moving([ACT, "done"]), act, budgets=FREE)
    run = Run(rig.store, rig.submit())
    rig.die(monkeypatch, "effect.after_tool")
    rig.store.client.hset(rig.store.keys.run(run.id), mapping={"deaths": 9})
    rig.revive(run.id)
    assert run.stop_reason is StopReason.ATTEMPTS_EXHAUSTED
    run.retry()
    go_on(rig)
    assert (run.answer, acted) == ("done", [1])
    (told,) = [event.detail for event in run.trace() if event.kind == "tool_result"]
    assert told == "act:outcome_unknown"
    rig.check()


def test_a_run_that_has_finished_or_is_live_is_not_retried(rig: Rig):
    rig.agent(Moving(["done"]), look)
    run = Run(rig.store, rig.submit())
    with pytest.raises(UsageError, match="is queued: only a run that has ended is retried"):
        run.retry()
    rig.drain()
    with pytest.raises(UsageError, match="has finished: there is nothing to go on with") as refused:
        run.retry()
    assert "--from-step N" in refused.value.hint
    with pytest.raises(UsageError, match="run run_nobody does not exist"):
        Run(rig.store, "run_nobody").retry()
    with pytest.raises(UsageError, match="max_steps=0 leaves no room"):
        run.retry(max_steps=0)
    assert run.answer == "done"
    rig.check()


def test_a_batch_is_retried_as_far_as_it_can_be_and_is_over_again_afterwards(rig: Rig):
    client = Moody()
    rig.agent(client, look, budgets=Budgets(max_steps=1, max_tokens=None))
    open_batch(rig.store)
    batch = Batch(rig.store, "b1")
    rows = [
        rig.submit(batch="b1", custom_id=name, metadata={"script": script})
        for name, script in {"good": ["fine"], "short": [LOOKS[0], "cut"], "gone": ["never"]}.items()
    ]
    cancel_run(rig.store, rows[2], by="me")
    rig.drain()
    rig.store.batches.seal("b1")
    assert batch.stop_reasons() == {"finished": 1, "step_budget": 1, "cancelled": 1}
    assert rig.store.client.ttl(rig.store.keys.batch("b1")) > 0
    retried = batch.retry(by="ann")
    assert retried.runs == [rows[2]]
    assert retried.groups() == {"have finished": 1, "need more (--max-steps)": 1}
    assert batch.stop_reasons() == {"finished": 1, "step_budget": 1}
    assert (batch.counts()["ended"], batch.counts()["queued"], batch.done()) == (2, 1, False)
    assert rig.store.client.ttl(rig.store.keys.batch("b1")) == -1
    rig.check()
    go_on(rig)
    assert batch.done()
    assert batch.stop_reasons() == {"finished": 2, "step_budget": 1}
    assert rig.store.client.ttl(rig.store.keys.batch("b1")) > 0
    assert batch.retry(max_steps=3).runs == [rows[1]]
    go_on(rig)
    assert batch.stop_reasons() == {"finished": 3}
    rig.check()


def test_of_two_people_who_retry_at_once_one_wins(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    rig.agent(Moving(["done"]), look)
    run = Run(rig.store, rig.submit())
    cancel_run(rig.store, run.id, by="me")
    reopenings = rig.store.control.reopenings

    def meanwhile(run_ids):
        found = reopenings(run_ids)
        monkeypatch.undo()
        run.retry("ann")
        cancel_run(rig.store, run.id, by="me")
        return found

    monkeypatch.setattr(rig.store.control, "reopenings", meanwhile)
    with pytest.raises(UsageError, match="was retried by somebody else meanwhile"):
        run.retry("bob")
    assert run.record().generation == 1
    rig.check()


def test_what_is_kept_no_longer_in_full_is_not_retried(rig: Rig):
    rig.agent(Moving(["done"]), look)
    run = Run(rig.store, rig.submit())
    cancel_run(rig.store, run.id, by="me")
    rig.store.client.delete(rig.store.keys.run(run.id, "msgs"))
    retried = retry_runs(rig.store, [run.id, "run_nobody"], by="ann")
    assert not retried, "its messages are gone, and the model would be asked nothing"


def test_a_row_is_retried_once_the_cancel_of_its_batch_has_come_to_all(rig: Rig):
    rig.agent(Moving(["done", "done"]), look)
    open_batch(rig.store)
    first, second = (Run(rig.store, rig.submit(batch="b1", custom_id=name)) for name in ("first", "second"))
    cancel_run(rig.store, first.id, by="me")
    rig.store.batches.cancel("b1", "me")  # and who cancels does not live to come to the second
    with pytest.raises(UsageError, match="batch b1, whose cancel has not come to all of its runs") as refused:
        first.retry("ann")
    assert refused.value.hint == "agentq cancel b1 ends the others"
    Batch(rig.store, "b1").cancel()
    first.retry("ann")
    rig.rescue()
    rig.drain()
    assert (first.answer, second.stop_reason) == ("done", "cancelled")
    rig.check()


def test_of_a_batch_only_what_failed_is_looked_at_and_the_rest_is_counted(rig: Rig):
    rig.agent(Moody(["done"], moods=[InvalidRequest("no")]))
    open_batch(rig.store)
    failed, *finished = [
        rig.submit(f"row {number}", batch="b1", custom_id=str(number)) for number in range(3)
    ]
    rig.drain()
    assert list(rig.store.batches.unfinished([*finished, failed])) == [failed]
    retried = retry_batch(rig.store, "b1", by="me")
    assert (retried.runs, retried.refused, retried.finished) == ([failed], {}, 2)
    assert retried.groups() == {"have finished": 2}
