"""run_rescue.lua: whatever is due is put right, and its due time moves forward."""

from __future__ import annotations

import json

from agentq.core.records import Delta, Settlement
from agentq.store import Store
from agentq.store.effects import Effect
from tests.support.harness import (
    GRACE_MS,
    LEASE_MS,
    age,
    call,
    check_invariants,
    claim_run,
    dump,
    fence_of,
    money,
    open_batch,
    ready,
    reserve,
    state_of,
    steady,
    submit_run,
    untouched,
)

NOTHING_TO_SETTLE = Settlement("", "release")
DEATHS = 5
"""Deaths on one step that end a run: two make it a suspect, and it dies as one three times."""


def rescue(store: Store, run_id: str = "r1") -> list[str]:
    return call(store, "run_rescue", run_id, LEASE_MS, GRACE_MS, 0)


def again_changes_nothing(store: Store, run_id: str = "r1") -> None:
    """A rescue whose reply was lost is repeated: the run is not due any more, or gone."""
    with untouched(store):
        assert rescue(store, run_id) in (["NOT_DUE"], ["GONE"])


def test_a_run_that_is_not_due_is_left_alone(store: Store):
    submit_run(store)
    with untouched(store):
        assert rescue(store) == ["NOT_DUE"]


def test_a_run_that_is_not_watched_is_gone(store: Store):
    with untouched(store):
        assert rescue(store) == ["GONE"]


def test_an_entry_without_a_live_run_is_taken_away(store: Store):
    submit_run(store)
    store.runs.cancel("r1", "test")
    store.client.zadd(store.keys.watch, {"r1": 1, "r9": 1})
    for run_id in ("r1", "r9"):
        assert rescue(store, run_id) == ["GONE"]
    assert store.watch.live() == {}


def test_a_queued_run_is_the_tick_s_business(store: Store):
    submit_run(store)
    age(store, "r1")
    with untouched(store):
        assert rescue(store) == ["NOT_DUE"]


def test_a_dead_attempt_is_charged_in_full_and_the_step_is_queued_again(store: Store):
    submit_run(store, usd=100, tokens=10)
    lease = claim_run(store).lease
    reserve(store, lease, 1, usd=70, tokens=7, escrow_usd=30, escrow_tokens=3)
    steady(store)
    age(store, "r1")
    before = store.watch.server_ms()
    assert rescue(store) == ["RESCUED", "0"]
    run = dump(store)["run:r1"][0]
    assert (run["state"], run["fence"], run["deaths"], run["rescues"]) == ("queued", "2-", "1", "1")
    assert before + GRACE_MS <= store.watch.live()["r1"] <= store.watch.server_ms() + GRACE_MS
    assert money(store, "run:r1") == {"us": 70, "ts": 7, "uf": 70, "ue": 30, "te": 3}
    again_changes_nothing(store)
    check_invariants(store, ["r1"])
    record = store.runs.read("r1")
    assert record is not None
    assert record.attempts == 2


def test_a_rescued_run_resumes_at_the_phase_it_had_reached(store: Store):
    submit_run(store)
    lease = claim_run(store).lease
    store.runs.commit_tools(lease, Delta("{}", ('{"role":"assistant"}',)), NOTHING_TO_SETTLE)
    steady(store)
    age(store, "r1")
    assert rescue(store) == ["RESCUED", "0"]
    assert claim_run(store).phase == "tools"


def test_the_last_death_on_one_step_ends_the_run_and_closes_its_money(store: Store):
    open_batch(store)
    submit_run(store, batch="b1", custom_id="x")
    store.batches.seal("b1")
    for verdict in (["RESCUED", "0"], *[["SUSPECT", "0"]] * 3, ["ENDED", "attempts_exhausted"]):
        lease = claim_run(store).lease
        reserve(store, lease, 1, usd=7, tokens=7, escrow_usd=3, escrow_tokens=3)
        steady(store)
        age(store, "r1")
        assert rescue(store) == verdict
    again_changes_nothing(store)
    assert money(store, "global") == {"us": 7 * DEATHS, "ts": 7 * DEATHS, "uf": 7 * DEATHS}
    record = store.runs.read("r1")
    assert record is not None
    assert (record.stop_reason, record.attempts) == ("attempts_exhausted", DEATHS + 1)
    check_invariants(store, ["r1"])


def test_a_commit_between_deaths_begins_their_count_again(store: Store):
    submit_run(store)
    for _ in range(DEATHS + 2):
        lease = claim_run(store).lease
        store.runs.commit_tools(lease, Delta("{}"), NOTHING_TO_SETTLE)
        steady(store)
        age(store, "r1")
        assert rescue(store) == ["RESCUED", "0"]
    assert dump(store)["run:r1"][0]["deaths"] == "1"


def test_waiting_past_the_deadline_ends_the_run_without_its_escrow(store: Store):
    submit_run(store)
    lease = claim_run(store).lease
    reserve(store, lease, 1, usd=7, tokens=7, escrow_usd=3, escrow_tokens=3)
    store.runs.commit_wait(lease, Delta("{}"), None, [], 60_000)
    with untouched(store):
        assert rescue(store) == ["NOT_DUE"]
    age(store, "r1")
    assert rescue(store) == ["ENDED", "approval_expired"]
    again_changes_nothing(store)
    assert (state_of(store), fence_of(store)) == ("ended", 3)
    check_invariants(store, ["r1"])


