"""step_release.lua: a step is given back without progress, at once or after a delay."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from agentq.core.records import Granted, Lease, Settlement
from agentq.store import Store
from tests.support.harness import (
    GRACE_MS,
    HELLO,
    LEASE_MS,
    age,
    call,
    check_invariants,
    claim_run,
    dump,
    money,
    ready,
    reserve,
    state_of,
    steady,
    submit_run,
    twice,
    untouched,
)


@pytest.fixture
def lease(store: Store) -> Lease:
    """A claimed run with a reservation of 70 nano-USD and 7 tokens, and an escrow of 30 and 3."""
    submit_run(store, usd=100, tokens=10)
    lease = claim_run(store).lease
    granted = reserve(store, lease, 1, usd=70, tokens=7, escrow_usd=30, escrow_tokens=3)
    assert isinstance(granted, Granted)
    return lease


def arguments(
    lease: Lease, *, delay: Any = 0, how: Any = "release", usd: Any = "0", tokens: Any = "0", failed: Any = 0
):
    return ("r1", lease.fence, f"{lease.fence}r", delay, GRACE_MS, f"{lease.fence}:1", how, usd, tokens,
            failed, 2, "head", '{"closing":"loop_detected"}')  # fmt: skip


def test_a_step_given_back_at_once_can_be_claimed_at_once(store: Store, lease: Lease):
    before = store.watch.server_ms()
    assert twice(store, "step_release", *arguments(lease)) == ["OK", "0"]
    run = dump(store)["run:r1"][0]
    assert (run["state"], run["step"], run["phase"], run["fence"]) == ("queued", "0", "model", "2-")
    assert run["head"] == '{"closing":"loop_detected"}'
    assert before + GRACE_MS <= store.watch.live()["r1"] <= store.watch.server_ms() + GRACE_MS
    assert money(store, "run:r1") == {"ue": 30, "te": 3}
    assert claim_run(store).lease.step == 0
    check_invariants(store, ["r1"])


def test_a_delayed_step_is_due_when_its_delay_is_over(store: Store, lease: Lease):
    before = store.watch.server_ms()
    assert twice(store, "step_release", *arguments(lease, delay=60_000)) == ["OK", "0"]
    due = int(dump(store)["run:r1"][0]["not_before"])
    assert before + 60_000 <= due <= store.watch.server_ms() + 60_000
    assert store.watch.live() == {"r1": due}
    assert store.runs.claim("r1", None, LEASE_MS) is None


def test_failures_in_a_row_are_counted_and_handed_to_the_next_claim(store: Store, lease: Lease):
    assert twice(store, "step_release", *arguments(lease, failed=1)) == ["OK", "1"]
    claim = claim_run(store)
    assert claim.failures == 1
    assert twice(store, "step_release", *arguments(claim.lease, failed=1)) == ["OK", "2"]
    claim = claim_run(store)
    assert twice(store, "step_release", *arguments(claim.lease)) == ["OK", "2"]


@pytest.mark.parametrize(
    "how, costs, books",
    [
        ("release", (0, 0), {}),
        ("forfeit", (0, 0), {"us": 70, "ts": 7, "uf": 70}),
        ("settle", (50, 5), {"us": 50, "ts": 5}),
    ],
)
def test_its_reservation_is_closed_as_it_says(store: Store, lease: Lease, how, costs, books):
    usd, tokens = costs
    assert (
        twice(store, "step_release", *arguments(lease, how=how, usd=str(usd), tokens=str(tokens)))[0] == "OK"
    )
    assert money(store, "run:r1") == books | {"ue": 30, "te": 3}
    check_invariants(store, ["r1"])


def test_what_it_does_not_name_is_charged_in_full(store: Store, lease: Lease):
    assert store.runs.release(lease, delay_ms=0) == "OK"
    assert money(store, "run:r1") == {"us": 70, "ts": 7, "uf": 70, "ue": 30, "te": 3}
    check_invariants(store, ["r1"])


def test_a_worker_that_was_taken_for_dead_gives_back_only_its_money(store: Store, lease: Lease):
    steady(store)
    age(store, "r1")
    store.watch.rescue("r1", LEASE_MS)
    claim_run(store)
    assert twice(store, "step_release", *arguments(lease, delay=60_000)) == ["STALE"]
    assert state_of(store) == "running"
    assert money(store, "run:r1") == {"ue": 30, "te": 3}
    check_invariants(store, ["r1"])


@pytest.mark.parametrize("how", ["release", "forfeit"])
def test_a_cancelled_run_ends_when_its_holder_lets_go(store: Store, lease: Lease, how: str):
    store.runs.cancel("r1", "test")
    assert twice(store, "step_release", *arguments(lease, how=how, delay=60_000)) == ["CANCELLED"]
    state = dump(store)
    assert (state["run:r1"][0]["state"], state["run:r1:msgs"][0]) == ("ended", [HELLO])
    check_invariants(store, ["r1"])


def test_an_escrow_put_back_into_a_cancelled_run_is_given_up(store: Store, lease: Lease):
    store.runs.release(lease, delay_ms=0, settlement=Settlement(f"{lease.fence}:1", "release"))
    lease = claim_run(store).lease
    store.ledger.convert(lease, 1)
    store.runs.cancel("r1", "test")
    assert twice(store, "step_release", *arguments(lease, how="restore")) == ["CANCELLED"]
    assert money(store, "run:r1") == {}
    check_invariants(store, ["r1"])


def test_a_run_that_does_not_exist_is_missing(store: Store, lease: Lease):
    with untouched(store):
        assert call(store, "step_release", "r9", *arguments(lease)[1:]) == ["MISSING"]


@pytest.mark.parametrize("bad", ["-1", "01", "1e3", "12345678901234567", str(2**53)])
@pytest.mark.parametrize("field", ["usd", "tokens"])
def test_an_amount_that_is_none_is_refused_before_anything_is_written(
    store: Store, lease: Lease, field: str, bad: str
):
    with untouched(store), pytest.raises(redis.exceptions.ResponseError, match="not an amount"):
        call(store, "step_release", *arguments(lease, **{field: bad}))


def test_a_delay_that_is_over_is_forgotten_by_the_next_claim(store: Store, lease: Lease):
    store.runs.release(lease, delay_ms=60_000)
    ready(store, "r1")
    lease = claim_run(store).lease
    store.runs.release(lease, delay_ms=0)
    assert claim_run(store).lease.step == 0


def test_since_when_calls_fail_is_kept_from_the_first_failure_and_one_may_count_for_several(
    store: Store, lease: Lease
):
    before = store.watch.server_ms()
    assert twice(store, "step_release", *arguments(lease, failed=3)) == ["OK", "3"]
    first = claim_run(store)
    assert (first.failures, before <= first.failing_ms <= store.watch.server_ms()) == (3, True)
    store.client.hset(store.keys.run("r1"), "failing", 1)
    assert twice(store, "step_release", *arguments(first.lease, failed=1)) == ["OK", "4"]
    assert claim_run(store).failing_ms == 1
