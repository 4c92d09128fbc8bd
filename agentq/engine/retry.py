"""Retrying: a run that has ended goes on from its last committed step, as another generation of itself.

What it has spent, and what its tools have done, stays. Its closing turn is taken back: the model goes on
where it was before it was told to stop.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, TypedDict

from agentq.agent.budgets import Budgets
from agentq.agent.thread import TraceEvent
from agentq.core.errors import UsageError
from agentq.core.lifecycle import StopReason
from agentq.core.money import format_usd, to_nano, to_usd
from agentq.core.records import Account, Reopening, Retrial, RunRecord
from agentq.engine.refusal import FINISHED, NEVER_STARTED, Refusal, refused
from agentq.engine.snapshot import RETRIED, encode_event
from agentq.store.connect import Store

_CHUNK = 500
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_SPENT = ("in", "out", "usd", "unpriced", "results", "failed")
"""Of a head: what has been spent or done. The closing turn's share stays spent."""
_STOPS = ("closing", "stop", "pending")
"""Of a head: what stopped the run, or was about to."""
_BUDGET_OF = {
    StopReason.STEP_BUDGET: "max_steps",
    StopReason.TOKEN_BUDGET: "max_tokens",
    StopReason.COST_BUDGET: "max_usd",
    StopReason.TIME_BUDGET: "max_seconds",
}


class NewBudgets(TypedDict, total=False):
    """Budgets of a run in place of those that it has; what is left out, or None, stays. As in `Budgets`."""

    max_steps: int | None
    max_tokens: int | None
    max_usd: Decimal | str | int | None
    max_seconds: float | None


@dataclass
class Retried:
    """What a retry of many runs has come to."""

    runs: list[str] = field(default_factory=list)
    """Those that go on."""
    rows: int = 0
    """Rows of a batch that had ended without being started, and wait for their turn again."""
    rows_stay: bool = False
    """Whether such rows stay as they are, since runs that were cancelled with them are still live."""
    finished: int = 0
    """Runs of a batch that have finished: there may be many, and they are only counted."""
    refused: dict[str, Refusal] = field(default_factory=dict)
    """Each of the others, to why."""

    def __bool__(self) -> bool:
        return bool(self.runs or self.rows)

    def groups(self) -> dict[str, int]:
        """Why the others were not retried, and how many for each reason, the most first."""
        counts = Counter({FINISHED: self.finished} if self.finished else {})
        counts.update(refusal.group for refusal in self.refused.values())
        return dict(counts.most_common())


def retry_run(store: Store, run_id: str, *, by: str, budgets: NewBudgets | None = None) -> None:
    """Retry one run.

    Args:
        store: where it is.
        run_id: the run.
        by: who wants it, for its trace.
        budgets: new ones. What the run has used before counts.

    Raises:
        UsageError: when it cannot be; it is as it was.
    """
    refusal = retry_runs(store, [run_id], by=by, budgets=budgets).refused.get(run_id)
    if refusal is not None:
        raise UsageError(f"run {run_id} {refusal.why}", hint=refusal.hint)


def retry_runs(
    store: Store, run_ids: Sequence[str], *, by: str, budgets: NewBudgets | None = None
) -> Retried:
    """Retry runs, each by itself: see `retry_run`.

    Raises:
        UsageError: when the budgets cannot be; nothing was retried.
    """
    given = checked_budgets(budgets)
    retried = Retried()
    for start in range(0, len(run_ids), _CHUNK):
        chunk = run_ids[start : start + _CHUNK]
        records, reopenings = store.runs.read_many(chunk), store.control.reopenings(chunk)
        accounts = store.ledger.accounts([f"run:{run_id}" for run_id in chunk])
        now_ms, retrials = store.watch.server_ms(), []
        for run_id, record, reopening, account in zip(chunk, records, reopenings, accounts, strict=True):
            planned = _plan(record, reopening, account, by=by, given=given, now_ms=now_ms)
            if isinstance(planned, Refusal):
                retried.refused[run_id] = planned
            else:
                retrials.append(planned)
        for retrial, (word, what) in zip(retrials, store.control.retry_many(retrials), strict=True):
            if word == "RETRIED":
                retried.runs.append(retrial.run_id)
            else:
                retried.refused[retrial.run_id] = refused(word, what)
    return retried


def retry_batch(store: Store, name: str, *, by: str, budgets: NewBudgets | None = None) -> Retried:
    """Retry each ended run of a batch; its rows that ended as no runs wait for their turn again.

    Raises:
        UsageError: when the budgets cannot be; nothing was retried.
    """
    checked_budgets(budgets)
    begun = list(
        dict.fromkeys([*store.batches.unlisted(name), *store.batches.done(name), *store.batches.live(name)])
    )
    revived = store.batches.revive(name)
    unfinished = list(store.batches.unfinished(begun))
    retried = retry_runs(store, unfinished, by=by, budgets=budgets)
    retried.finished = len(begun) - len(unfinished)
    retried.rows = revived or 0
    retried.rows_stay = revived is None and next(store.batches.dropped(name), None) is not None
    return retried


