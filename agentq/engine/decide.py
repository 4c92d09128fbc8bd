"""Deciding about calls that wait for a person: the first decision counts, whoever takes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from agentq.core.errors import ConflictError, UsageError
from agentq.core.lifecycle import RunState
from agentq.core.records import Decision, PendingCall, RunRecord
from agentq.core.text import clock, encodable
from agentq.store.approvals import Taken, Verdict, Wanted
from agentq.store.connect import Store

_CHUNK = 500
BY_CHARS = 200
REASON_CHARS = 2_000
ARGUMENTS_CHARS = 64_000
DONE = {"approve": "approved", "deny": "denied"}
"""What has happened to a call, in a word, by the verdict."""


@dataclass(frozen=True, slots=True)
class Question:
    """A call that waits for a person, and the run that it is of."""

    run: RunRecord
    call: PendingCall

    @property
    def id(self) -> str:
        """What people call it by."""
        return f"{self.run.id}:{self.call.id}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a person decides. `arguments` is JSON to use in place of the call's own; empty: as asked for.

    Raises:
        UsageError: when nobody says who decides, or a text is too long.
    """

    verdict: Verdict
    by: str
    reason: str = ""
    arguments: str = ""

    def __post_init__(self) -> None:
        if not self.by.strip():
            raise UsageError("a decision needs somebody who takes it", hint="say by whom")
        for name, text, most in (
            ("the name of who decides", self.by, BY_CHARS),
            ("the reason", self.reason, REASON_CHARS),
            ("the arguments", self.arguments, ARGUMENTS_CHARS),
        ):
            if len(text) > most:
                raise UsageError(f"{name} may have up to {most} characters, and has {len(text)}")


@dataclass(slots=True)
class Decided:
    """What became of many decisions."""

    decided: int = 0
    taken: list[tuple[str, Decision]] = field(default_factory=list)
    """Those for which somebody was first: id, and what was decided then."""
    expired: int = 0
    """Their time was over."""
    closed: int = 0
    """Their run does not wait any more: it was cancelled, or is gone."""


def questions(store: Store, holds: Callable[[RunRecord, PendingCall], bool]) -> Iterator[Question]:
    """The calls that wait for a person and for which this holds, who has waited longest first."""
    for chunk in store.approvals.runs():
        for question in questions_of(store, chunk):
            if holds(question.run, question.call):
                yield question


def questions_of(store: Store, run_ids: Sequence[str]) -> Iterator[Question]:
    """The calls of these runs that wait for a person."""
    for run in store.runs.read_many(run_ids):
        if run is not None and run.state is RunState.WAITING:
            for call in run.pending:
                yield Question(run, call)


def decide_many(store: Store, asked: Sequence[Question], answer: Answer) -> Decided:
    """Decide all of these in the same way, 500 in a round trip. Each is decided by itself."""
    found = Decided()
    for start in range(0, len(asked), _CHUNK):
        chunk = asked[start : start + _CHUNK]
        wanted = [_wanted(question.run.id, question.call.id, answer) for question in chunk]
        for question, taken in zip(chunk, store.approvals.decide(wanted), strict=True):
            if taken.word == "DECIDED":
                found.decided += 1
            elif _is_expired(taken):
                found.expired += 1
            elif taken.first is not None:
                found.taken.append((question.id, taken.first))
            else:
                found.closed += 1
    return found


def decide(store: Store, run_id: str, call: str, answer: Answer) -> int:
    """Decide about one call; answers how many of its run are still open. At none the run goes on.

    Raises:
        ConflictError: when somebody was first: who, what and when.
        UsageError: when its time is over, or it does not wait (any more).
    """
    taken = store.approvals.decide([_wanted(run_id, call, answer)])[0]
    if taken.word == "DECIDED":
        return taken.left
    raise _refusal(store, run_id, call, taken)


def _wanted(run_id: str, call: str, answer: Answer) -> Wanted:
    return Wanted(
        run_id,
        call,
        answer.verdict,
        by=encodable(answer.by),
        reason=encodable(answer.reason),
        arguments=encodable(answer.arguments),
    )


def _is_expired(taken: Taken) -> bool:
    return taken.word == "EXPIRED" or (taken.first is not None and taken.first.verdict == "expired")


def _refusal(store: Store, run_id: str, call: str, taken: Taken) -> UsageError:
    if _is_expired(taken):
        return UsageError(
            f"the time to decide on {run_id}:{call} is over", hint=f"agentq show {run_id} says what follows"
        )
    if taken.first is not None:
        return ConflictError(f"{run_id}:{call} was {said(taken.first)}: the first decision counts")
    if taken.word == "UNKNOWN":
        return UsageError(
            f"no call {call!r} of run {run_id} waits for a decision",
            hint=f"agentq approvals list run={run_id}",
        )
    record = store.runs.read(run_id)
    if record is None:
        return UsageError(f"there is no run {run_id!r}", hint="it may be older than the retention")
    return UsageError(f"{waits_not(record)}", hint=f"agentq show {run_id}")


def said(decision: Decision) -> str:
    """`approved by ann at 2026-11-29 12:00:00 UTC (reason)`."""
    reason = f" ({decision.reason})" if decision.reason else ""
    return f"{DONE[decision.verdict]} by {decision.by} at {clock(decision.at_ms)}{reason}"


def waits_not(record: RunRecord) -> str:
    """Why nobody can decide about a run."""
    if record.stop_reason is not None:
        return f"run {record.id} does not wait for a decision: it has ended as {record.stop_reason.value}"
    if record.gathering is not None:
        return f"run {record.id} does not wait for a decision: it waits for child runs"
    return f"run {record.id} does not wait for a decision: it is {record.state.value}"
