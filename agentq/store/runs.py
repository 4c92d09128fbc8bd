"""Runs: created, claimed, committed, released and cancelled. How they are read is in `runreads.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import redis

from agentq.core.errors import ConflictError, NoSuchRunError, UsageError
from agentq.core.ids import new_nonce
from agentq.core.lifecycle import StopReason
from agentq.core.money import to_nano
from agentq.core.records import (
    Claim,
    Delta,
    Failure,
    Lease,
    RunSpec,
    Settlement,
)
from agentq.store.approvals import decision_of
from agentq.store.keys import Keys
from agentq.store.ledger import Ledger
from agentq.store.runreads import RunReads, pairs, parts_of
from agentq.store.scripts import Arg, Scripts, unexpected
from agentq.store.watch import GRACE_MS

Answer = Literal["OK", "CANCELLED", "STALE", "MISSING"]
"""OK: done. CANCELLED: the run was being cancelled and has ended. STALE: the lease is gone; only the bill
is booked. MISSING: there is no such run."""

Submission = tuple[str, RunSpec, Sequence[str]]
"""Run id, what was submitted, its first messages as JSON."""

Hint = tuple[str, str]
"""A message for a queue on the same server: the queue's key, and the message."""

CANCELS = 50
"""Runs that one script cancels: others wait meanwhile, some ms."""

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_NOTHING_TO_CLOSE = Settlement("", "release")


