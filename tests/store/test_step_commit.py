"""step_commit.lua: thread, bill and progress move together, or only the bill when the fence is stale."""

from __future__ import annotations

import json

import pytest
import redis

from agentq.core.lifecycle import StopReason
from agentq.core.records import Delta, Granted, Lease, Settlement
from agentq.store import Store
from tests.support.harness import (
    GRACE_MS,
    HELLO,
    LEASE_MS,
    SECOND,
    age,
    call,
    check_invariants,
    claim_run,
    dump,
    fence_of,
    hints_in,
    money,
    open_batch,
    reserve,
    state_of,
    steady,
    submit_run,
    twice,
    untouched,
)

REPLY = '{"role":"assistant","content":"x"}'
OUTCOMES = {"tools": "", "continue": "", "wait": "", "end": "finished"}


@pytest.fixture
def lease(store: Store) -> Lease:
    """A claimed run with a reservation of 70 nano-USD and 7 tokens, and an escrow of 30 and 3."""
    submit_run(store, usd=100, tokens=10)
    lease = claim_run(store).lease
    assert isinstance(reserve(store, lease, 1, usd=70, tokens=7, escrow_usd=30, escrow_tokens=3), Granted)
    return lease


def arguments(lease: Lease, outcome: str, *, how: str = "settle", usd: str = "50", tokens: str = "5"):
    head = ("r1", lease.fence, f"{lease.fence}{outcome[0]}", outcome, OUTCOMES[outcome], GRACE_MS)
    return (*head, f"{lease.fence}:1", how, usd, tokens, 2, "head", '{"step":1}',
            1, REPLY, 1, '["step"]', 2, "pay:1", "done")  # fmt: skip


def kill(store: Store) -> None:
    """The worker is taken for dead."""
    steady(store)
    age(store, "r1")
    assert store.watch.rescue("r1", LEASE_MS).verdict == "RESCUED"


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_thread_bill_and_progress_move_together(store: Store, lease: Lease, outcome: str):
    assert twice(store, "step_commit", *arguments(lease, outcome)) == ["OK"]
    state = dump(store)
    assert state["run:r1:msgs"][0] == [HELLO, REPLY]
    assert state["run:r1:trace"][0] == ['["step"]']
    assert state["run:r1:cache"][0] == {"pay:1": "done"}
    assert state["run:r1"][0]["head"] == '{"step":1}'
    spent = {"us": 50, "ts": 5}
    escrow = {} if outcome == "end" else {"ue": 30, "te": 3}
    idle = {"ui": 30, "ti": 3} if outcome == "wait" else {}
    assert money(store, "run:r1") == spent | escrow | idle
    check_invariants(store, ["r1"])


def test_after_the_reply_the_worker_keeps_the_step_and_its_lease(store: Store, lease: Lease):
    due = store.watch.live()
    call(store, "step_commit", *arguments(lease, "tools"))
    run = dump(store)["run:r1"][0]
    assert (run["state"], run["phase"], run["step"], run["fence"]) == ("running", "tools", "0", lease.fence)
    assert store.watch.live() == due


def test_after_the_results_the_next_step_is_queued(store: Store, lease: Lease):
    before = store.watch.server_ms()
    call(store, "step_commit", *arguments(lease, "continue"))
    run = dump(store)["run:r1"][0]
    assert (run["state"], run["phase"], run["step"], run["fence"]) == ("queued", "model", "1", "2-")
    assert before + GRACE_MS <= store.watch.live()["r1"] <= store.watch.server_ms() + GRACE_MS
    assert claim_run(store).lease.step == 1


def test_a_waiting_run_has_its_deadline_in_watch_and_holds_no_lease(store: Store, lease: Lease):
    pending = [
        {
            "id": "c1",
            "tool": "pay",
            "arguments": "{}",
            "signature": "pay:1",
            "asked_at_ms": 5,
            "default": "stop",
        }
    ]
    store.runs.commit_wait(
        lease, Delta("{}"), Settlement(f"{lease.fence}:1", "settle", 50, 5), pending, 60_000
    )
    record = store.runs.read("r1")
    assert record is not None
    assert (record.state, record.phase, fence_of(store)) == ("waiting", "tools", 2)
    assert store.watch.live() == {"r1": record.pending[0].deadline_ms}
    waits = record.pending[0]
    assert (waits.id, waits.tool, waits.signature, waits.asked_at_ms) == ("c1", "pay", "pay:1", 5)
    assert money(store, "run:r1") == {"us": 50, "ts": 5, "ue": 30, "te": 3, "ui": 30, "ti": 3}
    check_invariants(store, ["r1"])


