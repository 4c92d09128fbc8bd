"""Each invariant of a case, and the sentence that is said where it does not hold."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from agentq.agent import Thread
from agentq.core.lifecycle import RunState, StopReason
from agentq.core.records import RunRecord, RunSpec
from agentq.provider.types import Message, Role, ToolCall
from agentq.testing.acts import Act
from agentq.testing.case import Case
from agentq.testing.play import Played
from agentq.testing.stage import Scene
from agentq.testing.verdict import Facts, RunFacts, judge, repeated
from agentq.tools import call_signature, tool

CASE = Played(Case("step.after_tools"), Scene("n", "/nowhere"), reached=True)


@tool(side_effect=True)
def note(text: str) -> str:
    """Note."""
    return text


@tool(side_effect=True, idempotent=True)
def pay(text: str) -> str:
    """Pay."""
    return text


@tool(side_effect=True, repeatable=True)
def ring(text: str) -> str:
    """Ring."""
    return text


@tool
def look(text: str) -> str:
    """Look."""
    return text


SPECS = {function.__name__: function.tool_spec for function in (note, pay, ring, look)}  # type: ignore[attr-defined]


def call(number, name="note", text="a"):
    return ToolCall(f"c{number}", name, json.dumps({"text": text}))


def answer(asked, code=None, **more):
    body = {"tool_call_id": asked.id, "ok": code is None, "error_code": code, "content": "x", **more}
    return Message(Role.TOOL, json.dumps(body), tool_call_id=asked.id)


def thread_of(*turns):
    """A thread whose turns are lists of (call, answer or None), and a last word."""
    thread = Thread(messages=[Message(Role.USER, "do it")])
    for turn in turns:
        thread.messages.append(Message(Role.ASSISTANT, "", tool_calls=tuple(asked for asked, _ in turn)))
        thread.messages += [message for _, message in turn if message is not None]
    thread.messages.append(Message(Role.ASSISTANT, "Done."))
    for number in range(len(turns) + 1):
        thread.step = number + 1
        thread.record("step", f"step {number + 1}")
    return thread


def run_of(thread, **fields: Any):
    given: dict[str, Any] = {"state": RunState.ENDED, "stop_reason": StopReason.FINISHED, "answer": "Done."}
    steps = sum(event.kind == "step" for event in thread.trace)
    record = RunRecord(
        "r1", RunSpec("a"), step=0, phase="model", created_ms=0, steps=steps, **(given | fields)
    )
    return RunFacts(record, thread, SPECS)


def act(name="note", text="a", *, key=None, pid=1):
    signature = call_signature(name, {"text": text})
    return Act("r1", name, f"r1:{signature}" if key is None else key, pid)


def facts(*runs, acts=(), **fields: Any):
    given: dict[str, Any] = {
        "bill_nano": 3,
        "live": [],
        "held": {},
        "spent_nano": 3,
        "forfeited_nano": 0,
        "set_aside": {},
        "drift": [],
        "checkup": [],
    }
    return Facts(runs=list(runs), rows=len(runs), acts=list(acts), **(given | fields))


def good():
    asked = call(1)
    return facts(run_of(thread_of([(asked, answer(asked))])), acts=[act()])


def sentences(found, reference=None):
    return [
        f"{violation.invariant}: {violation.sentence}"
        for violation in judge(CASE, found, good() if reference is None else reference)
    ]


def test_a_case_in_which_all_went_well_has_no_violation():
    assert sentences(good()) == []


@pytest.mark.parametrize(
    "fields, sentence",
    [
        ({"bill_nano": 4_000_000}, "money: the provider billed 0.004000 USD and the ledger has only"),
        (
            {"spent_nano": 4_000_000},
            "money: the ledger has settled 0.004000 USD and the provider billed only",
        ),
        ({"set_aside": {"global": 2_000_000}}, "money: 0.002000 USD are still set aside in global"),
        (
            {"drift": ["global spent usd: log 1, account 2"]},
            "money: the ledger's log and its accounts differ",
        ),
        ({"checkup": ["run r1: it waits without a deadline"]}, "slots: run r1: it waits without a deadline"),
        ({"live": ["r1"]}, "slots: r1 is still watched although all runs have ended"),
        ({"held": {"r1": ["1-a:1"]}}, "slots: r1 still holds 1-a:1"),
    ],
)
def test_money_and_slots_that_are_not_given_back_are_found(fields, sentence):
    (found,) = sentences(replace(good(), **fields))
    assert found.startswith(sentence)


def test_what_was_seen_while_it_was_played_is_a_violation_too():
    seen = replace(CASE, seen={"r1 was queued, in nobody's hands, and held 1-a:1"})
    (violation,) = judge(seen, good(), good())
    assert (violation.case, violation.invariant) == ("step.after_tools/none", "slots")


def test_what_a_dead_worker_s_call_was_charged_in_full_is_no_violation():
    assert sentences(replace(good(), spent_nano=5, forfeited_nano=2)) == []


first, second = call(1), call(2, text="b")


@pytest.mark.parametrize(
    "turn, sentence",
    [
        ([(first, None)], "thread: message 3 comes before c1 were answered"),
        ([(first, answer(first)), (first, answer(first))], "thread: message 4 answers c1"),
        ([(first, answer(second)), (second, answer(first))], "thread: message 3 answers c2 out of its order"),
    ],
)
def test_a_call_without_its_one_result_is_found(turn, sentence):
    thread = thread_of(turn)
    if turn[0][0] is turn[-1][0]:  # one call, however many answers
        thread.messages[1] = replace(thread.messages[1], tool_calls=(first,))
    found = facts(run_of(thread), acts=[act(), act(text="b")][: len(thread.messages[1].tool_calls)])
    assert any(text.startswith(sentence) for text in sentences(found)), sentences(found)


def test_a_step_that_was_committed_twice_is_found():
    thread = thread_of([(first, answer(first))])
    thread.messages.insert(3, thread.messages[1])
    thread.messages.insert(4, thread.messages[2])
    found = sentences(facts(run_of(thread), acts=[act()]))
    assert "thread: it counts 2 steps and has 3 turns of the model" in found


def test_a_trace_that_does_not_fit_the_steps_is_found():
    thread = thread_of([(first, answer(first))])
    thread.trace.pop()
    found = sentences(
        facts(replace(run := run_of(thread), record=replace(run.record, steps=2)), acts=[act()])
    )
    assert found == ["thread: its trace has the steps step 1, and it counts 2"]


@pytest.mark.parametrize(
    "name, code, acts, sentence",
    [
        (
            "note",
            None,
            2,
            'tools: note({"text": "a"}) acted 2 times (in the processes 1, 1), and may at most 1',
        ),
        ("note", None, 0, 'tools: note({"text": "a"}) acted 0 times, and the thread says 1'),
        ("note", "outcome_unknown", 2, 'tools: note({"text": "a"}) acted 2 times'),
        ("note", "tool_error", 0, 'tools: note({"text": "a"}) acted 0 times, and the thread says 1'),
        ("note", "needs_approval", 1, 'tools: note({"text": "a"}) acted 1 times'),
        ("ring", None, 2, 'tools: ring({"text": "a"}) acted 2 times'),
        ("pay", None, 0, 'tools: pay({"text": "a"}) acted 0 times, and the thread says 1'),
    ],
)
def test_a_tool_that_acted_too_often_or_not_at_all_is_found(name, code, acts, sentence):
    asked = call(1, name)
    run = run_of(thread_of([(asked, answer(asked, code))]))
    reference = facts(run, acts=[])
    found = sentences(facts(run, acts=[act(name)] * acts), reference)
    assert [text[: len(sentence)] for text in found] == [sentence]


@pytest.mark.parametrize(
    "name, code, acts",
    [
        ("note", "outcome_unknown", 0),
        ("note", "outcome_unknown", 1),
        ("note", "tool_error", 1),
        ("note", "bad_args", 0),
        ("pay", None, 3),
        ("look", None, 0),
    ],
)
def test_a_tool_that_acted_as_often_as_it_may_is_not(name, code, acts):
    asked = call(1, name)
    run = run_of(thread_of([(asked, answer(asked, code))]))
    assert sentences(facts(run, acts=[act(name)] * acts), facts(run)) == []


def test_the_same_call_again_acts_once_unless_it_may_be_repeated():
    again = call(2)
    run = run_of(thread_of([(first, answer(first)), (again, answer(again, cached=True))]))
    assert sentences(facts(run, acts=[act()]), facts(run)) == []
    ring_once, ring_again = call(1, "ring"), call(2, "ring")
    run = run_of(thread_of([(ring_once, answer(ring_once)), (ring_again, answer(ring_again))]))
    assert sentences(facts(run, acts=[act("ring")] * 2), facts(run)) == []


def test_an_idempotent_tool_that_was_given_two_keys_is_found():
    asked = call(1, "pay")
    run = run_of(thread_of([(asked, answer(asked))]))
    found = facts(run, acts=[act("pay"), act("pay", key=act("pay").key + ":2")])
    (sentence,) = sentences(found, facts(run))
    assert sentence.startswith('tools: pay({"text": "a"}) was given 2 idempotency keys')


def test_an_idempotent_tool_that_was_called_again_with_one_key_is_noted_with_how_often_at_most():
    run = good().runs[0]
    other = [act("pay", text="b")] * 3
    assert repeated(facts(run, acts=[act("pay")] * 2 + other + [act("ring")] * 2)) == {"pay": 3}
    assert repeated(facts(run, acts=[act("pay"), act("pay", text="b")])) == {}


def test_a_tool_that_acted_without_a_call_is_found():
    found = replace(good(), acts=[act(), act(text="nobody asked")])
    assert sentences(found) == ["tools: 1 executions belong to no call in the thread"]


def test_a_run_that_ends_otherwise_than_undisturbed_is_found():
    run = good().runs[0]
    ended = replace(run, record=replace(run.record, stop_reason=StopReason.ATTEMPTS_EXHAUSTED))
    assert sentences(replace(good(), runs=[ended])) == [
        "end: it ended as attempts_exhausted, and undisturbed as finished"
    ]
    answered = replace(run, record=replace(run.record, answer="Else."))
    assert sentences(replace(good(), runs=[answered])) == [
        "end: its answer is 'Else.', and undisturbed 'Done.'"
    ]


def test_of_a_run_that_has_not_ended_only_that_is_said_and_where_it_stands():
    run = good().runs[0]
    queued = replace(run, record=replace(run.record, state=RunState.QUEUED, stop_reason=None, answer=""))
    left = replace(good(), runs=[queued], acts=[], spent_nano=0, set_aside={"global": 2_000_000})
    assert sentences(replace(left, live=["r1"])) == ["end: it has not ended: it is queued at step 1"]
    assert sentences(left) == [
        "end: it has not ended: it is queued at step 1, and nobody watches it any more"
    ]


def test_a_row_that_was_lost_or_a_child_that_was_started_twice_is_found():
    two = facts(*good().runs, *good().runs, acts=[act(), act()])
    assert "end: 1 rows started 0 runs, and undisturbed 2 and 0" in sentences(good(), two)
    family = replace(two, rows=1, acts=[act()])
    assert "end: 1 rows started 1 runs, and undisturbed 1 and 0" in sentences(family)


def test_what_a_real_tool_answers_may_differ_but_not_that_it_was_made():
    made = run_of(thread_of([(first, answer(first, "tool_error"))]))
    assert sentences(facts(made, acts=[act()])) == []
    refused = run_of(thread_of([(first, answer(first, "not_allowed"))]))
    (sentence,) = sentences(facts(refused))
    assert sentence.startswith("end: message 3 is ('tool', 'c1', 'not_allowed'), and undisturbed")