class Runs(RunReads):
    """All runs of one namespace."""

    def __init__(self, client: redis.Redis, keys: Keys, scripts: Scripts, ledger: Ledger) -> None:
        super().__init__(client, keys)
        self._scripts = scripts
        self._ledger = ledger

    def submit(
        self,
        submissions: Sequence[Submission],
        *,
        heads: Sequence[str],
        retention_ms: int,
        hints: Sequence[Hint | None] | None = None,
        definitions: Sequence[str] | None = None,
        kept: Sequence[Mapping[str, str]] | None = None,
        fence: str = "",
    ) -> list[tuple[str, str]]:
        """Create runs in one round trip; each becomes `queued` and watched, and its hint, if any, is sent.

        Args:
            submissions: the runs. One with ancestors is a child of the last of them.
            heads: of their threads.
            retention_ms: how long an ended run is kept. A child is kept as long as its parent.
            hints: their first hints.
            definitions: the hashes of their agents.
            kept: long results of the conversations that they continue, by reference.
            fence: of the parent's step that starts children: refused when it is somebody else's by now.

        Returns:
            For each: CREATED or EXISTS (same custom_id, same content), and the run's id.

        Raises:
            ConflictError: when a custom_id exists with other content. Runs before it in the list are created.
            UsageError: when a parent cannot have one more child.
        """
        calls = [
            [
                *self._submission(
                    run_id, spec, messages, head=head, definition=definition, retention_ms=retention_ms
                ),
                *_pushed(hint),
                *_adopted(spec, fence),
                *_kept(long, spec),
            ]
            for (run_id, spec, messages), head, hint, definition, long in zip(
                submissions,
                heads,
                hints or [None] * len(submissions),
                definitions or [""] * len(submissions),
                kept or [{}] * len(submissions),
                strict=True,
            )
        ]
        answers: list[tuple[str, str]] = []
        for (_, spec, _), reply in zip(
            submissions, self._scripts.call_many("run_submit", calls), strict=True
        ):
            match reply:
                case [("CREATED" | "EXISTS") as word, run_id]:
                    answers.append((word, run_id))
                case ["CONFLICT", run_id]:
                    where = f"batch {spec.batch!r}" if spec.batch else f"tenant {spec.tenant!r}"
                    if spec.parent:
                        where = f"run {spec.parent!r}"
                    raise ConflictError(
                        f"{spec.custom_id!r} exists in {where} with other content ({run_id})",
                        hint="give it another custom_id, or another batch",
                    )
                case _ if spec.parent:
                    raise _no_child(spec.parent, reply)
                case _:
                    raise unexpected("run_submit", reply)
        return answers

    def _submission(
        self,
        run_id: str,
        spec: RunSpec,
        messages: Sequence[str],
        *,
        head: str,
        definition: str,
        retention_ms: int,
        more: Sequence[Arg] = (),
    ) -> list[Arg]:
        fields: list[Arg] = ["spec", _encode(spec.as_dict()), "head", head, "definition", definition, *more]
        max_usd, max_tokens = spec.budgets.get("max_usd"), spec.budgets.get("max_tokens")
        return [
            run_id,
            spec.custom_id or "",
            spec.content_hash,
            spec.batch if spec.batch and not spec.ancestors else "",
            spec.tenant,
            " ".join(spec.scopes_of(run_id)),
            "" if max_usd is None else to_nano(max_usd),
            "" if max_tokens is None else max_tokens,
            GRACE_MS,
            retention_ms,
            len(fields),
            *fields,
            len(messages),
            *messages,
        ]

    def fork(
        self,
        submission: Submission,
        *,
        source: str,
        step: int,
        head: str,
        definition: str,
        trace: Sequence[str],
        results: Mapping[str, str],
        kept: Mapping[str, str],
        decided: Sequence[str],
    ) -> None:
        """Create a run that begins where another one has been. It is kept as long as that, once it has ended.

        Args:
            submission: the run; not a child, in no batch, without a custom_id.
            source: the run that it goes out from.
            step: how many steps it has behind it.
            head: of its thread.
            definition: the hash of its agent.
            trace: the events of these steps.
            results: what answers equal calls.
            kept: long results of the other run, by reference.
            decided: calls of these steps on which a person decided, perhaps with other arguments.

        Raises:
            UsageError: when the source is gone by now.
        """
        ttl = self._client.hget(self._keys.run(source), "ttl")
        if ttl is None:
            raise NoSuchRunError(source)
        run_id, spec, messages = submission
        arguments = self._submission(
            run_id,
            spec,
            messages,
            head=head,
            definition=definition,
            retention_ms=int(ttl),
            more=["step", step],
        )
        cached = [part for item in results.items() for part in item]
        known: Any = self._client.hgetall(self._keys.run(source, "decisions")) if decided else {}
        decisions = [part for call in decided if call in known for part in (call, known[call])]
        # Without a hint and without a parent.
        rest: list[Arg] = [0, 0, len(trace), *trace, len(cached), *cached, len(decisions), *decisions]
        rest += _listed(kept)
        reply = self._scripts.call("run_submit", *arguments, *rest)
        match reply:
            case ["CREATED", _]:
                return
            case _:
                raise unexpected("run_submit", reply)

    def claim(
        self, run_id: str, step: int | None, lease_ms: int, *, known: str = "", may_suspect: bool = True
    ) -> Claim | None:
        """The run's next step, or None when there is nothing to do: the message may be dropped.

        Args:
            run_id: the run.
            step: the step that the message asks for; another one is not granted. None: whichever is next.
            lease_ms: how long the lease lasts.
            known: the commit after which the caller has the thread; it is not sent when nothing came after.
            may_suspect: whether this process may take a step in which others have died; it has none yet.

        Raises:
            SchemaError: when the state is newer than this release understands.
        """
        asked = "" if step is None else step
        reply = self._scripts.call(
            "step_claim", run_id, asked, new_nonce(), lease_ms, known, int(may_suspect)
        )
        match reply:
            case ["OK", fence, now, at, phase, spent_ms, failures, unclear, text, *more]:
                wind, limits, definition, suspect, failing, effects, decisions, *pieces = more
                spec = RunSpec(**json.loads(text))
                unit, _, scope = wind.partition(" ")
                return Claim(
                    lease=Lease(run_id, fence, int(at), " ".join(spec.scopes_of(run_id))),
                    spec=spec,
                    phase=phase,
                    parts=parts_of(*pieces) if pieces else None,
                    spent_ms=int(spent_ms),
                    failures=int(failures),
                    unclear=int(unclear),
                    failing_ms=int(failing),
                    now_ms=int(now),
                    wind=(unit, scope) if wind else None,
                    limits=_limits(limits),
                    definition=definition,
                    is_suspect=suspect == "1",
                    effects=pairs(effects),
                    decisions={call: decision_of(text) for call, text in pairs(decisions).items()},
                )
            case ["ORPHAN"]:
                # Whoever cancelled the tree, or the batch, has not come to this run, or did not live to.
                self.cancel(run_id, "what it belongs to")
                return None
            case [("RECOVERING" | "BUSY" | "NOT_YET" | "STALE" | "CLOSED" | "HELD" | "SUSPECT" | "MISSING")]:
                return None
            case _:
                raise unexpected("step_claim", reply)

    def commit_tools(self, lease: Lease, delta: Delta, settlement: Settlement) -> Answer:
        """Keep a paid reply; the tools that it asked for come next, under the same lease."""
        return self._commit(lease, "tools", delta, settlement)

    def commit_continue(
        self,
        lease: Lease,
        delta: Delta,
        settlement: Settlement | None,
        hint: Hint | None = None,
        *,
        kept: bool = False,
    ) -> Answer:
        """The step is done: the run is queued for its next one, and the hint, if there is one, is sent.

        Args:
            lease: the step's.
            delta: what the step has added.
            settlement: how its reservation closes; nothing happens when it is closed already.
            hint: for the next step.
            kept: the reply was committed under this lease (`commit_tools`). STALE when the server has lost
                that: then the lease may still be held.
        """
        argument = lease.fence + "t" if kept else ""
        return self._commit(lease, "continue", delta, settlement, argument=argument, hint=hint)

    def commit_gather(
        self,
        lease: Lease,
        delta: Delta,
        children: Sequence[str],
        gathers: Mapping[str, int],
        fields: Mapping[str, str] | None = None,
        *,
        kept: Settlement | None = None,
    ) -> Answer:
        """The run waits, without a lease, until these children have ended; then its tools are called again.

        Args:
            lease: the step's.
            delta: the results that the step has already.
            children: runs that it has started.
            gathers: each gather that waits, by its name, and for how long at most (ms). What counts is the
                deadline that a gather got the first time, and of several the earliest.
            fields: written into the run's hash.
            kept: of the reply that was committed under this lease. STALE when the server has lost that.
        """
        argument = "" if kept is None else lease.fence + "t"
        waits = (children, gathers)
        return self._commit(lease, "gather", delta, kept, argument=argument, fields=fields, waits=waits)

    def commit_id(self, lease: Lease, outcome: Literal["continue", "gather"] = "continue") -> str:
        """What `claim(known=…)` knows a `commit_continue`, or `commit_gather`, under this lease by."""
        return lease.fence + outcome[0]

    def commit_wait(
        self,
        lease: Lease,
        delta: Delta,
        settlement: Settlement | None,
        pending: Sequence[Mapping[str, Any]],
        deadline_ms: int,
        *,
        fields: Mapping[str, str] | None = None,
        kept: bool = False,
    ) -> Answer:
        """The run waits, without a lease, for decisions about `pending`, at most `deadline_ms` from now.

        Args:
            lease: the step's.
            delta: what the step has added.
            settlement: how its reservation closes; nothing happens when it is closed already.
            pending: the calls.
            deadline_ms: from now; then what `on_expired` among the fields says, else the run ends.
            fields: written into the run's hash.
            kept: the reply was committed under this lease. STALE when the server has lost that.
        """
        return self._commit(
            lease,
            "wait",
            delta,
            settlement,
            argument=lease.fence + "t" if kept else "",
            fields={"pending": _encode(list(pending)), **(fields or {})},
            after_ms=deadline_ms,
        )

    def commit_end(
        self,
        lease: Lease,
        delta: Delta,
        settlement: Settlement | None,
        reason: StopReason,
        *,
        answer: str = "",
        scope: str = "",
        detail: str = "",
    ) -> Answer:
        """End the run: its answer and reason stand, its escrow is given back."""
        fields = {"answer": answer, "stop_scope": scope, "stop_detail": detail}
        kept = {name: value for name, value in fields.items() if value}
        return self._commit(lease, "end", delta, settlement, argument=reason.value, fields=kept)

    def _commit(
        self,
        lease: Lease,
        outcome: str,
        delta: Delta,
        settlement: Settlement | None,
        *,
        argument: Arg = "",
        fields: Mapping[str, str] | None = None,
        hint: Hint | None = None,
        waits: tuple[Sequence[str], Mapping[str, int]] | None = None,
        after_ms: int = GRACE_MS,
    ) -> Answer:
        closing = settlement or _NOTHING_TO_CLOSE
        flat: list[Arg] = ["head", delta.head]
        for name, value in {**delta.fields, **(fields or {})}.items():
            flat += [name, value]
        cached = [part for item in delta.tool_results.items() for part in item]
        awaited: list[Arg] = []
        if waits is not None:
            gathers: list[Arg] = [part for item in waits[1].items() for part in item]
            awaited = [len(waits[0]), *waits[0], len(gathers), *gathers]
        reply = self._scripts.call(
            "step_commit",
            lease.run_id,
            lease.fence,
            lease.fence + outcome[0],
            outcome,
            argument,
            after_ms,
            closing.reservation,
            closing.how,
            closing.usd,
            closing.tokens,
            len(flat),
            *flat,
            len(delta.messages),
            *delta.messages,
            len(delta.trace),
            *delta.trace,
            len(cached),
            *cached,
            *_pushed(hint),
            *awaited,
            *([f"pace:{closing.pace}"] if closing.pace else []),
        )
        return self._booked(lease, settlement, _answer("step_commit", reply))

    def _booked(self, lease: Lease, settlement: Settlement | None, answer: Answer) -> Answer:
        """The answer, once the bill is in the books also where the server has lost the reservation."""
        if settlement is not None:
            self._ledger.closed(lease, settlement, doubtful=answer in {"STALE", "MISSING"})
        return answer

    def release(
        self,
        lease: Lease,
        *,
        delay_ms: int,
        settlement: Settlement | None = None,
        failed: Failure | None = None,
        head: str | None = None,
        scope: str = "",
        note: str = "",
        spent_ms: int | None = None,
        failing_ms: int = 0,
    ) -> Answer:
        """Give the step back without progress: claimable at once, or after `delay_ms`.

        Args:
            lease: the step's.
            delay_ms: when it may be claimed again.
            settlement: how the reservation of its request closes.
            failed: a model call failed; the run counts how many did in a row, and says what the last said.
            head: a new head of the thread, when something was decided nevertheless.
            scope: the scope that stopped the run, when its closing turn is still to come.
            note: what the run waits for, in place of the last error.
            spent_ms: the run's time inside steps, where this step is not to count.
            failing_ms: since when its calls fail, where that is to be put off; 0 leaves it.
        """
        closing = settlement or _NOTHING_TO_CLOSE
        fields: list[Arg] = [] if head is None else ["head", head]
        if scope:
            fields += ["stop_scope", scope]
        if note:
            fields += ["error", note]
        if spent_ms is not None:
            fields += ["ms", spent_ms]
        if failing_ms:
            fields += ["failing", failing_ms]
        if failed is not None:
            fields += ["error", failed.message, "unclear", failed.unclear]
        reply = self._scripts.call(
            "step_release",
            lease.run_id,
            lease.fence,
            lease.fence + "r",
            delay_ms,
            GRACE_MS,
            closing.reservation,
            closing.how,
            closing.usd,
            closing.tokens,
            0 if failed is None else failed.counts,
            len(fields),
            *fields,
        )
        return self._booked(lease, settlement, _answer("step_release", reply[:1]))

    def leave_hint(self, lease: Lease, hint: Hint) -> None:
        """Leave the hint of the lease's step with its parked run: whoever lets it go on sends it.

        If somebody has done so already, it is sent now.
        """
        reply = self._scripts.call("run_leave_hint", lease.run_id, lease.fence, GRACE_MS, *hint)
        if reply not in (["OK"], ["SENT"], ["STALE"]):
            raise unexpected("run_leave_hint", reply)

    def cancel(self, run_id: str, by: str) -> str:
        """CANCELLED, CANCELLING (a worker holds it), ENDED (it had ended before) or MISSING."""
        return _cancelled(self._scripts.call("run_cancel", run_id, f"cancelled by {by}"))[0]

    def cancel_many(self, run_ids: Sequence[str], by: str) -> list[tuple[str, str]]:
        """The same for many runs in one round trip: the word, and where a run was that a worker holds."""
        chunks = [run_ids[start : start + CANCELS] for start in range(0, len(run_ids), CANCELS)]
        calls: list[list[Arg]] = [[f"cancelled by {by}", len(chunk), *chunk] for chunk in chunks]
        replies = self._scripts.call_many("runs_cancel", calls)
        return [_cancelled(reply) for answers in replies for reply in answers]


