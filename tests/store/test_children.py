"""Child runs: started inside their parent, waited for without a lease, cancelled and kept with their tree."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from agentq.core.errors import ConflictError, UsageError
from agentq.core.lifecycle import StopReason
from agentq.core.records import Delta, Denied, Lease, Parked, RunSpec, Settlement
from agentq.engine.cancel import cancel_batch, cancel_run
from agentq.store import Store
from agentq.store.listing import newest
from tests.support.harness import (
    GRACE_MS,
    HELLO,
    LEASE_MS,
    RETENTION_MS,
    SECOND,
    age,
    call,
    check_invariants,
    claim_run,
    dump,
    hints_in,
    money,
    nano,
    open_batch,
    reserve,
    state_of,
    submit_run,
    twice,
    untouched,
)

EMPTY = Delta("{}")
QUEUE, MESSAGE = "{aq:x}:mq:agentq", '{"body": "a hint with spaces"}'
WAKE = {"wake_hint": f"{GRACE_MS} {QUEUE} {MESSAGE}"}


def submit_child(
    store: Store,
    run_id: str,
    parent: str = "r1",
    *,
    usd: int | None = None,
    custom_id: str | None = None,
    content_hash: str = "h1",
    fence: str = "",
) -> str:
    record = store.runs.read(parent)
    spec = RunSpec(
        agent="a",
        tenant="acme",
        batch=record.spec.batch if record else None,
        custom_id=custom_id,
        budgets={"max_usd": None if usd is None else nano(usd)},
        content_hash=content_hash,
        ancestors=(*(record.spec.ancestors if record else ()), parent),
    )
    answers = store.runs.submit(
        [(run_id, spec, [HELLO])], heads=["{}"], retention_ms=RETENTION_MS, fence=fence
    )
    return answers[0][1]


def family(store: Store, *children: str, usd: int | None = None, batch: str | None = None) -> Lease:
    """A parent `r1` at work with an escrow of 3, and these children."""
    submit_run(store, "r1", usd=usd, batch=batch, custom_id="p")
    lease = claim_run(store, "r1").lease
    reserve(store, lease, 1, usd=5, tokens=5, escrow_usd=3, escrow_tokens=3)
    store.runs.commit_tools(lease, EMPTY, Settlement(f"{lease.fence}:1", "settle", 5, 5))
    for child in children:
        submit_child(store, child, fence=lease.fence)
    return lease


def gather(
    store: Store, lease: Lease, *children: str, ms: int = 60_000, fields: Mapping[str, str] | None = None
) -> str:
    return store.runs.commit_gather(lease, EMPTY, children, {"0:t:1": ms}, fields)


def end(store: Store, run_id: str, *, usd: int = 2) -> None:
    """Let a run make one call for so much and end."""
    lease = claim_run(store, run_id).lease
    reserve(store, lease, 1, usd=usd, tokens=usd)
    settle = Settlement(f"{lease.fence}:1", "settle", usd, usd)
    assert store.runs.commit_end(lease, EMPTY, settle, StopReason.FINISHED, answer=run_id) == "OK"


def endless(store: Store) -> set[str]:
    """The keys of runs and batches without an end."""
    prefixes = ("run:", "scope:run:", "scope:batch:", "batch:", "ids:")
    return {name for name, (_, has_end) in dump(store).items() if not has_end and name.startswith(prefixes)}


def ask(store: Store, run_id: str) -> None:
    """Let a run wait for a person."""
    asked = {"id": "c", "tool": "t", "arguments": "{}", "signature": "t:1", "asked_at_ms": 1}
    assert store.runs.commit_wait(claim_run(store, run_id).lease, EMPTY, None, [asked], 60_000) == "OK"


# ── starting ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_child_spends_in_every_scope_around_its_parent_and_in_its_parents(store: Store):
    open_batch(store)
    family(store, "c1", batch="b1")
    submit_child(store, "g1", "c1")
    assert store.client.hget(store.keys.run("g1"), "scopes") == (
        "global tenant:acme batch:b1 run:r1 run:c1 run:g1"
    )
    end(store, "g1", usd=7)
    for scope, spent in {"run:g1": 7, "run:c1": 7, "run:r1": 12, "batch:b1": 12, "global": 12}.items():
        assert money(store, scope)["us"] == spent
    record, parent = store.runs.read("g1"), store.runs.read("r1")
    assert record is not None
    assert parent is not None
    assert (record.spec.parent, list(record.spec.ancestors)) == ("c1", ["r1", "c1"])
    assert (parent.children, parent.descendants) == (1, 1)
    assert store.runs.children("r1") == ["c1"]
    check_invariants(store, ["r1", "c1", "g1"])


def test_a_child_is_no_row_of_its_parents_batch(store: Store):
    open_batch(store)
    lease = family(store, "c1", batch="b1")
    store.batches.seal("b1")
    assert [run for chunk in store.batches.runs("b1") for run in chunk] == ["r1"]
    assert store.batches.live("b1") == ["r1"]
    # A list of the batch's runs has it all the same while it lives, one of another batch has not.
    assert {record.id for record in newest(store, ["b1"], alone=False)} == {"r1", "c1"}
    assert list(newest(store, ["b2"], alone=False)) == []
    gather(store, lease, "c1")
    # Nobody has to decide anything: work goes on below it.
    assert store.batches.live_states("b1") == {"running": 1}
    end(store, "c1")
    lease = claim_run(store, "r1").lease
    batch = store.batches.read("b1")
    assert batch is not None
    assert (batch.total, batch.ended, batch.stop_reasons) == (1, 0, {})
    store.runs.commit_end(lease, EMPTY, None, StopReason.FINISHED)
    batch = store.batches.read("b1")
    assert batch is not None
    assert (batch.total, batch.ended, batch.stop_reasons) == (1, 1, {"finished": 1})


def test_a_child_is_created_once_however_often_it_is_asked_for(store: Store):
    lease = family(store)
    arguments = (
        "c1", "x", "h1", "", "acme", "global tenant:acme run:r1 run:c1", "", "", GRACE_MS, 1, 4, "spec",
        "{}", "head", "{}", 1, HELLO, 0, 2, "r1", lease.fence,
    )  # fmt: skip
    assert twice(store, "run_submit", *arguments) == ["CREATED", "c1"]
    with untouched(store):
        assert call(store, "run_submit", "c2", *arguments[1:]) == ["EXISTS", "c1"]
        assert call(store, "run_submit", "c2", "x", "h2", *arguments[3:]) == ["CONFLICT", "c1"]
    # It is kept as long as its parent, whatever the caller says.
    assert store.client.hget(store.keys.run("c1"), "ttl") == str(RETENTION_MS)


def test_a_custom_id_is_unique_in_the_parent_and_free_in_the_tenant(store: Store):
    family(store)
    assert submit_child(store, "c1", custom_id="x") == "c1"
    assert submit_child(store, "c2", custom_id="x") == "c1"
    assert submit_run(store, "r2", custom_id="x", content_hash="h2") == "r2"
    with untouched(store), pytest.raises(ConflictError, match="'x' exists in run 'r1'"):
        submit_child(store, "c3", custom_id="x", content_hash="h2")
    end(store, "c1")
    assert store.client.ttl(f"{store.keys.prefix}ids:acme:x") == -1
    check_invariants(store, ["r1", "c1", "r2"])


@pytest.mark.parametrize("how", ["ended", "cancelling", "missing", "another step"])
def test_only_a_live_run_has_children_and_only_the_step_at_work_starts_them(store: Store, how: str):
    lease = family(store)
    parent, fence, said = "r1", lease.fence, "is ended"
    match how:
        case "ended":
            store.runs.commit_end(lease, EMPTY, None, StopReason.FINISHED)
        case "cancelling":
            store.runs.cancel("r1", "test")
            said = "is cancelling"
        case "missing":
            parent, said = "r9", "does not exist"
        case _:
            store.runs.commit_continue(lease, EMPTY, None)
            said = "another step"
    with untouched(store), pytest.raises(UsageError, match=said):
        submit_child(store, "c1", parent, fence=fence)
    if how == "another step":
        assert submit_child(store, "c1", parent) == "c1"


def test_a_run_starts_a_hundred_children_in_its_life_and_no_more(store: Store):
    family(store, *(f"c{n}" for n in range(100)))
    end(store, "c0")
    with untouched(store), pytest.raises(UsageError, match="started 100 runs"):
        submit_child(store, "c100")


def test_a_tree_has_at_most_four_runs_above_a_child(store: Store):
    family(store, "c1")
    for n in range(1, 4):
        submit_child(store, f"c{n + 1}", f"c{n}")
    with untouched(store), pytest.raises(UsageError, match="4 runs around it"):
        submit_child(store, "c5", "c4")
    check_invariants(store, ["r1", "c1", "c2", "c3", "c4"])


# ── waiting ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_waits_until_the_last_of_its_children_ends_and_its_hint_is_pushed_then(store: Store):
    lease = family(store, "c1", "c2", "c3")
    assert gather(store, lease, "c1", "c2", fields=WAKE) == "OK"
    record = store.runs.read("r1")
    assert record is not None
    assert (record.state, record.phase, record.gathering) == ("waiting", "tools", 2)
    assert money(store, "run:r1")["ui"] == 3
    check_invariants(store, ["r1", "c1", "c2", "c3"])
    end(store, "c1")
    assert state_of(store) == "waiting"
    assert hints_in(store, QUEUE) == []
    end(store, "c2")
    assert state_of(store) == "queued"
    assert hints_in(store, QUEUE) == [MESSAGE]
    store.client.delete(QUEUE, QUEUE + SECOND)
    assert "ui" not in money(store, "run:r1")
    assert store.watch.live()["r1"] > store.watch.server_ms() + GRACE_MS - 1000
    assert not store.client.exists(store.keys.run("r1", "awaits"))
    check_invariants(store, ["r1", "c1", "c2", "c3"])
    end(store, "c3")
    assert hints_in(store, QUEUE) == []
    claim = claim_run(store, "r1")
    assert (claim.lease.step, claim.phase) == (0, "tools")


def test_without_a_hint_the_tick_sends_it_at_once(store: Store):
    lease = family(store, "c1")
    gather(store, lease, "c1")
    end(store, "c1")
    assert ("r1", 0) in store.watch.due(LEASE_MS, room=0, rescues=9).hints


@pytest.mark.parametrize("ended", ["finished", "cancelled", "rescued too often"])
def test_a_child_that_ends_in_any_way_lets_its_parent_go_on(store: Store, ended: str):
    lease = family(store, "c1")
    gather(store, lease, "c1")
    match ended:
        case "finished":
            end(store, "c1")
        case "cancelled":
            store.runs.cancel("c1", "test")
        case _:
            store.client.hset(store.keys.clock, mapping={"tick": store.watch.server_ms(), "granted": 0})
            store.client.hset(store.keys.run("c1"), "deaths", 4)
            claim_run(store, "c1")
            age(store, "c1")
            assert store.watch.rescue("c1", LEASE_MS).verdict == "ENDED"
    assert state_of(store, "c1") == "ended"
    assert state_of(store) == "queued"
    check_invariants(store, ["r1", "c1"])


def test_children_that_ended_before_the_commit_do_not_let_their_parent_wait(store: Store):
    lease = family(store, "c1", "c2")
    end(store, "c1")
    end(store, "c2")
    assert gather(store, lease, "c1", "c2", fields=WAKE) == "OK"
    assert state_of(store) == "queued"
    assert hints_in(store, QUEUE) == [MESSAGE]
    store.client.delete(QUEUE, QUEUE + SECOND)
    check_invariants(store, ["r1", "c1", "c2"])


def test_a_gather_and_the_end_of_a_child_may_be_said_twice(store: Store):
    lease = family(store, "c1")
    head = (
        "r1",
        lease.fence,
        lease.fence + "g",
        "gather",
        "",
        GRACE_MS,
        "",
        "release",
        0,
        0,
        2,
        "head",
        "{}",
    )
    assert twice(store, "step_commit", *head, 0, 0, 0, 0, 1, "c1", 2, "0:t:1", 60_000) == ["OK"]
    child = claim_run(store, "c1").lease
    finish = ("c1", child.fence, child.fence + "e", "end", "finished", GRACE_MS, "", "release", 0, 0, 0)
    assert twice(store, "step_commit", *finish, 0, 0, 0, 0) == ["OK"]
    assert state_of(store) == "queued"
    # The gather's reply was lost for long: it has gone on since, and its first commit is said once more.
    with untouched(store):
        assert gather(store, lease, "c1") == "OK"
    check_invariants(store, ["r1", "c1"])


def test_at_the_deadline_the_parent_goes_on_without_its_children(store: Store):
    lease = family(store, "c1")
    gather(store, lease, "c1", fields=WAKE)
    age(store, "r1")
    rescue = store.watch.rescue("r1", LEASE_MS)
    assert (rescue.verdict, rescue.step) == ("WOKEN", 0)
    assert state_of(store) == "queued"
    # The caller of the rescue sends the hint.
    assert hints_in(store, QUEUE) == []
    assert "ui" not in money(store, "run:r1")
    check_invariants(store, ["r1", "c1"])
    end(store, "c1")
    assert state_of(store) == "queued"
    assert claim_run(store, "r1").phase == "tools"


def test_a_gather_that_is_called_again_keeps_its_first_deadline(store: Store):
    lease = family(store, "c1")
    store.client.hset(store.keys.run("r1", "gathers"), "0:t:1", 5)
    gather(store, lease, "c1", ms=60_000)
    # Its time was over long ago.
    assert state_of(store) == "queued"
    assert store.runs.family("r1", "0:t:1", ["c1"]).deadline_ms == 5
    check_invariants(store, ["r1", "c1"])


def test_of_several_gathers_the_earliest_deadline_counts(store: Store):
    lease = family(store, "c1", "c2")
    store.runs.commit_gather(lease, EMPTY, ["c1", "c2"], {"0:t:1": 90_000, "0:u:1": 30_000})
    assert store.watch.live()["r1"] <= store.watch.server_ms() + 30_000


def test_a_run_that_waits_for_a_person_still_expires(store: Store):
    lease = family(store, "c1")
    store.runs.commit_wait(lease, EMPTY, None, [], 60_000)
    end(store, "c1")
    assert state_of(store) == "waiting"
    age(store, "r1")
    assert store.watch.rescue("r1", LEASE_MS).reason == "approval_expired"


def test_a_stale_gather_changes_nothing(store: Store):
    lease = family(store, "c1")
    store.runs.release(lease, delay_ms=0)
    with untouched(store):
        assert gather(store, lease, "c1") == "STALE"


# ── cancelling ───────────────────────────────────────────────────────────────────────────────────────


def test_cancelling_goes_down_the_whole_tree_also_through_runs_that_have_ended(store: Store):
    lease = family(store, "c1", "c2")
    for child, parent in (("g1", "c1"), ("g2", "c2"), ("h1", "g1")):
        submit_child(store, child, parent)
    end(store, "c1")
    gather(store, lease, "c2")
    assert cancel_run(store, "r1", by="test")
    assert [
        store.client.hget(store.keys.run(run), "stop_reason") for run in ("r1", "c2", "g1", "g2", "h1")
    ] == ["cancelled"] * 5
    assert store.client.hget(store.keys.run("c1"), "stop_reason") == "finished"
    check_invariants(store, ["r1", "c1", "c2", "g1", "g2", "h1"])
    assert endless(store) == set()


def test_cancelling_a_run_that_has_ended_stops_what_it_has_left_behind(store: Store):
    lease = family(store, "c1")
    store.runs.commit_end(lease, EMPTY, None, StopReason.FINISHED)
    assert cancel_run(store, "r1", by="test")
    assert state_of(store, "c1") == "ended"
    assert not cancel_run(store, "r9", by="test")


def test_cancelling_a_batch_stops_also_what_its_ended_rows_have_left_behind(store: Store):
    open_batch(store)
    lease = family(store, "c1", batch="b1")
    store.batches.seal("b1")
    store.runs.commit_end(lease, EMPTY, None, StopReason.FINISHED)
    cancelled = cancel_batch(store, "b1", by="test")
    assert (cancelled.live, cancelled.children) == (0, 1)
    assert state_of(store, "c1") == "ended"
    assert endless(store) == set()


@pytest.mark.parametrize("above", ["r1", "c1"])
def test_a_child_that_a_cancellation_did_not_reach_ends_at_its_next_claim(store: Store, above: str):
    family(store, "c1")
    submit_child(store, "g1", "c1")
    if above == "r1":
        end(store, "c1")
    store.runs.cancel(above, "test")
    assert store.runs.claim("g1", None, LEASE_MS) is None
    assert (state_of(store, "g1"), store.client.hget(store.keys.run("g1"), "stop_reason")) == (
        "ended",
        "cancelled",
    )
    check_invariants(store, ["r1", "c1", "g1"])


# ── keeping ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("batch", [None, "b1"])
def test_a_run_and_its_batch_are_kept_until_their_last_descendant_has_ended(store: Store, batch: str | None):
    if batch:
        open_batch(store)
    lease = family(store, "c1", batch=batch)
    submit_child(store, "g1", "c1")
    if batch:
        store.batches.seal(batch)
    store.runs.commit_end(lease, EMPTY, None, StopReason.FINISHED)
    end(store, "c1")
    kept = {"run:r1", "scope:run:r1", "run:r1:children", "run:c1", "scope:run:c1"}
    kept |= {"batch:b1", "scope:batch:b1", "batch:b1:runs"} if batch else {"ids:acme:p"}
    assert kept <= endless(store)
    check_invariants(store, ["r1", "c1", "g1"])
    # A worker that was taken for dead brings its bill after everything is over.
    late = claim_run(store, "g1").lease
    reserve(store, late, 1, usd=9, tokens=9)
    cancel_run(store, "g1", by="test")
    store.client.hset(store.keys.clock, mapping={"tick": store.watch.server_ms(), "granted": 0})
    age(store, "g1")
    store.watch.rescue("g1", LEASE_MS)
    assert endless(store) == set()
    assert store.runs.commit_continue(late, EMPTY, Settlement(f"{late.fence}:1", "settle", 4, 4)) == "STALE"
    assert money(store, "run:r1")["us"] == 5 + 2 + 4
    assert endless(store) == set()
    ends = {
        name: store.client.pttl(f"{store.keys.prefix}{name}") for name in ("run:g1:forfeits", "scope:run:r1")
    }
    assert ends["scope:run:r1"] >= ends["run:g1:forfeits"]
    check_invariants(store, ["r1", "c1", "g1"])


# ── money ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_child_that_its_siblings_leave_no_room_waits_for_them_and_they_wake_it(store: Store):
    family(store, "c1", "c2", usd=20)
    first, second = claim_run(store, "c1").lease, claim_run(store, "c2").lease
    reserve(store, first, 1, usd=8, tokens=1)
    assert reserve(store, second, 1, usd=8, tokens=1, policy="stop") == Parked("run:r1", "usd", "wait")
    check_invariants(store, ["r1", "c1", "c2"])
    store.runs.commit_continue(first, EMPTY, Settlement(f"{first.fence}:1", "settle", 2, 1))
    assert state_of(store, "c2") == "queued"
    check_invariants(store, ["r1", "c1", "c2"])


def test_a_parent_that_its_children_leave_no_room_waits_for_them(store: Store):
    lease = family(store, "c1", usd=20)
    child = claim_run(store, "c1").lease
    reserve(store, child, 1, usd=9, tokens=1)
    answer = reserve(store, lease, 2, usd=8, tokens=1, escrow_usd=3, escrow_tokens=3, policy="stop")
    assert answer == Parked("run:r1", "usd", "wait")
    check_invariants(store, ["r1", "c1"])
    store.runs.commit_end(child, EMPTY, Settlement(f"{child.fence}:1", "settle", 1, 1), StopReason.FINISHED)
    assert state_of(store) == "queued"
    check_invariants(store, ["r1", "c1"])


def test_a_child_does_not_wait_for_the_escrow_of_the_parent_that_waits_for_it(store: Store):
    lease = family(store, "c1", usd=20)
    gather(store, lease, "c1")
    child = claim_run(store, "c1").lease
    # 5 are spent, 3 are the parent's for its closing turn.
    assert reserve(store, child, 1, usd=13, tokens=1, policy="park") == Denied("run:r1", "usd", "winddown")
    assert reserve(store, child, 2, usd=16, tokens=1, policy="park") == Denied("run:r1", "usd", "exhausted")
    assert reserve(store, child, 3, usd=21, tokens=1, policy="park") == Denied("run:r1", "usd", "never")
    store.runs.commit_end(child, EMPTY, None, StopReason.COST_BUDGET)
    assert state_of(store) == "queued"
    check_invariants(store, ["r1", "c1"])


def test_who_waits_for_a_sibling_that_waits_itself_is_let_go_by_the_next_sweep(store: Store):
    family(store, "c1", "c2", usd=20)
    first, second = claim_run(store, "c1").lease, claim_run(store, "c2").lease
    reserve(store, first, 1, usd=2, tokens=1, escrow_usd=7, escrow_tokens=1)
    store.runs.commit_tools(first, EMPTY, Settlement(f"{first.fence}:1", "settle", 2, 1))
    assert reserve(store, second, 1, usd=8, tokens=1, policy="park") == Parked("run:r1", "usd", "wait")
    submit_child(store, "g1", "c1")
    gather(store, first, "g1")
    # Nothing ends and nothing is settled: only the tick's sweep sees that nobody is at work any more.
    assert state_of(store, "c2") == "parked"
    store.ledger.sweep("run:r1")
    assert state_of(store, "c2") == "queued"
    again = claim_run(store, "c2").lease
    assert reserve(store, again, 1, usd=8, tokens=1, policy="park") == Denied("run:r1", "usd", "winddown")
    check_invariants(store, ["r1", "c1", "c2", "g1"])


def test_a_parent_has_spent_no_less_than_its_children_together(store: Store):
    family(store, "c1", "c2")
    end(store, "c1", usd=4)
    end(store, "c2", usd=6)
    assert money(store, "run:r1")["us"] == 5 + money(store, "run:c1")["us"] + money(store, "run:c2")["us"]


def test_a_row_waits_for_a_person_where_all_runs_that_it_waits_for_do(store: Store):
    """Nothing of it moves by itself, however deep they are; who follows the batch is told."""
    open_batch(store)
    lease = family(store, "c1", "c2", batch="b1")
    assert gather(store, lease, "c1", "c2") == "OK"
    assert store.batches.live_states("b1") == {"running": 1}
    ask(store, "c1")
    assert store.batches.live_states("b1") == {"running": 1}
    below = claim_run(store, "c2").lease
    store.runs.commit_tools(below, EMPTY, Settlement("", "release"))
    submit_child(store, "g1", "c2", fence=below.fence)
    assert gather(store, below, "g1") == "OK"
    assert store.batches.live_states("b1") == {"running": 1}
    ask(store, "g1")
    assert store.batches.live_states("b1") == {"waiting": 1}
    assert store.approvals.count() == 2
