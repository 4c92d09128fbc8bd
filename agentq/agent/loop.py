"""What a run does next, and what a reply or a result changes.

These functions touch only the thread they are given: no clock, no network, no randomness. The agent in
one process and the distributed step both carry out what they decide, so a run is the same run in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agentq.agent.budgets import Budgets
from agentq.agent.context import compact_from, overflow, summary_message
from agentq.agent.loopdetect import REPEAT_WARNING, Verdict, digest
from agentq.agent.request import ID_BYTES, closing_messages, repair_messages, step_limits
from agentq.agent.thread import Thread, pending_calls
from agentq.agent.toolmessage import json_bytes, size, tool_message, tool_messages
from agentq.agent.view import Summary
from agentq.core.lifecycle import StopReason
from agentq.core.money import NanoUSD, to_usd
from agentq.core.text import encodable
from agentq.provider.bounds import Anchor
from agentq.provider.errors import AllProvidersFailed, ContextOverflow
from agentq.provider.scripted import SUMMARY_OPERATION
from agentq.provider.types import ChatRequest, ChatResult, Message, Role, ToolCall, Usage
from agentq.tools import CallContext, ToolResult, call_signature
from agentq.tools.result import REFUSALS

if TYPE_CHECKING:
    from agentq.agent.agent import Agent

CUT_OFF = frozenset({"length", "max_tokens"})
"""How providers say that a reply ended at its output cap: a text is the answer, unless that must be JSON; of
calls none is made."""
PAUSED = frozenset({"pause_turn"})
"""How providers say that a reply without calls is only a part: it is sent back as it is, and they go on."""
PAUSES_MAX = 8
"""Pauses in a row, each of which takes a step, after which nothing more is expected."""
_RESUMABLE = (
    StopReason.NEEDS_APPROVAL.value,
    StopReason.MODEL_ERROR.value,
    StopReason.CONTEXT_OVERFLOW.value,
)


@dataclass(frozen=True, slots=True)
class CallModel:
    """Make the next step's model call."""


@dataclass(frozen=True, slots=True)
class Repair:
    """Have the answer corrected, which does not have the form that was asked for. The run ends with it."""

    problem: str


@dataclass(frozen=True, slots=True)
class Compact:
    """Have all that is sent before this message summed up: the next call would not fit the model's window."""

    start: int


@dataclass(frozen=True, slots=True)
class Overflow:
    """End the run: the next call does not fit the model's window, and nothing is to be taken out."""

    detail: str


@dataclass(frozen=True, slots=True)
class RunTools:
    """Execute these calls, in this order; all of them may be executed."""

    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class Close:
    """Make the closing turn; the run then ends with this reason."""

    reason: StopReason


@dataclass(frozen=True, slots=True)
class Wait:
    """Execute nothing before a person has decided on the calls of these signatures."""

    signatures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class End:
    """Nothing is left to do."""

    reason: StopReason


Action = CallModel | Repair | Compact | Overflow | RunTools | Close | Wait | End


def begin(agent: Agent, thread: Thread, task: str | None) -> None:  # noqa: ARG001 - one shape for all
    """Start a thread with a task, go on with one, or give an ended one its next task.

    Without a task, a run that waited for approval, failed at the model or outgrew its window goes on where it
    stopped. With one, calls that still wait for a person are answered as refused: each call has its result.

    Raises:
        ValueError: for a thread without messages and without a task.
    """
    if task is None:
        if not thread.messages:
            raise ValueError("a new thread needs a task")
        if thread.stop_reason in _RESUMABLE:
            thread.stop_reason = None
        return
    refusal = ToolResult.failure(
        "needs_approval", "This call was not approved and not made: the user went on with something else."
    )
    thread.messages += [tool_message(call, refusal) for call in pending_calls(thread)]
    # The same question asked again by a person is not a loop of the model.
    if thread.stop_reason is not None and thread.detector is not None:
        thread.detector = thread.detector.fresh()
    thread.stop_reason = None
    thread.answer = ""
    thread.closing = None
    thread.pending_approvals = []
    thread.repair = thread.overflow = None
    thread.repaired = False
    if thread.summaries:
        thread.anchor = None  # which messages are sent depends on which is the latest of the user's
    thread.goal = task
    thread.add(Role.USER, task)


