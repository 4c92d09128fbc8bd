"""A step on a real server with a scripted model: from the claim to the commit, and every way out of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import redis

from agentq.agent import Budgets, LoopDetector, Thread
from agentq.core.failpoints import FailpointError
from agentq.core.lifecycle import StopReason
from agentq.core.records import Actor, Parked
from agentq.engine.cancel import cancel_run
from agentq.provider.errors import InvalidRequest, RateLimited, TransientError
from agentq.provider.types import ChatRequest, ChatResult, Role, Usage
from agentq.tools import call_signature, tool
from tests.support.harness import (
    CALL_NANO,
    CALL_TOKENS,
    Moody,
    Rig,
    age,
    due,
    finish_or_fail,
    make_agent,
    money,
    open_batch,
    ready,
    state_of,
)

ONE = [("look", '{"id": "1"}')]
TWO = [("look", '{"id": "2"}')]
FREE = Budgets(max_steps=20, max_tokens=None, max_usd=None)


@tool
def look(id: str) -> str:
    """Look something up."""
    return f"thing {id}"


@tool
def fail() -> str:
    """Never work."""
    raise RuntimeError("broken")


@tool(side_effect=True, requires_approval=True)
def refund(order: str) -> str:
    """Give money back."""
    raise AssertionError("nobody has approved this")


def dollars(calls: int) -> str:
    return f"{CALL_NANO * calls / 10**9:.4f}"


def says(thread: Thread) -> list[tuple[str, str]]:
    return [(message.role.value, message.content) for message in thread.messages]


def assistants(thread: Thread) -> int:
    return sum(message.role is Role.ASSISTANT for message in thread.messages)


# ── from submit to answer ────────────────────────────────────────────────────────────────────────────


def test_a_run_goes_from_submit_to_answer(rig: Rig):
    client = Moody([ONE, TWO, "done"])
    rig.agent(client, look)
    run = rig.submit("hello")
    assert rig.queue == [(run, 0)]
    rig.step()
    assert rig.queue == [(run, 1)]
    rig.check()
    rig.drain()
    record = rig.record(run)
    assert (record.state, record.stop_reason, record.answer) == ("ended", "finished", "done")
    assert (record.steps, record.step, record.attempts) == (3, 2, 1)
    assert (record.usd_nano, record.tokens) == (3 * CALL_NANO, 3 * CALL_TOKENS)
    assert (record.input_tokens, record.output_tokens) == (1500, 300)
    assert [message.role.value for message in rig.thread(run).messages] == [
        "user", "assistant", "tool", "assistant", "tool", "assistant",
    ]  # fmt: skip
    kinds = [event.kind for event in rig.thread(run).trace]
    assert kinds == ["step", "tool_result", "step", "tool_result", "step", "finished"]
    assert all(event.at for event in rig.thread(run).trace)
    assert client.bill_nano == record.usd_nano
    rig.check()


def test_the_same_message_twice_does_the_step_once(rig: Rig):
    client = Moody([ONE, "done"])
    rig.agent(client, look)
    run = rig.submit()
    rig.queue += [(run, 0)] * 2
    rig.drain()
    assert client.call_count == 2
    rig.queue += [(run, 0), (run, 1), (run, 9), ("run_nobody", 0)]
    rig.drain()
    assert client.call_count == 2
    rig.check()


def test_what_the_tools_see_is_the_row_s_context(rig: Rig):
    seen: list[Any] = []

    @tool
    def who(ctx: Any, user_id: str) -> str:
        """Say for whom this is."""
        seen.append((user_id, ctx.tenant_id, dict(ctx.extra), ctx.run_id))
        return "ok"

    rig.agent(Moody([[("who", "{}")], "done"]), who)
    run = rig.submit(context={"user_id": "u1", "plan": "gold"})
    rig.drain()
    assert seen == [("u1", "acme", {"plan": "gold"}, run)]


def test_the_row_s_metadata_reaches_the_client(rig: Rig):
    client = Moody()
    rig.agent(client, look)
    run = rig.submit(metadata={"script": ["hi"]})
    rig.drain()
    assert rig.record(run).answer == "hi"
    assert client.requests[0].metadata == {"script": ["hi"]}


# ── crashes ──────────────────────────────────────────────────────────────────────────────────────────

POINTS = {
    "step.after_claim": 0,
    "step.after_reserve": 1,
    "step.after_model": 1,
    "step.after_model_commit": 0,
    "step.after_tools": 0,
    "step.after_commit": 0,
}
"""Where a worker dies, and how many calls the books then charge without a reply to show for it."""


@pytest.mark.parametrize("point", POINTS)
def test_a_worker_that_dies_anywhere_costs_at_most_its_call_and_no_message(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, point: str
):
    client = Moody([ONE, TWO, "done"])
    rig.agent(client, look)
    run = rig.submit()
    monkeypatch.setenv("AGENTQ_FAILPOINTS", f"{point}=raise")
    with pytest.raises(FailpointError):
        rig.step()
    rig.check()
    monkeypatch.delenv("AGENTQ_FAILPOINTS")
    if state_of(rig.store, run) == "running":
        assert [(done.verdict, done.step) for done in rig.revive(run)] == [("RESCUED", 0)]
        rig.check()
    record = finish_or_fail(rig, run)
    assert (record.stop_reason, record.steps, record.answer) == ("finished", 3, "done")
    assert assistants(rig.thread(run)) == 3
    assert record.usd_nano == (3 + POINTS[point]) * CALL_NANO >= client.bill_nano
    rig.check()


@pytest.mark.parametrize("point", ["step.after_convert", "step.after_closing"])
def test_a_worker_that_dies_in_the_closing_turn_loses_it_only_where_it_cannot_be_paid_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, point: str
):
    client = Moody([ONE, "closing words"])
    rig.agent(client, look)
    rich = rig.submit(budgets=Budgets(max_steps=1, max_tokens=None, max_usd=None))
    poor = rig.submit(budgets=Budgets(max_steps=1, max_tokens=None, max_usd=dollars(2)))
    rig.step()
    rig.step()
    monkeypatch.setenv("AGENTQ_FAILPOINTS", f"{point}=raise")
    for run in (rich, poor):
        with pytest.raises(FailpointError):
            rig.step()
        rig.revive(run)
    monkeypatch.delenv("AGENTQ_FAILPOINTS")
    ended = finish_or_fail(rig, rich)
    assert (ended.stop_reason, ended.answer, ended.usd_nano) == (
        "step_budget",
        "closing words",
        3 * CALL_NANO,
    )
    ended = finish_or_fail(rig, poor)
    assert (ended.stop_reason, ended.answer, ended.usd_nano) == ("step_budget", None, 2 * CALL_NANO)
    assert ended.stop_detail == "closing_turn_lost"
    assert sum(rig.record(run).usd_nano for run in (rich, poor)) >= client.bill_nano
    rig.check()


def test_a_lost_message_is_sent_again(rig: Rig):
    rig.agent(Moody([ONE, "done"]), look)
    run = rig.submit()
    rig.queue.clear()
    age(rig.store, run)
    assert rig.rescue() == []
    assert rig.queue == [(run, 0)]
    rig.drain()
    assert rig.record(run).stop_reason == "finished"


def test_a_side_effect_that_is_committed_is_not_repeated_by_a_rescued_worker(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    acted: list[str] = []

    @tool(side_effect=True)
    def pay(ctx: Any, amount: int) -> str:
        """Pay."""
        acted.append(ctx.idempotency_key)
        return f"paid {amount}"

    client = Moody([[("pay", '{"amount": 5}')], [("pay", '{"amount":5}')], "done"])
    rig.agent(client, pay)
    run = rig.submit()
    rig.step()
    rig.die(monkeypatch, "step.after_tools")
    rig.revive(run)
    finish_or_fail(rig, run)
    signature = call_signature("pay", '{"amount": 5}')
    assert acted == [f"{run}:{signature}"]
    assert rig.thread(run).tool_results == {signature: "paid 5"}
    results = [m.content for m in rig.thread(run).messages if m.role is Role.TOOL]
    assert ['"cached": true' in content for content in results] == [False, True]


def test_a_frozen_worker_that_thaws_changes_no_thread_and_its_bill_is_booked_once(rig: Rig):
    client = Moody([ONE, "done"])
    rig.agent(client, look)
    run = rig.submit()

    def freeze(request: ChatRequest) -> None:
        rig.revive(run)
        rig.drain()
        assert state_of(rig.store, run) == "ended"

    client.moods = [freeze]
    rig.step()
    record = rig.record(run)
    assert (record.stop_reason, record.steps) == ("finished", 2)
    assert assistants(rig.thread(run)) == 2
    assert record.usd_nano == client.bill_nano == 3 * CALL_NANO
    assert rig.store.ledger.account("global").forfeited_nano == 0
    assert rig.queue == []
    rig.check()


# ── the ends that have a closing turn ────────────────────────────────────────────────────────────────

SAME = [ONE, ONE, ONE, "closing words"]
FAILING = [[("fail", '{"n": 1}')], [("fail", "{}")], [("nothing", "{}")], [("look", "{}")], "closing words"]
CLOSINGS: dict[str, tuple[list[Any], Budgets, StopReason]] = {
    "steps": (
        [ONE, TWO, "closing words"],
        Budgets(max_steps=2, max_tokens=None, max_usd=dollars(3)),
        StopReason.STEP_BUDGET,
    ),
    "tokens": (
        [ONE, TWO, "closing words"],
        Budgets(max_tokens=3 * CALL_TOKENS, max_usd=None),
        StopReason.TOKEN_BUDGET,
    ),
    "cost": (
        [ONE, TWO, "closing words"],
        Budgets(max_tokens=None, max_usd=dollars(3)),
        StopReason.COST_BUDGET,
    ),
    "tokens and cost at once": (
        [ONE, TWO, "closing words"],
        Budgets(max_tokens=3 * CALL_TOKENS, max_usd=dollars(3)),
        StopReason.TOKEN_BUDGET,
    ),
    "only the closing turn fits": (
        ["closing words"],
        Budgets(max_tokens=CALL_TOKENS, max_usd=None),
        StopReason.TOKEN_BUDGET,
    ),
    "loop": (SAME, Budgets(max_tokens=None, max_usd=dollars(4)), StopReason.LOOP_DETECTED),
    "errors": (FAILING, Budgets(max_tokens=None, max_usd=dollars(5)), StopReason.TOOL_ERROR_CEILING),
}


@pytest.mark.parametrize("name", CLOSINGS)
def test_a_run_that_is_stopped_gets_its_closing_turn_inside_its_ceiling(rig: Rig, name: str):
    script, budgets, reason = CLOSINGS[name]
    client = Moody(script)
    rig.agent(client, look, fail)
    run = rig.submit(budgets=budgets)
    for _ in range(20):
        if rig.queue:
            rig.step()
            rig.check()
    record = rig.record(run)
    assert (record.stop_reason, record.answer, record.stop_detail) == (reason, "closing words", None)
    assert record.stop_scope is None
    assert (client.requests[-1].tool_choice, client.requests[-1].tools) == ("none", ())
    assert f"({reason.value})" in client.requests[-1].messages[-1].content
    assert record.usd_nano == client.bill_nano
    account = rig.store.ledger.account(f"run:{run}")
    assert account.limit_nano is None or account.spent_nano <= account.limit_nano
    assert account.tokens_limit is None or account.tokens_spent <= account.tokens_limit
    assert account.overage_nano == 0


FOUR: list[Any] = [ONE, TWO, [("look", '{"id": "3"}')], [("look", '{"id": "4"}')], "done"]


@pytest.mark.parametrize(
    "budgets, more",
    [
        (Budgets(max_tokens=None, max_usd=dollars(3)), {"usd": 3 * CALL_NANO}),
        (Budgets(max_tokens=3 * CALL_TOKENS, max_usd=None), {"tokens": 3 * CALL_TOKENS}),
    ],
    ids=["usd", "tokens"],
)
def test_a_run_whose_own_limit_is_raised_goes_on(rig: Rig, budgets: Budgets, more: dict[str, int]):
    rig.agent(Moody(FOUR), look)
    run = rig.submit(budgets=budgets)
    rig.step()
    rig.store.ledger.topup(f"run:{run}", actor=Actor("op", "boss"), **more)
    rig.drain()
    record = rig.record(run)
    assert (record.stop_reason, record.answer, record.steps) == (StopReason.FINISHED, "done", 5)
    rig.check()


def test_a_run_whose_own_limit_is_lowered_or_taken_away_heeds_that(rig: Rig):
    rig.agent(Moody([ONE, "closing words"]), look)
    run = rig.submit(budgets=Budgets(max_tokens=None, max_usd=dollars(9)))
    rig.step()
    rig.store.ledger.set_limit(f"run:{run}", usd=CALL_NANO, actor=Actor("op", "boss"))
    rig.drain()
    assert rig.record(run).stop_reason == StopReason.COST_BUDGET
    rig.agent(Moody(FOUR), look)
    run = rig.submit(budgets=Budgets(max_tokens=None, max_usd=dollars(2)))
    rig.store.ledger.set_limit(f"run:{run}", usd=None, actor=Actor("op2", "boss"))
    rig.drain()
    assert rig.record(run).stop_reason == StopReason.FINISHED


# ── a dry scope ──────────────────────────────────────────────────────────────────────────────────────


def test_a_batch_that_is_dry_closes_its_runs_that_stop_and_is_named(rig: Rig):
    client = Moody([ONE, TWO, "closing words"])
    rig.agent(client, look, budgets=FREE, on_exhausted="stop")
    open_batch(rig.store, usd=3 * CALL_NANO)
    run = rig.submit(batch="b1")
    rig.drain()
    record = rig.record(run)
    assert (record.stop_reason, record.answer) == ("cost_budget", "closing words")
    assert record.stop_scope == "batch:b1"
    assert rig.store.ledger.account("batch:b1").spent_nano == 3 * CALL_NANO
    rig.check()


def test_a_run_that_a_dry_batch_never_admitted_ends_without_an_answer_and_without_a_call(rig: Rig):
    client = Moody([ONE, "done"])
    rig.agent(client, look, budgets=FREE, on_exhausted="stop")
    open_batch(rig.store, usd=2 * CALL_NANO)
    first, second = rig.submit(batch="b1"), rig.submit(batch="b1")
    rig.drain()
    assert rig.record(first).usd_nano == 2 * CALL_NANO
    record = finish_or_fail(rig, second)
    assert (record.stop_reason, record.answer, record.stop_detail) == ("cost_budget", None, "not_admitted")
    assert (record.stop_scope, record.usd_nano, record.steps) == ("batch:b1", 0, 0)
    assert client.call_count == 2
    rig.check()


def test_a_run_waits_for_money_that_a_call_in_flight_may_give_back(rig: Rig):
    """It is parked while the other one calls, and woken when that one ends and gives back its escrow."""
    client = Moody(["done"])
    rig.agent(client, look, budgets=FREE)
    open_batch(rig.store, usd=3 * CALL_NANO)
    first, second = rig.submit(batch="b1"), rig.submit(batch="b1")

    def meanwhile(request: ChatRequest) -> None:
        rig.step()
        record = rig.record(second)
        assert (record.state, record.parked) == ("parked", Parked("batch:b1", "usd", "wait"))
        rig.check()

    client.moods = [meanwhile]
    rig.step()
    assert rig.record(first).stop_reason == "finished"
    record = rig.record(second)
    assert (record.state, record.parked, record.failures) == ("queued", None, 0)
    assert (rig.queue, client.call_count) == ([], 1)
    rig.check()
    assert rig.rescue() == []
    assert rig.queue == [(second, 0)]
    rig.drain()
    assert rig.record(second).stop_reason == "finished"
    assert client.bill_nano == 2 * CALL_NANO
    rig.check()


# ── a model that fails ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "error, spent, most", [(RateLimited("slow down"), 0, 8), (TransientError("cut off"), CALL_NANO, 3)]
)
def test_a_failing_model_is_asked_again_ever_later_and_at_last_ends_the_run(
    rig: Rig, error: Exception, spent: int, most: int
):
    client = Moody(["done"], moods=[error] * most)
    rig.agent(client, look, budgets=FREE)
    run = rig.submit()
    for attempt in range(1, most):
        before = rig.store.watch.server_ms()
        rig.step()
        after = rig.store.watch.server_ms()
        wanted = 500 * 2 ** (attempt - 1)
        assert before + wanted <= rig.store.watch.live()[run] <= after + wanted + min(wanted // 2, 2_000)
        assert rig.record(run).usd_nano == attempt * spent
        assert rig.queue == []
        rig.check()
        ready(rig.store, run)
        rig.rescue()
    rig.step()
    record = rig.record(run)
    assert (record.stop_reason, record.answer) == ("model_error", None)
    assert record.stop_detail == f"{type(error).__name__}: {error}"
    assert record.usd_nano == most * spent == client.bill_nano
    assert says(rig.thread(run)) == [("user", "do it")]
    rig.check()


def test_a_success_begins_the_count_of_failures_again(rig: Rig):
    client = Moody([ONE, TWO, "done"])
    client.moods = [TransientError("a"), TransientError("b"), None, TransientError("c"), TransientError("d")]
    rig.agent(client, look, budgets=FREE)
    record = finish_or_fail(rig, rig.submit())
    assert record.stop_reason == "finished"
    assert record.usd_nano == client.bill_nano == 7 * CALL_NANO
    rig.check()


def test_a_provider_s_own_advice_to_wait_is_followed(rig: Rig):
    rig.agent(Moody(["done"], moods=[RateLimited("slow", retry_after_s=30)]), look)
    run = rig.submit()
    before = rig.store.watch.server_ms()
    rig.step()
    after = rig.store.watch.server_ms()
    assert before + 30_000 <= rig.store.watch.live()[run] <= after + 32_000


@pytest.mark.parametrize(
    "error, spent", [(InvalidRequest("no such model"), 0), (ValueError("a bug"), CALL_NANO)]
)
def test_an_error_that_stays_ends_the_run_at_once(rig: Rig, error: Exception, spent: int):
    client = Moody(["done"], moods=[error])
    rig.agent(client, look)
    run = rig.submit()
    rig.drain()
    record = rig.record(run)
    assert (record.stop_reason, record.usd_nano) == ("model_error", spent)
    assert str(error) in (record.stop_detail or "")
    assert money(rig.store, f"run:{run}").get("uf", 0) == spent
    rig.check()


def test_a_closing_turn_that_may_have_been_billed_is_lost_where_no_other_can_be_paid(rig: Rig):
    client = Moody([ONE, "never said"], moods=[None, TransientError("cut off")])
    rig.agent(client, look)
    run = rig.submit(budgets=Budgets(max_steps=1, max_tokens=None, max_usd=dollars(2)))
    record = finish_or_fail(rig, run)
    assert (record.stop_reason, record.answer) == ("step_budget", None)
    assert (record.stop_detail, record.usd_nano) == ("closing_turn_lost", 2 * CALL_NANO)
    assert client.call_count == 2
    rig.check()


def test_a_closing_turn_that_was_turned_away_is_tried_again_with_the_same_money(rig: Rig):
    client = Moody([ONE, "closing words"], moods=[None, RateLimited("a"), RateLimited("b")])
    rig.agent(client, look)
    run = rig.submit(budgets=Budgets(max_steps=1, max_tokens=None, max_usd=dollars(2)))
    rig.step()
    rig.step()
    assert money(rig.store, f"run:{run}") == {"us": CALL_NANO, "ts": 600, "ue": CALL_NANO, "te": 600}
    rig.check()
    record = finish_or_fail(rig, run)
    assert (record.stop_reason, record.answer, record.usd_nano) == (
        "step_budget",
        "closing words",
        2 * CALL_NANO,
    )
    rig.check()


def test_a_closing_turn_tried_again_still_names_the_scope_that_was_dry(rig: Rig):
    client = Moody([ONE, "closing words"], moods=[None, RateLimited("a")])
    rig.agent(client, look, budgets=FREE, on_exhausted="stop")
    open_batch(rig.store, usd=2 * CALL_NANO)
    record = finish_or_fail(rig, rig.submit(batch="b1"))
    assert (record.stop_reason, record.answer) == ("cost_budget", "closing words")
    assert record.stop_scope == "batch:b1"


# ── a person, another worker, a clock ────────────────────────────────────────────────────────────────


def test_a_gated_call_holds_the_whole_step_and_shows_what_is_asked(rig: Rig):
    looked: list[str] = []

    @tool
    def peek(id: str) -> str:
        """Look."""
        looked.append(id)
        return "seen"

    arguments = '{"order": "o1"}'
    rig.agent(Moody([[("peek", '{"id": "1"}'), ("refund", arguments)], "done"]), peek, refund)
    run = rig.submit()
    before = rig.store.watch.server_ms()
    rig.drain()
    record = rig.record(run)
    assert (record.state, record.stop_reason, record.phase) == ("waiting", None, "tools")
    assert looked == []
    assert len(record.pending) == 1
    waits = record.pending[0]
    assert (waits.tool, waits.arguments) == ("refund", arguments)
    assert waits.signature == call_signature("refund", arguments)
    assert waits.id == rig.thread(run).messages[-1].tool_calls[1].id
    assert rig.thread(run).pending_approvals == [waits.signature]
    assert abs(waits.asked_at_ms - before) < 5_000
    assert before + 60_000 <= waits.deadline_ms <= rig.store.watch.server_ms() + 60_000
    escrow = {"ue": CALL_NANO, "te": 600, "ui": CALL_NANO, "ti": 600}
    assert money(rig.store, f"run:{run}") == {"us": CALL_NANO, "ts": 600} | escrow
    rig.check()
    assert cancel_run(rig.store, run, by="me")
    record = rig.record(run)
    assert (record.stop_reason, record.pending, record.usd_nano) == ("cancelled", (), CALL_NANO)
    rig.check()


def test_a_gated_call_is_shown_also_where_other_calls_were_too_many(rig: Rig):
    calls = [("refund", '{"order": "o1"}'), *ONE, *TWO]
    rig.agent(Moody([calls, "done"]), look, refund, max_calls_per_step=2)
    run = rig.submit()
    rig.drain()
    record = rig.record(run)
    assert record.state == "waiting"
    assert [call.tool for call in record.pending] == ["refund"]


def test_a_worker_that_does_not_know_the_agent_leaves_the_run_to_others(rig: Rig):
    client = Moody(["done"])
    rig.agent(client, look)
    run = rig.submit()
    agents, rig.agents = rig.agents, {}
    before = rig.store.watch.server_ms()
    rig.step()
    record = rig.record(run)
    assert (record.state, record.usd_nano, record.attempts) == ("queued", 0, 1)
    assert before + 5_000 <= rig.store.watch.live()[run] <= rig.store.watch.server_ms() + 7_000
    assert record.last_error == "waits for a worker that knows agent 'a'"
    rig.check()
    rig.agents = agents
    assert finish_or_fail(rig, run).stop_reason == "finished"
    assert client.call_count == 1


@pytest.mark.parametrize("closing", [False, True])
def test_with_a_lease_that_was_not_renewed_in_time_no_call_is_made_and_nothing_is_charged(
    rig: Rig, closing: bool
):
    client = Moody([ONE, "done"])
    rig.agent(
        client, look, budgets=Budgets(max_steps=1 if closing else 5, max_usd=dollars(2 if closing else 9))
    )
    run = rig.submit()
    if closing:
        rig.step()
    calls, spent = client.call_count, rig.record(run).usd_nano
    rig.clock.jump = 13.0
    rig.step()
    rig.clock.jump = 0.0
    assert client.call_count == calls
    record = rig.record(run)
    assert (record.state, record.usd_nano) == ("queued", spent)
    assert rig.queue == []
    rig.check()
    record = finish_or_fail(rig, run)
    assert (record.stop_reason, record.answer) == ("step_budget" if closing else "finished", "done")
    assert record.usd_nano == client.bill_nano
    rig.check()


def test_a_run_that_is_cancelled_during_its_call_ends_with_its_bill_and_without_the_reply(rig: Rig):
    client = Moody([ONE, "done"])
    rig.agent(client, look)
    run = rig.submit()
    client.moods = [lambda request: rig.store.runs.cancel(run, "me") and None]
    rig.step()
    record = rig.record(run)
    assert (record.state, record.stop_reason, record.stop_detail) == ("ended", "cancelled", "cancelled by me")
    assert (record.usd_nano, record.steps) == (CALL_NANO, 0)
    assert says(rig.thread(run)) == [("user", "do it")]
    assert rig.queue == []
    rig.check()


def test_a_run_that_is_cancelled_during_its_tools_keeps_the_reply_that_asked_for_them(rig: Rig):
    cancel: list[Callable[[], Any]] = []

    @tool
    def act() -> str:
        """Act."""
        cancel[0]()
        return "acted"

    rig.agent(Moody([[("act", "{}")], "done"]), act)
    run = rig.submit()
    cancel.append(lambda: rig.store.runs.cancel(run, "me"))
    rig.step()
    record = rig.record(run)
    assert (record.stop_reason, record.usd_nano, rig.queue) == ("cancelled", CALL_NANO, [])
    assert [message.role for message in rig.thread(run).messages] == [Role.USER, Role.ASSISTANT]
    rig.check()


def test_a_run_that_has_used_its_time_closes(rig: Rig):
    client = Moody([ONE, "closing words"])
    rig.agent(client, look, budgets=Budgets(max_seconds=60, max_usd=None))
    run = rig.submit()
    rig.step()
    rig.store.client.hset(rig.store.keys.run(run), "ms", 60_000)
    rig.drain()
    assert (rig.record(run).stop_reason, rig.record(run).answer) == ("time_budget", "closing words")
    rig.check()


def test_a_call_that_costs_more_than_its_bound_is_booked_whole(rig: Rig):
    client = Moody(["x"], moods=[ChatResult("done", Usage(5000, 1000), "scripted", "scripted-v1")])
    rig.agent(client, look)
    run = rig.submit()
    rig.drain()
    assert rig.record(run).usd_nano == 10 * CALL_NANO
    assert money(rig.store, f"run:{run}")["uo"] == 9 * CALL_NANO
    rig.check(capped=False)


def test_a_reply_without_usage_is_booked_at_what_was_reserved(rig: Rig):
    reply = ChatResult("done", None, "scripted", "scripted-v1")  # type: ignore[arg-type]
    client = Moody(["x"], moods=[reply])
    rig.agent(client, look)
    run = rig.submit()
    rig.drain()
    record = rig.record(run)
    assert (record.answer, record.usd_nano, record.tokens) == ("done", CALL_NANO, CALL_TOKENS)
    rig.check()


# ── the same run in one process ──────────────────────────────────────────────────────────────────────

EXCESS = [[("look", f'{{"id": "{n}"}}') for n in range(40)], "done"]
SCRIPTS: dict[str, tuple[list[Any], Budgets]] = {
    **{name: (script, budgets) for name, (script, budgets, _) in CLOSINGS.items()},
    "answer": (["done"], FREE),
    "two tools": ([[*ONE, *TWO], "done"], FREE),
    "too many calls": (EXCESS, FREE),
    "bad calls": ([[("look", "{"), ("nobody", "{}"), ("look", '{"no": 1}')], "done"], FREE),
    "warned once": ([ONE, ONE, "done"], FREE),
    "tools in the closing turn": ([ONE, TWO], Budgets(max_steps=1, max_tokens=None)),
    "empty answer": ([""], FREE),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_same_script_is_the_same_run_in_one_process_and_distributed(rig: Rig, name: str):
    script, budgets = SCRIPTS[name]
    alone = make_agent(Moody(script), look, fail, budgets=budgets, max_calls_per_step=8)
    inside = alone.run(Thread(detector=LoopDetector()), "do it")
    rig.agent(Moody(script), look, fail, budgets=budgets, max_calls_per_step=8)
    run = rig.submit("do it")
    rig.drain()
    record, thread = rig.record(run), rig.thread(run)
    assert [m.as_dict() for m in thread.messages] == [m.as_dict() for m in inside.thread.messages]
    assert (record.stop_reason, record.answer or "") == (inside.stop_reason, inside.answer)
    assert record.steps == inside.thread.spend.steps
    assert record.tokens == inside.thread.spend.tokens
    assert record.usd_nano == inside.thread.spend.usd * 10**9
    assert thread.detector == inside.thread.detector
    assert thread.spend.tool_errors == inside.thread.spend.tool_errors
    assert [(e.kind, e.detail, e.ok, e.step) for e in thread.trace] == [
        (e.kind, e.detail, e.ok, e.step) for e in inside.thread.trace
    ]
    rig.check()


def test_the_detector_s_counts_survive_a_reload_between_any_two_steps(rig: Rig):
    asked = [ONE, TWO, [*ONE, *TWO]]
    detector = LoopDetector()
    rig.agent(Moody([*asked, "done"]), look)
    run = rig.submit()
    for calls in asked:
        rig.step()
        for name, arguments in calls:
            detector.observe(call_signature(name, arguments), look(**json.loads(arguments)))
        assert rig.thread(run).detector == detector


def test_hints_of_a_tick_are_steps_that_exist(rig: Rig):
    rig.agent(Moody([ONE, "done"]), look)
    run = rig.submit()
    rig.step()
    age(rig.store, run)
    assert due(rig.store).hints == [(run, 1)]


def test_with_a_lease_that_ran_out_during_the_call_the_reply_is_kept_and_no_tool_acts(rig: Rig):
    acted: list[str] = []

    @tool(side_effect=True)
    def act() -> str:
        """Act."""
        acted.append("once")
        return "acted"

    client = Moody([[("act", "{}")], "done"])
    rig.agent(client, act)
    run = rig.submit()

    def dawdle(request: ChatRequest) -> None:
        rig.clock.seconds += 13

    client.moods = [dawdle]
    rig.step()
    record = rig.record(run)
    assert (record.state, record.phase, record.usd_nano, acted) == ("queued", "tools", CALL_NANO, [])
    rig.check()
    record = finish_or_fail(rig, run)
    assert (record.stop_reason, record.usd_nano, acted) == ("finished", 2 * CALL_NANO, ["once"])
    assert client.bill_nano == record.usd_nano
    rig.check()


def test_a_lease_lost_before_the_call_charges_nothing_although_the_step_was_taken_back(rig: Rig):
    client = Moody(["done"])
    rig.agent(client, look)
    run = rig.submit()
    reserve = rig.bench.store.ledger.reserve

    def outpaced(*args: Any, **kwargs: Any) -> Any:
        granted = reserve(*args, **kwargs)
        rig.clock.seconds += 16
        assert rig.revive(run)
        assert rig.record(run).usd_nano == CALL_NANO
        return granted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rig.store.ledger, "reserve", outpaced)
        rig.step()
    assert client.call_count == 0
    assert rig.record(run).usd_nano == 0
    rig.check()
    assert finish_or_fail(rig, run).usd_nano == CALL_NANO


# ── what is no outcome of a call ─────────────────────────────────────────────────────────────────────


def test_a_client_whose_bound_is_broken_ends_the_run_after_eight_tries_and_costs_nothing(rig: Rig):
    class Broken(Moody):
        def bound(self, req: ChatRequest) -> Usage:
            if rig.submitted:
                raise ZeroDivisionError("no bound")
            return super().bound(req)

    client = Broken(["done"])
    rig.agent(client, look)
    run = rig.submit("hello")
    for tries in range(1, 8):
        rig.step()
        record = rig.record(run)
        assert (record.state.value, record.failures, record.last_error) == (
            "queued",
            tries,
            "ZeroDivisionError: no bound",
        )
        ready(rig.store, run)
        rig.queue.append((run, 0))
    rig.step()
    record = rig.record(run)
    assert record.stop_reason is StopReason.MODEL_ERROR
    assert record.stop_detail == "ZeroDivisionError: no bound"
    assert client.call_count == 0
    assert rig.store.ledger.account(f"run:{run}").spent_nano == 0
    rig.check()


@pytest.mark.parametrize("lost", ["reserve", "convert"])
def test_a_reservation_whose_answer_is_lost_costs_nothing(rig: Rig, lost: str):
    """It was made, the outage outlasted every repetition, and so the request was never sent."""
    client = Moody([ONE, "closing words"])
    rig.agent(client, look)
    run = rig.submit(budgets=Budgets(max_steps=1, max_tokens=None, max_usd=dollars(3)))
    if lost == "convert":
        rig.step()
    sent, escrow = client.call_count, rig.store.ledger.open_reservations(run)
    ask = getattr(rig.store.ledger, lost)

    def without_answer(*args: Any, **kwargs: Any) -> Any:
        ask(*args, **kwargs)
        raise redis.exceptions.ConnectionError("lost")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rig.store.ledger, lost, without_answer)
        rig.step()
    assert client.call_count == sent
    assert rig.record(run).usd_nano == sent * CALL_NANO
    assert lost == "reserve" or rig.store.ledger.open_reservations(run) == escrow
    rig.check()
    ended = finish_or_fail(rig, run)
    assert (ended.answer, ended.usd_nano) == ("closing words", 2 * CALL_NANO)


def two_that_died(rig: Rig, **options: Any) -> list[str]:
    """Two runs of a batch for 4.5 calls whose workers died in the first call: each holds an escrow."""
    open_batch(rig.store, "b1", usd=CALL_NANO * 9 // 2)
    rig.agent(Moody(["done"]), look, budgets=FREE, **options)
    runs = [rig.submit(f"task {n}", batch="b1") for n in range(2)]
    for run in runs:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AGENTQ_FAILPOINTS", "step.after_reserve=raise")
            with pytest.raises(FailpointError):
                rig.step()
        rig.revive(run)
    return runs


def test_two_runs_whose_workers_died_in_the_first_call_do_not_block_each_other(rig: Rig):
    """Neither waits for the other's escrow for ever."""
    runs = two_that_died(rig, on_exhausted="stop")
    ends = [finish_or_fail(rig, run) for run in runs]
    assert {end.stop_reason for end in ends} == {StopReason.COST_BUDGET}
    assert all(end.answer and end.stop_scope == "batch:b1" for end in ends)
    rig.check()