def test_a_cancelled_run_whose_worker_is_dead_ends_as_cancelled(store: Store):
    submit_run(store)
    claim_run(store)
    store.runs.cancel("r1", "test")
    steady(store)
    age(store, "r1")
    assert rescue(store) == ["ENDED", "cancelled"]
    again_changes_nothing(store)
    check_invariants(store, ["r1"])


# ── suspects ─────────────────────────────────────────────────────────────────────────────────────────

LATER_MS = 1_700


def die(store: Store, run_id: str = "r1", *, later_ms: int = LATER_MS) -> list[str]:
    """The process that holds the run dies."""
    steady(store)
    age(store, run_id)
    return call(store, "run_rescue", run_id, LEASE_MS, GRACE_MS, later_ms)


def test_after_the_second_death_a_run_is_claimed_later_and_each_at_a_time_of_its_own(store: Store):
    submit_run(store)
    claim_run(store)
    assert die(store) == ["RESCUED", "0"]
    assert "not_before" not in dump(store)["run:r1"][0]
    claim_run(store)
    before = store.watch.server_ms()
    assert die(store) == ["SUSPECT", "0"]
    run = dump(store)["run:r1"][0]
    assert before + LATER_MS <= int(run["not_before"]) <= store.watch.server_ms() + LATER_MS
    assert store.watch.live()["r1"] == int(run["not_before"])
    assert (run["state"], run["deaths"]) == ("queued", "2")
    again_changes_nothing(store)
    check_invariants(store, ["r1"])


def test_a_death_as_a_suspect_ends_the_run_and_says_where(store: Store):
    submit_run(store)
    for _ in range(DEATHS - 1):
        claim_run(store)
        die(store)
        ready(store, "r1")
    lease = claim_run(store).lease
    assert die(store) == ["ENDED", "attempts_exhausted"]
    again_changes_nothing(store)
    record = store.runs.read("r1")
    assert record is not None
    assert record.stop_detail == f"the process died {DEATHS} times in step 1, in its model call"
    assert store.runs.commit_continue(lease, Delta("{}"), None) == "STALE"
    check_invariants(store, ["r1"])


def test_the_tool_in_which_its_processes_died_is_named(store: Store):
    submit_run(store)
    store.runs.commit_tools(claim_run(store).lease, Delta("{}"), NOTHING_TO_SETTLE)
    die(store)
    for verdict in ["SUSPECT"] * (DEATHS - 2) + ["ENDED"]:
        lease = claim_run(store).lease
        effect = Effect(lease, "c1", "pay:0123456789abcdef", once=True)
        store.effects.begin(effect, retry=True, reads={})
        assert die(store)[0] == verdict
        ready(store, "r1")
    record = store.runs.read("r1")
    assert record is not None
    assert record.stop_detail == f"the process died {DEATHS} times in step 1, in pay"


def test_a_commit_makes_a_suspect_a_run_like_any_other(store: Store):
    submit_run(store)
    for _ in range(2):
        claim_run(store)
        die(store)
        ready(store, "r1")
    lease = claim_run(store).lease
    store.runs.commit_tools(lease, Delta("{}"), NOTHING_TO_SETTLE)
    assert die(store) == ["RESCUED", "0"]
    check_invariants(store, ["r1"])


def test_a_suspect_that_is_given_back_stays_one(store: Store):
    submit_run(store)
    for _ in range(DEATHS - 1):
        claim_run(store)
        die(store)
        ready(store, "r1")
    store.runs.release(claim_run(store).lease, delay_ms=0)
    claim_run(store)
    assert die(store) == ["ENDED", "attempts_exhausted"]


def test_a_held_run_is_the_tick_s_business(store: Store):
    submit_run(store)
    assert call(store, "run_pause", "r1", "ann") == ["HELD"]
    age(store, "r1")
    with untouched(store):
        assert rescue(store) == ["NOT_DUE"]


def test_a_wait_that_is_over_is_told_where_the_agent_says_so(store: Store):
    submit_run(store)
    lease = claim_run(store).lease
    reserve(store, lease, 1, usd=7, tokens=7, escrow_usd=3, escrow_tokens=3)
    asked = [{"id": "c1", "tool": "pay", "arguments": "{}", "signature": "pay:1", "asked_at_ms": 1}]
    store.runs.commit_wait(lease, Delta("{}"), None, asked, 60_000, fields={"on_expired": "tell"})
    age(store, "r1")
    assert rescue(store) == ["WOKEN", "0"]
    again_changes_nothing(store)
    claim = claim_run(store)
    assert (claim.phase, claim.decisions["c1"].verdict) == ("tools", "expired")
    assert not {"pending", "on_expired", "deadline"} & set(dump(store)["run:r1"][0])
    check_invariants(store, ["r1"])


def test_what_befell_a_run_is_in_its_trace(store: Store):
    submit_run(store)
    claim_run(store)
    assert die(store) == ["RESCUED", "0"]
    store.runs.cancel("r1", "ann")
    kinds = [json.loads(text)[:4] for text in store.runs.trace("r1")]
    assert kinds == [
        ["rescued", "the process was lost in step 1, in its model call", 0, 1],
        ["cancelled", "cancelled by ann, before step 1", 1, 1],
    ]
    check_invariants(store, ["r1"])
