"""run_submit.lua: a run is created once, queued and watched, with its own limits."""

from __future__ import annotations

import pytest
import redis

from agentq.core.errors import ConflictError
from agentq.store import Store
from tests.support.harness import (
    GRACE_MS,
    HELLO,
    RETENTION_MS,
    call,
    check_invariants,
    dump,
    open_batch,
    submit_run,
    twice,
    untouched,
)


def arguments(run_id="r1", *, custom="", content="h1", batch="", usd="1000", tokens="50"):
    return (run_id, custom, content, batch, "acme", f"global tenant:acme run:{run_id}", usd, tokens,
            GRACE_MS, RETENTION_MS, 4, "spec", "{}", "head", "{}", 1, HELLO)  # fmt: skip


def test_a_new_run_is_queued_watched_and_limited(store: Store):
    before = store.watch.server_ms()
    assert twice(store, "run_submit", *arguments()) == ["CREATED", "r1"]
    after = store.watch.server_ms()
    state = dump(store)
    run, has_end = state["run:r1"]
    created = int(run.pop("created"))
    assert before <= created <= after
    assert not has_end
    assert run == {
        "state": "queued", "step": "0", "phase": "model", "fence": "0-", "hash": "h1",
        "custom_id": "", "batch": "", "tenant": "acme", "scopes": "global tenant:acme run:r1",
        "ttl": str(RETENTION_MS), "spec": "{}", "head": "{}",
    }  # fmt: skip
    assert state["run:r1:msgs"] == ([HELLO], False)
    assert state["scope:run:r1"] == ({"ul": "1000", "tl": "50"}, False)
    assert state["watch"] == ([("r1", created + GRACE_MS)], False)
    assert (state["slots"], state["slots:t:acme"], state["flying"]) == (
        (["r1"], False),
        (["r1"], False),
        (["acme"], False),
    )
    of_the_run = {"run:r1", "run:r1:msgs", "scope:run:r1", "watch", "ledger"}
    assert set(state) == of_the_run | {"slots", "slots:t:acme", "flying"}
    assert set(state["ledger"][0]) == {"born"}


def test_a_custom_id_gives_the_first_run_again_and_refuses_other_content(store: Store):
    assert twice(store, "run_submit", *arguments(custom="x")) == ["CREATED", "r1"]
    with untouched(store):
        assert call(store, "run_submit", *arguments("r2", custom="x")) == ["EXISTS", "r1"]
        assert call(store, "run_submit", *arguments("r3", custom="x", content="h2")) == ["CONFLICT", "r1"]
    assert str(store.client.get(f"{store.keys.prefix}ids:acme:x")).endswith(" r1")


def test_a_custom_id_is_unique_in_its_batch_and_free_elsewhere(store: Store):
    for batch in ("b1", "b2"):
        open_batch(store, batch)
    assert submit_run(store, "r1", batch="b1", custom_id="x") == "r1"
    assert submit_run(store, "r2", batch="b1", custom_id="x") == "r1"
    assert submit_run(store, "r3", batch="b2", custom_id="x", content_hash="h2") == "r3"
    assert submit_run(store, "r4", custom_id="x", content_hash="h3") == "r4"
    with untouched(store), pytest.raises(ConflictError, match="'x' exists in batch 'b1'"):
        submit_run(store, "r5", batch="b1", custom_id="x", content_hash="h2")
    assert store.batches.known("b1", ["x", "y"]) == {"x": ("h1", "r1")}
    check_invariants(store, ["r1", "r3", "r4"])


def test_an_id_that_exists_with_other_content_is_a_conflict(store: Store):
    call(store, "run_submit", *arguments())
    with untouched(store):
        assert call(store, "run_submit", *arguments(content="h2")) == ["CONFLICT", "r1"]


def test_a_batch_knows_its_runs_in_input_order_and_which_are_live(store: Store):
    open_batch(store)
    for run_id in ("r2", "r1", "r3"):
        submit_run(store, run_id, batch="b1", custom_id=f"c-{run_id}")
    assert list(store.batches.runs("b1")) == [["r2", "r1", "r3"]]
    assert sorted(store.batches.live("b1")) == ["r1", "r2", "r3"]
    batch = store.batches.read("b1")
    assert batch is not None
    assert (batch.total, batch.ended, batch.sealed) == (3, 0, False)


@pytest.mark.parametrize(
    "bad", ["-1", "01", "1e3", "12345678901234567", "9007199254740992", "-0", "1.0", " 1"]
)
@pytest.mark.parametrize("field", ["usd", "tokens"])
def test_a_limit_that_is_no_amount_is_refused_before_anything_is_written(store: Store, field: str, bad: str):
    with untouched(store), pytest.raises(redis.exceptions.ResponseError, match="not an amount"):
        call(store, "run_submit", *arguments(**{field: bad}))


def test_a_row_that_comes_after_another_loaders_seal_opens_the_batch_again(store: Store):
    """Of two that load one batch one is done first: it is neither over nor expires before the other."""
    open_batch(store)
    submit_run(store, "r1", batch="b1", custom_id="1")
    store.batches.seal("b1")
    store.runs.cancel("r1", "test")
    submit_run(store, "r2", batch="b1", custom_id="2")
    batch = store.batches.read("b1")
    assert batch is not None
    assert (batch.total, batch.ended, batch.sealed) == (2, 1, False)
    check_invariants(store, ["r1", "r2"])
    assert not any(has_end for key, (_, has_end) in dump(store).items() if key.startswith("batch:b1"))
    store.batches.seal("b1")
    store.runs.cancel("r2", "test")
    check_invariants(store, ["r1", "r2"])


def test_a_run_is_kept_no_longer_than_its_batch(store: Store):
    """Else a late bill would make the batch's expired account anew, below zero and without an end."""
    store.batches.open("b1", agent="a", tenant="acme", usd=None, tokens=None, retention_ms=RETENTION_MS // 2)
    submit_run(store, "r1", batch="b1")
    assert store.client.hget(store.keys.run("r1"), "ttl") == str(RETENTION_MS // 2)
