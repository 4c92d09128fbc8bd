"""step_claim.lua: one worker at a time has a step, and gets the thread with it."""

from __future__ import annotations

import json

import pytest

from agentq.core.errors import SchemaError
from agentq.core.records import Decision, Delta, Settlement
from agentq.store import Store
from agentq.store.watch import Due
from tests.support.harness import (
    HELLO,
    LEASE_MS,
    age,
    call,
    check_invariants,
    claim_run,
    due,
    dump,
    fence_of,
    open_batch,
    ready,
    state_of,
    steady,
    submit_run,
    twice,
    untouched,
)


def test_a_claim_grants_a_lease_and_hands_over_the_thread(store: Store):
    submit_run(store, messages=(HELLO, '{"role":"assistant","content":"ho"}'))
    before = store.watch.server_ms()
    reply = call(store, "step_claim", "r1", 0, "n1", LEASE_MS)
    after = store.watch.server_ms()
    word, fence, now, step, phase, spent, *failed, spec = reply[:9]
    wind, limits, *met, head, messages, trace, cached = reply[9:]
    assert (word, fence, step, phase, spent, head) == ("OK", "1-n1", "0", "model", "0", "{}")
    assert (failed, wind, limits, met) == (["0", "0"], "", "", ["", "0", "0", [], []])
    assert before <= int(now) <= after
    assert json.loads(spec)["agent"] == "a"
    assert json.loads(messages) == [json.loads(HELLO), {"role": "assistant", "content": "ho"}]
    assert (trace, cached) == ("[]", [])
    run = dump(store)["run:r1"][0]
    assert (run["state"], run["fence"], run["claimed"], run["started"]) == ("running", "1-n1", now, now)
    assert store.watch.live() == {"r1": int(now) + LEASE_MS}
    check_invariants(store, ["r1"])


def test_the_same_claim_again_gets_the_same_grant(store: Store):
    submit_run(store)
    first = call(store, "step_claim", "r1", 0, "n1", LEASE_MS)
    with untouched(store):
        again = call(store, "step_claim", "r1", 0, "n1", LEASE_MS)
    assert again[:2] + again[3:] == first[:2] + first[3:]


def test_a_run_that_a_worker_holds_is_busy(store: Store):
    submit_run(store)
    claim_run(store)
    with untouched(store):
        assert call(store, "step_claim", "r1", 0, "n2", LEASE_MS) == ["BUSY"]
    store.runs.cancel("r1", "test")
    with untouched(store):
        assert call(store, "step_claim", "r1", 0, "n2", LEASE_MS) == ["BUSY"]


def test_a_run_whose_lease_is_over_is_busy_until_it_is_rescued(store: Store):
    submit_run(store)
    claim_run(store)
    age(store, "r1")
    with untouched(store):
        assert call(store, "step_claim", "r1", "", "n2", LEASE_MS) == ["BUSY"]
    steady(store)
    store.watch.rescue("r1", LEASE_MS)
    assert call(store, "step_claim", "r1", "", "n2", LEASE_MS)[:2] == ["OK", "3-n2"]


def test_a_delayed_run_cannot_be_claimed_before_its_time(store: Store):
    submit_run(store)
    store.runs.release(claim_run(store).lease, delay_ms=60_000)
    with untouched(store):
        assert call(store, "step_claim", "r1", 0, "n2", LEASE_MS) == ["NOT_YET"]
    ready(store, "r1")
    assert call(store, "step_claim", "r1", 0, "n2", LEASE_MS)[0] == "OK"
    assert not {"not_before", "hints"} & set(dump(store)["run:r1"][0])


@pytest.mark.parametrize("other", [1, 7])
def test_a_message_for_another_step_is_stale(store: Store, other: int):
    submit_run(store)
    with untouched(store):
        assert call(store, "step_claim", "r1", other, "n1", LEASE_MS) == ["STALE"]


def test_an_ended_or_waiting_run_is_closed(store: Store):
    submit_run(store, "r1")
    store.runs.cancel("r1", "test")
    submit_run(store, "r2")
    store.runs.commit_wait(claim_run(store, "r2").lease, Delta("{}"), None, [], 1000)
    with untouched(store):
        for run_id in ("r1", "r2"):
            assert call(store, "step_claim", run_id, "", "n1", LEASE_MS) == ["CLOSED"]


