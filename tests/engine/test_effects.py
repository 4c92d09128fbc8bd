"""Side effects: workers that die, lose the run or are too slow, and how often a tool has acted then."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from agentq.core.failpoints import FailpointError
from agentq.core.ids import new_nonce
from agentq.engine.cancel import cancel_run
from agentq.provider.types import Message, Role
from agentq.store.approvals import Wanted
from agentq.tools import CallContext, call_signature, tool
from tests.support.harness import Moody, Rig, age, call, finish_or_fail, ready, state_of
from tests.support.wait import wait_until

ARGUMENTS = '{"order": "1"}'
PAY = [("pay", ARGUMENTS)]
RETRIED = '["retried","by ann",1,1,1]'
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "idempotent": {"idempotent": True},
    "repeatable": {"repeatable": True},
}


class Till:
    """A tool that pays, and what it has seen: `keys` are those of the calls that were made."""

    def __init__(self, **options: Any) -> None:
        self.keys: list[str] = []

        @tool(side_effect=True, **options)
        def pay(ctx: CallContext, order: str) -> str:
            """Pay."""
            self.keys.append(ctx.idempotency_key)
            return f"paid {order}, number {len(self.keys)}"

        self.pay = pay


@tool
def look(id: str) -> str:
    """Look something up."""
    return f"thing {id}"


def results(rig: Rig, run: str) -> list[dict[str, Any]]:
    """What the model reads of its calls, in order."""
    return [_read(message) for message in rig.thread(run).messages if message.role is Role.TOOL]


def _read(message: Message) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(message.content)
    return said


def dies(rig: Rig, monkeypatch: pytest.MonkeyPatch, point: str, run: str) -> None:
    """The next step's worker dies there, and a tick takes the step back."""
    monkeypatch.setenv("AGENTQ_FAILPOINTS", f"{point}=raise")
    with pytest.raises(FailpointError):
        rig.step()
    monkeypatch.delenv("AGENTQ_FAILPOINTS")
    rig.check()
    rig.revive(run)
    ready(rig.store, run)
    rig.rescue()


def decide(rig: Rig, run: str, verdict: Any, *, reason: str = "") -> None:
    """A person answers the one question that the run waits with."""
    (asked,) = rig.record(run).pending
    (taken,) = rig.store.approvals.decide([Wanted(run, asked.id, verdict, "ann", reason)])
    assert (taken.word, taken.left) == ("DECIDED", 0)


def kinds_of(rig: Rig, run: str) -> list[str]:
    return [event.kind for event in rig.thread(run).trace]


# ── a worker dies ────────────────────────────────────────────────────────────────────────────────────

ACTED = {
    # Where it dies, and what the tool is: how often it has acted in the end, and what the model reads.
    ("effect.after_begin", "plain"): (0, "outcome_unknown"),
    ("effect.after_begin", "idempotent"): (1, None),
    ("effect.after_begin", "repeatable"): (0, "outcome_unknown"),
    ("effect.after_tool", "plain"): (1, "outcome_unknown"),
    ("effect.after_tool", "idempotent"): (2, None),
    ("effect.after_tool", "repeatable"): (1, "outcome_unknown"),
    ("effect.after_done", "plain"): (1, None),
    ("effect.after_done", "idempotent"): (1, None),
    ("effect.after_done", "repeatable"): (1, None),
    ("step.after_tools", "plain"): (1, None),
    ("step.after_tools", "repeatable"): (1, None),
    ("step.after_commit", "plain"): (1, None),
}


@pytest.mark.parametrize("point, kind", ACTED)
def test_a_worker_that_dies_around_a_tool_never_makes_a_plain_one_act_twice(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, point: str, kind: str
):
    till = Till(**KINDS[kind])
    rig.agent(Moody([PAY, "done"]), till.pay)
    run = rig.submit()
    dies(rig, monkeypatch, point, run)
    assert finish_or_fail(rig, run).stop_reason == "finished"
    times, code = ACTED[point, kind]
    assert len(till.keys) == times
    assert len(set(till.keys)) <= 1, "a repetition has the same key"
    (said,) = results(rig, run)
    assert (said["ok"], said["error_code"]) == (code is None, code)
    if code is None:
        assert said["content"].startswith("paid 1")
    else:
        assert "verified" in said["content"]
    rig.check()


