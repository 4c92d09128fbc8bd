"""Answers of a form on the real server: repairs survive crashes, cost what they cost, and are read again."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from agentq.agent import Budgets, LoopDetector, Thread
from agentq.app.result import result_of
from agentq.app.run import Run
from agentq.cli.resultline import result_line
from agentq.core.records import Actor
from agentq.engine.fork import fork_run
from agentq.provider.errors import TransientError
from agentq.tools import tool
from tests.support.harness import (
    CALL_NANO,
    Moody,
    Rig,
    finish_or_fail,
    make_agent,
    ready,
    state_of,
)


class Ticket(BaseModel):
    title: str
    priority: int


@tool
def look(id: str) -> str:
    """Look something up."""
    return f"thing {id}"


ONE = [("look", '{"id": "1"}')]
GOOD = '{"title":"broken","priority":2}'
FREE = Budgets(max_steps=20, max_tokens=None, max_usd=None)
SCRIPTS: dict[str, tuple[list[Any], Budgets]] = {
    "good at once": ([ONE, GOOD], FREE),
    "repaired": ([ONE, "no", GOOD], FREE),
    "never good": ([ONE, "no", "no again"], FREE),
    "repaired after the last step": (["no", GOOD], Budgets(max_steps=1, max_tokens=None)),
    "calls in place of a repair": (["no", ONE], FREE),
    "no money for the repair": (["no", "closing words"], Budgets(max_tokens=1250)),
    "a good closing turn": ([ONE, GOOD], Budgets(max_steps=1, max_tokens=None)),
    "a bad closing turn": ([ONE, "what I have"], Budgets(max_steps=1, max_tokens=None)),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_same_script_is_the_same_run_in_one_process_and_distributed(rig: Rig, name: str):
    script, budgets = SCRIPTS[name]
    alone = make_agent(Moody(script), look, budgets=budgets, output=Ticket)
    inside = alone.run(Thread(detector=LoopDetector()), "do it")
    rig.agent(Moody(script), look, budgets=budgets, output=Ticket)
    run = rig.submit("do it")
    rig.drain()
    record, thread = rig.record(run), rig.thread(run)
    assert [m.as_dict() for m in thread.messages] == [m.as_dict() for m in inside.thread.messages]
    assert (record.stop_reason, record.answer or "") == (inside.stop_reason, inside.answer)
    assert (record.steps, record.tokens) == (inside.thread.spend.steps, inside.thread.spend.tokens)
    assert [(e.kind, e.detail, e.ok, e.step) for e in thread.trace] == [
        (e.kind, e.detail, e.ok, e.step) for e in inside.thread.trace
    ]
    assert thread.repaired == inside.thread.repaired
    assert result_of(record, rig.agents).output == inside.output
    rig.check()


def test_the_output_is_an_instance_where_the_agent_is_known_and_json_elsewhere(rig: Rig):
    rig.agent(Moody(["no", f"```json\n{GOOD}\n```"]), look, output=Ticket)
    run = rig.submit()
    rig.drain()
    value = {"title": "broken", "priority": 2}
    assert Run(rig.store, run, rig.agents).result().output == Ticket.model_validate(value)
    assert Run(rig.store, run).result().output == value
    assert result_line(Run(rig.store, run, rig.agents).result())["agentq"]["output"] == value
    assert result_line(Run(rig.store, run).result())["agentq"]["output"] == value


def test_what_another_definition_of_the_model_refuses_is_still_json(rig: Rig):
    rig.agent(Moody([GOOD]), look, output=Ticket)
    run = rig.submit()
    rig.drain()

    class Strict(BaseModel):
        quite: str

    rig.agent(Moody([GOOD]), look, output=Strict)
    assert Run(rig.store, run, rig.agents).result().output == {"title": "broken", "priority": 2}


def test_json_of_an_agent_that_asked_for_none_is_no_output(rig: Rig):
    rig.agent(Moody([GOOD]), look)
    run = rig.submit()
    rig.drain()
    assert rig.record(run).answer == GOOD
    assert Run(rig.store, run).result().output is None


def test_an_answer_that_stays_wrong_is_a_failure_with_the_reason_as_its_detail(rig: Rig):
    rig.agent(Moody(["no", '{"title":"x"}']), look, output=Ticket)
    run = rig.submit()
    rig.drain()
    record = rig.record(run)
    assert (record.stop_reason, record.stop_detail) == ("output_invalid", "priority: Field required")
    result = Run(rig.store, run, rig.agents).result()
    assert (result.output, result.answer) == (None, '{"title":"x"}')
    assert result.error == {
        "code": "output_invalid",
        "message": "priority: Field required",
        "retryable": True,
    }


POINTS = {
    "step.after_claim": 0,
    "step.after_reserve": 1,
    "step.after_repair": 1,
}
"""Where the worker of a repair dies, and how many calls are then charged without a reply to show for it."""


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("second", [GOOD, "no"])
def test_a_worker_that_dies_in_a_repair_costs_at_most_that_call(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, point: str, second: str
):
    client = Moody([ONE, "no", second])
    rig.agent(client, look, output=Ticket)
    run = rig.submit()
    rig.step()
    rig.step()
    before = rig.record(run)
    rig.die(monkeypatch, point)
    rig.check()
    assert len(rig.thread(run).messages) == 4
    rig.revive(run)
    record = finish_or_fail(rig, run)
    assert record.stop_reason == ("finished" if second == GOOD else "output_invalid")
    assert (record.steps, record.answer) == (before.steps, second)
    assert record.usd_nano == (3 + POINTS[point]) * CALL_NANO >= client.bill_nano
    assert [m.role.value for m in rig.thread(run).messages[-3:]] == ["assistant", "user", "assistant"]
    rig.check()


def test_a_worker_that_dies_after_the_wrong_answer_is_committed_buys_it_only_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    client = Moody(["no", GOOD])
    rig.agent(client, look, output=Ticket)
    run = rig.submit()
    rig.die(monkeypatch, "step.after_commit")
    assert state_of(rig.store, run) == "queued"
    ready(rig.store, run)
    record = finish_or_fail(rig, run)
    assert (record.stop_reason, client.call_count) == ("finished", 2)
    assert record.usd_nano == 2 * CALL_NANO == client.bill_nano
    rig.check()


def test_a_repair_that_fails_is_tried_again_and_not_the_answer_before_it(rig: Rig):
    client = Moody(["no", GOOD], moods=[None, TransientError("503", billed=False)])
    rig.agent(client, look, output=Ticket)
    run = rig.submit()
    record = finish_or_fail(rig, run)
    assert (record.stop_reason, record.usd_nano) == ("finished", 2 * CALL_NANO)
    assert [request.operation for request in client.requests] == ["agent", "agent_repair", "agent_repair"]
    rig.check()


def test_a_retry_of_an_answer_that_stayed_wrong_repairs_it_again(rig: Rig):
    client = Moody([ONE, "no", "no again"])
    rig.agent(client, look, output=Ticket)
    run = rig.submit()
    rig.drain()
    client.script = [ONE, "no", GOOD]
    Run(rig.store, run).retry(by="ann")
    assert rig.record(run).answer is None
    rig.queue.append((run, rig.record(run).step))
    rig.drain()
    record = rig.record(run)
    assert (record.stop_reason, record.answer, record.steps) == ("finished", GOOD, 2)
    assert record.has_output
    assert record.usd_nano == 4 * CALL_NANO
    assert client.requests[-1].operation == "agent_repair"
    rig.check()


def test_what_an_answer_was_is_forgotten_when_its_run_is_retried(rig: Rig):
    client = Moody([ONE, GOOD, "no", "no"])
    rig.agent(client, look, budgets=Budgets(max_steps=1, max_tokens=None), output=Ticket)
    run = rig.submit()
    rig.drain()
    assert (rig.record(run).stop_reason, rig.record(run).has_output) == ("step_budget", True)
    client.script = [ONE, "no", "no"]
    Run(rig.store, run).retry(by="ann", max_steps=5)
    assert not rig.record(run).has_output
    rig.queue.append((run, rig.record(run).step))
    rig.drain()
    record = rig.record(run)
    assert (record.stop_reason, record.has_output) == ("output_invalid", False)


@pytest.mark.parametrize(
    "script", [[ONE, ONE, "no", GOOD], [ONE, ONE, "no", "no"]], ids=["good", "never good"]
)
def test_a_repair_is_no_step_of_a_fork(rig: Rig, script: list[Any]):
    rig.agent(Moody(script), look, output=Ticket, loop_detector=None)
    run = rig.submit()
    rig.drain()
    for step in (0, 1, 2):
        new = fork_run(rig.store, run, step, by="ann")
        assert [m.role.value for m in rig.thread(new).messages] == ["user", *["assistant", "tool"] * step]
        rig.queue.append((new, step))
        rig.drain()
        assert rig.record(new).answer == rig.record(run).answer
    rig.submitted += [new]


def test_a_run_that_is_dry_waits_for_its_repair_and_makes_it_later(rig: Rig):
    """The scope around it has no money for one more call."""
    client = Moody(["no", GOOD])
    rig.agent(client, look, output=Ticket)
    rig.store.ledger.set_limit("tenant:acme", usd=2 * CALL_NANO, actor=Actor("o1", "ann"))
    run = rig.submit()
    rig.drain()
    assert rig.record(run).state == "parked"
    rig.store.ledger.set_limit("tenant:acme", usd=9 * CALL_NANO, actor=Actor("o2", "ann"))
    record = finish_or_fail(rig, run)
    assert (record.stop_reason, record.usd_nano) == ("finished", 2 * CALL_NANO)
    rig.check()