def test_a_run_that_does_not_exist_is_missing(store: Store):
    with untouched(store):
        assert call(store, "step_claim", "r1", "", "n1", LEASE_MS) == ["MISSING"]
        assert store.runs.claim("r1", None, LEASE_MS) is None


def test_each_claim_and_each_exit_raises_the_fence(store: Store):
    submit_run(store)
    fences = [fence_of(store)]
    for _ in range(3):
        lease = claim_run(store).lease
        fences.append(fence_of(store))
        store.runs.release(lease, delay_ms=0)
        fences.append(fence_of(store))
    assert fences == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("between", ["delay", "hint"])
def test_a_run_started_at_its_first_claim_whatever_came_between(store: Store, between: str):
    submit_run(store)
    if between == "hint":
        age(store, "r1")
        assert due(store).hints == [("r1", 0)]
    lease = claim_run(store).lease
    started = store.client.hget(store.keys.run("r1"), "started")
    assert started is not None
    store.client.hset(store.keys.run("r1"), "started", 5)
    store.runs.release(lease, delay_ms=60_000 if between == "delay" else 0)
    if between == "delay":
        ready(store, "r1")
    claim_run(store)
    assert store.client.hget(store.keys.run("r1"), "started") == "5"


def test_the_grant_has_what_the_last_commit_left(store: Store):
    submit_run(store)
    lease = claim_run(store).lease
    delta = Delta('{"step":1}', ('{"role":"assistant","content":"x"}',), ('["step"]',), {"pay:1": "done"})
    assert store.runs.commit_tools(lease, delta, Settlement("", "release")) == "OK"
    steady(store)
    age(store, "r1")
    store.watch.rescue("r1", LEASE_MS)
    claim = claim_run(store)
    assert claim.parts is not None
    assert (claim.phase, claim.lease.step, claim.parts.head) == ("tools", 0, '{"step":1}')
    assert len(json.loads(claim.parts.messages)) == 2
    assert [event[0] for event in json.loads(claim.parts.trace)] == ["step", "rescued"]
    assert claim.parts.tool_results == {"pay:1": "done"}
    assert state_of(store) == "running"


def test_a_thread_that_the_worker_has_is_not_sent_again_unless_something_came_after(store: Store):
    submit_run(store)
    lease = claim_run(store).lease
    store.runs.commit_continue(lease, Delta('{"step":1}', (HELLO,)), None)
    known = store.runs.commit_id(lease)
    claim = store.runs.claim("r1", 1, LEASE_MS, known=known)
    assert claim is not None
    assert (claim.parts, claim.lease.step, claim.spec.agent) == (None, 1, "a")
    store.runs.release(claim.lease, delay_ms=0, head='{"step":1,"closing":"loop_detected"}')
    claim = store.runs.claim("r1", 1, LEASE_MS, known=known)
    assert claim is not None
    assert claim.parts is not None
    assert claim.parts.head == '{"step":1,"closing":"loop_detected"}'


def test_a_thread_that_was_never_committed_is_sent_also_to_who_names_no_commit(store: Store):
    submit_run(store)
    claim = store.runs.claim("r1", 0, LEASE_MS, known="")
    assert claim is not None
    assert claim.parts is not None


# ── a suspect, a pause, a newer state ────────────────────────────────────────────────────────────────


def suspect(store: Store, run_id: str = "r1") -> None:
    """Two processes have died in this step: the run may be what killed them."""
    for verdict in ("RESCUED", "SUSPECT"):
        claim_run(store, run_id)
        steady(store)
        age(store, run_id)
        assert store.watch.rescue(run_id, LEASE_MS).verdict == verdict
        ready(store, run_id)


def test_a_suspect_is_refused_to_a_process_that_has_one_and_comes_back_soon(store: Store):
    submit_run(store)
    suspect(store)
    store.client.hset(store.keys.run("r1"), "hints", 7)
    fence, before = fence_of(store), store.watch.server_ms()
    assert call(store, "step_claim", "r1", "", "n1", LEASE_MS, "", 0) == ["SUSPECT"]
    assert (state_of(store), fence_of(store)) == ("queued", fence)
    assert before < store.watch.live()["r1"] <= store.watch.server_ms() + 1000
    assert "hints" not in dump(store)["run:r1"][0], "the tick sends its next hint whatever room there is"
    assert call(store, "step_claim", "r1", "", "n1", LEASE_MS, "", 0) == ["SUSPECT"]
    check_invariants(store, ["r1"])


