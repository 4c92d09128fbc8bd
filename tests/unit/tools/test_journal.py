"""The executor with a journal: what is noted when, and what is not made or made otherwise."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentq.tools import (
    CallContext,
    PlannedCall,
    ToolExecutor,
    ToolRegistry,
    ToolResult,
    ToolSpec,
    call_signature,
    tool,
)
from agentq.tools.threads import DaemonThreads
from tests.support.wait import wait_until


class LostError(Exception):
    """The step may not go on."""


@dataclass
class FakeJournal:
    """Writes down what it is told, beside what the tools do, in `log`."""

    log: list[str] = field(default_factory=list)
    answers: dict[int, ToolResult] = field(default_factory=dict)
    """What answers in place of the call at this position."""
    lost_at: str = ""
    asked: bool = False
    results: dict[int, ToolResult] = field(default_factory=dict)

    def _note(self, text: str) -> None:
        if text == self.lost_at:
            raise LostError(text)
        self.log.append(text)

    def check(self) -> None:
        self._note("check")
        self.log.pop()

    def begin(
        self, position: int, spec: ToolSpec, signature: str, reads: Mapping[int, ToolResult]
    ) -> ToolResult | None:
        assert signature.startswith(f"{spec.name}:")
        kept = "".join(f" {at}={result.content}" for at, result in reads.items())
        self._note(f"begin {position}{kept}")
        return self.answers.get(position)

    def done(self, position: int, spec: ToolSpec, signature: str, result: ToolResult, *, late: bool) -> None:
        self.results[position] = result
        self._note(f"done {position}{' late' if late else ''}")

    def asks(self, spec: ToolSpec) -> bool:
        return self.asked


class Desk:
    """Tools that write what they do into the journal's log."""

    def __init__(self, journal: FakeJournal | None, **options: Any) -> None:
        self.journal = journal
        self.log: list[str] = [] if journal is None else journal.log
        self.gate = threading.Event()

        @tool
        def read(id: str) -> str:
            """Read."""
            self.log.append(f"read {id}")
            return f"thing {id}"

        @tool(side_effect=True, **options)
        def write(ctx: CallContext, id: str) -> str:
            """Write."""
            self.log.append(f"write {id}")
            if id == "fails":
                raise RuntimeError("broken")
            if id == "slow":
                self.gate.wait(30)
            self.keys.append(ctx.idempotency_key)
            return f"written {id}"

        @tool(side_effect=True, requires_approval=True)
        def pay(id: str) -> str:
            """Pay."""
            self.log.append(f"pay {id}")
            return f"paid {id}"

        self.keys: list[str] = []
        self.executor = ToolExecutor(ToolRegistry([read, write, pay]))

    def make(self, *calls: PlannedCall, cache: dict[str, str] | None = None) -> list[ToolResult]:
        return self.executor.call_many(
            calls, CallContext(run_id="r"), journal=self.journal, cache={} if cache is None else cache
        )


def to(name: str, what: str, **planned: Any) -> PlannedCall:
    return PlannedCall(name, f'{{"id": "{what}"}}', **planned)


# ── the order ────────────────────────────────────────────────────────────────────────────────────────


def test_it_is_noted_before_a_tool_acts_and_after_it_has():
    desk = Desk(FakeJournal())
    results = desk.make(to("write", "a"), to("write", "b"))
    assert desk.log == ["begin 0", "write a", "done 0", "begin 1", "write b", "done 1"]
    assert [result.content for result in results] == ["written a", "written b"]


def test_a_read_is_not_noted_and_its_result_is_kept_with_the_next_intent():
    desk = Desk(FakeJournal())
    desk.make(to("read", "a"), to("write", "b"), to("read", "c"), to("write", "d"), to("read", "e"))
    assert desk.log == [
        "read a", "begin 1 0=thing a", "write b", "done 1",
        "read c", "begin 3 2=thing c", "write d", "done 3", "read e",
    ]  # fmt: skip


def test_a_read_before_a_write_that_is_not_made_is_kept_with_the_one_after_it():
    desk = Desk(FakeJournal())
    desk.make(to("read", "a"), PlannedCall("write", "{"), to("pay", "b"), to("write", "c"))
    assert desk.log == ["read a", "begin 3 0=thing a", "write c", "done 3"]