@pytest.mark.parametrize("point", ["effect.after_begin", "effect.after_tool", "effect.after_done"])
def test_the_tools_before_and_after_it_are_made_once_whatever_it_is_in_which_its_worker_dies(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, point: str
):
    """The second of three writes is the one; reads before a write are kept with it."""
    seen: list[str] = []

    @tool
    def read(id: str) -> str:
        """Read."""
        seen.append(f"read {id}")
        if id == "c":
            monkeypatch.setenv("AGENTQ_FAILPOINTS", point)
        return f"version {len(seen)}"

    @tool(side_effect=True)
    def write(id: str) -> str:
        """Write."""
        seen.append(f"write {id}")
        return "written"

    calls = [("read", "a"), ("write", "b"), ("read", "c"), ("write", "d"), ("write", "e")]
    rig.agent(Moody([[(name, f'{{"id": "{of}"}}') for name, of in calls], "done"]), read, write)
    run = rig.submit()
    dies(rig, monkeypatch, "step.after_commit", run)
    finish_or_fail(rig, run)
    acted = [] if point == "effect.after_begin" else ["write d"]
    assert seen == ["read a", "write b", "read c", *acted, "write e"]
    codes = [said["error_code"] for said in results(rig, run)]
    assert codes == [None, None, None, None if point == "effect.after_done" else "outcome_unknown", None]
    assert [said["content"] for said in results(rig, run)][::2][:2] == ["version 1", "version 3"]


