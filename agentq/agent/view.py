"""What of a thread is sent: all of it, or after a compaction the task, a summary and the latest turns.

Messages are only ever appended. A compaction appends its summary as one more message, and notes from which
message on the thread is sent as it is; what stands before that stays stored and is sent no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentq.provider.types import Message, Role


@dataclass(frozen=True, slots=True)
class Summary:
    """One compaction: where its text stands among the messages, and what it left standing."""

    message: int
    """The index of its text."""
    start: int
    """The first message that is sent as it is from then on, an assistant's: what is before was summed up."""
    step: int
    """After how many steps it was made: at most once after each."""


def sent(messages: Sequence[Message], summaries: Sequence[Summary]) -> list[Message]:
    """The messages that the model reads: with a summary the task goes first, then it, then what is left.

    The task is everything up to the first user message; and the latest one, where a conversation goes on.
    """
    return [messages[index] for index in indices(messages, summaries)]


def indices(messages: Sequence[Message], summaries: Sequence[Summary]) -> list[int]:
    """Which messages `sent` has, in its order."""
    if not summaries:
        return list(range(len(messages)))
    last, hidden = summaries[-1], {summary.message for summary in summaries}
    first = task_end(messages)
    users = [i for i, message in enumerate(messages) if message.role is Role.USER and i not in hidden]
    latest = [users[-1]] if users and first <= users[-1] < last.start else []
    rest = (i for i in range(last.start, len(messages)) if i not in hidden)
    return [*range(first), last.message, *latest, *rest]


def task_end(messages: Sequence[Message]) -> int:
    """How many messages there are up to the first user message, and with it."""
    return next((i + 1 for i, message in enumerate(messages) if message.role is Role.USER), 0)


def turns(messages: Sequence[Message], summaries: Sequence[Summary]) -> list[int]:
    """Where the turns begin that are sent as they are, the oldest first: at each assistant message.

    A turn goes up to the next one, so a call is in the turn of its result.
    """
    start = summaries[-1].start if summaries else task_end(messages)
    return [i for i in range(start, len(messages)) if messages[i].role is Role.ASSISTANT]


def dropped(messages: Sequence[Message], summaries: Sequence[Summary]) -> int:
    """How many assistant messages a summary stands for."""
    if not summaries:
        return 0
    kept = sum(messages[i].role is Role.ASSISTANT for i in indices(messages, summaries))
    return sum(message.role is Role.ASSISTANT for message in messages) - kept
