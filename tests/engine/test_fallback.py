"""A chain of models: each call is an attempt with its own reservation, and its use is an event."""

from __future__ import annotations

import pytest

from agentq.provider.errors import AuthError, InvalidRequest, QuotaExceeded, RateLimited, TransientError
from agentq.provider.resilient import ResilientClient, RetryPolicy
from tests.support.harness import PRICING, Moody, Rig, finish_or_fail, ready


def chain(first: Moody, second: Moody, attempts: int = 2) -> ResilientClient:
    return ResilientClient(first, [second], policy=RetryPolicy(max_attempts=attempts, total_deadline_s=600))


def pair(*, first: list[object], second: list[object] | None = None) -> tuple[Moody, Moody]:
    return (
        Moody(["from the first"], provider="one", moods=list(first)),
        Moody(["from the second"], provider="two", moods=list(second or [])),
    )


def test_a_link_is_tried_as_often_as_it_may_be_then_the_next_answers(rig: Rig):
    first, second = pair(first=[TransientError("503", billed=False)] * 2)
    rig.agent(chain(first, second))
    run = rig.submit()
    rig.step()
    assert rig.record(run).failures == 1
    ready(rig.store, run)
    rig.queue.append((run, 0))
    rig.step()
    # Nobody waits for another model.
    assert rig.queue == [(run, 0)]
    ready(rig.store, run)
    rig.step()
    record = rig.record(run)
    assert (record.stop_reason, record.answer) == ("finished", "from the second")
    assert (len(first.requests), len(second.requests)) == (2, 1)
    events = [(event.kind, event.detail) for event in rig.thread(run).trace]
    assert ("fallback", "one/scripted-v1 to two/scripted-v1") in events
    assert record.usd_nano == PRICING["scripted-v1"].cost_nano(second.usage)
    rig.check()


@pytest.mark.parametrize("error", [AuthError("no"), QuotaExceeded("no"), InvalidRequest("no")], ids=repr)
def test_what_no_wait_cures_goes_to_the_next_link_at_once(rig: Rig, error: Exception):
    first, second = pair(first=[error])
    rig.agent(chain(first, second, attempts=5))
    run = rig.submit()
    record = finish_or_fail(rig, run)
    assert (record.answer, len(first.requests), len(second.requests)) == ("from the second", 1, 1)
    rig.check()


def test_a_call_that_may_have_been_billed_is_charged_beside_that_of_the_fallback(rig: Rig):
    first, second = pair(first=[TransientError("the connection broke")])
    rig.agent(chain(first, second, attempts=1))
    run = rig.submit()
    record = finish_or_fail(rig, run)
    assert record.answer == "from the second"
    assert record.usd_nano >= first.bill_nano + second.bill_nano
    rig.check()


def test_when_every_link_has_failed_the_run_ends_with_what_the_last_one_said(rig: Rig):
    first, second = pair(first=[RateLimited("slow down")] * 9, second=[QuotaExceeded("no money")] * 9)
    rig.agent(chain(first, second))
    run = rig.submit()
    record = finish_or_fail(rig, run)
    assert (record.stop_reason, record.stop_detail) == ("model_error", "provider_quota: no money")
    assert (len(first.requests), len(second.requests)) == (2, 1)
    rig.check()


def test_the_next_step_begins_with_the_first_link_again(rig: Rig):
    first, second = pair(first=[AuthError("rotated"), None])
    first.script, second.script = ["from the first"], [[("look", "{}")], "unused"]
    rig.agent(chain(first, second))
    run = rig.submit()
    record = finish_or_fail(rig, run)
    assert (record.answer, record.steps) == ("from the first", 2)
    rig.check()