def test_a_read_before_a_call_that_was_refused_is_kept_with_the_next_intent(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    seen: list[str] = []

    @tool
    def read() -> str:
        """Read."""
        seen.append("read")
        return f"version {len(seen)}"

    till = Till()
    rig.agent(Moody([[("read", ""), ("pay", '{"wrong": 1}'), ("pay", ARGUMENTS)], "done"]), read, till.pay)
    run = rig.submit()
    dies(rig, monkeypatch, "effect.after_done", run)
    finish_or_fail(rig, run)
    assert seen == ["read"]
    assert [said["error_code"] for said in results(rig, run)] == [None, "bad_args", None]


def test_a_second_death_in_the_same_tool_makes_it_no_less_unknown(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    till = Till()
    rig.agent(Moody([[*PAY, ("pay", '{"order": "2"}')], "done"]), till.pay)
    run = rig.submit()
    dies(rig, monkeypatch, "effect.after_tool", run)
    dies(rig, monkeypatch, "effect.after_tool", run)
    finish_or_fail(rig, run)
    assert len(till.keys) == 2
    assert [said["error_code"] for said in results(rig, run)] == ["outcome_unknown", "outcome_unknown"]


@pytest.mark.parametrize("where", ["in the same step", "in a later step"])
def test_what_a_lost_worker_has_done_answers_equal_calls(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, where: str
):
    till = Till()
    script: list[Any] = [[*PAY, *PAY], "done"] if where == "in the same step" else [PAY, PAY, "done"]
    rig.agent(Moody(script), till.pay)
    run = rig.submit()
    dies(rig, monkeypatch, "effect.after_done", run)
    finish_or_fail(rig, run)
    assert len(till.keys) == 1
    assert [(said["ok"], said["content"][:6]) for said in results(rig, run)] == [(True, "paid 1")] * 2


def test_an_equal_call_of_the_step_is_not_made_while_nobody_knows_of_the_first(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    till = Till()
    rig.agent(Moody([[*PAY, *PAY], "done"]), till.pay)
    run = rig.submit()
    dies(rig, monkeypatch, "effect.after_tool", run)
    finish_or_fail(rig, run)
    assert len(till.keys) == 1
    assert [said["error_code"] for said in results(rig, run)] == ["outcome_unknown", "outcome_unknown"]


def test_equal_calls_of_a_repeatable_tool_have_keys_of_their_own_that_stay_theirs(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    till = Till(repeatable=True, idempotent=True)
    rig.agent(Moody([[*PAY, *PAY], "done"]), till.pay)
    run = rig.submit()
    dies(rig, monkeypatch, "effect.after_tool", run)
    finish_or_fail(rig, run)
    first, again, second = till.keys
    assert first == again != second
    assert all(key.startswith(f"{run}:{call_signature('pay', ARGUMENTS)}:") for key in till.keys)


def test_a_plain_tool_s_key_is_by_run_and_executed_call(rig: Rig):
    till = Till()
    rig.agent(Moody([PAY, "done"]), till.pay)
    run = rig.submit()
    rig.drain()
    assert till.keys == [f"{run}:{call_signature('pay', ARGUMENTS)}"]


# ── nobody knows ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "agent, own, asks",
    [("tell", None, False), ("ask", None, True), ("tell", "ask", True), ("ask", "tell", False)],
)
def test_the_tool_s_word_on_what_is_unknown_goes_before_the_agent_s(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, agent: Any, own: Any, asks: bool
):
    till = Till(on_unknown=own)
    rig.agent(Moody([PAY, "done"]), till.pay, on_unknown=agent)
    run = rig.submit()
    dies(rig, monkeypatch, "effect.after_tool", run)
    rig.drain()
    assert (state_of(rig.store, run) == "waiting") is asks
    rig.check()


def asked_about(rig: Rig, monkeypatch: pytest.MonkeyPatch, *calls: tuple[str, str]) -> tuple[Till, str]:
    """A run that waits for a person's word about a call that may have acted."""
    till = Till(on_unknown="ask")
    rig.agent(Moody([list(calls or PAY), "done"]), till.pay, look)
    run = rig.submit()
    dies(rig, monkeypatch, "effect.after_tool", run)
    rig.drain()
    assert state_of(rig.store, run) == "waiting"
    return till, run


def test_a_person_who_is_asked_sees_the_call_and_why(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    _, run = asked_about(rig, monkeypatch)
    (asked,) = rig.record(run).pending
    assert (asked.tool, asked.arguments, asked.kind) == ("pay", ARGUMENTS, "unknown")
    assert [event.detail for event in rig.thread(run).trace if event.kind == "outcome_unknown"] == ["pay"]
    rig.check()


def test_it_is_made_again_once_when_a_person_says_so(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    till, run = asked_about(rig, monkeypatch)
    decide(rig, run, "approve")
    finish_or_fail(rig, run)
    assert len(till.keys) == 2
    assert [said["ok"] for said in results(rig, run)] == [True]
    rig.check()


def test_it_is_not_made_again_when_a_person_says_so_and_the_model_hears_why(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    till, run = asked_about(rig, monkeypatch)
    decide(rig, run, "deny", reason="the bank has it")
    finish_or_fail(rig, run)
    assert len(till.keys) == 1
    (said,) = results(rig, run)
    assert said["error_code"] == "outcome_unknown"
    assert "the bank has it" in said["content"]


def test_a_word_about_one_attempt_does_not_speak_for_the_next(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    till, run = asked_about(rig, monkeypatch)
    (first,) = rig.record(run).pending
    decide(rig, run, "approve")
    ready(rig.store, run)
    rig.rescue()
    dies(rig, monkeypatch, "effect.after_tool", run)
    rig.drain()
    (second,) = rig.record(run).pending
    assert (state_of(rig.store, run), len(till.keys)) == ("waiting", 2)
    assert second.id != first.id
    decide(rig, run, "deny")
    finish_or_fail(rig, run)
    assert len(till.keys) == 2


@pytest.mark.parametrize("expired, reason", [("tell", "finished"), ("stop", "approval_expired")])
def test_where_nobody_answers_it_is_not_made_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, expired: Any, reason: str
):
    till = Till(on_unknown="ask")
    rig.agent(Moody([PAY, "done"]), till.pay, on_expired=expired)
    run = rig.submit()
    dies(rig, monkeypatch, "effect.after_tool", run)
    rig.drain()
    age(rig.store, run)
    rig.rescue()
    rig.drain()
    assert (rig.record(run).stop_reason, len(till.keys)) == (reason, 1)
    codes = [said["error_code"] for said in results(rig, run)]
    assert codes == (["outcome_unknown"] if expired == "tell" else [])
    rig.check()


def test_one_question_is_asked_about_equal_calls(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    till, run = asked_about(rig, monkeypatch, *PAY, *PAY)
    decide(rig, run, "deny")
    finish_or_fail(rig, run)
    assert len(till.keys) == 1
    assert [said["error_code"] for said in results(rig, run)] == ["outcome_unknown", "outcome_unknown"]


def test_while_a_person_is_asked_nothing_behind_the_call_is_made_and_nothing_before_it_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    seen: list[str] = []

    @tool
    def note(id: str) -> str:
        """Read."""
        seen.append(id)
        return id

    till = Till(on_unknown="ask")
    script: list[Any] = [[("note", '{"id": "a"}'), *PAY, ("note", '{"id": "b"}')], "done"]
    rig.agent(Moody(script), till.pay, note)
    run = rig.submit()
    dies(rig, monkeypatch, "effect.after_tool", run)
    rig.drain()
    assert seen == ["a"]
    decide(rig, run, "deny")
    finish_or_fail(rig, run)
    assert seen == ["a", "b"]
    assert [said["error_code"] for said in results(rig, run)] == [None, "outcome_unknown", None]


def test_a_retry_of_a_run_does_not_make_again_what_may_have_acted(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    till = Till()
    rig.agent(Moody([PAY, "done"]), till.pay)
    run = rig.submit()
    dies(rig, monkeypatch, "effect.after_tool", run)
    cancel_run(rig.store, run, by="ann")
    rig.drain()
    assert rig.record(run).stop_reason == "cancelled"
    reopen(rig, run)
    assert finish_or_fail(rig, run).stop_reason == "finished"
    assert len(till.keys) == 1
    assert [said["error_code"] for said in results(rig, run)] == ["outcome_unknown"]
    rig.check()


def reopen(rig: Rig, run: str) -> None:
    """Retry an ended run, as it was."""
    keys, client = rig.store.keys, rig.store.client
    head, messages = client.hget(keys.run(run), "head"), client.llen(keys.run(run, "msgs"))
    given = (run, new_nonce(), 0, str(head), int(messages), "", "", RETRIED, "ann", 0)
    assert call(rig.store, "run_retry", *given)[0] == "RETRIED"
    age(rig.store, run)
    rig.rescue()


# ── too slow ─────────────────────────────────────────────────────────────────────────────────────────


class Slow:
    """A tool that answers when it is let go, which is after its time."""

    def __init__(self, **options: Any) -> None:
        self.gate = threading.Event()
        self.times = 0

        @tool(side_effect=True, timeout_s=0.05, **options)
        def pay(order: str) -> str:
            """Pay."""
            self.times += 1
            self.gate.wait(30)
            return f"paid {order}"

        self.pay = pay


def answers_late(rig: Rig, slow: Slow, run: str) -> None:
    slow.gate.set()
    trace = rig.store.runs.trace
    wait_until(lambda: any("late_result" in event for event in trace(run)), "the late result is in the trace")


def test_a_result_that_comes_too_late_is_in_the_trace_and_answers_an_equal_call(rig: Rig):
    slow = Slow()
    rig.agent(Moody([PAY, PAY, "done"]), slow.pay)
    run = rig.submit()
    rig.step()
    assert [said["error_code"] for said in results(rig, run)] == ["outcome_unknown"]
    answers_late(rig, slow, run)
    finish_or_fail(rig, run)
    assert slow.times == 1
    assert [(said["error_code"], said["content"]) for said in results(rig, run)[1:]] == [(None, "paid 1")]
    (event,) = [event for event in rig.thread(run).trace if event.kind == "late_result"]
    assert (event.detail, event.ok, event.call) == ("pay:ok", True, call_signature("pay", ARGUMENTS))
    rig.check()


def test_a_call_that_timed_out_is_not_made_again_in_its_step(rig: Rig):
    slow = Slow()
    rig.agent(Moody([[*PAY, *PAY], "done"]), slow.pay)
    run = rig.submit()
    rig.step()
    slow.gate.set()
    assert slow.times == 1
    assert [said["error_code"] for said in results(rig, run)] == ["outcome_unknown", "outcome_unknown"]


def test_a_result_that_comes_while_the_run_is_taken_over_is_what_the_model_reads(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    slow = Slow()
    rig.agent(Moody([PAY, "done"]), slow.pay)
    run = rig.submit()
    dies(rig, monkeypatch, "step.after_tools", run)
    answers_late(rig, slow, run)
    finish_or_fail(rig, run)
    assert slow.times == 1
    assert [(said["error_code"], said["content"]) for said in results(rig, run)] == [(None, "paid 1")]
    rig.check()


def test_a_call_that_timed_out_is_asked_about_and_its_late_result_answers_for_it(rig: Rig):
    slow = Slow(on_unknown="ask")
    rig.agent(Moody([PAY, "done"]), slow.pay)
    run = rig.submit()
    rig.step()
    assert state_of(rig.store, run) == "waiting"
    answers_late(rig, slow, run)
    decide(rig, run, "approve")
    finish_or_fail(rig, run)
    assert slow.times == 1
    assert [(said["error_code"], said["content"]) for said in results(rig, run)] == [(None, "paid 1")]


def test_what_is_done_after_the_run_has_ended_has_an_end_and_is_seen(rig: Rig):
    slow = Slow()
    rig.agent(Moody([PAY, "done"]), slow.pay)
    run = rig.submit()
    rig.step()
    cancel_run(rig.store, run, by="ann")
    answers_late(rig, slow, run)
    assert kinds_of(rig, run)[-1] == "late_result"
    rig.check()


# ── the run is lost ──────────────────────────────────────────────────────────────────────────────────


def loses(rig: Rig, how: str) -> Callable[[], None]:
    """What happens to the run while its first tool is at work."""

    def taken() -> None:
        run = rig.submitted[0]
        if how == "cancelled":
            cancel_run(rig.store, run, by="ann")
        elif how == "taken over":
            rig.revive(run)
        else:
            rig.clock.seconds += 3600

    return taken


@pytest.mark.parametrize("how", ["cancelled", "taken over", "too old to be trusted"])
def test_who_has_lost_the_run_makes_no_further_call(rig: Rig, how: str):
    seen: list[str] = []
    lose = loses(rig, how)

    @tool(side_effect=True)
    def first() -> str:
        """Act, and lose the run."""
        seen.append("first")
        if len(seen) == 1:
            lose()
        return "ok"

    @tool(side_effect=True)
    def second() -> str:
        """Act."""
        seen.append("second")
        return "ok"

    rig.agent(Moody([[("first", ""), ("second", "")], "done"]), first, second)
    run = rig.submit()
    rig.step()
    assert seen == ["first"]
    rig.check()
    if how == "cancelled":
        assert rig.record(run).stop_reason == "cancelled"
        assert kinds_of(rig, run)[-1] == "late_result"
        return
    finish_or_fail(rig, run)
    assert seen == ["first", "second"], "what was done is known to who goes on"
    assert [said["ok"] for said in results(rig, run)] == [True, True]
    rig.check()


def test_a_fact_that_comes_after_the_model_was_told_that_nobody_knows_is_not_lost(rig: Rig):
    """The first worker is frozen in the tool; the second has gone on. An equal call hears what came of it."""
    seen: list[str] = []

    @tool(side_effect=True)
    def pay(order: str) -> str:
        """Pay, and be frozen for as long as somebody else takes the run and does its step."""
        seen.append(order)
        rig.revive(rig.submitted[0])
        ready(rig.store, rig.submitted[0])
        rig.step()
        return f"paid {order}"

    rig.agent(Moody([PAY, PAY, "done"]), pay)
    run = rig.submit()
    rig.step()
    finish_or_fail(rig, run)
    assert seen == ["1"]
    assert [said["error_code"] for said in results(rig, run)] == ["outcome_unknown", None]
    assert "late_result" in kinds_of(rig, run)
    rig.check()


def test_a_cancel_between_intent_and_tool_comes_too_late_for_the_tool_and_in_time_for_the_next(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    till = Till()
    rig.agent(Moody([[*PAY, ("pay", '{"order": "2"}')], "done"]), till.pay)
    run = rig.submit()

    def cancel(point: str) -> None:
        if point == "effect.after_begin":
            cancel_run(rig.store, run, by="ann")

    monkeypatch.setattr("agentq.tools.executor.failpoint", cancel)
    rig.step()
    assert len(till.keys) == 1
    assert rig.record(run).stop_reason == "cancelled"
    assert kinds_of(rig, run)[-1] == "late_result", "what it has done is seen"
    assert results(rig, run) == []
    rig.check()


# ── with children and approvals ──────────────────────────────────────────────────────────────────────


def test_children_an_approval_and_a_death_in_one_step_make_each_call_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    """It waits for a person, then for a child, then its worker dies: nothing is asked or made again."""
    seen: list[str] = []

    @tool(side_effect=True)
    def note(text: str) -> str:
        """Write something down."""
        seen.append(f"note {text}")
        return "noted"

    @tool
    def ask_a_child(ctx: CallContext) -> str:
        """Have a child answer."""
        (child,) = ctx.gather([ctx.spawn("b", "help")])
        seen.append("child")
        return child.answer

    @tool(side_effect=True, requires_approval=True)
    def refund(order: str) -> str:
        """Give money back."""
        seen.append(f"refund {order}")
        return "refunded"

    calls = [("note", '{"text": "a"}'), ("ask_a_child", ""), ("refund", ARGUMENTS), ("note", '{"text": "b"}')]
    rig.agent(Moody([calls, "done"]), note, ask_a_child, refund)
    rig.agent(Moody(["helped"]), name="b")
    run = rig.submit()
    rig.step()
    assert (seen, state_of(rig.store, run)) == ([], "waiting")
    decide(rig, run, "approve")
    rig.rescue()
    rig.step()
    assert (seen, state_of(rig.store, run)) == (["note a"], "waiting")
    rig.submitted += rig.store.runs.children(run)
    rig.step()  # the child's
    age(rig.store, run)
    rig.rescue()
    dies(rig, monkeypatch, "effect.after_done", run)
    assert finish_or_fail(rig, run).stop_reason == "finished"
    # The read is made again by whoever comes after the death only if no intent has kept it.
    assert seen == ["note a", "child", f"refund {json.loads(ARGUMENTS)['order']}", "note b"]
    assert [said["content"] for said in results(rig, run)] == ["noted", "helped", "refunded", "noted"]
    rig.check()


# ── what the journal costs, and leaves behind ────────────────────────────────────────────────────────


def test_a_step_of_reads_writes_no_journal_and_a_finished_one_leaves_none(rig: Rig):
    till = Till()
    rig.agent(Moody([[("look", '{"id": "1"}')], PAY, "done"]), look, till.pay)
    run = rig.submit()
    for _ in range(2):
        rig.step()
        assert rig.store.client.exists(rig.store.keys.run(run, "effects")) == 0
    rig.drain()
    rig.check()


def test_a_long_result_is_in_the_journal_as_short_as_in_the_thread(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    @tool(side_effect=True, max_result_chars=100)
    def fill() -> str:
        """Answer at length."""
        return "x" * 100_000

    rig.agent(Moody([[("fill", "")], "done"]), fill)
    run = rig.submit()
    dies(rig, monkeypatch, "effect.after_done", run)
    (entry,) = rig.store.client.hvals(rig.store.keys.run(run, "effects"))
    assert len(str(entry)) < 400
    finish_or_fail(rig, run)


@pytest.mark.parametrize("dying", [False, True])
def test_a_tool_that_waits_for_children_is_made_again_and_is_unknown_only_when_its_worker_dies(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, dying: bool
):
    times: list[int] = []

    @tool(side_effect=True)
    def delegate(ctx: CallContext) -> str:
        """Have a child do it, and then act."""
        times.append(1)
        (child,) = ctx.gather([ctx.spawn("b", "help")])
        return f"child says {child.answer}"

    rig.agent(Moody([[("delegate", "")], "done"]), delegate)
    rig.agent(Moody(["helped"]), name="b")
    run = rig.submit()
    rig.step()
    assert state_of(rig.store, run) == "waiting"
    rig.submitted += rig.store.runs.children(run)
    rig.step()  # the child's
    age(rig.store, run)
    rig.rescue()
    if dying:
        dies(rig, monkeypatch, "effect.after_tool", run)
    finish_or_fail(rig, run)
    assert len(times) == 2
    (said,) = results(rig, run)
    assert (said["error_code"], said["ok"]) == (("outcome_unknown", False) if dying else (None, True))
    rig.check()
