"""Runs that outgrow their model's window, on the real server: stopped, or summed up, never billed twice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agentq.agent import Budgets, LoopDetector, Thread
from agentq.app.run import Run
from agentq.engine.fork import fork_run
from agentq.provider.errors import ContextOverflow, TransientError
from agentq.provider.pricing import ModelPricing
from agentq.provider.resilient import ResilientClient, RetryPolicy
from agentq.provider.scripted import SUMMARY, SUMMARY_OPERATION
from agentq.provider.types import ChatRequest, ChatResult, Message, Role, Usage
from agentq.tools import tool
from tests.support.harness import Rig, finish_or_fail, make_agent, ready, state_of
from tests.support.honest import Honest, tokens_of

WINDOW = 2_000
FREE = Budgets(max_steps=30, max_tokens=None, max_usd=None)
STEPS = 12


@tool
def read(page: int) -> str:
    """Read a page."""
    return f"page {page}: " + "word " * 180


SCRIPT: list[Any] = [*([("read", f'{{"page": {n}}}')] for n in range(1, STEPS)), "done"]


def options(**more: Any) -> dict[str, Any]:
    return {"budgets": FREE, "max_output_tokens": 100, "context_window": WINDOW} | more


def compacting(**more: Any) -> dict[str, Any]:
    return options(on_overflow="compact", **more)


def summaries(client: Honest) -> list[ChatRequest]:
    return [request for request in client.requests if request.operation == SUMMARY_OPERATION]


def is_valid(messages: Sequence[Message]) -> bool:
    """Whether each call has its result right after it, and each result its call."""
    waiting: list[str] = []
    for message in messages:
        if message.role is Role.TOOL:
            if not waiting or message.tool_call_id != waiting.pop(0):
                return False
        elif waiting:
            return False
        else:
            waiting = [call.id for call in message.tool_calls]
    return not waiting


# ── stop ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_call_that_would_not_fit_is_not_made_and_the_run_says_what_to_do(rig: Rig):
    client = Honest(SCRIPT)
    rig.agent(client, read, **options())
    run = rig.submit()
    rig.drain()
    record = rig.record(run)
    assert (record.stop_reason, record.answer) == ("context_overflow", None)
    assert record.stop_detail is not None
    assert "2000" in record.stop_detail
    assert 'on_overflow="compact"' in record.stop_detail
    assert 1 < client.call_count < STEPS
    assert all(tokens_of(request) + 100 <= WINDOW for request in client.requests)
    assert client.bill_nano == record.usd_nano
    rig.check()


def test_the_window_is_the_price_s_and_without_one_nothing_is_checked(rig: Rig):
    priced = {"scripted-v1": ModelPricing("scripted-v1", "1", "10", WINDOW)}
    unknown = {"scripted-v1": ModelPricing("scripted-v1", "1", "10", None)}
    for name, pricing in (("priced", priced), ("unknown", unknown)):
        rig.agent(Honest(SCRIPT), read, name=name, **options(context_window=None, pricing=pricing))
    first, second = rig.submit(agent="priced"), rig.submit(agent="unknown")
    rig.drain()
    assert rig.record(first).stop_reason == "context_overflow"
    assert rig.record(second).stop_reason == "finished"


def test_a_task_that_is_too_long_for_the_model_costs_nothing(rig: Rig):
    client = Honest(["done"])
    rig.agent(client, read, **compacting())
    run = rig.submit("word " * 3_000)
    rig.drain()
    record = rig.record(run)
    assert (record.stop_reason, record.usd_nano, client.call_count) == ("context_overflow", 0, 0)
    rig.check()


def test_a_run_that_was_stopped_goes_on_with_an_agent_that_has_more_room(rig: Rig):
    rig.agent(Honest(SCRIPT), read, **options())
    run = rig.submit()
    rig.drain()
    steps = rig.record(run).steps
    rig.agent(Honest(SCRIPT), read, **compacting())
    Run(rig.store, run).retry(by="ann")
    rig.queue.append((run, rig.record(run).step))
    rig.drain()
    record = rig.record(run)
    assert (record.stop_reason, record.answer, record.steps) == ("finished", "done", STEPS)
    assert steps < STEPS
    rig.check()


# ── compact ──────────────────────────────────────────────────────────────────────────────────────────


def test_the_oldest_turns_are_summed_up_and_all_messages_stay(rig: Rig):
    client = Honest(SCRIPT)
    rig.agent(client, read, **compacting())
    run = rig.submit("read it all")
    rig.drain()
    record, thread = rig.record(run), rig.thread(run)
    assert (record.stop_reason, record.answer, record.steps) == ("finished", "done", STEPS)
    assert len(summaries(client)) == len(thread.summaries) > 0
    assert client.bill_nano == record.usd_nano
    pages = [m.tool_call_id for m in thread.messages if m.role is Role.TOOL]
    assert len(pages) == STEPS - 1
    for request in client.requests:
        assert tokens_of(request) + request.max_output_tokens <= WINDOW
        assert is_valid(request.messages)
    last = client.requests[-1]
    assert last.messages[0].content == "read it all"
    assert last.messages[1].content.endswith(SUMMARY)
    assert f"page {STEPS - 1}" in last.messages[-1].content
    assert len(last.messages) < len(thread.messages)
    assert "page 1: word" in summaries(client)[0].messages[0].content
    if len(thread.summaries) > 1:  # the first summary goes into the second
        assert SUMMARY in summaries(client)[1].messages[0].content
    rig.check()


def test_it_is_the_same_run_in_one_process_and_distributed(rig: Rig):
    inside = make_agent(Honest(SCRIPT), read, **compacting()).run(Thread(detector=LoopDetector()), "do it")
    rig.agent(Honest(SCRIPT), read, **compacting())
    run = rig.submit("do it")
    rig.drain()
    record, thread = rig.record(run), rig.thread(run)
    assert [m.as_dict() for m in thread.messages] == [m.as_dict() for m in inside.thread.messages]
    assert thread.summaries == inside.thread.summaries
    assert (record.stop_reason, record.tokens) == (inside.stop_reason, inside.thread.spend.tokens)
    assert [(e.kind, e.detail, e.ok, e.step) for e in thread.trace] == [
        (e.kind, e.detail, e.ok, e.step) for e in inside.thread.trace
    ]
    assert Thread.from_json(inside.thread.to_json()) == inside.thread


def before_summary(rig: Rig, client: Honest) -> str:
    """A run whose next step is to have its first turns summed up."""
    rig.agent(client, read, **compacting())
    run = rig.submit()
    while "compacted" not in [event.kind for event in rig.thread(run).trace]:
        seen = len(client.requests)
        rig.step()
        if summaries(client):
            break
    else:  # pragma: no cover - the script is long enough
        raise AssertionError("nothing was summed up")
    assert len(client.requests) == seen + 1
    return run


def steps_before_summary(rig: Rig) -> int:
    """How many steps a run makes before the first summary."""
    client = Honest(SCRIPT)
    before_summary(rig, client)
    rig.drain()
    return next(i for i, r in enumerate(client.requests) if r.operation == SUMMARY_OPERATION)


POINTS = ["step.after_claim", "step.after_reserve", "step.after_summary", "step.after_commit"]


@pytest.mark.parametrize("point", POINTS)
def test_a_worker_that_dies_around_a_summary_loses_no_run_and_pays_no_reply_twice(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, point: str
):
    steps = steps_before_summary(rig)
    client = Honest(SCRIPT)
    rig.agent(client, read, **compacting())
    run = rig.submit()
    for _ in range(steps):
        rig.step()
    before = rig.record(run).usd_nano
    rig.die(monkeypatch, point)
    rig.check()
    if state_of(rig.store, run) == "running":
        rig.revive(run)
    else:
        ready(rig.store, run)
    record = finish_or_fail(rig, run)
    assert (record.stop_reason, record.answer, record.steps) == ("finished", "done", STEPS)
    assert record.usd_nano >= client.bill_nano > before
    # Only what was in flight is paid without a reply.
    if point in {"step.after_claim", "step.after_commit"}:
        assert record.usd_nano == client.bill_nano
        assert len(summaries(client)) == len(rig.thread(run).summaries)
    if point == "step.after_summary":
        assert len(summaries(client)) == len(rig.thread(run).summaries) + 1
    rig.check()


def test_a_summary_is_no_step_and_needs_money_like_any_call(rig: Rig):
    steps = steps_before_summary(rig)
    client = Honest(SCRIPT)
    rig.agent(client, read, **compacting())
    rig.agents["a"].budgets = replace(FREE, max_steps=STEPS)
    run = rig.submit(budgets=replace(FREE, max_steps=STEPS))
    rig.drain()
    assert (rig.record(run).stop_reason, rig.record(run).steps) == ("finished", STEPS)
    poor = rig.submit(budgets=replace(FREE, max_tokens=6_400))
    rig.drain()
    record = rig.record(poor)
    assert record.stop_reason == "token_budget"
    assert record.tokens <= 6_400
    assert record.steps <= steps + 1
    rig.check()


def test_a_summary_that_fails_is_tried_again_and_not_the_step_before_it(rig: Rig):
    def fail_once(request: ChatRequest) -> Any:
        if request.operation == SUMMARY_OPERATION and not failed:
            failed.append(request)
            return TransientError("503", billed=False)
        return None

    failed: list[ChatRequest] = []
    client = Honest(SCRIPT, moods=[fail_once] * 30)
    rig.agent(client, read, **compacting())
    run = rig.submit()
    record = finish_or_fail(rig, run)
    assert (record.stop_reason, len(failed)) == ("finished", 1)
    assert record.usd_nano == client.bill_nano
    rig.check()


def test_a_summary_that_says_nothing_ends_the_run(rig: Rig):
    def say_nothing(request: ChatRequest) -> Any:
        if request.operation == SUMMARY_OPERATION:
            return ChatResult(" ", Usage(tokens_of(request), 1), "scripted", "scripted-v1")
        return None

    client = Honest(SCRIPT, moods=[say_nothing] * 30)
    rig.agent(client, read, **compacting())
    run = rig.submit()
    rig.drain()
    record = rig.record(run)
    assert record.stop_reason == "context_overflow"
    assert "the summary that was to make room was empty" in (record.stop_detail or "")
    assert (len(summaries(client)), record.usd_nano) == (1, client.bill_nano)
    rig.check()


# ── what the provider says ───────────────────────────────────────────────────────────────────────────


def too_long_over(messages: int, *, operation: str = "agent") -> Any:
    def judge(request: ChatRequest) -> Any:
        if request.operation == operation and len(request.messages) > messages:
            return ContextOverflow("prompt is too long: 9 tokens > 8 maximum")
        return None

    return judge


def test_a_call_that_the_provider_finds_too_long_is_made_again_after_a_summary(rig: Rig):
    client = Honest(SCRIPT, moods=[too_long_over(7)] * 60)
    rig.agent(client, read, **compacting(context_window=None))
    run = rig.submit()
    rig.drain()
    record, thread = rig.record(run), rig.thread(run)
    assert (record.stop_reason, record.answer, record.steps) == ("finished", "done", STEPS)
    assert thread.summaries
    assert thread.overflow is None
    assert record.usd_nano == client.bill_nano
    rig.check()


def test_a_provider_that_is_never_content_is_asked_once_more_after_the_summary(rig: Rig):
    client = Honest(SCRIPT, moods=[None, None, None, *[too_long_over(0)] * 40])
    rig.agent(client, read, **compacting(context_window=None))
    run = rig.submit()
    rig.drain()
    record = rig.record(run)
    assert record.stop_reason == "context_overflow"
    assert "prompt is too long" in (record.stop_detail or "")
    assert [request.operation for request in client.requests[3:]] == ["agent", SUMMARY_OPERATION, "agent"]
    rig.check()


def test_a_summary_that_is_too_long_itself_ends_the_run(rig: Rig):
    moods = [None] * 3 + [too_long_over(0)] + [too_long_over(0, operation=SUMMARY_OPERATION)] * 9
    client = Honest(SCRIPT, moods=moods)
    rig.agent(client, read, **compacting(context_window=None))
    run = rig.submit()
    rig.drain()
    assert rig.record(run).stop_reason == "context_overflow"
    assert len(summaries(client)) == 1
    rig.check()


def test_without_compaction_what_the_provider_says_ends_the_run(rig: Rig):
    client = Honest(SCRIPT, moods=[too_long_over(4)] * 40)
    rig.agent(client, read, **options(context_window=None))
    run = rig.submit()
    rig.drain()
    record = rig.record(run)
    assert (record.stop_reason, record.steps) == ("context_overflow", 2)
    assert record.usd_nano == client.bill_nano
    rig.check()


def test_without_compaction_a_fallback_may_take_what_the_first_model_does_not(rig: Rig):
    first = Honest(SCRIPT, provider="small", moods=[too_long_over(4)] * 40)
    second = Honest(SCRIPT, provider="large")
    rig.agent(ResilientClient(first, [second], policy=RetryPolicy()), read, **options(context_window=None))
    run = rig.submit()
    record = finish_or_fail(rig, run)
    assert (record.stop_reason, record.answer) == ("finished", "done")
    rig.check()


def test_a_worker_that_dies_after_the_provider_has_refused_does_not_ask_the_same_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    client = Honest(SCRIPT, moods=[None, None, None, *[too_long_over(6)] * 40])
    rig.agent(client, read, **compacting(context_window=None))
    run = rig.submit()
    for _ in range(4):
        rig.step()
    assert client.requests[-1].operation == "agent"
    assert rig.thread(run).overflow is not None
    rig.die(monkeypatch, "step.after_claim")
    rig.revive(run)
    rig.step()
    assert client.requests[-1].operation == SUMMARY_OPERATION
    assert finish_or_fail(rig, run).stop_reason == "finished"
    rig.check()


# ── what goes on from such a run ─────────────────────────────────────────────────────────────────────


def test_a_fork_reads_as_much_of_its_past_as_the_run_did(rig: Rig):
    client = Honest(SCRIPT)
    rig.agent(client, read, **compacting())
    run = rig.submit()
    rig.drain()
    thread = rig.thread(run)
    assert thread.summaries
    sent = {r.summarised + sum(m.role is Role.ASSISTANT for m in r.messages): r
            for r in client.requests if r.operation == "agent"}  # fmt: skip
    for step in range(STEPS):
        new = fork_run(rig.store, run, step, by="ann")
        rig.submitted.append(new)
        forked = rig.thread(new)
        if forked.sent != list(sent[step].messages):
            # What was summed up only after this step is not in it: the fork sums it up itself.
            assert len(forked.summaries) < len(thread.summaries)
        assert is_valid(forked.sent)
        rig.queue.append((new, step))
        rig.drain()
        assert rig.record(new).answer == "done"
    rig.check()


def test_the_next_run_of_a_conversation_begins_with_its_summary_and_keeps_its_own_task(rig: Rig):
    client = Honest(SCRIPT)
    rig.agent(client, read, **compacting())
    first = rig.submit("read it all")
    rig.drain()
    more: list[Any] = [[("read", f'{{"page": {n}}}')] for n in range(STEPS, 2 * STEPS)]
    again = Honest([*SCRIPT, *more, "done again"])
    rig.agent(again, read, **compacting())
    second = rig.submit("and now the rest", thread=rig.thread(first))
    rig.drain()
    record = rig.record(second)
    assert (record.stop_reason, record.answer) == ("finished", "done again")
    assert SUMMARY in again.requests[0].messages[1].content
    for request in again.requests:
        if request.operation == "agent":
            said = [m.content for m in request.messages if m.role is Role.USER]
            assert said[0] == "read it all"
            assert "and now the rest" in said
            assert is_valid(request.messages)
            assert tokens_of(request) + request.max_output_tokens <= WINDOW
    rig.check()


def test_a_retry_keeps_what_was_summed_up(rig: Rig):
    client = Honest(SCRIPT)
    rig.agent(client, read, **compacting())
    run = rig.submit(budgets=replace(FREE, max_steps=STEPS - 1))
    rig.drain()
    assert rig.record(run).stop_reason == "step_budget"
    kept = rig.thread(run).summaries
    Run(rig.store, run).retry(by="ann", max_steps=30)
    rig.queue.append((run, rig.record(run).step))
    rig.drain()
    assert rig.record(run).answer == "done"
    assert rig.thread(run).summaries[: len(kept)] == kept != []
    rig.check()


def test_a_thread_of_an_older_release_is_read(rig: Rig):
    old = json.loads(Thread().to_json())
    assert not {"repair", "repaired", "overflow", "summaries"} & set(old)
