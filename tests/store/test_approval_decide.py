"""approval_decide.lua: the first decision about a call counts, and the last of its step queues the run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentq.core.lifecycle import RunState
from agentq.core.records import Delta
from agentq.store import Store
from agentq.store.approvals import Taken, Verdict, Wanted
from tests.support.harness import (
    age,
    call,
    check_invariants,
    claim_run,
    dump,
    money,
    reserve,
    state_of,
    submit_run,
    twice,
    untouched,
)

ARGUMENTS = '{"n":1,"text":"ümläut \\/ \\u0007","empty":[]}'


def asked(call_id: str) -> dict[str, Any]:
    return {
        "id": call_id,
        "tool": "refund",
        "arguments": ARGUMENTS,
        "signature": "refund:1",
        "asked_at_ms": 1_795_973_957_077,
        "default": "stop",
        "kind": "approval",
    }


def wait(store: Store, *calls: str, deadline_ms: int = 60_000) -> None:
    """A run that has its escrow and waits for a person to decide on these calls."""
    submit_run(store)
    lease = claim_run(store).lease
    reserve(store, lease, usd=7, tokens=7, escrow_usd=3, escrow_tokens=3)
    store.runs.commit_wait(lease, Delta("{}"), None, [asked(name) for name in calls], deadline_ms)
    assert list(store.approvals.runs()) == [["r1"]]


def decide(store: Store, call_id: str, verdict: Verdict = "approve", by: str = "ann", **more: str) -> Taken:
    return store.approvals.decide([Wanted("r1", call_id, verdict, by, **more)])[0]


def test_the_last_decision_queues_the_run_and_takes_it_out_of_the_inbox(store: Store):
    wait(store, "c1", "c2")
    assert decide(store, "c1") == Taken("DECIDED", left=1)
    assert state_of(store) == "waiting"
    assert list(store.approvals.runs()) == [["r1"]]
    assert decide(store, "c2", "deny", reason="no") == Taken("DECIDED", left=0)
    assert state_of(store) == "queued"
    assert list(store.approvals.runs()) == []
    run = dump(store)["run:r1"][0]
    assert not {"pending", "deadline", "on_expired"} & set(run)
    assert store.watch.live()["r1"] <= store.watch.server_ms()
    assert money(store, "run:r1") == {"us": 7, "ts": 7, "uf": 7, "ue": 3, "te": 3}
    check_invariants(store, ["r1"])
    claim = claim_run(store)
    assert claim.phase == "tools"
    assert {name: (d.verdict, d.by, d.reason) for name, d in claim.decisions.items()} == {
        "c1": ("approve", "ann", ""),
        "c2": ("deny", "ann", "no"),
    }


def test_what_is_pending_are_the_calls_that_are_open_as_they_were_asked_about(store: Store):
    wait(store, "c1", "c2", "c3")
    before = store.runs.read("r1")
    decide(store, "c2")
    after = store.runs.read("r1")
    assert before is not None
    assert after is not None
    assert after.pending == (before.pending[0], before.pending[2])
    assert after.pending[0].arguments == ARGUMENTS
    assert after.pending[0].asked_at_ms == 1_795_973_957_077


def test_the_first_decision_counts_and_a_later_one_hears_whose_it_was(store: Store):
    wait(store, "c1", "c2")
    before = store.watch.server_ms()
    decide(store, "c1", "deny", by="ann", reason="too much")
    with untouched(store):
        taken = decide(store, "c1", "approve", by="bob")
    assert taken.word == "TAKEN"
    assert taken.first is not None
    assert (taken.first.verdict, taken.first.by, taken.first.reason) == ("deny", "ann", "too much")
    assert before <= taken.first.at_ms <= store.watch.server_ms()


def test_whose_decision_was_first_is_known_also_when_the_run_has_ended(store: Store):
    wait(store, "c1")
    decide(store, "c1")
    store.runs.cancel("r1", "me")
    with untouched(store):
        assert decide(store, "c1", by="bob").word == "TAKEN"


@pytest.mark.parametrize("calls", [("c1",), ("c1", "c2"), ("c1", "c2", "c3")])
def test_the_same_operation_twice_is_one_decision_with_one_answer(store: Store, calls: tuple[str, ...]):
    wait(store, *calls)
    left = len(calls) - 1
    reply = twice(store, "approval_decide", "r1", "c1", "op1", "approve", "ann", "", "")
    assert reply == ["DECIDED", str(left)]


def test_nobody_decides_when_the_time_is_over(store: Store):
    wait(store, "c1", deadline_ms=0)
    with untouched(store):
        assert decide(store, "c1") == Taken("EXPIRED")


def test_a_deadline_that_is_not_swept_yet_is_one_all_the_same(store: Store):
    """The run is due, and no tick has come to it: a decision now would be one after the end."""
    wait(store, "c1", deadline_ms=0)
    age(store, "r1")
    assert decide(store, "c1").word == "EXPIRED"
    assert call(store, "run_rescue", "r1", 15_000, 5_000, 1_000) == ["ENDED", "approval_expired"]
    with untouched(store):
        assert decide(store, "c1") == Taken("CLOSED", state="ended")


def test_what_does_not_wait_cannot_be_decided(store: Store):
    assert decide(store, "c1") == Taken("MISSING")
    submit_run(store)
    with untouched(store):
        assert decide(store, "c1") == Taken("CLOSED", state="queued")
    claim_run(store)
    with untouched(store):
        assert decide(store, "c1") == Taken("CLOSED", state="running")


def test_a_run_that_waits_for_children_does_not_wait_for_a_person(store: Store):
    submit_run(store)
    lease = claim_run(store).lease
    store.runs.commit_gather(lease, Delta("{}"), [], {"g": 60_000})
    with untouched(store):
        assert decide(store, "c1").word == "CLOSED"


def test_a_call_that_nobody_asked_about_cannot_be_decided(store: Store):
    wait(store, "c1")
    with untouched(store):
        assert decide(store, "c9") == Taken("UNKNOWN")


def test_a_cancelled_run_leaves_the_inbox_and_its_escrow_is_given_back(store: Store):
    wait(store, "c1")
    store.runs.cancel("r1", "me")
    assert list(store.approvals.runs()) == []
    with untouched(store):
        assert decide(store, "c1") == Taken("CLOSED", state="ended")
    check_invariants(store, ["r1"])


def test_many_decisions_go_in_one_round_trip_and_each_is_decided_by_itself(store: Store):
    wait(store, "c1", "c2")
    wanted = [Wanted("r1", name, "approve", "ann") for name in ("c1", "c9", "c2", "c1")]
    words = [taken.word for taken in store.approvals.decide([*wanted, Wanted("r9", "c1", "deny", "ann")])]
    assert words == ["DECIDED", "UNKNOWN", "DECIDED", "TAKEN", "MISSING"]
    assert state_of(store) == RunState.QUEUED.value


def test_the_arguments_and_the_reason_come_back_as_they_were_given(store: Store):
    wait(store, "c1")
    decide(store, "c1", by="Änn", reason='"quoted"\nand more', arguments=ARGUMENTS)
    kept = store.approvals.decisions("r1")["c1"]
    assert (kept.by, kept.reason, kept.arguments) == ("Änn", '"quoted"\nand more', ARGUMENTS)
    assert json.loads(kept.arguments) == json.loads(ARGUMENTS)


def test_who_has_waited_longest_is_first_in_the_inbox(store: Store):
    for name in ("late", "early"):
        submit_run(store, name)
        lease = claim_run(store, name).lease
        store.runs.commit_wait(lease, Delta("{}"), None, [asked("c1")], 60_000)
    store.client.zadd(store.keys.inbox, {"early": 1})
    assert list(store.approvals.runs()) == [["early", "late"]]
