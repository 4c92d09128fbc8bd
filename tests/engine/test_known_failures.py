"""The ways in which other people's agents have spent without a limit in public, provoked here.

Each test names the kind of failure and the thread in which somebody met it. What concerns the ledger alone
is in `tests/store/test_known_failures.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Semaphore
from typing import Any

import pytest

from agentq.agent import Budgets
from agentq.core.lifecycle import StopReason
from agentq.engine.step import execute_step
from agentq.provider.errors import AllProvidersFailed, TransientError
from agentq.provider.types import ChatResult, Usage
from agentq.tools import tool
from tests.support.harness import (
    CALL_NANO,
    CALL_TOKENS,
    Moody,
    Rig,
    entries_of,
    finish_or_fail,
    money,
    nano,
    open_batch,
    ready,
)

FREE = Budgets(max_tokens=None, max_seconds=None)


@tool
def look(id: str) -> str:
    """Look something up."""
    return f"thing {id}"


def endless(turns: int = 500) -> list[Any]:
    """A model that asks for one more thing, and never says that it is done."""
    return [[("look", f'{{"id": "{n}"}}')] for n in range(turns)]


# ── runs without an end ──────────────────────────────────────────────────────────────────────────────


def test_a_run_that_nobody_has_limited_ends_after_few_steps(rig: Rig):
    """A default of 9,999 steps that no page mentions: an afternoon costs hundreds.

    https://github.com/langchain-ai/langchain/issues/36919
    """
    client = Moody(endless())
    rig.agent(client, look)
    run = rig.submit()
    limits = rig.record(run).spec.budgets
    assert all(limits[name] for name in ("max_steps", "max_tokens", "max_seconds")), limits
    assert rig.store.ledger.account(f"run:{run}").tokens_limit == limits["max_tokens"]
    rig.drain()
    record = rig.record(run)
    assert record.stop_reason in {StopReason.STEP_BUDGET, StopReason.LOOP_DETECTED}
    assert client.call_count <= limits["max_steps"] + 1 < 20
    rig.check()


@pytest.mark.parametrize("where", ["run", "batch", "tenant", "global"])
def test_a_cap_on_money_stops_the_calls_and_does_not_only_tell(rig: Rig, where: str):
    """Thousands of calls that nobody expected: alerts came, but nothing stopped them.

    https://github.com/openai/openai-agents-python/issues/3353
    """
    cap = 7 * CALL_NANO
    client = Moody(endless())
    unlimited = Budgets(max_steps=None, max_tokens=None, max_seconds=None)
    rig.agent(client, look)
    match where:
        case "run":
            budgets, batch = Budgets(None, None, nano(cap), None), None
        case "batch":
            open_batch(rig.store, "b1", usd=cap)
            budgets, batch = unlimited, "b1"
        case _:
            rig.store.ledger.set_limit({"tenant": "tenant:acme"}.get(where, where), usd=cap)
            budgets, batch = unlimited, None
    run = rig.submit(budgets=budgets, batch=batch)
    rig.drain()
    assert 5 <= client.call_count <= 7
    assert client.bill_nano <= cap
    assert rig.store.ledger.account(f"run:{run}").spent_nano == client.bill_nano
    assert rig.queue == []
    rig.check()


# ── bursts ───────────────────────────────────────────────────────────────────────────────────────────


def test_steps_that_call_at_the_same_time_do_not_cost_more_than_the_cap(rig: Rig):
    """All calls of a burst are under way before the first is booked, and the cap is passed by all of them.

    https://github.com/BerriAI/litellm/issues/26672 and https://github.com/BerriAI/litellm/issues/34732
    """
    burst, fitting = 12, 4
    # Each needs its call and a closing turn after it; half a turn is left over.
    open_batch(rig.store, "b1", usd=fitting * 2 * CALL_NANO + CALL_NANO)
    decided = Semaphore(0)
    everybody = Event()

    def hold(_: Any) -> None:
        """No call is answered, and so no money comes back, before all have asked for theirs."""
        decided.release()
        assert everybody.wait(timeout=30)

    client = Moody(["done"] * burst, moods=[hold] * burst)
    rig.agent(client, look, budgets=FREE)
    for n in range(burst):
        rig.submit(f"task {n}", batch="b1")
    messages = [rig.queue.pop() for _ in range(burst)]

    def work(message: tuple[str, int]) -> None:
        execute_step(*message, bench=rig.bench)
        decided.release()

    with ThreadPoolExecutor(burst) as pool:
        steps = [pool.submit(work, message) for message in messages]
        for _ in range(burst):
            assert decided.acquire(timeout=30)
        at_work = client.call_count
        everybody.set()
        for step in steps:
            step.result()
    assert at_work == client.call_count == fitting
    account = rig.store.ledger.account("batch:b1")
    assert account.limit_nano is not None
    assert client.bill_nano == account.spent_nano <= account.limit_nano
    rig.check()


# ── calls of which nobody knows what they cost ───────────────────────────────────────────────────────

UNCLEAR: dict[str, Callable[[], Exception]] = {
    "a stream that was cut": lambda: TransientError("the stream ended before its usage"),
    "a gateway that timed out": lambda: TransientError("504 from a gateway", status_code=504),
    "an error that nobody knows": lambda: OSError("connection reset by peer"),
    "one of several providers": lambda: AllProvidersFailed(
        [("a", TransientError("refused", billed=False)), ("b", TransientError("cut off"))]
    ),
}


@pytest.mark.parametrize("name", UNCLEAR)
def test_a_call_that_broke_off_is_charged_in_full_and_never_taken_for_nothing(rig: Rig, name: str):
    """An aborted stream reports zero usage, so the tokens that were paid for are on no counter.

    https://github.com/openai/openai-agents-js/issues/995 and https://github.com/BerriAI/litellm/issues/30787
    """
    client = Moody(["done", "done"], moods=[UNCLEAR[name]()])
    rig.agent(client, look)
    run = rig.submit()
    rig.step()
    account = rig.store.ledger.account(f"run:{run}")
    assert (account.spent_nano, account.forfeited_nano) == (CALL_NANO, CALL_NANO)
    assert account.tokens_spent == CALL_TOKENS
    assert (account.reserved_nano, account.tokens_reserved) == (0, 0)
    assert account.spent_nano >= client.bill_nano == CALL_NANO
    rig.check()


def test_a_reply_without_usage_is_charged_in_full_and_marked_as_nobody_s_count(rig: Rig):
    """The reply is there, its usage was on the last chunk, which never came.

    https://github.com/openai/openai-agents-js/issues/995 and https://github.com/BerriAI/litellm/issues/30787
    """
    client = Moody(["x"], moods=[ChatResult("done", None, "scripted", "scripted-v1")])  # type: ignore[arg-type]
    rig.agent(client, look)
    run = rig.submit()
    rig.drain()
    assert rig.record(run).answer == "done"
    assert money(rig.store, f"run:{run}") == {"us": CALL_NANO, "ts": CALL_TOKENS}
    settles = [entry for entry in entries_of(rig.store) if entry["o"] == "settle"]
    assert [entry.get("e") for entry in settles] == ["1"]
    rig.check()


def test_calls_that_are_cut_again_and_again_use_up_the_cap_and_then_stop(rig: Rig):
    """Each retry of a broken call is paid for; counted as nothing, they would go on for ever.

    https://github.com/BerriAI/litellm/issues/30787
    """
    client = Moody(["done"] * 50, moods=[TransientError("cut off") for _ in range(50)])
    rig.agent(client, look)
    cap = 4 * CALL_NANO
    run = rig.submit(budgets=Budgets(None, None, nano(cap), None))
    record = finish_or_fail(rig, run)
    assert record.stop_reason in {StopReason.MODEL_ERROR, StopReason.COST_BUDGET}
    assert 2 <= client.call_count <= 4
    assert client.bill_nano == rig.store.ledger.account(f"run:{run}").spent_nano <= cap
    rig.check()


def test_a_call_that_was_proven_to_cost_nothing_blocks_nobody(rig: Rig):
    """The other way round: what the provider refused is charged, and blocks users who have spent nothing.

    https://github.com/BerriAI/litellm/issues/27639
    """
    refused = [TransientError("overloaded", status_code=529, billed=False) for _ in range(6)]
    client = Moody(["done"], moods=refused)
    rig.agent(client, look)
    run = rig.submit(budgets=Budgets(None, None, nano(2 * CALL_NANO), None))
    for _ in refused:
        rig.step()
        assert money(rig.store, f"run:{run}").get("us", 0) == 0
        ready(rig.store, run)
        rig.rescue()
    assert finish_or_fail(rig, run).answer == "done"
    assert rig.store.ledger.account(f"run:{run}").spent_nano == client.bill_nano == CALL_NANO
    rig.check()


def test_a_call_that_reports_less_than_it_held_gives_the_rest_back(rig: Rig):
    """Estimates stay on the counter beside the real cost, and the sum is called spent.

    https://github.com/BerriAI/litellm/issues/36926
    """
    client = Moody(["x"], moods=[ChatResult("done", Usage(5, 1), "scripted", "scripted-v1")])
    rig.agent(client, look)
    run = rig.submit(budgets=Budgets(None, None, nano(2 * CALL_NANO), None))
    rig.drain()
    for scope in ("global", "tenant:acme", f"run:{run}"):
        assert money(rig.store, scope) == {"us": client.bill_nano, "ts": 6}, scope
    assert client.bill_nano == 15_000
    rig.check()
