"""result_keep.lua: a long result is kept by who holds the run, within bounds, and ends with the run."""

from __future__ import annotations

from agentq.core.lifecycle import StopReason
from agentq.core.records import Delta, Lease, Retrial
from agentq.store import Store
from tests.support.harness import (
    LEASE_MS,
    RETENTION_MS,
    age,
    claim_run,
    dump,
    ready,
    steady,
    submit_run,
    twice,
    untouched,
)


def held(store: Store, run_id: str = "r1") -> Lease:
    submit_run(store, run_id)
    return claim_run(store, run_id).lease


def keep(
    store: Store, lease: Lease, reference: str, text: str, *, most: int = 9, most_bytes: int = 99
) -> list[str]:
    """The script, called twice as by a client whose reply was lost."""
    return twice(store, "result_keep", lease.run_id, lease.fence, reference, text, most, most_bytes)


def test_what_is_kept_is_read_by_its_own_run_only(store: Store):
    lease = held(store)
    held(store, "r2")
    assert keep(store, lease, "ra", "long é") == ["OK"]
    assert store.results.read("r1", "ra") == "long é"
    assert store.results.read("r2", "ra") is None
    assert store.results.read("r1", "rb") is None
    assert store.results.all("r1") == {"ra": "long é"}


def test_the_same_call_made_again_takes_its_place(store: Store):
    lease = held(store)
    keep(store, lease, "ra", "old", most=1, most_bytes=3)
    assert keep(store, lease, "ra", "new", most=1, most_bytes=3) == ["OK"]
    assert store.results.all("r1") == {"ra": "new"}


def test_one_too_many_and_one_too_long_are_refused(store: Store):
    lease = held(store)
    keep(store, lease, "ra", "1234")
    with untouched(store):
        assert keep(store, lease, "rb", "1", most=1) == ["FULL"]
        assert keep(store, lease, "rb", "123", most_bytes=6) == ["FULL"]
        assert keep(store, lease, "rb", "éé", most_bytes=7) == ["FULL"]
    assert keep(store, lease, "rb", "12", most=2, most_bytes=6) == ["OK"]


def test_who_does_not_hold_the_run_any_more_keeps_nothing(store: Store):
    lease = held(store)
    steady(store)
    age(store, "r1")
    store.watch.rescue("r1", LEASE_MS)
    with untouched(store):
        assert keep(store, lease, "ra", "late") == ["STALE"]
    ready(store, "r1")
    assert keep(store, claim_run(store).lease, "ra", "mine") == ["OK"]
    with untouched(store):
        assert keep(store, lease, "ra", "late") == ["STALE"]
        assert keep(store, Lease("nowhere", lease.fence, 0), "ra", "late") == ["STALE"]


def test_it_ends_with_the_run_and_comes_back_with_its_retry(store: Store):
    lease = held(store)
    keep(store, lease, "ra", "long")
    assert store.client.pttl(store.keys.run("r1", "kept")) == -1
    store.runs.commit_end(lease, Delta('{"step":1}'), None, StopReason.FINISHED)
    assert 0 < store.client.pttl(store.keys.run("r1", "kept")) <= RETENTION_MS
    assert dump(store)["run:r1:kept"] == ({"ra": "long"}, True)
    (answer,) = store.control.retry_many([Retrial("r1", 0, "{}", 1, '["retried"]', "ann")])
    assert answer[0] == "RETRIED"
    assert store.client.pttl(store.keys.run("r1", "kept")) == -1
