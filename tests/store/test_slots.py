"""Slots: who is in flight, after each move that a run can make."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentq.core.lifecycle import StopReason
from agentq.core.records import Delta, Failure, Lease, Parked, Retrial, RunSpec
from agentq.store import Store
from agentq.store.approvals import Wanted
from tests.support import feeding
from tests.support.harness import (
    HELLO,
    LEASE_MS,
    SECOND,
    age,
    by,
    call,
    check_runs,
    claim_run,
    due,
    dump,
    ready,
    reserve,
    state_of,
    steady,
    submit_run,
)
from tests.support.rows import in_flight, load_rows, window

EMPTY = Delta("{}")


def at_work(store: Store) -> Lease:
    return claim_run(store).lease


def park(store: Store) -> None:
    lease = at_work(store)
    store.ledger.set_limit("tenant:acme", usd=1_000, actor=by())
    store.ledger.book("tenant:acme", "charge", usd=990, actor=by())
    assert isinstance(reserve(store, lease, usd=100, tokens=1, policy="park"), Parked)


def wake(store: Store) -> None:
    park(store)
    store.ledger.set_limit("tenant:acme", usd=10**6, actor=by())


def hold(store: Store) -> None:
    store.control.pause_many(["r1"], "ann")


def resume(store: Store) -> None:
    hold(store)
    store.control.resume_many(["r1"], own=True)


def hold_at_the_claim(store: Store) -> None:
    store.batches.pause("b0", "ann")
    assert store.runs.claim("r1", None, LEASE_MS) is None


def let_go_by_the_tick(store: Store) -> None:
    hold_at_the_claim(store)
    store.batches.resume("b0")
    age(store, "r1")
    due(store)


def delay(store: Store) -> None:
    store.runs.release(at_work(store), delay_ms=60_000, failed=Failure("why", 1))


def delay_is_over(store: Store) -> None:
    delay(store)
    ready(store, "r1")
    assert due(store).hints == [("r1", 0)]


def claimed_after_a_delay(store: Store) -> None:
    delay(store)
    ready(store, "r1")
    at_work(store)


def resume_in_a_delay(store: Store) -> None:
    delay(store)
    resume(store)


def ask(store: Store) -> None:
    assert store.runs.commit_wait(at_work(store), EMPTY, None, [{"id": "c1"}], 60_000) == "OK"


def decide(store: Store) -> None:
    ask(store)
    store.approvals.decide([Wanted("r1", "c1", "approve", "me")])


def expire(store: Store) -> None:
    ask(store)
    age(store, "r1")
    store.watch.rescue("r1", LEASE_MS)


def gather(store: Store) -> None:
    lease = at_work(store)
    batch = str(store.client.hget(store.keys.run("r1"), "batch")) or None
    child = RunSpec(agent="a", tenant="acme", batch=batch, ancestors=("r1",))
    store.runs.submit([("child", child, [HELLO])], heads=["{}"], retention_ms=1)
    store.runs.commit_gather(lease, EMPTY, ["child"], {"0:t:1": 60_000})


def gathered(store: Store) -> None:
    gather(store)
    store.runs.cancel("child", "ann")


def waited_long_enough(store: Store) -> None:
    gather(store)
    age(store, "r1")
    store.watch.rescue("r1", LEASE_MS)


def rescue(store: Store, *, times: int = 1) -> None:
    for _ in range(times):
        steady(store)
        at_work(store)
        age(store, "r1")
        store.watch.rescue("r1", LEASE_MS)
        if times > 1:
            ready(store, "r1")


def suspect(store: Store) -> None:
    rescue(store, times=1)
    steady(store)
    at_work(store)
    age(store, "r1")
    call(store, "run_rescue", "r1", LEASE_MS, 5_000, 60_000)


def suspect_is_asked_for_again(store: Store) -> None:
    suspect(store)
    ready(store, "r1")
    due(store)
    call(store, "step_claim", "r1", "", "n", LEASE_MS, "", "0")


def end(store: Store) -> None:
    assert store.runs.commit_end(at_work(store), EMPTY, None, StopReason.FINISHED) == "OK"


def retry(store: Store) -> None:
    end(store)
    assert store.control.retry_many([Retrial("r1", 0, "{}", 1, "[]", "ann")]) == [("RETRIED", "0")]


def cancel_at_work(store: Store) -> None:
    at_work(store)
    store.runs.cancel("r1", "ann")


def cancelled_and_back(store: Store) -> None:
    lease = at_work(store)
    store.runs.cancel("r1", "ann")
    assert store.runs.commit_continue(lease, EMPTY, None) == "CANCELLED"


def cancelled_and_dead(store: Store) -> None:
    cancel_at_work(store)
    steady(store)
    age(store, "r1")
    store.watch.rescue("r1", LEASE_MS)


def hint_again(store: Store) -> None:
    age(store, "r1")
    due(store)


MOVES: dict[str, tuple[Callable[[Store], object], str, bool]] = {
    "submitted": (lambda store: None, "queued", True),
    "claimed": (at_work, "running", True),
    "its hint is sent again": (hint_again, "queued", True),
    "the next step": (
        lambda store: store.runs.commit_continue(at_work(store), EMPTY, None),
        "queued",
        True,
    ),
    "given back": (lambda store: store.runs.release(at_work(store), delay_ms=0), "queued", True),
    "given back for later": (delay, "queued", False),
    "its delay is over": (delay_is_over, "queued", True),
    "claimed before the tick has seen that": (claimed_after_a_delay, "running", True),
    "paused": (hold, "held", False),
    "paused and resumed": (resume, "queued", True),
    "resumed before its delay is over": (resume_in_a_delay, "queued", False),
    "held where it is claimed": (hold_at_the_claim, "held", False),
    "let go by the tick": (let_go_by_the_tick, "queued", True),
    "parked": (park, "parked", False),
    "woken": (wake, "queued", True),
    "asking": (ask, "waiting", False),
    "decided": (decide, "queued", True),
    "not decided in time": (expire, "ended", False),
    "gathering": (gather, "waiting", False),
    "its children have ended": (gathered, "queued", True),
    "its children take too long": (waited_long_enough, "queued", True),
    "rescued": (rescue, "queued", True),
    "a suspect": (suspect, "queued", False),
    "a suspect that must wait": (suspect_is_asked_for_again, "queued", True),
    "ended": (end, "ended", False),
    "retried": (retry, "queued", True),
    "cancelled in the queue": (lambda store: store.runs.cancel("r1", "ann"), "ended", False),
    "cancelled at work": (cancel_at_work, "cancelling", True),
    "cancelled, and its worker is back": (cancelled_and_back, "ended", False),
    "cancelled, and its worker is gone": (cancelled_and_dead, "ended", False),
}
"""What befalls a run, its state then, and whether it is in flight."""


OF_A_BATCH = {"held where it is claimed", "let go by the tick"}
"""Only a batch's pause holds a run where it is claimed."""


