"""The calls that wait for a person, as they are typed and shown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from agentq.cli.console import columns
from agentq.cli.resultline import seconds
from agentq.core.errors import UsageError
from agentq.core.text import clock
from agentq.core.words import nearest
from agentq.engine.decide import Question, questions, questions_of, refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentq.store.connect import Store

_WIDTH = 60
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def find(store: Store, word: str) -> tuple[str, str]:
    """The run and the call that a word means: an id, or enough of its beginning.

    Raises:
        UsageError: when it means none, several, or one on which nobody can decide any more.
    """
    run_id, _, call = word.partition(":")
    of_run = list(questions_of(store, [run_id]))
    found = [question for question in of_run if question.id.startswith(word)]
    found = [question for question in found if question.id == word] or found
    if not of_run:
        waiting = list(questions(store, lambda _run, _call: True))
        found = [question for question in waiting if question.id.startswith(word)]
    if len(found) == 1:
        return found[0].run.id, found[0].call.id
    if found:
        raise UsageError(
            f"{word!r} may mean {len(found)} calls, among them {found[0].id} and {found[1].id}",
            hint="type more of it",
        )
    if call and call in store.approvals.decisions(run_id):
        return run_id, call
    if store.runs.read(run_id) is not None:
        raise refusal(store, run_id, call)
    hint = "agentq approvals list shows those that do"
    if "=" in word:
        hint = f"for all of a kind: --where {word}"
    known = [] if of_run else [question.id for question in waiting]
    raise UsageError(f"no call waits under the id {word!r}{nearest(word, known)}", hint=hint)


def the_question(store: Store, word: str) -> Question:
    """The call that waits and is meant by a word.

    Raises:
        UsageError: when it means none, several, or one on which nobody can decide any more.
    """
    run_id, call = find(store, word)
    for question in questions_of(store, [run_id]):
        if question.call.id == call:
            return question
    raise refusal(store, run_id, call)


def question_fields(question: Question) -> dict[str, Any]:
    """A call that waits, for JSON."""
    spec, call = question.run.spec, question.call
    return {
        "id": question.id,
        "run": question.run.id,
        "tool": call.tool,
        "arguments": json.loads(call.arguments) if call.arguments.strip() else {},
        "kind": call.kind,
        "asked_at": seconds(call.asked_at_ms),
        "deadline": seconds(call.deadline_ms),
        "default": call.default,
        "agent": spec.agent,
        "tenant": spec.tenant,
        "batch": spec.batch,
        "custom_id": spec.custom_id,
    }


def question_table(shown: Sequence[Question], now_ms: int) -> list[str]:
    """Calls that wait, a line each."""
    rows = [
        (
            question.id,
            question.run.spec.custom_id or "",
            span(question.call.deadline_ms - now_ms),
            _line(question),
        )
        for question in shown
    ]
    return columns(("id", "custom_id", "left", "call"), rows, left=(0, 1, 3))


def question_card(question: Question, now_ms: int) -> list[str]:
    """One call that waits, from near."""
    run, call = question.run, question.call
    of_batch = f", batch {run.spec.batch}" if run.spec.batch else ""
    called = f", custom_id {run.spec.custom_id}" if run.spec.custom_id else ""
    told = "the model is told that nobody has decided, and goes on"
    default = told if call.default == "tell" else "the run ends as approval_expired"
    lines = [
        f"{question.id}: {call.tool}",
        f"  agent {run.spec.agent}, tenant {run.spec.tenant}{of_batch}{called}",
        f"  asked {clock(call.asked_at_ms)}, {span(call.deadline_ms - now_ms)} left",
        f"  undecided at {clock(call.deadline_ms)}: {default}",
    ]
    if call.kind == "unknown":
        lines.append("  it was made, and nobody knows whether it has acted")
        lines.append("  approve makes it again with the same idempotency key, deny does not")
    arguments = json.dumps(question_fields(question)["arguments"], indent=2, ensure_ascii=False)
    return [*lines, "  arguments:", *(f"    {line}" for line in arguments.splitlines())]


def span(milliseconds: int) -> str:
    """`6d 23h`, `4m 10s`, `over`: the two largest units."""
    left = milliseconds // 1000
    if left <= 0:
        return "over"
    parts: list[str] = []
    for size, unit in _UNITS:
        if left >= size or parts:
            parts.append(f"{left // size}{unit}")
            left %= size
    return " ".join(parts[:2])


def _line(question: Question) -> str:
    call = question.call
    again = "again? " if call.kind == "unknown" else ""
    text = f"{again}{call.tool}({' '.join(call.arguments.split())})"
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"
