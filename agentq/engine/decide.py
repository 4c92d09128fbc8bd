"""Deciding about calls that wait for a person: the first decision counts, whoever takes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from agentq.core.errors import ConflictError, NoSuchRunError, UsageError
from agentq.core.lifecycle import RunState
from agentq.core.records import Decision, PendingCall, RunRecord
from agentq.core.text import clock, encodable
from agentq.store.approvals import Verdict, Wanted
from agentq.store.connect import Store

_CHUNK = 500
BY_CHARS = 200
REASON_CHARS = 2_000
ARGUMENTS_CHARS = 64_000
DONE = {"approve": "approved", "deny": "denied"}
"""What has happened to a call, in a word, by the verdict of a person."""
EXPIRED = "expired"
"""The verdict where nobody has decided in time, and the model was told."""


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


def decide_many(store: Store, calls: Sequence[tuple[str, str]], answer: Answer) -> Decided:
    """Decide these calls, each by its run's and its own id, all in the same way, 500 in a round trip.

    Each is decided by itself: one that cannot be does not keep the others.
    """
    found = Decided()
    for start in range(0, len(calls), _CHUNK):
        chunk = calls[start : start + _CHUNK]
        wanted = [_wanted(run_id, call, answer) for run_id, call in chunk]
        for (run_id, call), taken in zip(chunk, store.approvals.decide(wanted), strict=True):
            if taken.word == "DECIDED":
                found.decided += 1
            elif taken.word == "EXPIRED" or (taken.first is not None and taken.first.verdict == EXPIRED):
                found.expired += 1
            elif taken.first is not None:
                found.taken.append((f"{run_id}:{call}", taken.first))
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
    if taken.word == "EXPIRED":
        raise _too_late(run_id, call)
    raise refusal(store, run_id, call)


def refusal(store: Store, run_id: str, call: str) -> UsageError:
    """Why nobody can decide about a call that does not wait (any more)."""
    first = store.approvals.decisions(run_id).get(call)
    record = store.runs.read(run_id)
    if first is not None and first.verdict == EXPIRED:
        return _too_late(run_id, call)
    if first is not None:
        return ConflictError(
            f"{run_id}:{call} was {said(first)}, and the first decision counts",
            hint=f"agentq show {run_id} says what came of it",
        )
    if record is None:
        return NoSuchRunError(run_id)
    if record.state is RunState.WAITING and record.gathering is None:
        return UsageError(
            f"no call {call!r} of run {run_id} waits for a decision",
            hint=f"agentq approvals list run={run_id}",
        )
    return UsageError(f"run {run_id} does not wait for a decision: {_where(record)}")


def _wanted(run_id: str, call: str, answer: Answer) -> Wanted:
    return Wanted(
        run_id,
        call,
        answer.verdict,
        by=encodable(answer.by),
        reason=encodable(answer.reason),
        arguments=encodable(answer.arguments),
    )


def _too_late(run_id: str, call: str) -> UsageError:
    return UsageError(
        f"the time to decide on {run_id}:{call} is over", hint=f"agentq show {run_id} says what follows"
    )


def _where(record: RunRecord) -> str:
    if record.stop_reason is not None:
        return f"it has ended as {record.stop_reason.value}"
    if record.gathering is not None:
        return "it waits for child runs"
    return f"it is {record.state.value}"


def said(decision: Decision) -> str:
    """`approved by ann at 2026-11-29 12:00:00 UTC (reason)`."""
    reason = f" ({decision.reason})" if decision.reason else ""
    return f"{DONE[decision.verdict]} by {decision.by} at {clock(decision.at_ms)}{reason}"
