"""Forking: a new run out of the first steps of another one, which stays as it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from agentq.agent.budgets import Spend
from agentq.agent.thread import Thread, TraceEvent
from agentq.agent.view import Summary
from agentq.core.errors import NoSuchRunError, UsageError
from agentq.core.ids import new_run_id
from agentq.core.records import Decision, Reopening, RunRecord, ThreadParts
from agentq.engine.retry import NewBudgets, budgets_now, checked_budgets
from agentq.engine.snapshot import RETRIED, decode_event, encode_event, encode_head, encode_message
from agentq.provider.types import Message, Role, ToolCall, Usage
from agentq.store.connect import Store
from agentq.tools import ToolRegistry, call_signature
from agentq.tools.result import REFUSALS

_READS = 10
"""How often a run is read until it has not gone on meanwhile."""


@dataclass(frozen=True, slots=True)
class MadeCall:
    """A tool call that a run has asked for. `result` is None while nobody knows what came of it."""

    step: int
    tool: str
    arguments: str
    result: str | None


@dataclass(frozen=True, slots=True)
class _Past:
    """A run's thread, parted behind one of its steps."""

    record: RunRecord
    step: int
    kept: list[Message]
    after: list[Message]
    events: list[str]
    """Of the kept steps, encoded."""
    results: dict[str, str]
    """Those that the kept steps have brought, by signature: they answer equal calls."""
    decisions: Mapping[str, Decision]
    summaries: list[Summary]
    """Those that were made before its next step: it reads no more of its past than the other one did."""

    def signature(self, call: ToolCall) -> str:
        """Of what was executed: a person may have changed the arguments."""
        return call_signature(call.name, self.arguments(call))

    def arguments(self, call: ToolCall) -> str:
        """Those with which the call was made."""
        decision = self.decisions.get(call.id)
        return (decision.arguments if decision else "") or call.arguments


def fork_run(store: Store, run_id: str, step: int, *, by: str, budgets: NewBudgets | None = None) -> str:
    """Make a run that goes on behind this step of another one; answers its id. The tick sends its hint.

    It has the budgets of the other one, or these, and spends anew; the steps behind it count. It is a single
    run: in no batch, nobody's child. What tools did later in the other run it may do again.

    Raises:
        UsageError: when the run has no such step, or no budget for another one.
    """
    past = _past(store, run_id, step)
    given = checked_budgets(budgets)
    limits = replace(budgets_now(past.record, store.ledger.account(f"run:{run_id}")), **given)
    if limits.max_steps is not None and limits.max_steps <= step:
        raise UsageError(
            f"run {run_id} may make {limits.max_steps} steps: behind step {step} none is left",
            hint="give the new run more with --max-steps N",
        )
    forked = TraceEvent("forked", f"from {run_id} behind step {step}, by {by}", step=step)
    spec = replace(
        past.record.spec,
        batch=None,
        custom_id=None,
        ancestors=(),
        budgets=limits.as_dict(),
        metadata={**past.record.spec.metadata, "forked_from": run_id},
    )
    thread = Thread(step=step, spend=Spend(tool_errors=_tool_errors(past.events)), summaries=past.summaries)
    new = new_run_id()
    store.runs.fork(
        (new, spec, [encode_message(message) for message in past.kept]),
        source=run_id,
        step=step,
        head=encode_head(thread, Usage()),
        definition=past.record.definition,
        trace=[*past.events, encode_event(forked, store.watch.server_ms())],
        results=past.results,
        kept=store.results.all(run_id),
        decided=[
            call.id for message in past.kept for call in message.tool_calls if call.id in past.decisions
        ],
    )
    return new


def calls_after(store: Store, run_id: str, step: int, tools: ToolRegistry | None = None) -> list[MadeCall]:
    """The calls that a run has made behind a step: a fork may make them again.

    Args:
        store: where it is.
        run_id: the run.
        step: what a fork would keep.
        tools: its agent's: calls of those that only read are left out. None: nobody knows, all are listed.

    Raises:
        UsageError: when the run has no such step.
    """
    past = _past(store, run_id, step)
    answers = {message.tool_call_id: _content(message) for message in past.after if message.tool_call_id}
    found, at = [], step
    for message in past.after:
        at += message.role is Role.ASSISTANT
        for call in message.tool_calls:
            spec = None if tools is None else tools.known(call.name)
            if past.signature(call) in past.results or (spec is not None and spec.is_read_only):
                continue
            found.append(MadeCall(at, call.name, past.arguments(call), answers.get(call.id)))
    return found