def next_action(agent: Agent, thread: Thread, budgets: Budgets, approved: frozenset[str]) -> Action:
    """What to do now: exactly one thing.

    Args:
        agent: whose tools say which calls are gated.
        thread: the run's state; it is not changed.
        budgets: what the run may spend.
        approved: the signatures that a person has approved.
    """
    if thread.stop_reason is not None:
        return End(StopReason(thread.stop_reason))
    calls = pending_calls(thread)
    if calls:
        undecided = _undecided(agent, thread, calls, approved)
        return Wait(tuple(undecided)) if undecided else RunTools(tuple(calls))
    if thread.closing is not None:
        return Close(thread.closing)
    if agent.one_call:
        budgets = replace(budgets, max_steps=1)
    # A repair is no step, so the steps may be used up; it is a call, so the rest may not.
    limits = budgets if thread.repair is None else replace(budgets, max_steps=None)
    exceeded = limits.exceeded_by(thread.spend)
    if exceeded is not None:
        return Close(exceeded)
    too_long = overflow(agent, thread)
    if too_long is None:
        return CallModel() if thread.repair is None else Repair(thread.repair)
    start = compact_from(agent, thread)
    return Overflow(too_long) if start is None else Compact(start)


def apply_reply(
    agent: Agent,
    thread: Thread,
    result: ChatResult,
    *,
    cost: NanoUSD | None,
    approved: frozenset[str] = frozenset(),
) -> None:
    """Take in the reply of a step's model call: it ends the run, or asks for tools.

    Args:
        agent: the agent whose step it was.
        thread: the run's state.
        result: the reply.
        cost: nano-USD; None when the price is unknown.
        approved: the signatures that a person has approved.
    """
    thread.step += 1
    thread.spend.steps += 1
    # The provider's support asks for the id of the request.
    thread.record("step", " ".join(filter(None, (f"step {thread.step}", result.request_id))))
    for note in result.notes:
        kind, _, detail = note.partition(": ")
        thread.record(kind, detail, ok=False)
    limits = step_limits(agent)
    # A second step's worth of calls is answered as refused; beyond that they would only cost context.
    calls = _with_ids(thread, result.tool_calls[: 2 * limits.calls])
    _book(thread, result.usage, cost)
    text = encodable(result.text or "")
    thread.messages.append(Message(Role.ASSISTANT, text, tool_calls=calls, turn=result.turn))
    thread.anchor = _anchor(agent, thread, result.usage)
    if not calls:
        if result.finish_reason in PAUSED:
            _take_pause(thread)
        else:
            _take_answer(agent, thread, text, cut=result.finish_reason in CUT_OFF)
        return
    if result.finish_reason in CUT_OFF:
        # The last call may be half of one that parses all the same.
        thread.record("calls_refused", "cut off at the output cap", ok=False)
        refusal = ToolResult.failure("bad_json", "Not made: the reply was cut off. Ask again, more briefly.")
        thread.messages += [tool_message(call, refusal) for call in calls]
        thread.spend.tool_errors += 1
        if thread.spend.tool_errors >= agent.max_tool_errors:
            thread.closing = thread.closing or StopReason.TOOL_ERROR_CEILING
        return
    excess = calls[limits.calls :]
    if excess:
        thread.record("calls_refused", f"{len(result.tool_calls)} calls, {limits.calls} made", ok=False)
        refusal = ToolResult.failure("tool_error", f"Not made: at most {limits.calls} calls in one step.")
        thread.messages += [tool_message(call, refusal) for call in excess]
    thread.pending_approvals = _undecided(agent, thread, calls[: limits.calls], approved)


def apply_repair(agent: Agent, thread: Thread, result: ChatResult, *, cost: NanoUSD | None) -> None:
    """Take in the reply of a repair call and end the run. Calls that it asks for all the same are dropped.

    What it says is the answer in either case.
    """
    thread.messages += repair_messages(thread.repair or "")
    text = encodable(result.text or "")
    thread.messages.append(Message(Role.ASSISTANT, text, turn=None if result.wants_tools else result.turn))
    _book(thread, result.usage, cost)
    thread.anchor = _anchor(agent, thread, result.usage)
    thread.repair, thread.repaired = None, True
    thread.answer = text
    problem = _problem(agent, text, cut=result.finish_reason in CUT_OFF)
    thread.record("repair", result.request_id or "", ok=problem is None)
    if problem is None:
        end(thread, StopReason.FINISHED, "after one repair", ok=True, kind="finished")
    else:
        end(thread, StopReason.OUTPUT_INVALID, problem, kind="output_invalid")


