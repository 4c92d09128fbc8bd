"""effect_begin.lua: only who holds the run may begin to act, and not what was done, or may have been."""

from __future__ import annotations

import pytest

from agentq.core.lifecycle import StopReason
from agentq.core.records import Delta, Lease, Settlement
from agentq.store import Store
from agentq.store.effects import Effect
from tests.support.harness import (
    LEASE_MS,
    age,
    call,
    check_invariants,
    claim_run,
    dump,
    ready,
    steady,
    submit_run,
    twice,
    untouched,
)

NOTHING_TO_SETTLE = Settlement("", "release")
PAY = "pay:0123456789abcdef"


def begin(
    store: Store,
    lease: Lease,
    name: str = "c1",
    *,
    signature: str = PAY,
    once: str = "once",
    retry: str = "",
    reads: tuple[str, ...] = (),
) -> list[str]:
    """The script, called twice as by a client whose reply was lost."""
    given: list[str | int] = [
        lease.run_id,
        lease.fence,
        name,
        lease.step,
        signature,
        once,
        retry,
        len(reads),
        *reads,
    ]
    return twice(store, "effect_begin", *given)


def done(store: Store, lease: Lease, result: str = "[1]") -> None:
    effect = Effect(lease, "c1", PAY, once=True)
    assert store.effects.done(effect, result, late=False, event="[]", content=None) == "OK"


def at_its_tools(store: Store) -> Lease:
    """A run whose reply is kept: its tools come next."""
    submit_run(store)
    lease = claim_run(store).lease
    assert store.runs.commit_tools(lease, Delta("{}"), NOTHING_TO_SETTLE) == "OK"
    return lease


def taken_over(store: Store) -> Lease:
    """The holder has died; another one has the run."""
    steady(store)
    age(store, "r1")
    assert store.watch.rescue("r1", LEASE_MS).verdict in {"RESCUED", "SUSPECT"}
    ready(store, "r1")
    return claim_run(store).lease


def journal(store: Store) -> dict[str, str]:
    return dict(dump(store).get("run:r1:effects", ({}, False))[0])


def test_the_holder_of_a_run_may_begin_and_it_is_written_down_first(store: Store):
    lease = at_its_tools(store)
    assert begin(store, lease) == ["GO"]
    assert journal(store) == {"c1": f"started {lease.fence} 0 {PAY}"}
    check_invariants(store, ["r1"])


def test_who_has_lost_the_run_may_not_begin(store: Store):
    old = at_its_tools(store)
    new = taken_over(store)
    with untouched(store):
        assert begin(store, old) == ["STALE"]
        assert call(store, "effect_begin", "r9", new.fence, "c1", 0, PAY, "once", "", 0) == ["STALE"]
    store.runs.release(new, delay_ms=0)
    with untouched(store):
        assert begin(store, new) == ["STALE"]


def test_nothing_begins_in_a_run_that_is_being_cancelled_or_has_ended(store: Store):
    lease = at_its_tools(store)
    store.runs.cancel("r1", "test")
    with untouched(store):
        assert begin(store, lease) == ["CANCELLED"]
    assert store.runs.commit_end(lease, Delta("{}"), None, StopReason.FINISHED) == "CANCELLED"
    with untouched(store):
        assert begin(store, lease) == ["STALE"]


@pytest.mark.parametrize("once", ["once", "again"])
def test_what_is_done_answers_for_the_call(store: Store, once: str):
    lease = at_its_tools(store)
    begin(store, lease, once=once)
    done(store, lease, result='[1,"paid 5",null,0,0]')
    new = taken_over(store)
    with untouched(store):
        assert begin(store, new, once=once) == ["DONE", '[1,"paid 5",null,0,0]']


@pytest.mark.parametrize("once", ["once", "again"])
def test_what_a_lost_worker_began_is_unknown_and_not_begun_again(store: Store, once: str):
    begin(store, at_its_tools(store), once=once)
    new = taken_over(store)
    with untouched(store):
        assert begin(store, new, once=once) == ["UNKNOWN"]