def test_an_ended_run_has_its_answer_no_escrow_and_an_end(store: Store, lease: Lease):
    answer = store.runs.commit_end(
        lease, Delta("{}", (REPLY,)), Settlement(f"{lease.fence}:1", "settle", 50, 5),
        StopReason.COST_BUDGET, answer="x", scope="batch:b1", detail="why",
    )  # fmt: skip
    assert answer == "OK"
    record = store.runs.read("r1")
    assert record is not None
    assert (record.state, record.stop_reason, record.answer) == ("ended", "cost_budget", "x")
    assert (record.stop_scope, record.stop_detail) == ("batch:b1", "why")
    assert store.ledger.open_reservations("r1") == {}
    assert store.watch.live() == {}
    check_invariants(store, ["r1"])


def test_a_batch_counts_its_ended_runs_by_reason(store: Store):
    open_batch(store)
    for run_id, reason in (("r1", StopReason.FINISHED), ("r2", StopReason.LOOP_DETECTED)):
        submit_run(store, run_id, batch="b1")
        store.runs.commit_end(claim_run(store, run_id).lease, Delta("{}"), None, reason)
    batch = store.batches.read("b1")
    assert batch is not None
    assert (batch.ended, batch.stop_reasons) == (2, {"finished": 1, "loop_detected": 1})
    assert store.batches.live("b1") == []


@pytest.mark.parametrize(
    "how, costs, books",
    [
        ("settle", (0, 0), {}),
        ("settle", (50, 5), {"us": 50, "ts": 5}),
        ("settle", (70, 7), {"us": 70, "ts": 7}),
        ("settle", (95, 9), {"us": 95, "ts": 9, "uo": 25}),
        ("release", (0, 0), {}),
        ("forfeit", (0, 0), {"us": 70, "ts": 7, "uf": 70}),
    ],
)
def test_a_reservation_closes_in_every_scope(store: Store, lease: Lease, how, costs, books):
    usd, tokens = costs
    args = arguments(lease, "tools", how=how, usd=str(usd), tokens=str(tokens))
    assert twice(store, "step_commit", *args) == ["OK"]
    for scope in ("global", "tenant:acme", "run:r1"):
        assert money(store, scope) == books | {"ue": 30, "te": 3}
    check_invariants(store, ["r1"], capped="uo" not in books)


def test_a_converted_escrow_can_be_put_back(store: Store, lease: Lease):
    store.runs.commit_continue(lease, Delta("{}"), Settlement(f"{lease.fence}:1", "settle", 70, 7))
    lease = claim_run(store).lease
    store.ledger.convert(lease, 1)
    store.runs.release(lease, delay_ms=0, settlement=Settlement(f"{lease.fence}:1", "restore"))
    assert money(store, "run:r1") == {"us": 70, "ts": 7, "ue": 30, "te": 3}
    assert store.ledger.convert(claim_run(store).lease, 1) is not None
    check_invariants(store, ["r1"])


def test_a_second_settlement_of_the_same_reservation_books_nothing(store: Store, lease: Lease):
    settlement = Settlement(f"{lease.fence}:1", "settle", 50, 5)
    store.runs.commit_tools(lease, Delta("{}"), settlement)
    store.runs.commit_continue(lease, Delta("{}"), settlement)
    assert money(store, "run:r1") == {"us": 50, "ts": 5, "ue": 30, "te": 3}
    check_invariants(store, ["r1"])


def test_what_is_still_open_when_the_worker_lets_go_is_charged_in_full(store: Store, lease: Lease):
    assert store.runs.commit_continue(lease, Delta("{}"), None) == "OK"
    assert money(store, "run:r1") == {"us": 70, "ts": 7, "uf": 70, "ue": 30, "te": 3}
    check_invariants(store, ["r1"])


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("how, costs", [("settle", (50, 5)), ("settle", (90, 9)), ("release", (0, 0))])
def test_a_thawed_worker_books_what_it_spent_once_and_changes_no_thread(
    store: Store, lease: Lease, outcome, how, costs
):
    usd, tokens = costs
    kill(store)
    assert money(store, "run:r1") == {"us": 70, "ts": 7, "uf": 70, "ue": 30, "te": 3}
    claim_run(store)
    apart = ("clock", "log", "run:r1:forfeits", "events")
    before = dump(store, without=apart)
    args = arguments(lease, outcome, how=how, usd=str(usd), tokens=str(tokens))
    assert twice(store, "step_commit", *args) == ["STALE"]
    books = {"us": usd, "ts": tokens, "uo": max(0, usd - 70)}
    books = {name: amount for name, amount in books.items() if amount} | {"ue": 30, "te": 3}
    after = dump(store, without=apart)
    for scope in ("global", "tenant:acme", "run:r1"):
        assert money(store, scope) == books
        after.pop(f"scope:{scope}")
        before.pop(f"scope:{scope}")
    assert after == before
    check_invariants(store, ["r1"], capped="uo" not in books)