def test_runs_that_wait_only_for_each_other_s_escrows_say_so_and_end_on_a_top_up(rig: Rig):
    runs = two_that_died(rig)
    rig.drain()
    parked = {rig.record(run).parked for run in runs}
    assert {rig.record(run).state.value for run in runs} == {"parked"}
    assert parked <= {Parked("batch:b1", "usd", "winddown"), Parked("batch:b1", "usd", "wait")}
    rig.check()
    rig.store.ledger.topup("batch:b1", usd=3 * CALL_NANO, actor=Actor("o1", "ann"))
    assert {finish_or_fail(rig, run).stop_reason for run in runs} == {StopReason.FINISHED}
    rig.check()


def test_half_a_character_from_the_model_is_stored_as_a_question_mark(rig: Rig):
    """JSON can carry a lone surrogate; the reply that has one is paid for and must be kept."""
    rig.agent(Moody([[("look", '{"id": "\ud83d"}')], "so \ud83d it is"]), look)
    run = rig.submit("hello")
    rig.drain()
    record, thread = rig.record(run), rig.thread(run)
    assert (record.stop_reason, record.answer) == (StopReason.FINISHED, "so ? it is")
    assert thread.messages[1].tool_calls[0].arguments == '{"id": "?"}'
    assert "thing ?" in thread.messages[2].content
    rig.check()
