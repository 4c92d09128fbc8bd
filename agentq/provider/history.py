"""A conversation as every provider accepts it: a deterministic repair before each send.

A crash, a cancel or another provider's habits may leave a thread that a provider refuses for ever: a call
without a result, an id twice, arguments that are no JSON. What is sent is repaired; the thread is not.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from agentq.provider.types import Message, Role, ToolCall, Turn

LOST = "Not executed: the call was cancelled or lost. Call it again if it is still needed."
_CACHED = "(the result of the same call before; it was not made again)\n"
_ENVELOPE = frozenset({"tool_call_id", "tool", "ok", "error_code", "content"})
_LONGEST_ID = {"any": 64, "40": 40}
_MISTRAL_DIGITS = 9
_LONGEST_NAME = 64


@dataclass(frozen=True, slots=True)
class Outcome:
    """A tool's result as the model reads it, under the id that its call has in this request."""

    call_id: str
    name: str
    content: str
    ok: bool = True


@dataclass(frozen=True, slots=True)
class Entry:
    """One turn: what the user or the assistant says; an assistant's has its calls, and their outcomes.

    `turn` is the provider's own form, where this model wrote it: then it is sent in place of text and calls.
    """

    role: Literal["user", "assistant", "system"]
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    turn: Turn | None = None


CallIds = Literal["any", "40", "mistral"]
"""What ids of calls may be, as the quirk `call_ids` says."""
CallsIn = Callable[[Any], Sequence[tuple[str, str]]]
"""The (id, name) of each call in the body of a turn, in its order."""


def history(messages: Sequence[Message], *, by: str, calls_in: CallsIn, ids: CallIds = "any") -> list[Entry]:
    """The conversation in turns. Each call has one outcome right after it, and each outcome its call.

    Args:
        messages: the thread's.
        by: who will read it, as `dialect:model`; turns that another model wrote go without their own form.
        calls_in: reads the calls in a turn's own form.
        ids: what ids of calls may be.
    """
    entries: list[Entry] = []
    turns = [_own_turn(message, by, calls_in) for message in messages]
    used = _taken(turns)
    for start, message in enumerate(messages):
        if message.role is Role.TOOL:
            continue  # taken with the turn that asked for it; what nobody asked for is left out
        if message.role is not Role.ASSISTANT:
            if message.content:
                entries.append(Entry("system" if message.role is Role.SYSTEM else "user", message.content))
            continue
        entry = _assistant(message, turns[start], ids, used)
        if entry.calls:
            entry = replace(entry, outcomes=_outcomes(message, entry.calls, messages[start + 1 :]))
        if entry.text or entry.calls or entry.turn is not None:
            entries.append(entry)
    return entries


def _own_turn(message: Message, by: str, calls_in: CallsIn) -> tuple[Turn, list[ToolCall]] | None:
    """The turn as the reader wrote it, with its calls; None when it is another's or its ids will not do."""
    turn = message.turn
    if turn is None or turn.by != by or message.role is not Role.ASSISTANT:
        return None
    # Its ids are the provider's; arguments are in its own form.
    calls = [ToolCall(call_id, name, "{}") for call_id, name in calls_in(turn.body)]
    names = {call.id for call in calls}
    return (turn, calls) if len(names) == len(calls) and all(names) else None


def _taken(turns: list[tuple[Turn, list[ToolCall]] | None]) -> set[str]:
    """The ids that stand in turns which are sent as they are; a turn that repeats one is taken out."""
    taken: set[str] = set()
    for i, own in enumerate(turns):
        names = {call.id for call in own[1]} if own is not None else set()
        if names & taken:
            turns[i] = None
        else:
            taken |= names
    return taken


def _assistant(
    message: Message, own: tuple[Turn, list[ToolCall]] | None, ids: CallIds, used: set[str]
) -> Entry:
    if own is not None:
        return Entry("assistant", message.content, tuple(own[1]), turn=own[0])
    calls = []
    for call in message.tool_calls:
        call_id = _fitting(call.id, ids, used)
        used.add(call_id)
        calls.append(ToolCall(call_id, _tool_name(call.name), json_object(call.arguments)))
    return Entry("assistant", message.content, tuple(calls))


def _outcomes(message: Message, calls: Sequence[ToolCall], after: Sequence[Message]) -> tuple[Outcome, ...]:
    answers: dict[str, list[Message]] = {}
    for reply in after:
        if reply.role is Role.ASSISTANT:
            break
        if reply.role is Role.TOOL and reply.tool_call_id is not None:
            answers.setdefault(reply.tool_call_id, []).append(reply)
    # The thread has ids of its own where the provider's would not do; the order is the same then.
    asked = [call.id for call in (message.tool_calls if len(message.tool_calls) == len(calls) else calls)]
    outcomes = []
    for call, name in zip(calls, asked, strict=True):
        if answers.get(name):
            text, ok = unwrapped(answers[name].pop(0).content)
            outcomes.append(Outcome(call.id, call.name, text, ok=ok))
        else:
            outcomes.append(Outcome(call.id, call.name, LOST, ok=False))
    return tuple(outcomes)


def unwrapped(content: str) -> tuple[str, bool]:
    """What the model reads of a tool message, and whether the call went well; other content as it is."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        return content, True
    if not isinstance(data, dict) or not data.keys() >= _ENVELOPE:
        return content, True
    text = str(data["content"])
    if data["ok"]:
        return (_CACHED + text if data.get("cached") else text), True
    return f"{data['error_code']}: {text}", False


def json_object(text: str) -> str:
    """Arguments as a JSON object. What is none is sent as `{}`: if broken, every later call is refused."""
    if not text.strip():
        return "{}"
    try:
        value = json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError):
        return "{}"
    return text if isinstance(value, dict) else "{}"


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def arguments_text(value: Any) -> str:
    """The arguments of a call as text, whatever a server made of them: text, an object, or nothing."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _fitting(name: str, ids: CallIds, used: set[str]) -> str:
    """The id if it may stand; else one made out of it, always the same."""
    if ids == "mistral":
        fits = len(name) == _MISTRAL_DIGITS and name.isascii() and name.isalnum()
    else:
        fits = 0 < len(name) <= _LONGEST_ID[ids] and name.isascii() and _is_word(name)
    again = 0
    made = name
    while not fits or made in used:
        digest = hashlib.sha256(f"{name}\n{again}".encode("utf-8", "surrogatepass")).hexdigest()
        made = digest[:_MISTRAL_DIGITS] if ids == "mistral" else f"call_{digest[:20]}"
        fits, again = True, again + 1
    return made


def _is_word(name: str) -> bool:
    return all(character.isalnum() or character in "_-" for character in name)


def _tool_name(name: str) -> str:
    """The name, or what is left of one that a model invented and no provider would take back."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:_LONGEST_NAME] or "unknown"


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def whole(value: Any) -> int:
    """A count of tokens; nothing that is none counts."""
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else 0