def apply_summary(
    agent: Agent, thread: Thread, start: int, result: ChatResult, *, cost: NanoUSD | None
) -> None:
    """Take in a summary: from now on it is sent in place of what stood before `start`.

    A reply that says nothing ends the run: without a summary, nothing can be taken out.
    """
    _book(thread, result.usage, cost)
    text = encodable(result.text or "").strip()
    if not text:
        why = thread.overflow or overflow(agent, thread) or "the next call does not fit"
        detail = f"{why}; the summary that was to make room was empty"
        end(thread, StopReason.CONTEXT_OVERFLOW, detail, kind="context_overflow")
        return
    thread.summaries.append(Summary(len(thread.messages), start, thread.step))
    thread.messages.append(summary_message(text))
    thread.anchor = thread.overflow = None
    cut = result.finish_reason in CUT_OFF
    kept = len(thread.sent)
    thread.record(
        "compacted", f"{kept} of {len(thread.messages)} messages are sent" + (", the summary is cut" * cut)
    )


def refused_as_too_long(
    agent: Agent, thread: Thread, request: ChatRequest, error: Exception, detail: str
) -> bool:
    """Take in that a provider found a call too long; answers whether it did, and a compaction follows.

    Args:
        agent: the agent whose call it was.
        thread: the run's state.
        request: the call. No compaction follows a summary that was too long itself.
        error: what came of the call.
        detail: that error, for people.
    """
    if request.operation == SUMMARY_OPERATION or not is_overflow(error):
        return False
    if compact_from(agent, thread) is None:
        return False
    thread.overflow = detail
    return True


def has_output(agent: Agent, thread: Thread) -> bool:
    """Whether the answer of an ended thread has the form that was asked for."""
    if agent.output is None or thread.stop_reason == StopReason.OUTPUT_INVALID.value:
        return False
    return agent.output.problem(thread.answer) is None


def is_overflow(error: Exception) -> bool:
    """Whether a call failed because it was longer than the window of each model that was asked."""
    if isinstance(error, AllProvidersFailed):
        return all(isinstance(failure, ContextOverflow) for _, failure in error.failures)
    return isinstance(error, ContextOverflow)


