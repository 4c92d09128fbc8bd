"""run_retry.lua: a run that has ended is live again, as another generation of itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import redis

from agentq.core.lifecycle import StopReason
from agentq.core.records import Delta, Retrial, RunSpec, Settlement
from agentq.store import Store
from tests.support.harness import (
    HELLO,
    LEASE_MS,
    call,
    check_invariants,
    claim_run,
    dump,
    fence_of,
    money,
    open_batch,
    reserve,
    state_of,
    submit_run,
    twice,
    untouched,
)

AGAIN = Retrial("r1", 0, '{"step":1}', 1, '["retried"]', "ann")


def retry(store: Store, retrial: Retrial = AGAIN) -> tuple[str, str]:
    (answer,) = store.control.retry_many([retrial])
    return answer


def closed(store: Store, *, batch: str | None = None) -> None:
    """A run that has answered in a closing turn: two messages behind the one that it was submitted with."""
    submit_run(store, batch=batch, custom_id="x", usd=100)
    lease = claim_run(store).lease
    reserve(store, lease, usd=5, tokens=5, escrow_usd=3, escrow_tokens=3)
    delta = Delta('{"step":1,"stop":"step_budget"}', messages=(HELLO, HELLO), trace=('["final_turn"]',))
    settled = Settlement(f"{lease.fence}:1", "settle", 5, 5)
    store.runs.commit_end(lease, delta, settled, StopReason.STEP_BUDGET, answer="cut", scope="s", detail="d")


def test_a_run_is_queued_again_without_its_closing_turn_and_with_what_it_has_spent(store: Store):
    closed(store)
    fence, spent = fence_of(store), money(store, "run:r1")
    (reopening,) = store.control.reopenings(["r1"])
    assert reopening is not None
    assert (reopening.generation, reopening.head, reopening.messages) == (0, "{}", 1)
    args: list[str | int] = ["r1", "0p", 0, '{"step":1}', reopening.messages, "", "", '["retried"]', "ann", 0]
    assert twice(store, "run_retry", *args) == ["RETRIED", "0"]
    record = store.runs.read("r1")
    assert record is not None
    assert (record.state, record.generation, record.stop_reason, record.answer) == ("queued", 1, None, None)
    assert (record.stop_scope, record.stop_detail, record.ended_ms) == (None, None, None)
    assert (fence_of(store), money(store, "run:r1")) == (fence + 1, spent)
    state = dump(store)
    assert state["run:r1:msgs"] == ([HELLO], False)
    assert state["run:r1:trace"] == (['["final_turn"]', '["retried"]'], False)
    assert not {"reopen", "reopen_head"} & set(state["run:r1"][0])
    assert claim_run(store).lease.step == 0
    check_invariants(store, ["r1"])


def test_the_counters_of_a_batch_are_right_before_and_after_and_it_is_over_again(store: Store):
    open_batch(store)
    closed(store, batch="b1")
    store.batches.seal("b1")
    assert store.client.ttl(store.keys.batch("b1")) > 0
    assert retry(store) == ("RETRIED", "0")
    batch = store.batches.read("b1")
    assert batch is not None
    assert (batch.total, batch.ended, batch.stop_reasons) == (1, 0, {})
    assert store.batches.live("b1") == ["r1"]
    ends = {name: end for name, (_, end) in dump(store).items()}
    assert not any(
        end for name, end in ends.items() if name.startswith(("batch:b1", "scope:batch:b1", "run:r1"))
    )
    check_invariants(store, ["r1"])
    store.runs.cancel("r1", "test")
    batch = store.batches.read("b1")
    assert batch is not None
    assert (batch.ended, batch.stop_reasons) == (1, {"cancelled": 1})
    assert all(end for name, (_, end) in dump(store).items() if name.startswith(("batch:b1", "run:r1")))
    check_invariants(store, ["r1"])


def test_a_retried_row_of_a_cancelled_batch_may_be_claimed(store: Store):
    open_batch(store)
    submit_run(store, batch="b1")
    store.batches.cancel("b1", "ann")
    store.runs.cancel("r1", "ann")
    assert retry(store)[0] == "RETRIED"
    assert claim_run(store).lease.run_id == "r1"
    check_invariants(store, ["r1"])


def test_a_row_is_not_retried_while_the_cancel_of_its_batch_has_not_come_to_all_rows(store: Store):
    open_batch(store)
    submit_run(store, batch="b1", custom_id="x")
    submit_run(store, "r2", batch="b1", custom_id="y")
    store.runs.cancel("r1", "ann")
    store.batches.cancel("b1", "ann")  # and who did it has not lived to end r2
    with untouched(store):
        assert retry(store) == ("CANCELLING", "b1")
    assert store.runs.claim("r2", None, LEASE_MS) is None
    assert retry(store)[0] == "RETRIED"
    check_invariants(store, ["r1", "r2"])


def test_a_single_run_keeps_its_custom_id(store: Store):
    closed(store)
    assert store.client.ttl(f"{store.keys.prefix}ids:acme:x") > 0
    retry(store)
    assert store.client.ttl(f"{store.keys.prefix}ids:acme:x") == -1
    assert submit_run(store, "r2", custom_id="x") == "r1"


def test_of_two_who_have_looked_one_reopens_it(store: Store):
    closed(store)
    assert [word for word, _ in store.control.retry_many([AGAIN, AGAIN])] == ["RETRIED", "LIVE"]
    store.runs.cancel("r1", "test")
    with untouched(store):
        assert retry(store) == ("CHANGED", "")
    check_invariants(store, ["r1"])


def test_new_limits_go_over_those_that_it_had(store: Store):
    closed(store)
    spec = RunSpec("a", tenant="acme", custom_id="x", budgets={"max_usd": "0.2", "max_tokens": None})
    assert (
        retry(store, Retrial("r1", 0, "{}", 1, "[]", "ann", usd=200, tokens=None, spec=spec))[0] == "RETRIED"
    )
    account = store.ledger.account("run:r1")
    assert (account.limit_nano, account.tokens_limit) == (200, None)
    claim = claim_run(store)
    assert (claim.limits, claim.spec.budgets["max_usd"]) == ((200, None), "0.2")
    check_invariants(store, ["r1"])


def test_a_limit_that_cannot_be_counted_changes_nothing(store: Store):
    closed(store)
    with untouched(store), pytest.raises(redis.exceptions.ResponseError, match="not an amount"):
        call(store, "run_retry", "r1", "op", 0, "{}", 1, 2**53, "", "[]", "ann", 0)


def test_new_limits_are_in_the_log_with_who_gave_them_and_only_where_they_change(store: Store):
    closed(store)
    assert retry(store, replace(AGAIN, usd=200))[0] == "RETRIED"
    store.runs.cancel("r1", "test")
    assert retry(store, replace(AGAIN, generation=1, usd=200))[0] == "RETRIED"
    limits = [entry for entry in store.journal.read(0) if entry.operation == "limit"]
    assert [(e.subject, e.words, e.actor, e.reason) for e in limits] == [
        ("run:r1", "ul 100 200", "ann", "retry")
    ]


@pytest.mark.parametrize(
    "part, what", [("run:r1:msgs", "messages"), ("scope:run:r1", "account"), ("batch:b1", "batch")]
)
def test_a_run_of_which_a_part_is_gone_is_not_reopened(store: Store, part: str, what: str):
    open_batch(store)
    closed(store, batch="b1")
    store.client.delete(f"{store.keys.prefix}{part}")
    with untouched(store):
        assert retry(store) == ("GONE", what)


def test_a_child_is_reopened_while_its_parent_is_live_and_counts_as_live_again(store: Store):
    submit_run(store, "p1")
    child = RunSpec(agent="a", tenant="acme", ancestors=("p1",))
    store.runs.submit([("r1", child, [HELLO])], heads=["{}"], retention_ms=1)
    store.runs.cancel("r1", "test")
    assert retry(store)[0] == "RETRIED"
    parent = store.runs.read("p1")
    assert parent is not None
    assert (parent.children, parent.descendants) == (1, 1)
    check_invariants(store, ["p1", "r1"])
    store.runs.cancel("r1", "test")
    store.runs.cancel("p1", "test")
    with untouched(store):
        assert retry(store, Retrial("r1", 1, "{}", 1, "[]", "ann")) == ("ORPHAN", "ended")
    store.client.delete(store.keys.run("p1"))
    assert retry(store, Retrial("r1", 1, "{}", 1, "[]", "ann")) == ("ORPHAN", "")


def test_what_is_live_or_does_not_exist_is_left_alone(store: Store):
    submit_run(store)
    with untouched(store):
        assert retry(store) == ("LIVE", "queued")
        assert retry(store, Retrial("r9", 0, "{}", 1, "[]", "ann")) == ("MISSING", "")
        assert store.control.reopenings(["r9"]) == [None]


def test_who_held_the_run_before_its_end_can_do_nothing_to_its_next_generation(store: Store):
    submit_run(store)
    lease = claim_run(store).lease
    store.runs.commit_end(lease, Delta("{}"), None, StopReason.MODEL_ERROR)
    retry(store)
    assert store.runs.commit_continue(lease, Delta("{}"), None) == "STALE"
    assert store.watch.renew([lease], LEASE_MS) == ["LOST"]
    assert call(store, "step_release", "r1", lease.fence, "x", 0, 5000, "", "release", 0, 0, 0, 0) == [
        "STALE"
    ]
    assert state_of(store) == "queued"
    check_invariants(store, ["r1"])


def test_its_lives_and_failures_are_counted_anew(store: Store):
    closed(store)
    store.client.hset(
        store.keys.run("r1"), mapping={"deaths": 3, "failures": 7, "unclear": 2, "failing": 9, "error": "x"}
    )
    retry(store)
    assert not {"deaths", "failures", "unclear", "failing", "error", "suspect"} & set(
        dump(store)["run:r1"][0]
    )