def _cancelled(reply: list[Any]) -> tuple[str, str]:
    match reply:
        case ["CANCELLING", where]:
            return "CANCELLING", where
        case [("CANCELLED" | "MISSING") as word] | ["ENDED" as word, _]:
            return word, ""
        case _:
            raise unexpected("run_cancel", reply)


def _pushed(hint: Hint | None) -> list[Arg]:
    return [0] if hint is None else [2, *hint]


def _adopted(spec: RunSpec, fence: str) -> list[Arg]:
    return [] if spec.parent is None else [2, spec.parent, fence]


def _kept(kept: Mapping[str, str], spec: RunSpec) -> list[Arg]:
    """Behind the parts that only a fork has, and the one that only a child has."""
    if not kept:
        return []
    return [*([0] if spec.parent is None else []), 0, 0, 0, *_listed(kept)]


def _listed(kept: Mapping[str, str]) -> list[Arg]:
    flat: list[Arg] = [part for item in kept.items() for part in item]
    return [len(flat), *flat]


def _limits(text: str) -> tuple[int | None, int | None] | None:
    if not text:
        return None
    usd, tokens = (None if word == "-" else int(word) for word in text.split())
    return usd, tokens


def _no_child(parent: str, reply: list[Any]) -> Exception:
    match reply:
        case ["ORPHAN", state]:
            how = f"is {state}" if state else "does not exist, or no longer"
            return UsageError(f"run {parent} {how}: only a live run has children")
        case ["STALE"]:
            return UsageError(f"run {parent} is at another step by now: this one starts no more children")
        case ["CHILDREN", most]:
            return UsageError(f"run {parent} has started {most} runs, which is the most", hint="start fewer")
        case ["DEPTH", most]:
            return UsageError(
                f"run {parent} has {most} runs around it, which is the most: it cannot start another",
                hint="let a run nearer to the root start it",
            )
        case _:
            return unexpected("run_submit", reply)


def _answer(name: str, reply: list[Any]) -> Answer:
    match reply:
        case ["OK"]:
            return "OK"
        case ["CANCELLED"]:
            return "CANCELLED"
        case ["STALE"]:
            return "STALE"
        case ["MISSING"]:
            return "MISSING"
        case _:
            raise unexpected(name, reply)