def apply_results(
    agent: Agent, thread: Thread, calls: Sequence[ToolCall], results: Sequence[ToolResult], *, later: int = 0
) -> None:
    """Take in the results of a step's calls: one message each, and perhaps the decision to stop.

    Args:
        agent: the agent whose step it is.
        thread: the run's state.
        calls: the calls, in order.
        results: what came of them.
        later: how many calls of the step have no result yet; their share of the room is left to them.

    Raises:
        ValueError: when there is not exactly one result for each call.
    """
    stop: StopReason | None = None
    notes = []
    for call, result in zip(calls, results, strict=True):
        signature, seen = call_signature(call.name, call.arguments), digest(result.content)
        detail = f"{call.name}:{'ok' if result.ok else result.error_code}"
        thread.record("tool_result", detail, ok=result.ok, call=signature, digest=seen)
        thread.spend.tool_errors += not result.ok and result.error_code not in REFUSALS
        verdict = thread.detector.observe_digest(signature, seen) if thread.detector else Verdict.OK
        notes.append(REPEAT_WARNING if verdict is Verdict.WARN else "")
        if verdict is Verdict.WARN:
            thread.record("repeat_warning", call.name)
        elif verdict is Verdict.STOP:
            thread.record("loop_detected", call.name, ok=False)
            stop = StopReason.LOOP_DETECTED
    room = step_limits(agent).tool_bytes - _tool_bytes(thread)
    room -= later * (room // (later + len(calls))) if later else 0
    thread.messages += tool_messages(calls, results, notes, room)
    thread.pending_approvals = []
    if stop is None and thread.spend.tool_errors >= agent.max_tool_errors:
        stop = StopReason.TOOL_ERROR_CEILING
    thread.closing = thread.closing or stop


def apply_closing(
    agent: Agent,
    thread: Thread,
    reason: StopReason,
    result: ChatResult,
    *,
    cost: NanoUSD | None,
) -> None:
    """Take in the closing turn's reply and end the run. Calls that it asks for all the same are dropped."""
    thread.messages += closing_messages(reason)
    # Providers refuse an assistant message that says nothing.
    text = encodable(result.text or "")
    if text:
        thread.messages.append(Message(Role.ASSISTANT, text))
    _book(thread, result.usage, cost)
    thread.anchor = _anchor(agent, thread, result.usage)
    thread.answer = text
    end(
        thread,
        reason,
        f"{reason.value}: the model asked for tools" if result.wants_tools else reason.value,
        ok=bool(result.text) and not result.wants_tools,
        kind="final_turn",
    )


def wait(thread: Thread, signatures: Sequence[str]) -> None:
    """Stop for a person: in one process the run ends with `needs_approval` and is resumed by the next."""
    thread.pending_approvals = list(signatures)
    end(thread, StopReason.NEEDS_APPROVAL, ", ".join(signatures), ok=True, kind="needs_approval")


def end(thread: Thread, reason: StopReason, detail: str = "", ok: bool = False, kind: str = "end") -> None:
    """End the run with this reason and say so in the trace. The answer stays what it is."""
    thread.closing = None
    thread.stop_reason = reason.value
    thread.record(kind, detail, ok=ok)


def end_without_closing(thread: Thread, reason: StopReason) -> None:
    """End a run of one call that is stopped before it, or whose reply is no answer."""
    end(thread, reason, f"{reason.value}: it is one call, without a closing turn", kind="final_turn")


def _take_pause(thread: Thread) -> None:
    """Have the next step go on with the turn, unless it has been paused for too often."""
    thread.record("turn_paused")
    parts = 0
    for message in reversed(thread.messages):
        if message.role is not Role.ASSISTANT:
            break
        parts += 1
    if parts >= PAUSES_MAX:
        detail = f"the provider paused its turn {parts} times and did not end it"
        end(thread, StopReason.MODEL_ERROR, detail, kind=StopReason.MODEL_ERROR.value)


def _take_answer(agent: Agent, thread: Thread, text: str, *, cut: bool) -> None:
    """End the run with this answer, or have it repaired where it is not in the form that was asked for."""
    problem = _problem(agent, text, cut=cut)
    if problem is not None:
        thread.repair = problem
        thread.record("output_invalid", problem, ok=False)
        return
    thread.answer = text
    thread.stop_reason = StopReason.FINISHED.value
    detail = "cut off at the output cap" if cut else "no further tool calls"
    thread.record("finished", detail, ok=bool(text) and not cut)


def _problem(agent: Agent, text: str, *, cut: bool) -> str | None:
    if agent.output is None:
        return None
    if cut:
        return f"it was cut off at the output cap of {agent.max_output_tokens} tokens"
    return agent.output.problem(text)


def _undecided(
    agent: Agent, thread: Thread, calls: Sequence[ToolCall], approved: frozenset[str]
) -> list[str]:
    """The signatures of the calls that a person must decide on, each once, in order."""
    ctx = CallContext(approved_calls=approved)
    signatures: dict[str, None] = {}
    for call in calls:
        refusal = agent.executor.check(call.name, call.arguments, ctx, agent.allowlist, thread.tool_results)
        if refusal is not None and refusal.error_code == "needs_approval":
            signatures[call_signature(call.name, call.arguments)] = None
    return list(signatures)


def _with_ids(thread: Thread, calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    """The calls with ids that exist, are short where they stand in a result, and are unique in the thread."""
    seen = {call.id for message in thread.messages for call in message.tool_calls}
    named = []
    for i, call in enumerate(calls):
        name, again = encodable(call.id), 0  # first: two ids of which half is lost may be one id then
        while not name or json_bytes(name) > ID_BYTES or name in seen:
            name = f"call_{thread.step}_{i}" + (f"_{again}" if again else "")
            again += 1
        seen.add(name)
        named.append(ToolCall(name, encodable(call.name), encodable(call.arguments)))
    return tuple(named)


def _book(thread: Thread, usage: Usage, cost: NanoUSD | None) -> None:
    thread.spend.tokens += usage.total_tokens
    if cost is None:
        thread.unpriced_calls += 1
    else:
        thread.spend.usd += to_usd(cost)


def _anchor(agent: Agent, thread: Thread, usage: Usage) -> Anchor | None:
    # A reply without usage counts nothing: the next bound must take the whole context.
    if usage.input_tokens == 0:
        return None
    return Anchor(len(thread.sent), usage.total_tokens, agent.tokenizer)


def _tool_bytes(thread: Thread) -> int:
    """Bytes of the tool messages that this step already has."""
    total = 0
    for message in reversed(thread.messages):
        if message.role is Role.ASSISTANT:
            break
        total += size(message.content)
    return total
