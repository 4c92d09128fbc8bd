"""A step whose model shares a rate limit: it waits without a worker, and what one hears all know."""

from __future__ import annotations

from dataclasses import dataclass, replace

from agentq.agent import Budgets
from agentq.provider.errors import AuthError, QuotaExceeded, RateLimited
from agentq.provider.resilient import ResilientClient, RetryPolicy
from agentq.provider.types import Allowance, RateLimits
from tests.support.harness import Moody, Rig, finish_or_fail, ready

LANE = "test:k1:scripted-v1"


@dataclass
class Laned(Moody):
    """A model that shares a rate limit."""

    lane: str = LANE


def test_a_call_takes_from_its_lane_and_its_commit_corrects_it(rig: Rig):
    client = Laned(["done"])
    rig.agent(client)
    run = rig.submit()
    rig.drain()
    assert rig.record(run).stop_reason == "finished"
    lane = rig.store.client.hgetall(rig.store.keys.lane(LANE))
    assert float(lane["t_n"]) == client.usage.total_tokens
    assert float(lane["output"]) == client.usage.output_tokens
    rig.check()


def test_a_refusal_of_one_run_makes_another_wait_without_a_call(rig: Rig):
    client = Laned(["done"], moods=[RateLimited("slow down", retry_after_s=30)])
    rig.agent(client)
    first, second = rig.submit("a"), rig.submit("b")
    rig.drain()
    assert len(client.requests) == 1
    record = rig.record(second)
    assert (record.state, record.failures, record.last_error) == (
        "queued",
        0,
        "waits for the rate limit of scripted/scripted-v1",
    )
    assert rig.store.watch.live()[second] - rig.store.watch.server_ms() > 14_000
    assert rig.store.ledger.open_reservations(second) == {}
    rig.store.client.delete(rig.store.keys.lane(LANE))
    for run in (first, second):
        ready(rig.store, run)
        rig.queue.append((run, 0))
    rig.drain()
    assert {rig.record(run).stop_reason for run in (first, second)} == {"finished"}
    rig.check()


def test_an_empty_account_ends_the_run_that_met_it_and_the_others_wait(rig: Rig):
    client = Laned(["done"], moods=[QuotaExceeded("no money")])
    rig.agent(client)
    first, second = rig.submit("a"), rig.submit("b")
    rig.drain()
    ended = rig.record(first)
    assert (ended.stop_reason, ended.stop_detail) == ("model_error", "provider_quota: no money")
    assert rig.record(second).last_error == "waits until there is quota again for scripted/scripted-v1"
    assert len(client.requests) == 1
    assert rig.store.governor.resume("test:k1", by="ann")
    assert finish_or_fail(rig, second).stop_reason == "finished"
    rig.check()


def test_while_an_account_is_empty_its_fallback_is_asked_at_once(rig: Rig):
    primary = Laned(["no"], moods=[QuotaExceeded("no money")])
    second = Moody(["from the second"], provider="two")
    rig.agent(ResilientClient(primary, [second], policy=RetryPolicy(max_attempts=3)))
    runs = [rig.submit("a"), rig.submit("b")]
    assert [finish_or_fail(rig, run).answer for run in runs] == ["from the second"] * 2
    assert len(primary.requests) == 1
    rig.check()


def test_limits_that_come_with_a_reply_are_known_to_the_fleet(rig: Rig):
    client = Laned(["done"])
    reply = client._play  # the reply of the script, with what a provider adds

    def named(request):
        return replace(
            reply(request), limits=RateLimits(Allowance(600, 599, 0.1), Allowance(60_000, 59_000, 1.0))
        )

    client.moods = [named]
    rig.agent(client)
    rig.submit()
    rig.drain()
    (lane,) = rig.store.governor.lanes()
    assert lane.is_named
    assert lane.requests_a_minute is not None
    assert 570 <= lane.requests_a_minute <= 600


def test_a_closing_turn_that_has_to_wait_keeps_that_it_is_closing(rig: Rig):
    client = Laned([[("look", "{}")], "closed"])
    rig.agent(client, budgets=Budgets(max_steps=1))
    run = rig.submit()
    rig.step()
    rig.store.governor.hear_limited(LANE, taken=0, retry_after_s=60)
    rig.drain()
    assert rig.record(run).state == "queued"
    assert "escrow" in rig.store.ledger.open_reservations(run)
    rig.store.client.delete(rig.store.keys.lane(LANE))
    record = finish_or_fail(rig, run)
    assert (record.stop_reason, record.answer) == ("step_budget", "closed")
    rig.check()


def test_without_a_key_there_is_no_lane_and_the_call_says_what_is_missing(rig: Rig):
    class Keyless(Moody):
        @property
        def lane(self) -> str:
            raise AuthError("OPENAI_API_KEY is not set")

    rig.agent(Keyless(["x"], moods=[AuthError("OPENAI_API_KEY is not set")]))
    run = rig.submit()
    rig.drain()
    assert rig.record(run).stop_detail == "provider_auth: OPENAI_API_KEY is not set"
    rig.check()


def test_a_governor_that_cannot_be_told_loses_no_paid_reply(rig: Rig, monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("not now")

    client = Laned(["done"])
    monkeypatch.setattr(type(rig.store.governor), "hear_limits", broken)
    rig.agent(client)
    run = rig.submit()
    rig.drain()
    assert rig.record(run).stop_reason == "finished"


def test_what_a_run_waits_in_line_does_not_use_up_its_patience(rig: Rig):
    client = Laned(["done"], moods=[RateLimited("slow down", retry_after_s=60)])
    rig.agent(client)
    run = rig.submit()
    rig.drain()
    key = rig.store.keys.run(run)
    since = int(rig.store.client.hget(key, "failing") or 0)
    ready(rig.store, run)
    rig.queue.append((run, 0))
    rig.drain()
    record = rig.record(run)
    assert (record.last_error, record.failures) == ("waits for the rate limit of scripted/scripted-v1", 1)
    assert int(rig.store.client.hget(key, "failing") or 0) - since > 10_000