def test_a_failure_is_a_result_that_is_noted_too():
    journal = FakeJournal()
    desk = Desk(journal)
    (result,) = desk.make(to("write", "fails"))
    assert desk.log == ["begin 0", "write fails", "done 0"]
    assert journal.results[0] == result
    assert (result.ok, result.error_code) == (False, "tool_error")


def test_what_is_noted_is_what_the_model_reads_and_no_longer():
    journal = FakeJournal()
    (result,) = Desk(journal, max_result_chars=5).make(to("write", "a"))
    assert journal.results[0].content == result.content == "writt\n[cut: 4 more characters omitted]"


def test_a_call_for_which_there_is_no_thread_has_not_acted_and_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("agentq.tools.running.TOOL_THREADS", DaemonThreads(limit=0))
    journal = FakeJournal()
    (result,) = Desk(journal).make(to("write", "a"))
    assert journal.log == ["begin 0", "done 0"]
    assert (journal.results[0].error_code, result.retryable) == ("tool_error", True)


# ── the step may not go on ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "lost_at, made",
    [
        ("begin 0", []),
        ("done 0", ["begin 0", "write a"]),
        ("begin 1", ["begin 0", "write a", "done 0"]),
        ("done 1", ["begin 0", "write a", "done 0", "begin 1", "write b"]),
    ],
)
def test_nothing_is_made_after_the_journal_says_that_the_step_may_not_go_on(lost_at: str, made: list[str]):
    desk = Desk(FakeJournal(lost_at=lost_at))
    with pytest.raises(LostError):
        desk.make(to("write", "a"), to("write", "b"), to("read", "c"))
    assert desk.log == made


def test_no_call_begins_when_the_check_fails_also_no_read():
    desk = Desk(FakeJournal(lost_at="check"))
    with pytest.raises(LostError):
        desk.make(to("read", "a"))
    assert desk.log == []


# ── what the journal answers ─────────────────────────────────────────────────────────────────────────

KNOWN = ToolResult(True, "written long ago")
UNKNOWN = ToolResult.failure("outcome_unknown", "Nobody knows.")


def test_what_the_journal_answers_stands_in_place_of_the_call():
    desk = Desk(FakeJournal(answers={0: KNOWN}))
    results = desk.make(to("write", "a"), to("write", "b"))
    assert desk.log == ["begin 0", "begin 1", "write b", "done 1"]
    assert [result.content for result in results] == ["written long ago", "written b"]


@pytest.mark.parametrize("by", ["the journal", "the plan"])
def test_a_good_answer_speaks_for_equal_calls(by: str):
    desk = Desk(FakeJournal(answers={0: KNOWN} if by == "the journal" else {}))
    first = to("write", "a", answer=KNOWN if by == "the plan" else None)
    cache: dict[str, str] = {}
    _, again = desk.make(first, to("write", "a"), cache=cache)
    assert (again.content, again.cached) == ("written long ago", True)
    assert cache == {call_signature("write", {"id": "a"}): "written long ago"}
    assert "write a" not in desk.log


def test_an_answer_that_is_not_good_speaks_for_nobody():
    desk = Desk(FakeJournal())
    cache: dict[str, str] = {}
    results = desk.make(to("write", "a", answer=UNKNOWN), to("write", "a"), cache=cache)
    assert [result.ok for result in results] == [False, True]
    assert desk.log == ["begin 1", "write a", "done 1"]


def test_a_good_answer_of_a_tool_that_may_repeat_speaks_for_nobody():
    desk = Desk(FakeJournal(), repeatable=True)
    desk.make(to("write", "a", answer=KNOWN), to("write", "a"))
    assert desk.log == ["begin 1", "write a", "done 1"]


def test_where_a_person_is_asked_the_call_is_suspended_and_nothing_behind_it_is_made():
    desk = Desk(FakeJournal(answers={1: UNKNOWN}, asked=True))
    results = desk.make(to("read", "a"), to("write", "b"), to("read", "c"), to("write", "d"))
    assert desk.log == ["read a", "begin 1 0=thing a"]
    assert [(result.suspended, result.asks) for result in results] == [
        (False, False), (True, True), (True, False), (True, False),
    ]  # fmt: skip


