"""A step and the rate limit that its call shares: it waits without a worker, and tells what it hears."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from agentq.core.records import Failure, Granted, Limit, Paced
from agentq.engine.failure import spread
from agentq.provider.client import named
from agentq.provider.errors import QuotaExceeded, RateLimited

if TYPE_CHECKING:
    from agentq.engine.step import Step
    from agentq.provider.types import Allowance, ChatResult, RateLimits
    from agentq.store.governor import Governor, Limits

log = logging.getLogger("agentq.pacing")

WAITS = "waits for the rate limit of"
STOPPED = "waits until there is quota again for"
"""How the words begin that a run has for what it waits for."""


def wait(step: Step, paced: Paced) -> None:
    """Give the step back until there is room. Where the account is empty the next model is asked, if any."""
    who = named(step.link)
    head = step.delta().head if step.thread.closing else None
    step.unsent = None
    position = step.chain.position(step.claim.failures)
    if paced.why == "quota" and position + 1 < len(step.chain.links):
        counts = (position + 1) * step.chain.attempts - step.claim.failures
        failed = Failure(f"provider_quota: {who} has been stopped", step.claim.unclear, counts)
        step.runs.release(step.lease, delay_ms=0, failed=failed, head=head, scope=step.stop_scope)
        step.bench.dispatch(step.lease.run_id, step.lease.step)
        return
    delay_ms = spread(paced.wait_ms) if paced.why == "quota" else max(1, paced.wait_ms)
    note = f"{STOPPED if paced.why == 'quota' else WAITS} {who}"
    # What it waits is not the run's time, and it may wait often; nor does its patience run out in a line.
    failing_ms = step.claim.failing_ms and step.claim.failing_ms + delay_ms
    step.runs.release(
        step.lease,
        delay_ms=delay_ms,
        head=head,
        scope=step.stop_scope,
        note=note,
        spent_ms=step.claim.spent_ms,
        failing_ms=failing_ms,
    )


def tell_failure(governor: Governor, granted: Granted, error: Exception) -> None:
    """Tell the fleet that a provider refuses calls for now, or that an account is empty."""
    if not granted.lane:
        return
    try:
        if isinstance(error, RateLimited):
            governor.hear_limited(
                granted.lane,
                taken=granted.lane_tokens,
                retry_after_s=error.retry_after_s,
                limits=_limits(error.limits),
            )
        elif isinstance(error, QuotaExceeded):
            governor.hear_quota(granted.lane, str(error))
    except Exception as trouble:  # noqa: BLE001 - what became of the call is to be booked all the same
        log.warning("governor_not_told lane=%s error=%r", granted.lane, trouble)


def tell_limits(governor: Governor, granted: Granted, result: ChatResult) -> None:
    """Tell the fleet of the limits that came with a reply."""
    limits: RateLimits | None = getattr(result, "limits", None)
    if not granted.lane or limits is None:
        return
    try:
        governor.hear_limits(granted.lane, _limits(limits))
    except Exception as trouble:  # noqa: BLE001 - the reply is to be kept all the same
        log.warning("governor_not_told lane=%s error=%r", granted.lane, trouble)


def _limits(said: RateLimits | None) -> Limits:
    return (None, None) if said is None else (_limit(said.requests), _limit(said.tokens))


def _limit(said: Allowance | None) -> Limit | None:
    if said is None:
        return None
    reset_ms = None if said.reset_s is None else round(said.reset_s * 1000)
    return Limit(said.limit, said.remaining, reset_ms)
