"""The closing turn: one tool-free call out of the escrow, then the run ends for its reason.

It gets one paid attempt. If that is lost, another only if it can be reserved afresh; else the run ends
without an answer, and says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentq.agent.loop import apply_closing, end, end_without_closing
from agentq.agent.request import capped, closing_request, closing_rungs
from agentq.core.failpoints import failpoint
from agentq.core.lifecycle import StopReason
from agentq.core.records import Denied, Granted, Settlement
from agentq.engine.bill import settle
from agentq.engine.failure import described, is_unclear

if TYPE_CHECKING:
    from agentq.engine.step import Step
    from agentq.provider.types import ChatRequest


DENIALS = 8
"""So many runs of a batch have to be denied, and none of it to spend meanwhile, before its rows end."""
_OF_ALL = ("global", "tenant", "batch")
"""The kinds of scopes that all runs of a batch are in; an agent, a model or a key may be only some."""


def close(step: Step, reason: StopReason) -> None:
    """Make the closing turn of a claimed step's run and end it."""
    step.thread.closing = reason
    if step.agent.one_call:
        end_without_closing(step.thread, reason)
        _end_rows(step, reason)
        step.finish(None, detail="" if step.thread.spend.steps else "not_admitted")
        return
    request = closing_request(step.agent, step.thread, reason, step.claim.spec.metadata)
    granted, converted = _money(step, request)
    if granted is None:
        return
    if isinstance(granted, Denied):
        end(step.thread, reason, "no money is left for a closing turn", kind="final_turn")
        spent = step.ledger.account(f"run:{step.lease.run_id}").tokens_spent
        _end_rows(step, reason)
        step.finish(None, detail="closing_turn_lost" if spent else "not_admitted")
        return
    # Its output is what the money was set aside for.
    request = capped(
        request, min(granted.output_tokens or request.max_output_tokens, request.max_output_tokens)
    )
    result = step.complete(request, granted, seconds=step.agent.closing_seconds)
    if isinstance(result, Exception):
        _failed(step, result, reason, granted, converted=converted)
        return
    result, cost, settlement = settle(step.agent, result, granted)
    step.hold.flight = settlement
    step.snapshot.usage += result.usage
    apply_closing(step.agent, step.thread, reason, result, cost=cost)
    failpoint("step.after_closing")
    step.finish(settlement)


def _end_rows(step: Step, reason: StopReason) -> None:
    """Where a scope that all of its batch share is used up, the rows behind this run have no money either.

    They end too, once several runs in turn have met that: one may only have been too large for what is left.
    Before the run does, since its end admits the next of them. Not where a row would wait for money, nor
    where a person has said that this run shall not.
    """
    claim, denied = step.claim, step.denied
    if not claim.spec.batch or denied is None or claim.wind is not None or claim.spec.ancestors:
        return
    if denied.kind == "exhausted" and denied.scope.partition(":")[0].partition("@")[0] in _OF_ALL:
        step.bench.store.batches.drop(claim.spec.batch, reason, denials=DENIALS)


def _money(step: Step, request: ChatRequest) -> tuple[Granted | Denied | None, bool]:
    """The escrow as a reservation (and True), or a fresh one when it was never set or is already lost.

    A run that has to wait for it keeps that it is closing; it holds no escrow, so it is in nobody's way.
    """
    kept = {"head": step.delta().head} | ({"stop_scope": step.stop_scope} if step.stop_scope else {})
    step.unsent = Settlement(step.ledger.reservation(step.lease, step.requests + 1), "restore")
    step.hold.flight = step.unsent
    answer = step.ledger.convert(
        step.lease, step.requests + 1, park_ms=step.bench.park_ms, fields=kept, pace=step.pace(request)
    )
    if answer is None:
        fresh = closing_rungs(step.agent, step.thread, request)
        return step.reserve(request, fresh, policy="close", fields=kept), False
    granted = step.granted(answer)
    failpoint("step.after_convert")
    return granted, True


def _failed(step: Step, error: Exception, reason: StopReason, granted: Granted, *, converted: bool) -> None:
    """A closing call that failed: tried again while it may be, else the run ends without an answer."""
    untouched = "restore" if converted else "release"
    how = "forfeit" if is_unclear(error) else untouched
    settlement = Settlement(granted.reservation, how, granted.usd, granted.tokens)
    if step.retried(error, settlement):
        return
    end(step.thread, reason, described(error), kind="final_turn")
    step.finish(settlement, detail="closing_turn_lost")