def test_a_thawed_worker_whose_run_has_ended_still_books_its_bill(store: Store, lease: Lease):
    kill(store)
    store.runs.commit_end(claim_run(store).lease, Delta("{}"), None, StopReason.FINISHED)
    assert twice(store, "step_commit", *arguments(lease, "end")) == ["STALE"]
    assert money(store, "run:r1") == {"us": 50, "ts": 5}
    check_invariants(store, ["r1"])


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_the_holder_of_a_cancelled_run_books_its_bill_and_ends_it(store: Store, lease: Lease, outcome: str):
    store.runs.cancel("r1", "test")
    assert twice(store, "step_commit", *arguments(lease, outcome)) == ["CANCELLED"]
    record = store.runs.read("r1")
    assert record is not None
    assert (record.stop_reason, record.stop_detail) == ("cancelled", "cancelled by test")
    state = dump(store)
    assert state["run:r1:msgs"][0] == [HELLO]
    assert "run:r1:cache" not in state
    assert [json.loads(text)[0] for text in state["run:r1:trace"][0]] == ["cancelled"]
    assert money(store, "run:r1") == {"us": 50, "ts": 5}
    check_invariants(store, ["r1"])


def test_an_attempt_before_the_one_that_is_cancelled_ends_nothing(store: Store, lease: Lease):
    kill(store)
    claim_run(store)
    store.runs.cancel("r1", "test")
    assert twice(store, "step_commit", *arguments(lease, "end")) == ["STALE"]
    assert state_of(store) == "cancelling"


def test_a_run_that_does_not_exist_is_missing(store: Store, lease: Lease):
    args = ("r9", *arguments(lease, "end")[1:])
    with untouched(store):
        assert call(store, "step_commit", *args) == ["MISSING"]


@pytest.mark.parametrize("bad", ["-1", "01", "1e3", "12345678901234567", str(2**53), "-0", ""])
@pytest.mark.parametrize("field", ["usd", "tokens"])
def test_an_amount_that_is_none_is_refused_before_anything_is_written(
    store: Store, lease: Lease, field: str, bad: str
):
    with untouched(store), pytest.raises(redis.exceptions.ResponseError, match="not an amount"):
        call(store, "step_commit", *arguments(lease, "end", **{field: bad}))


def test_a_settlement_near_the_largest_amount_is_exact(store: Store):
    largest = 2**53 - 1
    submit_run(store)
    lease = claim_run(store).lease
    reserve(store, lease, 1, usd=largest - 1, tokens=largest - 1, escrow_usd=0, escrow_tokens=0)
    store.runs.commit_tools(lease, Delta("{}"), Settlement(f"{lease.fence}:1", "settle", largest, largest))
    assert money(store, "global") == {"us": largest, "ts": largest, "uo": 1}
    check_invariants(store, ["r1"])


def test_a_commit_forgets_the_deaths_and_the_failures_of_its_step(store: Store, lease: Lease):
    store.client.hset(store.keys.run("r1"), mapping={"deaths": 3, "failures": 2, "failing": 1})
    call(store, "step_commit", *arguments(lease, "tools"))
    assert not {"deaths", "failures", "failing"} & set(dump(store)["run:r1"][0])


def test_time_inside_steps_adds_up_and_time_between_them_does_not(store: Store, lease: Lease):
    store.client.hset(store.keys.run("r1"), "claimed", store.watch.server_ms() - 2_000)
    store.runs.commit_continue(lease, Delta("{}"), None)
    lease = claim_run(store).lease
    store.client.hset(store.keys.run("r1"), "claimed", store.watch.server_ms() - 3_000)
    store.runs.commit_end(lease, Delta("{}"), None, StopReason.FINISHED)
    record = store.runs.read("r1")
    assert record is not None
    assert 5_000 <= record.seconds_ms < 7_000


def test_a_late_release_gives_all_back_whatever_amount_it_names(store: Store, lease: Lease):
    kill(store)
    assert twice(store, "step_commit", *arguments(lease, "end", how="release", usd="50", tokens="5")) == [
        "STALE"
    ]
    assert money(store, "run:r1") == {"ue": 30, "te": 3}
    check_invariants(store, ["r1"])


def test_a_late_forfeit_changes_nothing(store: Store, lease: Lease):
    kill(store)
    with untouched(store):
        assert call(store, "step_commit", *arguments(lease, "end", how="forfeit")) == ["STALE"]


@pytest.mark.parametrize("fate", ["OK", "STALE", "CANCELLED"])
def test_the_next_step_s_hint_is_pushed_once_and_only_where_there_is_a_next_step(
    store: Store, lease: Lease, fate: str
):
    if fate == "STALE":
        kill(store)
    elif fate == "CANCELLED":
        store.runs.cancel("r1", "test")
    queue = f"{store.keys.broker_prefix}q"
    store.client.lpush(queue + SECOND, "a run that has not begun")
    for _ in range(2):
        assert store.runs.commit_continue(lease, Delta("{}"), None, (queue, "hint")) == fate
    # It has its turn after what waits already.
    assert hints_in(store, queue) == ["a run that has not begun", *(["hint"] if fate == "OK" else [])]
