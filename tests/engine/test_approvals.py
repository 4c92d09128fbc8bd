"""Calls that wait for a person: what runs before, what a decision does, and how often a tool acts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentq.core.errors import ConflictError, UsageError
from agentq.core.records import PendingCall
from agentq.engine.cancel import cancel_run
from agentq.engine.decide import Answer, decide, decide_many, questions
from agentq.engine.pause import pause_runs, resume_runs
from agentq.engine.retry import retry_run
from agentq.provider.types import Role
from agentq.store.approvals import Verdict
from agentq.tools import CallContext, call_signature, tool
from tests.support.harness import CALL_NANO, Moody, Rig, age, finish_or_fail, money, ready

ARGUMENTS = '{"order": "1"}'
REFUND = [("refund", ARGUMENTS)]


class Till:
    """A gated tool, and the orders and keys of the calls that were made."""

    def __init__(self, **options: Any) -> None:
        self.made: list[tuple[str, str]] = []

        @tool(side_effect=True, requires_approval=True, **options)
        def refund(ctx: CallContext, order: str) -> str:
            """Give money back."""
            self.made.append((order, ctx.idempotency_key))
            return f"refund {order}"

        self.refund = refund

    @property
    def orders(self) -> list[str]:
        return [order for order, _ in self.made]


def waits(rig: Rig, run: str) -> list[PendingCall]:
    return list(rig.record(run).pending)


def answer(rig: Rig, run: str, verdict: Verdict, *, by: str = "ann", **more: str) -> int:
    """Decide about the first call of the run that waits."""
    return decide(rig.store, run, waits(rig, run)[0].id, Answer(verdict, by, **more))


def goes_on(rig: Rig) -> None:
    """Ticks send the hints of what was let go on, and all of it is worked on."""
    rig.rescue()
    rig.drain()


def results(rig: Rig, run: str) -> list[dict[str, Any]]:
    """What the model reads of its calls."""
    return [json.loads(m.content) for m in rig.thread(run).messages if m.role is Role.TOOL]


def trace(rig: Rig, run: str) -> list[tuple[str, str]]:
    return [(event.kind, event.detail) for event in rig.thread(run).trace]


def reopen(rig: Rig, run: str) -> None:
    """Retry an ended run, as it was."""
    retry_run(rig.store, run, by="ann")
    goes_on(rig)


# ── approve ──────────────────────────────────────────────────────────────────────────────────────────


def test_an_approved_call_is_made_once_and_the_model_is_not_asked_again(rig: Rig):
    till = Till()
    client = Moody([REFUND, "done"])
    rig.agent(client, till.refund)
    run = rig.submit()
    rig.drain()
    asked = len(client.requests)
    answer(rig, run, "approve", reason="fine")
    assert rig.record(run).state == "queued"
    goes_on(rig)
    record = rig.record(run)
    assert (record.stop_reason, record.answer) == ("finished", "done")
    assert till.made == [("1", f"{run}:{call_signature('refund', ARGUMENTS)}")]
    assert len(client.requests) == asked + 1
    assert [event for event in trace(rig, run) if event[0] in {"approve", "tool_result"}] == [
        ("approve", "refund by ann: fine"),
        ("tool_result", "refund:ok"),
    ]
    rig.check()


def test_while_it_waits_a_run_holds_nothing_but_its_escrow(rig: Rig):
    till = Till()
    rig.agent(Moody([REFUND, "done"]), till.refund)
    run = rig.submit()
    rig.drain()
    held = {"us": CALL_NANO, "ts": 600, "ue": CALL_NANO, "te": 600, "ui": CALL_NANO, "ti": 600}
    assert money(rig.store, f"run:{run}") == held
    assert rig.queue == []
    assert rig.rescue() == []
    rig.check()


def test_nothing_of_a_step_runs_before_all_its_gated_calls_are_decided(rig: Rig):
    till = Till()
    looked: list[str] = []

    @tool
    def look(id: str) -> str:
        """Look."""
        looked.append(id)
        return "seen"

    calls = [("look", '{"id": "a"}'), ("refund", '{"order": "1"}'), ("refund", '{"order": "2"}')]
    rig.agent(Moody([calls, "done"]), look, till.refund)
    run = rig.submit()
    rig.drain()
    assert answer(rig, run, "approve") == 1
    goes_on(rig)
    assert (looked, till.made, [c.arguments for c in waits(rig, run)]) == ([], [], ['{"order": "2"}'])
    assert answer(rig, run, "deny", reason="not this one") == 0
    goes_on(rig)
    assert (looked, till.orders) == (["a"], ["1"])
    assert [said["error_code"] for said in results(rig, run)] == [None, None, "approval_denied"]
    assert "not this one" in results(rig, run)[2]["content"]
    assert rig.record(run).stop_reason == "finished"
    rig.check()


def test_edited_arguments_are_made_kept_and_told_and_the_thread_keeps_what_the_model_asked(rig: Rig):
    till = Till()
    edited = '{"order": "2"}'
    rig.agent(Moody([REFUND, [("refund", edited)], "done"]), till.refund)
    run = rig.submit()
    rig.drain()
    answer(rig, run, "approve", arguments=edited)
    goes_on(rig)
    # The model asks for what was made: the run knows, and nobody is asked.
    assert rig.record(run).stop_reason == "finished"
    assert till.made == [("2", f"{run}:{call_signature('refund', edited)}")]
    thread = rig.thread(run)
    assert thread.messages[1].tool_calls[0].arguments == ARGUMENTS
    first, second = results(rig, run)
    assert first["content"].startswith("[A person has changed this call. It was made with these arguments: ")
    assert edited in first["content"]
    assert second["content"] == "refund 2"
    assert ("approve", "refund by ann, with other arguments") in trace(rig, run)


def test_edited_arguments_that_do_not_fit_are_told_to_the_model_and_nothing_is_made(rig: Rig):
    till = Till()
    rig.agent(Moody([REFUND, "done"]), till.refund)
    run = rig.submit()
    rig.drain()
    answer(rig, run, "approve", arguments='{"ordre": "2"}')
    goes_on(rig)
    assert till.made == []
    assert results(rig, run)[0]["error_code"] == "bad_args"
    assert rig.record(run).stop_reason == "finished"


def test_one_decision_speaks_for_equal_calls_of_its_step_that_act_once(rig: Rig):
    till = Till()
    rig.agent(Moody([REFUND * 2, "done"]), till.refund)
    run = rig.submit()
    rig.drain()
    assert len(waits(rig, run)) == 1
    answer(rig, run, "approve")
    goes_on(rig)
    assert till.orders == ["1"]
    assert [said["ok"] for said in results(rig, run)] == [True, True]


def test_a_refusal_speaks_for_an_equal_call_also_after_the_step_has_waited_for_children(rig: Rig):
    till = Till()

    @tool
    def delegate(ctx: CallContext) -> str:
        """Have somebody else look."""
        (child,) = ctx.gather([ctx.spawn("kid", "look")], timeout=60)
        return child.answer or ""

    rig.agent(Moody(["seen"]), name="kid")
    rig.agent(Moody([[*REFUND, ("delegate", "{}"), *REFUND], "done"]), till.refund, delegate)
    run = rig.submit()
    rig.drain()
    answer(rig, run, "deny")
    goes_on(rig)
    goes_on(rig)
    assert rig.record(run).stop_reason == "finished"
    assert till.made == []
    codes = [said["error_code"] for said in results(rig, run)]
    assert codes == ["approval_denied", None, "approval_denied"]
    assert [kind for kind, _ in trace(rig, run)].count("deny") == 1


def test_each_of_equal_calls_that_act_again_is_asked_about_and_has_its_own_decision(rig: Rig):
    till = Till(repeatable=True)
    rig.agent(Moody([REFUND * 2, "done"]), till.refund)
    run = rig.submit()
    rig.drain()
    assert len(waits(rig, run)) == 2
    answer(rig, run, "deny")
    answer(rig, run, "approve")
    goes_on(rig)
    assert till.orders == ["1"]
    assert [said["error_code"] for said in results(rig, run)] == ["approval_denied", None]


@pytest.mark.parametrize("point", ["step.after_claim", "effect.after_begin", "effect.after_done"])
def test_a_worker_that_dies_between_decision_and_commit_asks_nobody_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, point: str
):
    till = Till(idempotent=True)
    rig.agent(Moody([REFUND, "done"]), till.refund)
    run = rig.submit()
    rig.drain()
    answer(rig, run, "approve")
    rig.rescue()
    rig.die(monkeypatch, point)
    rig.revive(run)
    ready(rig.store, run)
    goes_on(rig)
    assert rig.record(run).stop_reason == "finished"
    assert till.orders == ["1"]
    assert [kind for kind, _ in trace(rig, run)].count("approve") == 1
    rig.check()


def test_after_a_retry_what_was_approved_is_made_and_what_was_refused_is_asked_again(rig: Rig):
    till = Till()
    calls = [("refund", '{"order": "1"}'), ("refund", '{"order": "2"}')]
    rig.agent(Moody([calls, "done"]), till.refund, on_denied="stop")
    run = rig.submit()
    rig.drain()
    answer(rig, run, "approve")
    answer(rig, run, "deny", by="bob")
    goes_on(rig)
    assert rig.record(run).stop_reason == "approval_denied"
    reopen(rig, run)
    assert [asked.arguments for asked in waits(rig, run)] == ['{"order": "2"}']
    answer(rig, run, "approve")
    goes_on(rig)
    assert rig.record(run).stop_reason == "finished"
    assert till.orders == ["1", "2"]
    rig.check()


def test_a_run_that_was_cancelled_after_its_approval_makes_the_call_when_it_is_retried(rig: Rig):
    till = Till()
    rig.agent(Moody([REFUND, "done"]), till.refund)
    run = rig.submit()
    rig.drain()
    answer(rig, run, "approve")
    cancel_run(rig.store, run, by="me")
    assert till.made == []
    reopen(rig, run)
    assert rig.record(run).stop_reason == "finished"
    assert till.orders == ["1"]


# ── deny, and nobody ─────────────────────────────────────────────────────────────────────────────────


def test_a_refusal_is_told_to_the_model_with_its_reason_and_is_no_tool_error(rig: Rig):
    till = Till()
    rig.agent(Moody([REFUND, "I could not"]), till.refund, max_tool_errors=1)
    run = rig.submit()
    rig.drain()
    answer(rig, run, "deny", reason="above 100 EUR")
    goes_on(rig)
    record = rig.record(run)
    assert (record.stop_reason, record.answer) == ("finished", "I could not")
    assert till.made == []
    (said,) = results(rig, run)
    assert said["error_code"] == "approval_denied"
    assert "The reason: above 100 EUR." in said["content"]
    assert ("deny", "refund by ann: above 100 EUR") in trace(rig, run)
    rig.check()


def test_where_the_agent_says_so_a_refusal_ends_the_run_and_nothing_of_its_step_is_made(rig: Rig):
    till = Till()
    calls = [("refund", '{"order": "1"}'), ("refund", '{"order": "2"}')]
    rig.agent(Moody([calls, "done"]), till.refund, on_denied="stop")
    run = rig.submit()
    rig.drain()
    answer(rig, run, "deny", reason="no")
    answer(rig, run, "approve", by="bob")
    goes_on(rig)
    record = rig.record(run)
    assert (record.stop_reason, record.stop_detail) == ("approval_denied", "refund was refused by ann: no")
    assert till.made == []
    assert [kind for kind, _ in trace(rig, run)][-3:] == ["deny", "approve", "end"]
    rig.check()


def test_a_refusal_of_one_of_equal_calls_that_act_again_ends_the_run_too(rig: Rig):
    till = Till(repeatable=True)
    rig.agent(Moody([REFUND * 2, "done"]), till.refund, on_denied="stop")
    run = rig.submit()
    rig.drain()
    answer(rig, run, "deny")
    answer(rig, run, "approve")
    goes_on(rig)
    assert rig.record(run).stop_reason == "approval_denied"
    assert till.made == []


def test_when_nobody_decides_the_run_ends_or_the_model_is_told_as_the_agent_says(rig: Rig):
    till = Till()
    rig.agent(Moody([REFUND, "done"]), till.refund, name="stops")
    rig.agent(Moody([REFUND, "went on"]), till.refund, name="tells", on_expired="tell", max_tool_errors=1)
    runs = {agent: rig.submit(agent=agent) for agent in ("stops", "tells")}
    rig.drain()
    assert [waits(rig, run)[0].default for run in runs.values()] == ["stop", "tell"]
    for run in runs.values():
        age(rig.store, run)
    goes_on(rig)
    assert rig.record(runs["stops"]).stop_reason == "approval_expired"
    told = rig.record(runs["tells"])
    assert (told.stop_reason, told.answer) == ("finished", "went on")
    assert results(rig, runs["tells"])[0]["error_code"] == "approval_expired"
    assert till.made == []
    for run in runs.values():
        with pytest.raises(UsageError) as late:
            decide(rig.store, run, "call_1_0", Answer("approve", "ann"))
        assert not isinstance(late.value, ConflictError)
    rig.check()


def test_what_was_decided_before_the_time_was_over_counts(rig: Rig):
    till = Till()
    calls = [("refund", '{"order": "1"}'), ("refund", '{"order": "2"}')]
    rig.agent(Moody([calls, "done"]), till.refund, on_expired="tell")
    run = rig.submit()
    rig.drain()
    answer(rig, run, "approve")
    age(rig.store, run)
    goes_on(rig)
    assert till.orders == ["1"]
    assert [said["error_code"] for said in results(rig, run)] == [None, "approval_expired"]


# ── a call that may have acted ───────────────────────────────────────────────────────────────────────


def test_what_is_asked_again_shows_the_arguments_that_were_made(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    till = Till(on_unknown="ask")
    rig.agent(Moody([REFUND, "done"]), till.refund)
    run = rig.submit()
    rig.drain()
    edited = '{"order": "2"}'
    answer(rig, run, "approve", arguments=edited)
    rig.rescue()
    rig.die(monkeypatch, "effect.after_tool")
    rig.revive(run)
    ready(rig.store, run)
    goes_on(rig)
    (asked,) = waits(rig, run)
    assert (asked.kind, asked.arguments) == ("unknown", edited)
    answer(rig, run, "approve", by="bob")
    goes_on(rig)
    assert rig.record(run).stop_reason == "finished"
    assert [order for order, _ in till.made] == ["2", "2"]
    assert len({key for _, key in till.made}) == 1
    said = [event for event in trace(rig, run) if event[0] == "approve"]
    assert said == [
        ("approve", "refund by ann, with other arguments"),
        ("approve", "refund, which may have acted, by bob"),
    ]
    rig.check()


def test_a_word_about_a_call_that_may_have_acted_speaks_for_its_equal_in_the_step(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    till = Till(on_unknown="ask")
    rig.agent(Moody([REFUND * 2, "done"]), till.refund)
    run = rig.submit()
    rig.drain()
    answer(rig, run, "approve")
    rig.rescue()
    rig.die(monkeypatch, "effect.after_tool")
    rig.revive(run)
    ready(rig.store, run)
    goes_on(rig)
    answer(rig, run, "deny")
    goes_on(rig)
    assert rig.record(run).stop_reason == "finished"
    assert till.orders == ["1"]
    assert [said["error_code"] for said in results(rig, run)] == ["outcome_unknown"] * 2


def test_what_an_earlier_attempt_has_done_answers_its_equal_in_the_step(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    till = Till()
    rig.agent(Moody([REFUND * 2, "done"]), till.refund)
    run = rig.submit()
    rig.drain()
    answer(rig, run, "approve")
    rig.rescue()
    rig.die(monkeypatch, "effect.after_done")
    rig.revive(run)
    ready(rig.store, run)
    goes_on(rig)
    assert till.orders == ["1"]
    assert [said["ok"] for said in results(rig, run)] == [True, True]


# ── deciding ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_second_hears_who_was_first_and_what_was_decided(rig: Rig):
    till = Till()
    rig.agent(Moody([REFUND, "done"]), till.refund)
    run = rig.submit()
    rig.drain()
    (asked,) = waits(rig, run)
    answer(rig, run, "deny", reason="no")
    with pytest.raises(ConflictError, match=rf"{run}:{asked.id} was denied by ann at .* UTC \(no\)"):
        decide(rig.store, run, asked.id, Answer("approve", "bob"))


def test_why_nobody_can_decide_is_said_in_a_sentence(rig: Rig):
    till = Till()
    rig.agent(Moody([REFUND, "done"]), till.refund)
    run = rig.submit()
    yes = Answer("approve", "ann")
    with pytest.raises(UsageError, match=f"run {run} does not wait for a decision: it is queued"):
        decide(rig.store, run, "c", yes)
    rig.drain()
    with pytest.raises(UsageError, match=f"no call 'c9' of run {run} waits for a decision"):
        decide(rig.store, run, "c9", yes)
    cancel_run(rig.store, run, by="me")
    with pytest.raises(
        UsageError, match=f"run {run} does not wait for a decision: it has ended as cancelled"
    ):
        decide(rig.store, run, "call_1_0", yes)
    with pytest.raises(UsageError, match="there is no run 'run_none'"):
        decide(rig.store, "run_none", "c", yes)


def test_of_many_those_that_can_be_are_decided_and_the_others_are_counted(rig: Rig):
    till = Till()
    rig.agent(Moody([REFUND, "done"]), till.refund)
    runs = [rig.submit(custom_id=str(n)) for n in range(5)]
    rig.drain()
    found = [(asked.run.id, asked.call.id) for asked in questions(rig.store, lambda _run, _call: True)]
    assert sorted(run for run, _ in found) == sorted(runs)
    first, second, third, *_ = found
    decide(rig.store, *first, Answer("deny", "bob"))
    cancel_run(rig.store, second[0], by="me")
    rig.store.client.hset(rig.store.keys.run(third[0]), "deadline", 1)
    done = decide_many(rig.store, found, Answer("approve", "ann"))
    assert (done.decided, done.expired, done.closed) == (2, 1, 1)
    assert [(name, decision.by) for name, decision in done.taken] == [(":".join(first), "bob")]


@pytest.mark.parametrize(
    "given, said",
    [
        ({"by": " "}, "needs somebody who takes it"),
        ({"by": "x" * 201}, "may have up to 200 characters, and has 201"),
        ({"by": "ann", "reason": "x" * 2_001}, "the reason may have up to 2000 characters"),
        ({"by": "ann", "arguments": "x" * 64_001}, "the arguments may have up to 64000 characters"),
    ],
)
def test_a_decision_has_bounds_and_somebody_who_takes_it(given: dict[str, str], said: str):
    with pytest.raises(UsageError, match=said):
        Answer("approve", **given)


def test_a_run_that_was_paused_while_it_waited_is_held_after_the_decision_and_then_goes_on(rig: Rig):
    till = Till()
    rig.agent(Moody([REFUND, "done"]), till.refund)
    run = rig.submit()
    rig.drain()
    pause_runs(rig.store, [run], by="ann")
    answer(rig, run, "approve")
    goes_on(rig)
    assert (rig.record(run).state, till.made) == ("held", [])
    resume_runs(rig.store, [run])
    assert finish_or_fail(rig, run).stop_reason == "finished"
    assert till.orders == ["1"]
