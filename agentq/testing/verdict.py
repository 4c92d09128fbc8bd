"""The invariants of a case that is over: money, threads, tools, slots. Each violation is a plain sentence."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from json import JSONDecodeError, loads
from pathlib import Path
from typing import Any

from agentq.agent import Thread
from agentq.app import AgentQ, Batch
from agentq.app.run import Run
from agentq.core.lifecycle import RunState
from agentq.core.money import format_usd
from agentq.core.records import RunRecord
from agentq.provider.types import Role, ToolCall
from agentq.store.checkup import examine
from agentq.testing.acts import Act, acts
from agentq.testing.files import read
from agentq.testing.play import Played
from agentq.testing.stage import ACTS, BATCH, BILL, Ground, staged
from agentq.tools import ToolSpec, call_signature

MADE = "made"
_MADE_CODES = frozenset({None, "tool_error", "timeout", "outcome_unknown"})
"""A call with one of these was made: what a real tool answers may differ from case to case."""


@dataclass(frozen=True, slots=True)
class Violation:
    """What does not hold. `run` is empty where it is about the case as a whole."""

    case: str
    run: str
    invariant: str
    """money, thread, tools, slots or end."""
    sentence: str


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to a call, as it stands in the thread."""

    call: ToolCall
    ok: bool
    code: str | None
    cached: bool


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run that is over."""

    record: RunRecord
    thread: Thread
    specs: Mapping[str, ToolSpec]
    """The tools of its agent."""


@dataclass(frozen=True, slots=True)
class Facts:
    """All that a case has left behind."""

    runs: list[RunFacts]
    """The rows in their order, then what they have started."""
    rows: int
    acts: list[Act]
    bill_nano: int
    live: list[str]
    held: dict[str, list[str]]
    """What runs still hold: reservations, or an escrow."""
    spent_nano: int
    forfeited_nano: int
    set_aside: dict[str, int]
    """Scopes in which money is still reserved or escrowed, in nano-USD."""
    drift: list[str]
    checkup: list[str]
    """What `agentq doctor --runs` would find."""


def facts_of(played: Played, ground: Ground, user: AgentQ) -> Facts:
    """Read what a case has left behind."""
    app = staged(user, ground, played.scene)
    store, folder = app.store, Path(played.scene.folder)
    with closing(store.client):
        rows = [run.id for run in Batch(store, BATCH).runs()]
        family = list(rows)
        for run_id in family:
            family += store.runs.children(run_id)
        runs = [_run_facts(app, run_id) for run_id in family]
        scopes = {scope for run in runs for scope in run.record.spec.scopes_of(run.record.id)}
        accounts = store.ledger.accounts(sorted(scopes))
        books = store.audit.verify()
        total = store.ledger.account("global")
        return Facts(
            runs=runs,
            rows=len(rows),
            acts=acts(folder / ACTS),
            bill_nano=sum(read(folder / BILL)),
            live=list(store.watch.live()),
            held={
                run_id: held for run_id in family if (held := list(store.ledger.open_reservations(run_id)))
            },
            spent_nano=total.spent_nano,
            forfeited_nano=total.forfeited_nano,
            set_aside={
                account.scope: account.reserved_nano + account.escrowed_nano
                for account in accounts
                if account.reserved_nano or account.escrowed_nano
            },
            checkup=[f"{finding.subject}: {finding.sentence}" for finding in examine(store).findings],
            drift=[
                f"{d.scope} {d.field}: {d.against} {d.books}, account {d.state}" for d in books.differences
            ],
        )


def _run_facts(app: AgentQ, run_id: str) -> RunFacts:
    run = Run(app.store, run_id)
    record = run.record()
    registry = app.agents[record.spec.agent].executor.registry
    specs = {name: spec for name in registry.names() if (spec := registry.get(name)) is not None}
    return RunFacts(record, run.thread(), specs)


def judge(played: Played, facts: Facts, reference: Facts) -> list[Violation]:
    """Every invariant that a case has violated. `reference` is what came of the same rows undisturbed.

    What must hold at the end is not asked while a run has none: then it is only said where that one stands.
    """
    name = played.case.name
    if unended := [run.record for run in facts.runs if run.record.state is not RunState.ENDED]:
        return [Violation(name, record.id, "end", _where(record, facts)) for record in unended]
    found = [Violation(name, "", "money", text) for text in _money(facts)]
    found += [Violation(name, "", "slots", text) for text in [*sorted(played.seen), *_slots(facts)]]
    for run in facts.runs:
        found += [Violation(name, run.record.id, "thread", text) for text in _thread(run)]
        mine = [act for act in facts.acts if act.run == run.record.id]
        found += [Violation(name, run.record.id, "tools", text) for text in _tools(run, mine)]
    if (facts.rows, len(facts.runs)) != (reference.rows, len(reference.runs)):
        rows, started = facts.rows, len(facts.runs) - facts.rows
        wanted = f"{reference.rows} and {len(reference.runs) - reference.rows}"
        found.append(
            Violation(name, "", "end", f"{rows} rows started {started} runs, and undisturbed {wanted}")
        )
    for run, undisturbed in zip(facts.runs[: facts.rows], reference.runs[: reference.rows], strict=False):
        found += [Violation(name, run.record.id, "end", text) for text in _end(run, undisturbed)]
    return found


def _where(record: RunRecord, facts: Facts) -> str:
    watched = "" if record.id in facts.live else ", and nobody watches it any more"
    return f"it has not ended: it is {record.state.value} at step {record.step + 1}{watched}"


def repeated(facts: Facts) -> dict[str, int]:
    """Idempotent tools that were called more than once with one key, each with how often at most.

    That is their right. Whether what is behind them acted only once cannot be seen from here.
    """
    idempotent = {
        (run.record.id, name) for run in facts.runs for name, spec in run.specs.items() if spec.idempotent
    }
    most: dict[str, int] = {}
    calls = Counter((act.tool, act.key) for act in facts.acts if (act.run, act.tool) in idempotent)
    for (name, _), count in calls.items():
        if count > 1:
            most[name] = max(count, most.get(name, 0))
    return most


# ── money and slots ──────────────────────────────────────────────────────────────────────────────────


def _money(facts: Facts) -> Iterator[str]:
    bill, spent, forfeited = facts.bill_nano, facts.spent_nano, facts.forfeited_nano
    if spent < bill:
        yield f"the provider billed {format_usd(bill)} USD and the ledger has only {format_usd(spent)}"
    if spent - forfeited > bill:
        yield (
            f"the ledger has settled {format_usd(spent - forfeited)} USD and the provider billed only "
            f"{format_usd(bill)}"
        )
    for scope, nano in facts.set_aside.items():
        yield f"{format_usd(nano)} USD are still set aside in {scope} although all runs have ended"
    for difference in facts.drift:
        yield f"the ledger's log and its accounts differ: {difference}"


def _slots(facts: Facts) -> Iterator[str]:
    for run_id in facts.live:
        yield f"{run_id} is still watched although all runs have ended"
    for run_id, held in facts.held.items():
        yield f"{run_id} still holds {', '.join(held)}"
    yield from facts.checkup


# ── the thread ───────────────────────────────────────────────────────────────────────────────────────


def _thread(run: RunFacts) -> Iterator[str]:
    record, thread = run.record, run.thread
    waiting: list[str] = []
    for number, message in enumerate(thread.messages, start=1):
        if message.role is Role.TOOL:
            if not waiting:
                yield f"message {number} answers {message.tool_call_id}, which nothing waits for"
            elif message.tool_call_id != waiting.pop(0):
                yield f"message {number} answers {message.tool_call_id} out of its order"
            continue
        if waiting:
            yield f"message {number} comes before {', '.join(waiting)} were answered"
        waiting = [call.id for call in message.tool_calls]
    if waiting:
        yield f"the calls {', '.join(waiting)} have no result"
    turns = sum(message.role is Role.ASSISTANT for message in thread.messages)
    closing_turns = sum(event.kind == "final_turn" and event.ok for event in thread.trace)
    repairs = sum(event.kind == "repair" for event in thread.trace)
    if not record.steps + repairs <= turns <= record.steps + repairs + closing_turns:
        yield f"it counts {record.steps} steps and has {turns} turns of the model"
    steps = [event.detail for event in thread.trace if event.kind == "step"]
    if steps != [f"step {number + 1}" for number in range(record.steps)]:
        yield f"its trace has the steps {', '.join(steps)}, and it counts {record.steps}"


def _end(run: RunFacts, undisturbed: RunFacts) -> Iterator[str]:
    record, other = run.record, undisturbed.record
    if record.stop_reason is not other.stop_reason:
        reason = None if record.stop_reason is None else record.stop_reason.value
        wanted = None if other.stop_reason is None else other.stop_reason.value
        yield f"it ended as {reason}, and undisturbed as {wanted}"
        return  # and so has other messages
    if record.answer != other.answer:
        yield f"its answer is {record.answer!r}, and undisturbed {other.answer!r}"
    mine, theirs = _shape(run.thread), _shape(undisturbed.thread)
    for number, (message, wanted_message) in enumerate(zip(mine, theirs, strict=False), start=1):
        if message != wanted_message:
            yield f"message {number} is {message}, and undisturbed {wanted_message}"
            return
    if len(mine) != len(theirs):
        yield f"its thread has {len(mine)} messages, and undisturbed {len(theirs)}"


def _shape(thread: Thread) -> list[tuple[Any, ...]]:
    """The conversation without what a real tool may answer differently each time."""
    shape: list[tuple[Any, ...]] = []
    for message in thread.messages:
        if message.role is Role.TOOL:
            code = _body(message.content).get("error_code")
            shape.append(("tool", message.tool_call_id, MADE if code in _MADE_CODES else code))
        else:
            calls = [(call.id, call.name, call.arguments) for call in message.tool_calls]
            shape.append((message.role.value, message.content, *calls))
    return shape


# ── the tools ────────────────────────────────────────────────────────────────────────────────────────


def _tools(run: RunFacts, mine: Sequence[Act]) -> Iterator[str]:
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in _results(run.thread):
        groups[call_signature(result.call.name, result.call.arguments)].append(result)
    counted = 0
    for signature, results in groups.items():
        spec = run.specs.get(results[0].call.name)
        if spec is None or not spec.side_effect:
            continue
        done = [act for act in mine if _signature_of(act) == signature]
        counted += len(done)
        # A call that waits for children is made again from its start.
        gathers = sum(event.kind == "gather" for event in run.thread.trace)
        yield from _acts_of(spec, results, done, again=gathers)
    if counted != len(mine):
        yield f"{len(mine) - counted} executions belong to no call in the thread"


def _acts_of(spec: ToolSpec, results: Sequence[Result], done: Sequence[Act], *, again: int) -> Iterator[str]:
    what = f"{spec.name}({results[0].call.arguments})"
    fresh = [result for result in results if not result.cached]
    # A frozen attempt may have acted, and another one got its result out of the cache.
    stored = len(fresh) < len(results)
    least = max(stored, sum(result.ok or result.code == "tool_error" for result in fresh))
    most = max(stored, sum(result.code in _MADE_CODES for result in fresh)) + again
    if len(done) < least:
        yield f"{what} acted {len(done)} times, and the thread says {least}"
    if spec.idempotent:
        keys = {act.key for act in done}
        if len(keys) > (len(fresh) if spec.repeatable else 1):
            yield f"{what} was given {len(keys)} idempotency keys: {', '.join(sorted(keys))}"
    elif len(done) > most:
        pids = ", ".join(str(act.pid) for act in done)
        yield f"{what} acted {len(done)} times (in the processes {pids}), and may at most {most}"


def _signature_of(act: Act) -> str:
    """The call's signature, `name:16 hex`, out of the key: whatever stands before and after it."""
    head, _, tail = act.key.partition(f"{act.tool}:")
    return f"{act.tool}:{tail[:16]}" if head.startswith(act.run) else act.key


def _results(thread: Thread) -> Iterator[Result]:
    calls: dict[str, ToolCall] = {}
    for message in thread.messages:
        if message.role is Role.TOOL:
            call = calls.get(message.tool_call_id or "")
            if call is not None:
                body = _body(message.content)
                yield Result(call, bool(body.get("ok")), body.get("error_code"), bool(body.get("cached")))
        else:
            calls |= {call.id: call for call in message.tool_calls}


def _body(content: str) -> dict[str, Any]:
    try:
        body = loads(content)
    except JSONDecodeError:
        return {}
    return body if isinstance(body, dict) else {}
