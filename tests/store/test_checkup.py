"""The checkup: each thing that must not be is found, put right where that is safe, and then found no more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agentq.core.errors import SchemaError
from agentq.core.lifecycle import StopReason
from agentq.core.records import Delta, Parked, RunSpec, Settlement
from agentq.store import Store, checkup
from agentq.store.checkup import Checkup, examine
from agentq.store.owners import owner_of
from tests.support.harness import (
    HELLO,
    RETENTION_MS,
    call,
    check_invariants,
    claim_run,
    dump,
    money,
    open_batch,
    reserve,
    steady,
    submit_run,
    twice,
    untouched,
)
from tests.support.rows import load_rows, waiting, window

DELTA = Delta('{"step":1}', ('{"role":"assistant"}',))
LATER = 10**15
RUNS = ("queued", "running", "parked", "asking", "gathering", "child", "done", "row")


@pytest.fixture
def sound(store: Store) -> Store:
    """A namespace with a run in each state, some of them in a batch, all of it as it must be."""
    store.ledger.set_limit("tenant:acme", usd=1_000)
    open_batch(store, usd=500)
    for run_id in ("queued", "row", "parked"):
        submit_run(store, run_id, batch="b1", custom_id=run_id, usd=600, tokens=600)
    for run_id in ("running", "asking", "gathering", "done"):
        submit_run(store, run_id, custom_id=run_id, usd=400, tokens=400)
    for run_id in ("row", "done"):
        lease = claim_run(store, run_id).lease
        reserve(store, lease, usd=7, tokens=7, escrow_usd=3, escrow_tokens=3)
        settled = Settlement(f"{lease.fence}:1", "settle", 5, 5)
        store.runs.commit_end(lease, DELTA, settled, StopReason.FINISHED)
    reserve(store, claim_run(store, "running").lease, usd=7, tokens=7, escrow_usd=3, escrow_tokens=3)
    lease = claim_run(store, "asking").lease
    reserve(store, lease, usd=7, tokens=7, escrow_usd=3, escrow_tokens=3)
    store.runs.commit_wait(lease, DELTA, Settlement(f"{lease.fence}:1", "settle", 5, 5), [], 60_000)
    lease = claim_run(store, "gathering").lease
    child = RunSpec(agent="a", tenant="acme", ancestors=("gathering",))
    store.runs.submit([("child", child, [HELLO])], heads=["{}"], retention_ms=1)
    store.runs.commit_gather(lease, DELTA, ["child"], {"0:t:1": 60_000})
    lease = claim_run(store, "parked").lease
    reserve(store, lease, usd=7, tokens=7, escrow_usd=3, escrow_tokens=3)
    store.runs.commit_tools(lease, DELTA, Settlement(f"{lease.fence}:1", "settle", 5, 5))
    denied = reserve(store, lease, 2, usd=495, tokens=1, escrow_usd=3, escrow_tokens=3, policy="park")
    assert denied == Parked("batch:b1", "usd", "exhausted")
    # Rows that wait for room, that ended as none, and that wait for a time that is not now.
    load_rows(store, 3, "b2")
    load_rows(store, 2, "b3", at=LATER)
    store.batches.drop("b3", StopReason.COST_BUDGET)
    load_rows(store, 1, "b4", tenant="idle", at=LATER)
    return store


def codes(found: Checkup) -> set[tuple[str, str]]:
    assert found.found.total() == len(found.findings)
    return {(finding.code, finding.subject) for finding in found.findings}


def test_nothing_is_found_where_all_is_as_it_must_be(sound: Store):
    with untouched(sound):
        found = examine(sound)
    assert codes(found) == set()
    assert found.runs == {"queued": 2, "running": 1, "parked": 1, "waiting": 2, "ended": 2}
    assert (found.batches, found.violations, found.uncounted) == (4, 0, [])
    assert found.keys == len(dump(sound, without=()))
    check_invariants(sound, RUNS)


def test_repairing_what_is_sound_changes_nothing(sound: Store):
    with untouched(sound):
        assert codes(examine(sound, repair=True)) == set()


def test_an_empty_namespace_is_sound(store: Store):
    assert examine(store) == Checkup()


# ── each kind of finding ─────────────────────────────────────────────────────────────────────────────


def field(name: str, run_id: str, value: str | int) -> Callable[[Store], object]:
    return lambda store: store.client.hset(store.keys.run(run_id), name, value)


def no_field(name: str, run_id: str) -> Callable[[Store], object]:
    return lambda store: store.client.hdel(store.keys.run(run_id), name)


def of_batch(name: str, value: str | int) -> Callable[[Store], object]:
    return lambda store: store.client.hset(store.keys.batch("b1"), name, value)


def key(store: Store, name: str) -> str:
    return store.keys.prefix + name


def leave_running(store: Store) -> None:
    """The run is queued, and what its worker had reserved was left open."""
    store.client.hset(store.keys.run("running"), mapping={"state": "queued", "fence": "2-"})


def hold_for_ever(store: Store) -> None:
    store.client.hset(store.keys.run("queued"), "state", "held")
    forget_slot(store, "queued", batch="b1")
    store.client.zadd(store.keys.watch, {"queued": 10**14})


def forget_slot(store: Store, run_id: str, *, batch: str = "") -> None:
    """The run counts as in flight nowhere."""
    for index in ("slots", "slots:t:acme", *([f"slots:b:{batch}"] if batch else [])):
        store.client.srem(key(store, index), run_id)


def leak_slot(run_id: str) -> Callable[[Store], object]:
    """The run counts as in flight."""

    def leak(store: Store) -> None:
        for index in ("slots", "slots:t:acme"):
            store.client.sadd(key(store, index), run_id)

    return leak


def member(index: str, name: str) -> Callable[[Store], object]:
    return lambda store: store.client.sadd(key(store, index), name)


def pass_over(store: Store) -> None:
    """The time of its rows has come, and nobody has heard of that."""
    store.client.hdel(store.keys.batch("b4"), "at")
    store.client.zrem(key(store, "starts"), "b4")


def day_limits_that_go(store: Store) -> None:
    store.ledger.set_limit("batch:b1@day", usd=900)
    store.client.expire(store.keys.scope("batch:b1@day"), 100)


def lose_its_list(store: Store) -> None:
    store.client.hdel(store.keys.run("parked"), "park_scope")
    store.client.delete(store.keys.parked("batch:b1"))


SAFE: dict[str, tuple[Callable[[Store], object], set[tuple[str, str]]]] = {
    "a live run that nobody watches": (
        lambda store: store.client.zrem(store.keys.watch, "queued"),
        {("unwatched", "run queued")},
    ),
    "a parked run in no list": (
        lambda store: store.client.zrem(store.keys.parked("batch:b1"), "parked"),
        {("unlisted", "run parked")},
    ),
    "a list that nobody sweeps": (
        lambda store: store.client.srem(key(store, "parked"), "batch:b1"),
        {("unknown_list", "list parked:batch:b1")},
    ),
    "lists that are not counted": (
        lambda store: store.client.hset(store.keys.ledger, "parked", 0),
        {("unknown_list", "list parked:batch:b1")},
    ),
    "a run that is parked somewhere else": (
        lambda store: store.client.zadd(store.keys.parked("global"), {"parked": 1}),
        {("stray", "run parked"), ("unknown_list", "list parked:global")},
    ),
    "a held run that nobody has paused": (hold_for_ever, {("not_paused", "run queued")}),
    "a run whose children are all over": (
        lambda store: store.client.delete(store.keys.run("gathering", "awaits")),
        {("nothing_awaited", "run gathering")},
    ),
    "a run that asks nobody": (
        lambda store: store.client.zrem(key(store, "inbox"), "asking"),
        {("not_in_inbox", "run asking")},
    ),
    "a reservation without a worker": (leave_running, {("reservation", "run running")}),
    "a run at work that takes no place": (
        lambda store: forget_slot(store, "running"),
        {("no_slot", "run running")},
    ),
    "a queued run that takes no place": (
        lambda store: forget_slot(store, "queued", batch="b1"),
        {("no_slot", "run queued")},
    ),
    "a run that asks and takes a place": (leak_slot("asking"), {("slot", "run asking")}),
    "a run that has ended and takes a place": (leak_slot("done"), {("slot", "run done")}),
    "a run in flight that its tenant does not count": (
        lambda store: store.client.srem(key(store, "slots:t:acme"), "running"),
        {("half_slot", "run running")},
    ),
    "a run in flight that its batch does not count": (
        lambda store: store.client.srem(key(store, "slots:b:b1"), "queued"),
        {("half_slot", "run queued")},
    ),
    "a place for a run that is gone": (member("slots", "ghost"), {("stray", "run ghost")}),
    "a place of a tenant for a run that is gone": (
        member("slots:t:acme", "ghost"),
        {("stray", "run ghost")},
    ),
    "a place of a batch for a run of none": (member("slots:b:b1", "running"), {("stray", "run running")}),
    "a tenant in flight without a run": (member("flying", "nobody"), {("stray", "tenant nobody")}),
    "a run that is delayed and in flight": (member("batch:b1:delayed", "queued"), {("stray", "run queued")}),
    "rows whose turn never comes": (pass_over, {("starving", "batch b4")}),
    "a wrong count of rows that were dropped": (
        lambda store: store.client.hset(store.keys.batch("b3"), "stop:cost_budget", 1),
        {("counter", "batch b3")},
    ),
    "a batch that counts rows that wait as ended": (
        lambda store: store.client.hset(store.keys.batch("b2"), "ended", 2),
        {("ended", "batch b2")},
    ),
    "too many descendants": (field("descendants", "gathering", 5), {("descendants", "run gathering")}),
    "too few descendants": (field("descendants", "gathering", 0), {("descendants", "run gathering")}),
    "a key of an ended run without an end": (
        lambda store: store.client.persist(store.keys.run("done", "msgs")),
        {("endless", "run done")},
    ),
    "an account of an ended run without an end": (
        lambda store: store.client.persist(store.keys.scope("run:done")),
        {("endless", "run done")},
    ),
    "a custom id of an ended run without an end": (
        lambda store: store.client.persist(key(store, "ids:acme:done")),
        {("endless", "run done")},
    ),
    "a key of a live run that will go": (
        lambda store: store.client.expire(store.keys.run("queued", "msgs"), 100),
        {("vanishing", "run queued")},
    ),
    "a batch that will go": (
        lambda store: store.client.expire(store.keys.batch("b1"), 100),
        {("vanishing", "batch b1")},
    ),
    "an account of a batch that will go": (
        lambda store: store.client.expire(store.keys.scope("batch:b1"), 100),
        {("vanishing", "batch b1")},
    ),
    "a day's limits of a batch that will go": (day_limits_that_go, {("vanishing", "batch b1")}),
    "a batch that counts too many ends": (of_batch("ended", 2), {("ended", "batch b1")}),
    "a wrong count of a stop reason": (of_batch("stop:finished", 7), {("counter", "batch b1")}),
    "a count of a reason that none has": (of_batch("stop:cancelled", 1), {("counter", "batch b1")}),
    "a count of descendants that a batch has not": (of_batch("descendants", 3), {("counter", "batch b1")}),
    "a watch over a run that is gone": (
        lambda store: store.client.zadd(store.keys.watch, {"ghost": 1}),
        {("stray", "run ghost")},
    ),
    "a watch over a run that has ended": (
        lambda store: store.client.zadd(store.keys.watch, {"done": 1}),
        {("stray", "run done")},
    ),
    "a run in the inbox that asks nobody": (
        lambda store: store.client.zadd(key(store, "inbox"), {"queued": 1}),
        {("stray", "run queued")},
    ),
    "a run in the inbox that waits for children": (
        lambda store: store.client.zadd(key(store, "inbox"), {"gathering": 1}),
        {("stray", "run gathering")},
    ),
    "a run among the parked that is not": (
        lambda store: store.client.zadd(store.keys.parked("batch:b1"), {"queued": 1}),
        {("stray", "run queued")},
    ),
    "a part of a run that is gone": (
        lambda store: store.client.rpush(store.keys.run("ghost", "msgs"), "x"),
        {("lost", "key run:ghost:msgs")},
    ),
    "an account of a run that is gone": (
        lambda store: store.client.hset(store.keys.scope("run:ghost"), "us", 1),
        {("lost", "key scope:run:ghost")},
    ),
    "a custom id of a run that is gone": (
        lambda store: store.client.set(key(store, "ids:acme:x"), "h ghost"),
        {("lost", "key ids:acme:x")},
    ),
    "an operator's reply without an end": (
        lambda store: store.client.set(key(store, "op:o77"), "x"),
        {("lost", "key op:o77")},
    ),
    "a day's account without an end": (
        lambda store: store.client.hset(store.keys.scope("tenant:acme@day:2020-02-03"), "us", 1),
        {("lost", "key scope:tenant:acme@day:2020-02-03")},
    ),
}
"""What is broken, and what is found: it is put right with --repair."""


@pytest.mark.parametrize("case", SAFE)
def test_what_can_be_put_right_is_found_and_put_right_and_found_no_more(sound: Store, case: str):
    spoil, expected = SAFE[case]
    spoil(sound)
    steady(sound)
    with untouched(sound):
        assert codes(examine(sound)) == expected
    mended = examine(sound, repair=True)
    assert codes(mended) == expected
    assert (mended.repaired, mended.violations) == (len(expected), 0)
    with untouched(sound):
        assert codes(examine(sound, repair=True)) == set()


OTHERS: dict[str, tuple[Callable[[Store], object], set[tuple[str, str]]]] = {
    "a state that nobody knows": (field("state", "queued", "odd"), {("state", "run queued")}),
    "a run without a state": (no_field("state", "done"), {("state", "run done")}),
    "a run that nobody has looked at": (
        lambda store: store.client.zadd(store.keys.watch, {"running": 1}),
        {("overdue", "run running")},
    ),
    "a worker without a fence": (field("fence", "running", "1-"), {("no_holder", "run running")}),
    "an end without a reason": (no_field("stop_reason", "done"), {("no_reason", "run done")}),
    "a parked run that says not where": (
        lose_its_list,
        {("unlisted", "run parked")},
    ),
    "a wait without a deadline": (no_field("deadline", "asking"), {("no_deadline", "run asking")}),
    "an account with another idle escrow": (
        lambda store: store.client.hset(store.keys.scope("run:parked"), "ui", 99),
        {("idle", "run parked")},
    ),
    "a batch with other rows": (of_batch("total", 99), {("total", "batch b1")}),
    "the content of a row that is in no list": (
        lambda store: store.client.hset(store.keys.batch("b2", "rows"), "run_0_2", "[]"),
        {("rows", "batch b2")},
    ),
    "a key that agentq does not write": (
        lambda store: store.client.set(key(store, "odd"), "x"),
        {("unknown", "key odd")},
    ),
}
"""What is broken, and what is found: a person must see to it."""


@pytest.mark.parametrize("case", OTHERS)
def test_what_cannot_be_put_right_is_found_and_left(sound: Store, case: str):
    spoil, expected = OTHERS[case]
    spoil(sound)
    with untouched(sound):
        found = examine(sound)
    assert codes(found) == expected
    assert all(finding.advice for finding in found.findings)
    with untouched(sound):
        left = examine(sound, repair=True)
    assert (codes(left), left.violations, left.repaired) == (expected, len(expected), 0)


def test_every_kind_of_finding_has_a_test():
    tested = {code for cases in (SAFE, OTHERS) for _, expected in cases.values() for code, _ in expected}
    assert tested | {"escrow", "not_open", "no_batch"} == set(checkup._KINDS)


def test_an_escrow_of_an_ended_run_is_not_given_back(sound: Store):
    sound.client.hset(sound.keys.run("done", "open"), "escrow", "3 4")
    assert codes(examine(sound)) == {("escrow", "run done"), ("endless", "run done")}
    before = money(sound, "global")
    examine(sound, repair=True)
    [left] = examine(sound).findings
    assert left.sentence == "it has ended and holds an escrow of 3 nano-USD, 4 tokens"
    assert money(sound, "global") == before


def test_a_reservation_that_nobody_holds_is_charged_in_full(sound: Store):
    leave_running(sound)
    examine(sound, repair=True)
    assert money(sound, "run:running") == {"te": 3, "ts": 7, "ue": 3, "uf": 7, "us": 7}
    check_invariants(sound, RUNS)
    assert sound.audit.verify().agrees


def test_a_live_row_that_its_batch_has_lost_is_counted_again(sound: Store):
    sound.client.srem(sound.keys.batch("b1", "open"), "queued")
    assert codes(examine(sound)) == {("not_open", "run queued"), ("ended", "batch b1")}
    # The row is put back first, and then the batch has counted rightly.
    assert codes(examine(sound, repair=True)) == {("not_open", "run queued")}
    assert codes(examine(sound)) == set()


@pytest.mark.parametrize("part", ["feed", "loading", "dropped:cancelled"])
def test_a_run_that_still_waits_as_a_row_does_so_no_more(sound: Store, part: str):
    sound.client.zadd(sound.keys.batch("b1", part), {"queued": 1})
    found = codes(examine(sound))
    assert ("stray", "run queued") in found
    assert found <= {("stray", "run queued"), ("rows", "batch b1"), ("ended", "batch b1")}
    assert codes(examine(sound, repair=True)) == {("stray", "run queued")}
    assert codes(examine(sound)) == set()


def test_a_tenant_that_has_runs_in_flight_is_one_that_has(sound: Store):
    sound.client.srem(key(sound, "flying"), "acme")
    assert codes(examine(sound)) == {("half_slot", f"run {name}") for name in ("queued", "running", "child")}
    assert examine(sound, repair=True).repaired > 0  # the first puts it right for all
    assert codes(examine(sound)) == set()


def test_a_place_that_was_lost_is_given_to_whose_turn_it_is(sound: Store):
    """A window that is full of runs that are not in flight would admit nothing more."""
    window(sound, 5)
    leak_slot("asking")(sound)
    leak_slot("done")(sound)
    assert waiting(sound, "b2") == ["run_000000000000_2", "run_000000000001_2", "run_000000000002_2"]
    examine(sound, repair=True)
    assert waiting(sound, "b2") == ["run_000000000002_2"]
    check_invariants(sound, [*RUNS, "run_000000000000_2", "run_000000000001_2"])


def test_a_run_that_is_no_row_is_not_open(sound: Store):
    sound.client.sadd(sound.keys.batch("b1", "open"), "asking")
    assert codes(examine(sound)) == {("stray", "run asking"), ("ended", "batch b1")}
    assert codes(examine(sound, repair=True)) == {("stray", "run asking")}
    assert codes(examine(sound)) == set()


@pytest.mark.parametrize("owner", ["run:queued", "batch:b1"])
def test_a_run_that_is_held_for_a_pause_may_be_looked_at_late(sound: Store, owner: str):
    hold_for_ever(sound)
    sound.client.hset(key(sound, owner), "paused", "ann")
    assert codes(examine(sound)) == set()


@pytest.mark.parametrize("late_s, late", [(100, False), (130, True)])
def test_a_run_is_forgotten_after_two_minutes(sound: Store, late_s: int, late: bool):
    sound.client.zadd(sound.keys.watch, {"queued": sound.watch.server_ms() - late_s * 1000})
    assert codes(examine(sound)) == ({("overdue", "run queued")} if late else set())


def test_what_leaves_an_index_meanwhile_is_no_stray(sound: Store):
    with untouched(sound):
        assert call(sound, "index_check", "watch", "1", "ghost", "done") == ["OK", 0]


def test_an_end_that_only_a_wrong_count_makes_look_wrong_is_left(sound: Store):
    field("descendants", "done", 3)(sound)
    assert codes(examine(sound)) == {("descendants", "run done"), ("vanishing", "run done")}
    assert codes(examine(sound, repair=True)) == {("descendants", "run done")}
    assert sound.client.pttl(sound.keys.run("done")) > RETENTION_MS / 2
    assert codes(examine(sound)) == set()


def test_the_end_of_a_batch_that_only_a_wrong_count_makes_look_wrong_is_left(store: Store):
    open_batch(store, usd=500)
    submit_run(store, "r1", batch="b1", custom_id="x")
    store.runs.cancel("r1", "test")
    store.batches.seal("b1")
    of_batch("ended", 0)(store)
    assert codes(examine(store)) == {("ended", "batch b1"), ("vanishing", "batch b1")}
    assert codes(examine(store, repair=True)) == {("ended", "batch b1")}
    assert store.client.pttl(store.keys.batch("b1")) > RETENTION_MS / 2


def test_what_is_read_twice_counts_once(sound: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checkup, "CHUNK", 7)
    sound.client.set(key(sound, "odd"), "x")
    names = checkup._Examination._names
    monkeypatch.setattr(checkup._Examination, "_names", lambda self: [*names(self), *names(self)])
    found = examine(sound)
    assert [finding.subject for finding in found.findings] == ["key odd"]
    assert found.runs.total() == len(RUNS)


def test_a_row_that_is_gone_is_no_longer_open(sound: Store):
    sound.client.delete(sound.keys.run("queued"))
    mended = examine(sound, repair=True)
    assert {("stray", "run queued"), ("ended", "batch b1")} <= codes(mended)
    assert sound.batches.live("b1") == ["parked"]
    assert codes(examine(sound)) == set()


def test_a_batch_that_is_gone_under_its_runs_is_told(sound: Store):
    sound.client.delete(sound.keys.batch("b1"))
    found = codes(examine(sound, repair=True))
    assert {finding for finding in found if finding[0] == "no_batch"} == {
        ("no_batch", "run queued"),
        ("no_batch", "run parked"),
    }
    assert ("lost", "key batch:b1:runs") in found
    assert {finding.code for finding in examine(sound).findings} == {"no_batch"}


def test_a_sealed_batch_that_is_over_gets_an_end(store: Store):
    open_batch(store, usd=500)
    submit_run(store, "r1", batch="b1", custom_id="x")
    store.runs.cancel("r1", "test")
    store.batches.seal("b1")
    store.client.persist(store.keys.batch("b1", "ids"))
    assert codes(examine(store, repair=True)) == {("endless", "batch b1")}
    assert store.client.pttl(store.keys.batch("b1", "ids")) > RETENTION_MS / 2
    assert codes(examine(store)) == set()


def test_rows_that_have_expired_are_still_counted(sound: Store):
    for name in dump(sound, without=()):
        if name.startswith(("run:row", "scope:run:row")):
            sound.client.delete(key(sound, name))
    assert codes(examine(sound)) == set()


def test_counts_of_descendants_are_mended_up_to_the_root(store: Store):
    for run_id, ancestors in (("root", ()), ("middle", ("root",)), ("leaf", ("root", "middle"))):
        spec = RunSpec(agent="a", tenant="acme", ancestors=ancestors)
        store.runs.submit([(run_id, spec, [HELLO])], heads=["{}"], retention_ms=RETENTION_MS)
    for run_id in ("root", "middle"):
        store.client.hset(store.keys.run(run_id), "descendants", 7)
    examine(store, repair=True)
    assert codes(examine(store)) == set()
    assert [store.client.hget(store.keys.run(run_id), "descendants") for run_id in ("root", "middle")] == [
        "2",
        "1",
    ]


def test_more_runs_than_a_chunk_are_all_looked_at(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checkup, "CHUNK", 7)
    open_batch(store)
    for number in range(40):
        submit_run(store, f"r{number}", batch="b1")
    store.client.delete(store.keys.watch)
    found = examine(store)
    assert found.runs == {"queued": 40}
    assert found.found == {"unwatched": 40}
    assert examine(store, repair=True).violations == 0
    assert codes(examine(store)) == set()


def test_findings_beyond_a_bound_are_only_counted(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checkup, "KEPT", 3)
    for number in range(5):
        store.client.set(key(store, f"odd{number}"), "x")
    found = examine(store)
    assert (len(found.findings), found.found["unknown"], found.violations) == (3, 5, 5)


def test_a_batch_that_changes_all_the_while_is_not_compared_and_said_so(
    sound: Store, monkeypatch: pytest.MonkeyPatch
):
    of_batch("stop:finished", 7)(sound)
    of = type(sound.batches).runs

    def runs(batches, name):
        sound.client.hincrby(sound.keys.batch(name), "stop:cancelled", 1)
        yield from of(batches, name)

    monkeypatch.setattr(type(sound.batches), "runs", runs)
    found = examine(sound)
    assert (codes(found), found.uncounted) == (set(), ["b1", "b2", "b3", "b4"])


def test_a_counter_that_has_changed_since_the_count_is_left(sound: Store):
    was = [str(part) for item in sound.client.hgetall(sound.keys.batch("b1")).items() for part in item]
    of_batch("stop:cancelled", 1)(sound)
    assert call(sound, "batch_recount", "b1", len(was), *was, 2, "stop:finished", 9) == ["CHANGED"]
    was = [str(part) for item in sound.client.hgetall(sound.keys.batch("b1")).items() for part in item]
    of_batch("stop:finished", 7)(sound)
    assert call(sound, "batch_recount", "b1", len(was), *was, 2, "stop:finished", 9) == ["CHANGED"]
    was = [str(part) for item in sound.client.hgetall(sound.keys.batch("b1")).items() for part in item]
    twice(sound, "batch_recount", "b1", len(was), *was, 4, "stop:finished", 1, "stop:cancelled", 0)
    assert codes(examine(sound)) == set()


def test_a_state_that_is_newer_is_left_alone(sound: Store):
    sound.client.zrem(sound.keys.watch, "queued")
    sound.client.hset(sound.keys.ledger, "schema", 99)
    with untouched(sound), pytest.raises(SchemaError, match="form 99 of a newer agentq"):
        examine(sound, repair=True)


@pytest.mark.parametrize(
    "name, owner",
    [
        ("run:r1:effects", "run:r1"),
        ("batch:b@1:runs", "batch:b@1"),
        ("scope:run:r1", "run:r1"),
        ("checkpoint:batch:b1", "batch:b1"),
        ("scope:batch:b1@day", "batch:b1"),
        ("scope:batch:b1@day:2026-11-29", ""),
        ("scope:tenant:acme@month", "*"),
        ("parked:batch:b1@day", "*"),
        ("ids:acme:a:b", "="),
        ("watch", "*"),
        ("mq:agentq", "*"),
        ("run:r1:odd", None),
        ("watches", None),
    ],
)
def test_a_key_ends_with_its_owner(name: str, owner: str | None):
    assert owner_of(name) == owner


def test_the_page_explains_every_kind_and_says_which_are_repaired():
    page = (Path(__file__).parents[2] / "docs/doctor.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    repaired = {row[0].strip("`"): row[2] != "–" for row in rows if len(row) == 3}
    by_test = {code: True for _, expected in SAFE.values() for code, _ in expected} | {"not_open": True}
    by_test |= {code: False for _, expected in OTHERS.values() for code, _ in expected if code != "unlisted"}
    assert repaired == by_test | {"escrow": False, "no_batch": False}
