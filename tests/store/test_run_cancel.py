"""run_cancel.lua: at once when no worker holds the run, else over its holder's head."""

from __future__ import annotations

from agentq.core.lifecycle import StopReason
from agentq.core.records import Delta
from agentq.engine.cancel import cancel_batch, cancel_run
from agentq.store import Store
from agentq.store.runs import CANCELS
from tests.support.harness import (
    LEASE_MS,
    age,
    call,
    check_invariants,
    claim_run,
    dump,
    fence_of,
    money,
    open_batch,
    reserve,
    state_of,
    steady,
    submit_run,
    twice,
    untouched,
)


def test_a_queued_run_ends_at_once(store: Store):
    submit_run(store)
    assert twice(store, "run_cancel", "r1", "by me") == ["CANCELLED"]
    record = store.runs.read("r1")
    assert record is not None
    assert (record.state, record.stop_reason, record.stop_detail) == ("ended", "cancelled", "by me")
    assert fence_of(store) == 1
    check_invariants(store, ["r1"])


def test_a_waiting_run_ends_at_once_and_gives_its_escrow_back(store: Store):
    submit_run(store)
    lease = claim_run(store).lease
    reserve(store, lease, 1, usd=7, tokens=7, escrow_usd=3, escrow_tokens=3)
    store.runs.commit_wait(lease, Delta("{}"), None, [], 60_000)
    assert twice(store, "run_cancel", "r1", "by me") == ["CANCELLED"]
    assert money(store, "global") == {"us": 7, "ts": 7, "uf": 7}
    run = dump(store)["run:r1"][0]
    assert not {"pending", "deadline"} & set(run)
    check_invariants(store, ["r1"])


def test_a_running_run_is_only_marked_and_stays_watched(store: Store):
    submit_run(store)
    claim_run(store)
    due = store.watch.live()
    assert twice(store, "run_cancel", "r1", "by me") == ["CANCELLING", "step 1, in its model call"]
    assert (state_of(store), fence_of(store), store.watch.live()) == ("cancelling", 2, due)
    check_invariants(store, ["r1"])


def test_a_cancelled_run_whose_worker_is_dead_ends_at_its_rescue_charged_in_full(store: Store):
    submit_run(store)
    lease = claim_run(store).lease
    reserve(store, lease, 1, usd=7, tokens=7, escrow_usd=3, escrow_tokens=3)
    store.runs.cancel("r1", "me")
    steady(store)
    age(store, "r1")
    assert store.watch.rescue("r1", LEASE_MS).reason == "cancelled"
    record = store.runs.read("r1")
    assert record is not None
    assert (record.stop_reason, record.stop_detail) == ("cancelled", "cancelled by me")
    assert money(store, "global") == {"us": 7, "ts": 7, "uf": 7}
    check_invariants(store, ["r1"])


def test_an_ended_run_stays_what_it_is(store: Store):
    submit_run(store)
    store.runs.commit_end(claim_run(store).lease, Delta("{}"), None, StopReason.FINISHED)
    with untouched(store):
        assert call(store, "run_cancel", "r1", "by me") == ["ENDED", "finished"]
        assert not cancel_run(store, "r1", by="me")


def test_a_run_that_does_not_exist_is_missing(store: Store):
    with untouched(store):
        assert call(store, "run_cancel", "r1", "by me") == ["MISSING"]
        assert not cancel_run(store, "r1", by="me")


def test_cancelling_a_batch_cancels_its_live_runs_and_counts_them(store: Store):
    open_batch(store)
    for run_id in ("r1", "r2", "r3"):
        submit_run(store, run_id, batch="b1")
    store.batches.seal("b1")
    store.runs.commit_end(claim_run(store, "r1").lease, Delta("{}"), None, StopReason.FINISHED)
    held = claim_run(store, "r2").lease
    assert cancel_batch(store, "b1", by="me").live == 2
    assert store.batches.live_states("b1") == {"cancelling": 1}
    store.runs.release(held, delay_ms=0)
    batch = store.batches.read("b1")
    assert batch is not None
    assert batch.stop_reasons == {"finished": 1, "cancelled": 2}
    assert cancel_batch(store, "b1", by="me").live == 0
    check_invariants(store, ["r1", "r2", "r3"])


def test_time_in_the_queue_is_not_the_run_s(store: Store):
    submit_run(store)
    store.runs.release(claim_run(store).lease, delay_ms=0)
    store.client.hset(store.keys.run("r1"), mapping={"claimed": store.watch.server_ms() - 60_000, "ms": 7})
    store.runs.cancel("r1", "me")
    record = store.runs.read("r1")
    assert record is not None
    assert record.seconds_ms == 7


def test_many_are_cancelled_each_as_one_would_be(store: Store):
    names = [f"r{number}" for number in range(2 * CANCELS + 1)]
    for name in names:
        submit_run(store, name)
    claim_run(store, "r1")
    store.runs.commit_end(claim_run(store, "r2").lease, Delta("{}"), None, StopReason.FINISHED)
    answers = store.runs.cancel_many([*names, "r9999"], "me")
    found = dict(zip([*names, "r9999"], answers, strict=True))
    assert found.pop("r1") == ("CANCELLING", "step 1, in its model call")
    assert (found.pop("r2"), found.pop("r9999")) == (("ENDED", ""), ("MISSING", ""))
    assert set(found.values()) == {("CANCELLED", "")}
    assert len(found) == len(names) - 2
    assert twice(store, "runs_cancel", "me", 2, "r0", "r2") == [["CANCELLED"], ["ENDED", "finished"]]
    check_invariants(store, names)