def test_where_nobody_is_asked_the_model_reads_that_nobody_knows_and_the_step_goes_on():
    desk = Desk(FakeJournal(answers={0: UNKNOWN}))
    results = desk.make(to("write", "a"), to("write", "b"))
    assert [result.error_code for result in results] == ["outcome_unknown", None]


def test_only_what_is_unknown_is_asked_about():
    failure = ToolResult.failure("tool_error", "No.")
    (result,) = Desk(FakeJournal(answers={0: failure}, asked=True)).make(to("write", "a"))
    assert (result.error_code, result.asks) == ("tool_error", False)


# ── too slow ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_result_that_comes_too_late_is_noted_as_late_and_once():
    journal = FakeJournal()
    desk = Desk(journal, timeout_s=0.05)
    cache: dict[str, str] = {}
    slow, after = desk.make(to("write", "slow"), to("write", "b"), cache=cache)
    assert (slow.error_code, after.ok) == ("outcome_unknown", True)
    assert [entry for entry in desk.log if entry.startswith("done")] == ["done 1"]
    desk.gate.set()
    wait_until(lambda: 0 in journal.results, "the late result")
    assert [entry for entry in desk.log if entry.startswith("done")] == ["done 1", "done 0 late"]
    assert journal.results[0].content == "written slow"
    assert call_signature("write", {"id": "slow"}) not in cache


def test_a_call_that_timed_out_is_asked_about_and_nothing_behind_it_is_made():
    journal = FakeJournal(asked=True)
    desk = Desk(journal, timeout_s=0.05)
    slow, after = desk.make(to("write", "slow"), to("write", "b"))
    desk.gate.set()
    wait_until(lambda: 0 in journal.results, "the late result")
    assert (slow.asks, after.suspended, "write b" in desk.log) == (True, True, False)


# ── what a person has decided ────────────────────────────────────────────────────────────────────────


def test_an_approved_call_is_made_with_the_arguments_that_were_approved():
    desk = Desk(FakeJournal())
    approved, other = desk.make(to("pay", "a", approved=True), to("pay", "b"))
    assert (approved.content, other.error_code) == ("paid a", "needs_approval")
    assert desk.log == ["begin 0", "pay a", "done 0"]


def test_a_refused_call_has_its_answer_and_nothing_is_noted():
    refusal = ToolResult.failure("approval_denied", "No.")
    desk = Desk(FakeJournal())
    results = desk.make(to("pay", "a", answer=refusal), to("write", "b"))
    assert [result.error_code for result in results] == ["approval_denied", None]
    assert desk.log == ["begin 1", "write b", "done 1"]


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────


def test_the_key_is_by_what_is_executed_and_of_a_repeatable_tool_by_its_call():
    plain = Desk(FakeJournal())
    plain.make(to("write", "a", id="c1"))
    assert plain.keys == [f"r:{call_signature('write', {'id': 'a'})}"]
    repeatable = Desk(FakeJournal(), repeatable=True)
    repeatable.make(to("write", "a", id="c1"), to("write", "a", id="c2"))
    assert repeatable.keys == [f"r:{call_signature('write', {'id': 'a'})}:c{n}" for n in (1, 2)]


# ── without a journal ────────────────────────────────────────────────────────────────────────────────


def test_in_one_process_nothing_is_noted_and_all_else_is_the_same():
    noted, bare = Desk(FakeJournal()), Desk(None)
    calls = [to("read", "a"), to("write", "b"), to("write", "b"), to("pay", "c"), to("write", "fails")]

    def said(desk: Desk) -> list[tuple[bool, str, str | None, bool]]:
        return [(it.ok, it.content, it.error_code, it.cached) for it in desk.make(*calls)]

    assert said(bare) == said(noted)
    assert bare.log == [entry for entry in noted.log if entry.split()[0] not in {"begin", "done"}]


def test_in_one_process_nobody_is_asked_about_what_is_unknown():
    desk = Desk(None, timeout_s=0.05, on_unknown="ask")
    (result,) = desk.make(to("write", "slow"))
    desk.gate.set()
    assert (result.error_code, result.suspended) == ("outcome_unknown", False)