def checked_budgets(budgets: NewBudgets | None) -> dict[str, Any]:
    """Those of the new budgets that were given, when they can be.

    Raises:
        UsageError: when one cannot.
    """
    given: dict[str, Any] = {name: value for name, value in (budgets or {}).items() if value is not None}
    try:
        checked = Budgets(**given)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None
    return {name: getattr(checked, name) for name in given}


def budgets_now(record: RunRecord, account: Account) -> Budgets:
    """What a run may spend: as it was submitted, with the limits that it has by now."""
    usd, tokens = account.limit_nano, account.tokens_limit
    return replace(
        Budgets.from_dict(record.spec.budgets),
        max_usd=None if usd is None else to_usd(max(1, usd)),
        max_tokens=None if tokens is None else max(1, tokens),
    )


def _plan(
    record: RunRecord | None,
    reopening: Reopening | None,
    account: Account,
    *,
    by: str,
    given: Mapping[str, Any],
    now_ms: int,
) -> Retrial | Refusal:
    if record is not None and record.is_row and not record.state.is_live:
        return Refusal(
            "was never started",
            NEVER_STARTED,
            f"agentq retry {record.spec.batch} lets all such rows of its batch wait for their turn again",
        )
    if record is not None and record.state.is_live:
        return refused("LIVE", record.state.value)
    if record is None or reopening is None:
        return refused("MISSING", "")
    if record.stop_reason is None:
        return refused("LIVE", record.state.value)
    if record.stop_reason is StopReason.FINISHED:
        return Refusal(
            "has finished: there is nothing to go on with",
            FINISHED,
            f"agentq retry {record.id} --from-step N makes another run of its first N steps",
        )
    head = _head(reopening, record.stop_reason)
    old = budgets_now(record, account)
    new = replace(old, **given)
    refusal = _too_little(record, head.get("step", 0), account, old, new)
    if refusal is not None:
        return refusal
    event = TraceEvent(RETRIED, f"by {by}, was {record.stop_reason.value}", step=head.get("step", 0))
    return Retrial(
        record.id,
        reopening.generation,
        _encode(head),
        reopening.messages,
        encode_event(event, now_ms),
        by,
        usd=to_nano(given["max_usd"]) if "max_usd" in given else "same",
        tokens=given.get("max_tokens", "same"),
        spec=replace(record.spec, budgets=new.as_dict()) if given else None,
    )


def _head(reopening: Reopening, reason: StopReason) -> dict[str, Any]:
    """The head with which the run goes on: nothing stops it any more, and what it has spent is all of it."""
    head, last = json.loads(reopening.head), json.loads(reopening.last)
    dropped = {*_STOPS, *_SPENT} | ({"errors"} if reason is StopReason.TOOL_ERROR_CEILING else set())
    kept = {name: value for name, value in head.items() if name not in dropped}
    return kept | {name: last[name] for name in _SPENT if name in last}


def _too_little(
    record: RunRecord, steps: int, account: Account, old: Budgets, new: Budgets
) -> Refusal | None:
    """What stands against a retry: a budget is used up, or has stopped the run and is no larger now."""
    used = {
        "max_steps": steps,
        "max_tokens": account.tokens_spent,
        "max_usd": account.spent_nano,
        "max_seconds": record.seconds_ms / 1000,
    }
    # A limit that somebody has raised since the run was submitted is taken for larger than what stopped it.
    submitted = Budgets.from_dict(record.spec.budgets)
    reason = record.stop_reason
    own = _BUDGET_OF.get(reason) if reason is not None and record.stop_scope is None else None
    for name, amount in used.items():
        limit = _limit(new, name)
        if limit is None:
            continue
        same = name == own and _limit(old, name) == _limit(submitted, name)
        if amount >= limit or (same and limit <= (_limit(old, name) or 0)):
            option = "--" + name.replace("_", "-")
            return Refusal(
                f"has used {_shown(name, amount)} of {_shown(name, limit)}: a retry would stop there again",
                f"need more ({option})",
                f"agentq retry {record.id} {option} N gives it a larger budget",
            )
    return None


def _limit(budgets: Budgets, name: str) -> float | None:
    """A limit as what is used of it is counted: money in nano-USD."""
    if name == "max_usd":
        return None if budgets.max_usd is None else to_nano(budgets.max_usd)
    limit: float | None = getattr(budgets, name)
    return limit


def _shown(name: str, amount: float) -> str:
    match name:
        case "max_usd":
            return f"{format_usd(int(amount))} USD"
        case "max_seconds":
            return f"{amount:.1f} s"
        case _:
            return f"{amount:.0f} {name.removeprefix('max_')}"
