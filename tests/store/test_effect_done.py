"""effect_done.lua: a fact, taken from the attempt that began, whatever has become of the run meanwhile."""

from __future__ import annotations

from typing import Any

from agentq.core.lifecycle import StopReason
from agentq.core.records import Delta, Lease, Settlement
from agentq.store import Store
from agentq.store.effects import Effect
from tests.support.harness import (
    LEASE_MS,
    RETENTION_MS,
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
RESULT = '[1,"paid 5",null,0,0]'
EVENT = '["late_result","pay:ok",1,1,1]'


def begun(store: Store) -> Lease:
    """A run that has begun to pay."""
    submit_run(store)
    lease = claim_run(store).lease
    assert store.runs.commit_tools(lease, Delta("{}"), NOTHING_TO_SETTLE) == "OK"
    assert store.effects.begin(Effect(lease, "c1", PAY, once=True), retry=False, reads={}) == ("GO", "")
    return lease


def taken_over(store: Store) -> Lease:
    """The holder is slow and counts as dead; another one has the run."""
    steady(store)
    age(store, "r1")
    store.watch.rescue("r1", LEASE_MS)
    ready(store, "r1")
    return claim_run(store).lease


def done(
    store: Store, lease: Lease, *, late: int = 0, content: tuple[str, ...] = ("paid 5",), result: str = RESULT
) -> list[str]:
    """The script, called twice as by a client whose reply was lost."""
    given: list[str | int] = [
        lease.run_id,
        lease.fence,
        "c1",
        lease.step,
        PAY,
        result,
        EVENT,
        late,
        len(content),
        *content,
    ]
    return twice(store, "effect_done", *given)


def part(store: Store, name: str) -> Any:
    """A part of the run; of its trace what its tools have given, not what befell it."""
    found = dump(store).get(f"run:r1:{name}", (None, False))[0]
    if name != "trace":
        return found
    return [text for text in found or () if not text.startswith(('["rescued"', '["cancelled"'))] or None


def test_a_result_in_time_is_noted_and_nothing_else(store: Store):
    lease = begun(store)
    assert done(store, lease) == ["OK"]
    assert part(store, "effects") == {"c1": f"done {lease.fence} 0 {PAY} {RESULT}"}
    assert (part(store, "trace"), part(store, "cache")) == (None, None)
    check_invariants(store, ["r1"])


def test_a_result_that_comes_too_late_is_also_in_the_trace_and_answers_equal_calls(store: Store):
    lease = begun(store)
    assert done(store, lease, late=1) == ["LATE"]
    assert part(store, "effects") == {"c1": f"done {lease.fence} 0 {PAY} {RESULT}"}
    assert (part(store, "trace"), part(store, "cache")) == ([EVENT], {PAY: "paid 5"})


def test_a_failure_that_comes_too_late_answers_nothing(store: Store):
    lease = begun(store)
    assert done(store, lease, late=1, content=()) == ["LATE"]
    assert (part(store, "trace"), part(store, "cache")) == ([EVENT], None)


def test_who_has_lost_the_run_still_says_what_it_has_done(store: Store):
    """The one that goes on may have told the model already that nobody knows: later calls must hear of it."""
    old = begun(store)
    new = taken_over(store)
    assert done(store, old) == ["LATE"]
    assert (part(store, "trace"), part(store, "cache")) == ([EVENT], {PAY: "paid 5"})
    assert store.effects.begin(Effect(new, "c1", PAY, once=True), retry=False, reads={}) == (
        "CACHED",
        "paid 5",
    )
    assert store.effects.begin(Effect(new, "c1", PAY, once=False), retry=False, reads={}) == ("DONE", RESULT)
    check_invariants(store, ["r1"])


def test_what_comes_after_the_step_is_a_fact_and_is_forgotten_with_the_next_commit(store: Store):
    lease = begun(store)
    store.runs.commit_continue(lease, Delta("{}"), None)
    assert done(store, lease, late=1) == ["LATE"]
    new = claim_run(store).lease
    assert store.effects.begin(Effect(new, "c2", PAY, once=True), retry=False, reads={}) == (
        "CACHED",
        "paid 5",
    )
    store.runs.commit_continue(new, Delta("{}"), None)
    assert part(store, "effects") is None
    check_invariants(store, ["r1"])


def test_a_run_that_is_being_cancelled_shows_what_its_tool_has_done(store: Store):
    lease = begun(store)
    store.runs.cancel("r1", "test")
    assert done(store, lease) == ["LATE"]
    assert part(store, "trace") == [EVENT]


def test_a_fact_about_an_ended_run_gets_the_end_of_its_keys(store: Store):
    lease = begun(store)
    store.runs.cancel("r1", "test")
    store.runs.release(lease, delay_ms=0)
    assert done(store, lease) == ["LATE"]
    for name in ("trace", "cache", "effects"):
        left = store.client.pttl(store.keys.run("r1", name))
        assert 0 < left <= RETENTION_MS, name
    check_invariants(store, ["r1"])


def test_nothing_is_written_about_a_run_that_is_gone(store: Store):
    lease = begun(store)
    store.client.delete(store.keys.run("r1"), store.keys.run("r1", "effects"))
    with untouched(store):
        assert done(store, lease) == ["MISSING"]


def test_only_the_attempt_that_began_it_may_say_what_came_of_it(store: Store):
    old = begun(store)
    new = taken_over(store)
    effect = Effect(new, "c1", PAY, once=True)
    assert store.effects.begin(effect, retry=True, reads={})[0] == "GO"
    with untouched(store):
        assert done(store, old) == ["GONE"]
        assert call(store, "effect_done", "r1", new.fence, "c2", 0, PAY, RESULT, EVENT, 0, 0) == ["GONE"]
    assert done(store, new) == ["OK"]


def test_the_first_word_counts(store: Store):
    lease = begun(store)
    assert done(store, lease) == ["OK"]
    with untouched(store):
        assert done(store, lease, result='[0,"no","tool_error",0,0]') == ["GONE"]


def test_a_call_that_waits_for_children_is_no_late_result(store: Store):
    old = begun(store)
    taken_over(store)
    assert done(store, old, content=(), result="again") == ["OK"]
    assert part(store, "trace") is None


def test_an_ended_run_keeps_for_a_retry_what_came_late_and_what_is_not_known(store: Store):
    lease = begun(store)
    other = Effect(lease, "c2", "ring:0123456789abcdef", once=True)
    assert store.effects.begin(other, retry=False, reads={})[0] == "GO"
    store.runs.commit_end(lease, Delta("{}"), None, StopReason.MODEL_ERROR)
    assert done(store, lease) == ["LATE"]
    assert part(store, "effects") == {
        "c1": f"done {lease.fence} 0 {PAY} {RESULT}",
        "c2": f"started {lease.fence} 0 ring:0123456789abcdef",
    }