@pytest.mark.parametrize(
    "move, batch",
    [*((move, "b0") for move in MOVES), *((move, None) for move in MOVES if move not in OF_A_BATCH)],
)
def test_a_run_has_a_slot_while_it_is_at_work_or_queued_and_due(store: Store, move: str, batch: str | None):
    make, state, has_slot = MOVES[move]
    store.batches.open("b0", agent="a", tenant="acme", usd=None, tokens=None, retention_ms=10**6)
    submit_run(store, batch=batch)
    make(store)
    assert state_of(store) == state
    assert ("r1" in in_flight(store)) == has_slot
    assert ("r1" in in_flight(store, "t", "acme")) == has_slot
    if batch:
        assert ("r1" in in_flight(store, "b", "b0")) == has_slot
    feeding.check(dump(store, without=()), store.watch.server_ms())
    check_runs(store)


LEAVES = [move for move, (_, _, has_slot) in MOVES.items() if not has_slot and move != "gathering"]


@pytest.mark.parametrize("move", LEAVES)
def test_whoever_leaves_its_slot_gives_it_to_whose_turn_it_is(store: Store, move: str):
    store.batches.open("b0", agent="a", tenant="acme", usd=None, tokens=None, retention_ms=10**6)
    submit_run(store, batch="b0")
    window(store, 1)
    load_rows(store, 3, "b1")
    assert in_flight(store) == {"r1"}
    MOVES[move][0](store)
    assert len(in_flight(store)) == 1
    assert in_flight(store, "b", "b1")
    feeding.check(dump(store, without=()), store.watch.server_ms())


def test_who_is_alone_has_no_share_to_be_below_and_who_has_less_than_others_is_below(store: Store):
    queue = f"{store.keys.broker_prefix}q"

    def next_step(run_id: str) -> None:
        store.runs.commit_continue(claim_run(store, run_id).lease, EMPTY, None, (queue, run_id))

    def served_first() -> list[str]:
        found = [str(each) for each in store.client.lrange(queue, 0, -1)]
        store.client.delete(queue, queue + SECOND)
        return found

    for number in range(3):
        submit_run(store, f"ann{number}", tenant="ann")
    next_step("ann0")
    assert served_first() == []
    submit_run(store, "bob0", tenant="bob")
    next_step("bob0")
    next_step("ann1")
    assert served_first() == ["bob0"]
    for number in (1, 2):
        submit_run(store, f"bob{number}", tenant="bob")
    next_step("bob1")
    assert served_first() == [], "each has its share"