def test_it_is_begun_again_where_that_is_safe_or_allowed(store: Store):
    begin(store, at_its_tools(store))
    new = taken_over(store)
    assert begin(store, new, retry="retry") == ["GO"]
    assert journal(store) == {"c1": f"started {new.fence} 0 {PAY}"}


def test_an_equal_call_of_the_step_is_as_unknown_as_the_one_that_began(store: Store):
    begin(store, at_its_tools(store))
    new = taken_over(store)
    with untouched(store):
        assert begin(store, new, "c2") == ["UNKNOWN"]
    assert begin(store, new, "c3", signature="pay:fedcba9876543210") == ["GO"]


@pytest.mark.parametrize("once, retry", [("again", ""), ("once", "retry")])
def test_an_equal_call_that_may_act_each_time_is_not_held_up(store: Store, once: str, retry: str):
    begin(store, at_its_tools(store))
    assert begin(store, taken_over(store), "c2", once=once, retry=retry) == ["GO"]


def test_what_was_unknown_in_an_earlier_step_holds_up_nothing(store: Store):
    lease = at_its_tools(store)
    begin(store, lease)
    store.runs.commit_continue(lease, Delta("{}"), None)
    assert begin(store, claim_run(store).lease, "c2") == ["GO"]


def test_a_good_result_of_the_run_answers_equal_calls_but_not_those_that_may_act_again(store: Store):
    lease = at_its_tools(store)
    store.client.hset(store.keys.run("r1", "cache"), PAY, "paid 5")
    with untouched(store):
        assert begin(store, lease) == ["CACHED", "paid 5"]
    assert begin(store, lease, once="again") == ["GO"]


def test_a_call_that_waited_for_children_is_made_again(store: Store):
    lease = at_its_tools(store)
    begin(store, lease)
    done(store, lease, result="again")
    new = taken_over(store)
    assert begin(store, new) == ["GO"]
    assert journal(store) == {"c1": f"started {new.fence} 0 {PAY}"}
    # And if its worker dies then, nobody knows.
    assert begin(store, taken_over(store)) == ["UNKNOWN"]


def test_the_reads_before_it_are_kept_with_it_whatever_the_answer_is(store: Store):
    lease = at_its_tools(store)
    assert begin(store, lease, reads=("r1", '[1,"a",null,0,0]', "r2", '[0,"b","timeout",1,0]')) == ["GO"]
    kept = {
        "r1": f'done {lease.fence} 0 - [1,"a",null,0,0]',
        "r2": f'done {lease.fence} 0 - [0,"b","timeout",1,0]',
    }
    assert journal(store) == kept | {"c1": f"started {lease.fence} 0 {PAY}"}
    new = taken_over(store)
    assert begin(store, new, reads=("r3", "[1]")) == ["UNKNOWN"]
    assert journal(store)["r3"] == f"done {new.fence} 0 - [1]"


def test_a_result_of_a_read_speaks_for_no_other_call(store: Store):
    lease = at_its_tools(store)
    assert begin(store, lease, "c2", signature="-", reads=("c1", "[1]")) == ["GO"]


def test_the_commit_of_the_step_takes_what_is_done_and_leaves_what_is_not_known(store: Store):
    lease = at_its_tools(store)
    begin(store, lease, reads=("r1", "[1]"))
    done(store, lease)
    begin(store, lease, "c2", signature="ring:0123456789abcdef")
    store.runs.commit_continue(lease, Delta("{}"), None)
    assert journal(store) == {"c2": f"started {lease.fence} 0 ring:0123456789abcdef"}
    store.runs.commit_end(claim_run(store).lease, Delta("{}"), None, StopReason.FINISHED)
    check_invariants(store, ["r1"])
    assert dump(store)["run:r1:effects"][1], "it has an end"


def test_a_wait_keeps_what_is_done_for_the_attempt_that_comes_after_it(store: Store):
    lease = at_its_tools(store)
    begin(store, lease)
    done(store, lease)
    store.runs.commit_wait(lease, Delta("{}"), None, [], 60_000, kept=True)
    assert journal(store) == {"c1": f"done {lease.fence} 0 {PAY} [1]"}
