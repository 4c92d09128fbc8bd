"""The closing turn: one tool-free call out of the escrow, then the run ends for its reason.

It gets one paid attempt. If that is lost, another only if it can be reserved afresh; else the run ends
without an answer, and says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentq.agent.loop import apply_closing, end
from agentq.agent.request import closing_need, closing_request
from agentq.core.failpoints import failpoint
from agentq.core.lifecycle import StopReason
from agentq.core.records import Denied, Granted, Settlement
from agentq.engine.bill import settle
from agentq.engine.failure import WAIT_MS, described, is_unclear
from agentq.engine.leases import LeaseLostError

if TYPE_CHECKING:
    from agentq.agent.budgets import Need
    from agentq.engine.step import Step


def close(step: Step, reason: StopReason) -> None:
    """Make the closing turn of a claimed step's run and end it."""
    request = closing_request(step.agent, step.thread, reason, step.claim.spec.metadata)
    granted, converted = _reserve(step, closing_need(step.agent, step.thread, request))
    if isinstance(granted, Denied) and granted.kind in WAIT_MS:
        # It holds no escrow any more, so it blocks nobody while it waits for what others give back.
        step.thread.closing = reason
        step.wait_for_money(granted, head=step.delta().head)
        return
    if isinstance(granted, Denied):
        end(step.thread, reason, "no money is left for a closing turn", kind="final_turn")
        spent = step.ledger.account(f"run:{step.lease.run_id}").tokens_spent
        step.finish(None, detail="closing_turn_lost" if spent else "not_admitted")
        return
    result = step.complete(request, granted, seconds=step.agent.closing_seconds)
    if isinstance(result, Exception):
        _failed(step, result, reason, granted, converted=converted)
        return
    result, cost, settlement = settle(step.agent, result, granted)
    step.snapshot.usage += result.usage
    apply_closing(step.agent, step.thread, reason, result, cost=cost)
    failpoint("step.after_closing")
    step.finish(settlement)


def _reserve(step: Step, need: Need) -> tuple[Granted | Denied, bool]:
    """The escrow as a reservation (and True), or a fresh one when it was never set or is already lost."""
    reservation = step.ledger.reservation(step.lease, step.requests + 1)
    step.unsent = Settlement(reservation, "restore")
    answer = step.ledger.convert(step.lease, step.requests + 1)
    converted = isinstance(answer, Granted)
    if answer is None:
        step.unsent = Settlement(reservation, "release")
        fresh = step.ledger.reserve(
            step.lease, step.requests + 1, usd=need.usd, tokens=need.tokens, escrow_usd=0, escrow_tokens=0
        )
        if isinstance(fresh, Denied):
            return fresh, False
        answer = fresh
    if not isinstance(answer, Granted):
        raise LeaseLostError(f"the ledger answered {answer}")
    step.requests += 1
    failpoint("step.after_convert")
    return answer, converted


def _failed(step: Step, error: Exception, reason: StopReason, granted: Granted, *, converted: bool) -> None:
    """A closing call that failed: tried again while it may be, else the run ends without an answer."""
    untouched = "restore" if converted else "release"
    settlement = Settlement(granted.reservation, "forfeit" if is_unclear(error) else untouched)
    step.thread.closing = reason
    if step.retried(error, settlement):
        return
    end(step.thread, reason, described(error), kind="final_turn")
    step.finish(settlement, detail="closing_turn_lost")