def _read(store: Store, run_id: str) -> tuple[RunRecord, ThreadParts, Reopening]:
    """A run with its thread and where that ends, all of the same instant although it may be at work."""
    for _ in range(_READS):
        record, parts = store.runs.read(run_id), store.runs.parts(run_id)
        (reopening,) = store.control.reopenings([run_id])
        if record is not None and record.is_row and reopening is None:
            batch, is_live = record.spec.batch, record.state.is_live
            raise UsageError(
                f"run {run_id} was never started: there is no step of it to go on behind",
                hint=f"agentq status {batch} says what it waits for"
                if is_live
                else f"agentq retry {batch} lets all such rows of its batch wait for their turn again",
            )
        if record is None or parts is None or reopening is None:
            raise NoSuchRunError(run_id)
        if not reopening.messages or parts.messages == "[]":
            raise UsageError(
                f"run {run_id} is kept no longer in full (its messages): there is nothing to go on behind",
                hint="submit it anew",
            )
        if parts.head == reopening.last:  # each step that is committed changes it
            return record, parts, reopening
    raise UsageError(
        f"run {run_id} goes on faster than it can be read", hint=f"agentq pause {run_id} holds it"
    )


def _past(store: Store, run_id: str, step: int) -> _Past:
    record, parts, reopening = _read(store, run_id)
    messages = [Message.from_dict(data) for data in json.loads(parts.messages)][: reopening.messages]
    head = json.loads(reopening.head)
    steps = head.get("step", 0)
    replies = [at for at, message in enumerate(messages) if message.role is Role.ASSISTANT]
    if "repaired" in head:
        # Its last reply corrects the one before, and is no step: with what asked for it, it is left out.
        messages = messages[: replies.pop() - 1]
    # A conversation that it continues may have replies too: its own are the last ones.
    begins = [*replies[len(replies) - steps :], len(messages)]
    most = steps if steps and _is_whole(messages[begins[-2] :]) else max(0, steps - 1)
    if not 0 <= step <= most:
        raise UsageError(
            f"run {run_id} has {most or 'no'} whole {'step' if most == 1 else 'steps'}: "
            f"a new run keeps {f'0 to {most}' if most else '0'} of them, not {step}"
        )
    cut = begins[step]
    events = [
        json.dumps(values, ensure_ascii=False, separators=(",", ":")) for values in json.loads(parts.trace)
    ]
    before = next((at for at, text in enumerate(events) if _begins_later(text, step)), len(events))
    summaries = [Summary(*numbers) for numbers in head.get("summaries", ())]
    past = _Past(
        record,
        step,
        messages[:cut],
        messages[cut:],
        events[:before],
        {},
        store.approvals.decisions(run_id),
        [summary for summary in summaries if summary.message < cut],
    )
    good = _good_signatures(past.events)
    for message in past.kept:
        for call in message.tool_calls:
            signature = past.signature(call)
            asked = call_signature(call.name, call.arguments)
            if {asked, signature} & good and signature in parts.tool_results:
                past.results[signature] = parts.tool_results[signature]
    return past


def _content(message: Message) -> str:
    """What a tool has given, out of the message in which the model reads it."""
    try:
        return str(json.loads(message.content)["content"])
    except (ValueError, KeyError, TypeError):
        return message.content


def _is_whole(messages: list[Message]) -> bool:
    """Whether each call of a step has its result. Behind a reply without calls, the answer, nothing comes."""
    asked = {call.id for call in messages[0].tool_calls}
    return bool(asked) and asked <= {message.tool_call_id for message in messages}


def _begins_later(text: str, step: int) -> bool:
    event = decode_event(text)
    return event.kind == "step" and event.step > step


def _good_signatures(events: list[str]) -> set[str | None]:
    found = [decode_event(text) for text in events]
    return {event.call for event in found if event.ok and event.kind in {"tool_result", "late_result"}}


def _tool_errors(events: list[str]) -> int:
    """How many errors of tools the run had counted at the end of these events."""
    count = 0
    for event in map(decode_event, events):
        code = event.detail.rpartition(":")[2]
        if event.kind == RETRIED and event.detail.endswith("tool_error_ceiling"):
            count = 0
        elif event.kind == "tool_result":
            count += not event.ok and code not in REFUSALS
        elif event.kind == "calls_refused":
            count += event.detail.startswith("cut off")
    return count