def test_a_run_is_a_suspect_until_a_commit(store: Store):
    submit_run(store)
    suspect(store)
    claim = claim_run(store)
    assert claim.is_suspect
    store.runs.release(claim.lease, delay_ms=0)
    assert dump(store)["run:r1"][0]["deaths"] == "2"
    claim = claim_run(store)
    assert claim.is_suspect, "to give it back is no proof"
    store.runs.commit_tools(claim.lease, Delta("{}"), Settlement("", "release"))
    assert "deaths" not in dump(store)["run:r1"][0]


def test_a_run_in_which_one_process_has_died_is_no_suspect(store: Store):
    submit_run(store)
    claim_run(store)
    steady(store)
    age(store, "r1")
    store.watch.rescue("r1", LEASE_MS)
    claim = store.runs.claim("r1", None, LEASE_MS, may_suspect=False)
    assert claim is not None
    assert not claim.is_suspect


@pytest.mark.parametrize("paused", ["run", "batch"])
def test_a_paused_run_is_held_where_it_would_be_claimed(store: Store, paused: str):
    open_batch(store)
    submit_run(store, batch="b1", custom_id="x")
    store.client.hset(store.keys.run("r1") if paused == "run" else store.keys.batch("b1"), "paused", "ann")
    fence = fence_of(store)
    assert twice(store, "step_claim", "r1", 0, "n1", LEASE_MS) == ["HELD"]
    assert (state_of(store), fence_of(store)) == ("held", fence)
    assert store.watch.live()["r1"] > store.watch.server_ms() + LEASE_MS
    check_invariants(store, ["r1"])


def test_a_delayed_run_that_is_paused_is_held_and_keeps_its_delay(store: Store):
    submit_run(store)
    store.runs.release(claim_run(store).lease, delay_ms=60_000)
    store.client.hset(store.keys.run("r1"), "paused", "ann")
    assert call(store, "step_claim", "r1", 0, "n1", LEASE_MS) == ["HELD"]
    store.client.hdel(store.keys.run("r1"), "paused")
    age(store, "r1")
    assert due(store) == Due([], [])
    assert state_of(store) == "queued"
    with untouched(store):
        assert call(store, "step_claim", "r1", 0, "n2", LEASE_MS) == ["NOT_YET"]


def test_a_state_that_is_newer_than_this_release_is_left_alone(store: Store):
    submit_run(store)
    store.client.hset(store.keys.ledger, "schema", 99)
    with untouched(store), pytest.raises(SchemaError, match="99"):
        store.runs.claim("r1", None, LEASE_MS)


# ── what comes with the grant ────────────────────────────────────────────────────────────────────────


def test_effects_and_decisions_come_only_where_the_tools_are_next(store: Store):
    submit_run(store)
    decision = '{"verdict":"approve","by":"ann","reason":"","arguments":"","at":5}'
    store.client.hset(store.keys.run("r1", "effects"), "c1", "started 1-x 0 pay:1")
    store.client.hset(store.keys.run("r1", "decisions"), "c2", decision)
    claim = claim_run(store)
    assert (claim.phase, claim.effects, claim.decisions) == ("model", {}, {})
    store.runs.commit_tools(claim.lease, Delta("{}"), Settlement("", "release"))
    steady(store)
    age(store, "r1")
    store.watch.rescue("r1", LEASE_MS)
    claim = claim_run(store)
    assert (claim.phase, claim.effects) == ("tools", {"c1": "started 1-x 0 pay:1"})
    assert claim.decisions == {"c2": Decision(verdict="approve", by="ann", reason="", arguments="", at_ms=5)}


def test_the_grant_names_the_definition_that_the_run_has_met(store: Store):
    submit_run(store)
    store.client.hset(store.keys.run("r1"), "definition", "abc")
    claim = claim_run(store)
    assert claim.definition == "abc"
    store.runs.commit_continue(claim.lease, Delta("{}", fields={"definition": "def"}), None)
    assert claim_run(store).definition == "def"
