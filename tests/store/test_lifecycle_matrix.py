"""Every state of a run against every script that may change it, held against the table of moves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentq.core.lifecycle import TRANSITIONS, RunState, StopReason
from agentq.core.records import Actor, Delta, Lease, Parked, Retrial, Settlement
from agentq.store import Store
from agentq.store.approvals import Wanted
from agentq.store.effects import Effect
from tests.support.harness import (
    LEASE_MS,
    age,
    call,
    check_invariants,
    claim_run,
    due,
    fence_of,
    open_batch,
    reserve,
    state_of,
    steady,
    submit_run,
    twice,
)

EMPTY = Delta("{}")
PERSON = Actor("o1", "me", "a test")


def bring(store: Store, state: RunState) -> Lease:
    """A run of a batch in this state, with an escrow where it may have one; answers its last lease."""
    open_batch(store)
    submit_run(store, batch="b1", custom_id="x")
    lease = claim_run(store).lease
    reserve(store, lease, 1, usd=7, tokens=7, escrow_usd=3, escrow_tokens=3)
    match state:
        case RunState.QUEUED:
            store.runs.release(lease, delay_ms=0)
        case RunState.CANCELLING:
            store.runs.cancel("r1", "test")
        case RunState.PARKED:
            # Its second request, for which the batch would have money if this one were larger.
            store.runs.commit_tools(lease, EMPTY, settlement(lease))
            store.ledger.set_limit("batch:b1", usd=10, tokens=None)
            parked = reserve(store, lease, 2, usd=6, tokens=6, escrow_usd=3, escrow_tokens=3, policy="park")
            assert parked == Parked("batch:b1", "usd", "exhausted")
        case RunState.WAITING:
            store.runs.commit_wait(lease, EMPTY, None, [{"id": "c1"}], 60_000)
        case RunState.HELD:
            store.runs.release(lease, delay_ms=0)
            store.control.pause_many(["r1"], "me")
        case RunState.ENDED:
            store.runs.commit_end(lease, EMPTY, None, StopReason.FINISHED)
    assert state_of(store) == state.value
    return lease


def settlement(lease: Lease) -> Settlement:
    return Settlement(f"{lease.fence}:1", "settle", 5, 5)


def rescue(store: Store, lease: Lease) -> None:
    steady(store)
    age(store, "r1")
    due(store)
    store.watch.rescue("r1", LEASE_MS)


def submit_again(store: Store, lease: Lease) -> None:
    submit_run(store, batch="b1", custom_id="x")
    submit_run(store, "r2", batch="b1", custom_id="x")


def top_up(store: Store, lease: Lease) -> None:
    store.ledger.set_limit("tenant:acme", usd=100)
    store.ledger.topup("tenant:acme", usd=5, actor=PERSON)


def reserve_dry(store: Store, lease: Lease) -> None:
    store.ledger.set_limit("tenant:acme", usd=12)
    reserve(store, lease, 2, usd=6, tokens=1, escrow_usd=3, escrow_tokens=3, policy="park")


def retry(store: Store, lease: Lease) -> None:
    store.control.retry_many([Retrial("r1", 0, "{}", 1, "[]", "ann")])


def resumed_batch(store: Store, lease: Lease) -> None:
    """Its own pause is taken back, and nobody came to let it go: the tick does."""
    store.client.hdel(store.keys.run("r1"), "paused")
    age(store, "r1")
    due(store)


def paused_claim(store: Store, lease: Lease) -> None:
    store.batches.pause("b1", "me")
    store.runs.claim("r1", None, LEASE_MS)


def effect(lease: Lease) -> Effect:
    return Effect(lease, "c1", "pay:0123456789abcdef", once=True)


SCRIPTS: dict[str, Callable[[Store, Lease], object]] = {
    "run_submit": submit_again,
    "batch_open": lambda store, lease: open_batch(store),
    "batch_seal": lambda store, lease: store.batches.seal("b1"),
    "budget_set": lambda store, lease: store.ledger.set_limit("run:r1", usd=1, tokens=1),
    "budget_set more": lambda store, lease: store.ledger.set_limit("batch:b1", usd=100, actor=PERSON),
    "budget_topup": top_up,
    "budget_freeze": lambda store, lease: store.ledger.freeze("global", actor=PERSON),
    "budget_book": lambda store, lease: store.ledger.book("global", "charge", usd=1, actor=PERSON),
    "budget_winddown": lambda store, lease: store.ledger.winddown("batch:b1", actor=PERSON),
    "budget_wake": lambda store, lease: store.ledger.sweep("batch:b1"),
    "ledger_fold": lambda store, lease: call(store, "ledger_fold", 0, 100),
    "ledger_incident": lambda store, lease: call(store, "ledger_incident", "p", 0, 1, 1_000, 0, 0, 0, 0, 1),
    "ledger_reassert": lambda store, lease: call(
        store, "ledger_reassert", "r1", "9-lost:1", "settle", 5, 5, ""
    ),
    "worker_sign_on": lambda store, lease: store.watch.sign_on("w1", 60),
    "step_claim": lambda store, lease: store.runs.claim("r1", None, LEASE_MS),
    "lease_renew": lambda store, lease: store.watch.renew([lease], LEASE_MS),
    "budget_reserve": lambda store, lease: reserve(
        store, lease, 2, usd=1, tokens=1, escrow_usd=1, escrow_tokens=1
    ),
    "budget_reserve dry": reserve_dry,
    "budget_convert": lambda store, lease: store.ledger.convert(lease, 2),
    "step_commit tools": lambda store, lease: store.runs.commit_tools(lease, EMPTY, settlement(lease)),
    "step_commit continue": lambda store, lease: store.runs.commit_continue(lease, EMPTY, settlement(lease)),
    "step_commit wait": lambda store, lease: store.runs.commit_wait(
        lease, EMPTY, settlement(lease), [], 60_000
    ),
    "step_commit end": lambda store, lease: store.runs.commit_end(
        lease, EMPTY, settlement(lease), StopReason.FINISHED
    ),
    "step_release": lambda store, lease: store.runs.release(lease, delay_ms=0),
    "step_release delayed": lambda store, lease: store.runs.release(lease, delay_ms=60_000),
    "run_cancel": lambda store, lease: store.runs.cancel("r1", "test"),
    "runs_cancel": lambda store, lease: store.runs.cancel_many(["r1"], "test"),
    "run_pause": lambda store, lease: store.control.pause_many(["r1"], "test"),
    "run_resume": lambda store, lease: store.control.resume_many(["r1"], own=True),
    "run_resume of its batch": lambda store, lease: store.control.resume_many(["r1"], own=False),
    "batch_pause": lambda store, lease: store.batches.pause("b1", "test"),
    "batch_pause and step_claim": paused_claim,
    "run_retry": retry,
    "effect_begin": lambda store, lease: store.effects.begin(effect(lease), retry=False, reads={}),
    "effect_done": lambda store, lease: store.effects.done(
        effect(lease), "[]", late=False, event="[]", content=None
    ),
    "result_keep": lambda store, lease: store.results.keep(lease, "r1", "x", most=1, most_bytes=1),
    "approval_decide": lambda store, lease: store.approvals.decide([Wanted("r1", "c1", "approve", "me")]),
    "run_rescue": rescue,
    "tick of one that is not paused any more": resumed_batch,
    "tick": lambda store, lease: due(store),
}

MOVES = {
    (RunState.QUEUED, "step_claim"): RunState.RUNNING,
    (RunState.QUEUED, "run_cancel"): RunState.ENDED,
    (RunState.QUEUED, "runs_cancel"): RunState.ENDED,
    (RunState.RUNNING, "step_commit continue"): RunState.QUEUED,
    (RunState.RUNNING, "step_commit wait"): RunState.WAITING,
    (RunState.RUNNING, "step_commit end"): RunState.ENDED,
    (RunState.RUNNING, "step_release"): RunState.QUEUED,
    (RunState.RUNNING, "step_release delayed"): RunState.QUEUED,
    (RunState.RUNNING, "run_cancel"): RunState.CANCELLING,
    (RunState.RUNNING, "runs_cancel"): RunState.CANCELLING,
    (RunState.RUNNING, "run_rescue"): RunState.QUEUED,
    (RunState.CANCELLING, "step_commit tools"): RunState.ENDED,
    (RunState.CANCELLING, "step_commit continue"): RunState.ENDED,
    (RunState.CANCELLING, "step_commit wait"): RunState.ENDED,
    (RunState.CANCELLING, "step_commit end"): RunState.ENDED,
    (RunState.CANCELLING, "step_release"): RunState.ENDED,
    (RunState.CANCELLING, "step_release delayed"): RunState.ENDED,
    (RunState.CANCELLING, "run_rescue"): RunState.ENDED,
    (RunState.RUNNING, "budget_reserve dry"): RunState.PARKED,
    (RunState.PARKED, "budget_set more"): RunState.QUEUED,
    (RunState.PARKED, "budget_winddown"): RunState.QUEUED,
    (RunState.PARKED, "run_cancel"): RunState.ENDED,
    (RunState.PARKED, "runs_cancel"): RunState.ENDED,
    (RunState.PARKED, "run_rescue"): RunState.QUEUED,
    (RunState.WAITING, "run_cancel"): RunState.ENDED,
    (RunState.WAITING, "runs_cancel"): RunState.ENDED,
    (RunState.WAITING, "approval_decide"): RunState.QUEUED,
    (RunState.QUEUED, "run_pause"): RunState.HELD,
    (RunState.QUEUED, "batch_pause and step_claim"): RunState.HELD,
    (RunState.HELD, "run_resume"): RunState.QUEUED,
    (RunState.HELD, "run_cancel"): RunState.ENDED,
    (RunState.HELD, "runs_cancel"): RunState.ENDED,
    (RunState.HELD, "tick of one that is not paused any more"): RunState.QUEUED,
    (RunState.ENDED, "run_retry"): RunState.QUEUED,
    (RunState.WAITING, "run_rescue"): RunState.ENDED,
}
"""What each script does to a run in each state; whatever is not here leaves it where it is."""


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("state", list(RunState), ids=lambda state: state.value)
def test_a_script_makes_the_move_that_is_its_own_or_none(store: Store, state: RunState, script: str):
    lease = bring(store, state)
    fence = fence_of(store)
    SCRIPTS[script](store, lease)
    after = RunState(state_of(store))
    assert after is MOVES.get((state, script), state)
    assert after is state or after in TRANSITIONS[state]
    # Who waits has no lease, so there is nothing to raise the fence over when it is queued or held.
    idle = {RunState.QUEUED, RunState.PARKED, RunState.WAITING, RunState.HELD}
    if after is not state and not {state, after} <= idle:
        assert fence_of(store) > fence
    facts = {"budget_set", "budget_reserve dry", "ledger_reassert"}
    check_invariants(store, ["r1"], capped=script not in facts)


def test_every_move_of_the_table_is_made_by_some_script():
    made = {(state, after) for (state, _), after in MOVES.items()}
    # A run on its last life: see test_run_rescue.py.
    made.add((RunState.RUNNING, RunState.ENDED))
    assert made == {(state, after) for state, afters in TRANSITIONS.items() for after in afters}


OPERATION = "0p"
AGAIN: dict[str, Callable[[Lease], list[str | int]]] = {
    "run_pause": lambda lease: ["r1", "test"],
    "run_resume": lambda lease: ["r1", 1],
    "batch_pause": lambda lease: ["b1", "test"],
    "run_retry": lambda lease: ["r1", OPERATION, 0, "{}", 1, "", "", "[]", "ann", 0],
    "run_cancel": lambda lease: ["r1", "test"],
    "runs_cancel": lambda lease: ["test", 1, "r1"],
    "batch_cancel": lambda lease: ["b1", "test"],
    "effect_begin": lambda lease: ["r1", lease.fence, "c1", 0, "pay:0123456789abcdef", "once", "", 0],
    "effect_done": lambda lease: ["r1", lease.fence, "c1", 0, "pay:0123456789abcdef", "[]", "[]", 0, 0],
    "approval_decide": lambda lease: ["r1", "c1", OPERATION, "approve", "me", "", ""],
}
"""What people and tools do, with the raw arguments."""


@pytest.mark.parametrize("script", AGAIN)
@pytest.mark.parametrize("state", list(RunState), ids=lambda state: state.value)
def test_a_script_that_is_called_twice_answers_the_same_and_changes_nothing_more(
    store: Store, state: RunState, script: str
):
    lease = bring(store, state)
    twice(store, script, *AGAIN[script](lease))
    check_invariants(store, ["r1"])


LEAVING = [
    script
    for (state, script), after in MOVES.items()
    if state is RunState.RUNNING and after is not RunState.CANCELLING
]


@pytest.mark.parametrize("script", LEAVING)
def test_who_held_a_run_that_left_running_can_do_nothing_more_to_it(store: Store, script: str):
    lease = bring(store, RunState.RUNNING)
    SCRIPTS[script](store, lease)
    state, fence = state_of(store), fence_of(store)
    assert reserve(store, lease, 3, usd=1, tokens=1, escrow_usd=1, escrow_tokens=1) == "STALE"
    assert store.ledger.convert(lease, 3) == "STALE"
    assert store.watch.renew([lease], LEASE_MS) == ["LOST"]
    other = Settlement(f"{lease.fence}:9", "settle", 5, 5)
    assert store.runs.commit_tools(lease, EMPTY, other) == "STALE"
    assert (state_of(store), fence_of(store)) == (state, fence)
    check_invariants(store, ["r1"])
