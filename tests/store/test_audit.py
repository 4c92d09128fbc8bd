"""The audit: the log over the checkpoint, beside the accounts and what runs hold."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from agentq.core.lifecycle import StopReason
from agentq.core.records import Actor, Delta, Parked, RunSpec, Settlement
from agentq.store import Store, audit
from agentq.store.audit import Verdict
from tests.support.harness import HELLO, RETENTION_MS, call, claim_run, money, open_batch, reserve, submit_run

BOSS = Actor("op1", "boss", "why not")
DELTA = Delta("{}")


def settle(
    store: Store, run_id: str, *, usd: int, held: int = 70, escrow: int = 30, end: bool = False
) -> None:
    """One step of a run, or its last."""
    lease = claim_run(store, run_id).lease
    reserve(store, lease, usd=held, tokens=held, escrow_usd=escrow, escrow_tokens=escrow)
    settlement = Settlement(f"{lease.fence}:1", "settle", usd, usd)
    if end:
        store.runs.commit_end(lease, DELTA, settlement, StopReason.FINISHED)
    else:
        store.runs.commit_continue(lease, DELTA, settlement)


def busy(store: Store) -> None:
    """Runs in all states, with windows, an overage, a forfeit, a charge and a correction."""
    store.ledger.set_limit("tenant:acme@day", usd=10_000, actor=BOSS)
    open_batch(store, usd=5_000)
    for run_id in ("ended", "queued", "running", "parked", "waiting", "lost"):
        submit_run(store, run_id, batch="b1")
    settle(store, "ended", usd=90, end=True)
    settle(store, "queued", usd=60)
    settle(store, "parked", usd=10)
    reserve(store, claim_run(store, "running").lease, usd=7, tokens=7, escrow_usd=3, escrow_tokens=3)
    lost = claim_run(store, "lost").lease
    reserve(store, lease=lost, usd=5, tokens=5, escrow_usd=3, escrow_tokens=3)
    store.runs.release(lost, delay_ms=0, settlement=Settlement(f"{lost.fence}:1", "forfeit"))
    waiting = claim_run(store, "waiting").lease
    reserve(store, waiting, usd=5, tokens=5, escrow_usd=9, escrow_tokens=9)
    store.runs.commit_wait(
        waiting, DELTA, Settlement(f"{waiting.fence}:1", "settle", 4, 4), [{"id": "c"}], 60_000
    )
    dear = reserve(store, claim_run(store, "parked").lease, usd=4_900, tokens=1, policy="park")
    assert isinstance(dear, Parked)
    store.ledger.book("batch:b1", "charge", actor=Actor("op2", "boss", "phone"), usd=11)
    store.ledger.book("tenant:acme", "adjust", actor=Actor("op3", "boss", "refund"), usd=-3)


def found(verdict: Verdict) -> set[tuple[str, str, int, int, str]]:
    return {(d.scope, d.field, d.books, d.state, d.against) for d in verdict.differences}


@pytest.fixture
def books(store: Store) -> Store:
    busy(store)
    return store


@pytest.mark.parametrize("folded", [0, 3, 1_000])
def test_a_busy_ledger_agrees_wherever_the_checkpoint_is(books: Store, folded: int):
    call(books, "ledger_fold", 0, folded)
    verdict = books.audit.verify()
    assert verdict.differences == []
    assert verdict.agrees
    assert verdict.folded == books.journal.folded()
    assert verdict.last == books.journal.last()
    # global, the tenant, its day, the batch and six runs
    assert (verdict.accounts, verdict.runs, verdict.idle_compared) == (11, 6, True)


def test_a_run_that_somebody_has_paused_is_idle_in_the_audit_too(books: Store):
    assert books.control.pause_many(["queued"], "ann") == ["HELD"]
    assert money(books, "run:queued")["ui"] == 30
    assert books.audit.verify().differences == []


def test_a_namespace_in_which_nothing_happened_agrees(store: Store):
    assert store.audit.verify() == Verdict()


def test_the_audit_changes_nothing_but_that_the_log_is_not_folded_for_a_while(books: Store):
    assert books.audit.verify().agrees
    assert call(books, "ledger_fold", 0, 1_000) == ["OK", 0]
    books.client.hset(books.keys.ledger, "pinned", 1)
    assert call(books, "ledger_fold", 0, 1_000)[1] > 0


@pytest.mark.parametrize("scope", ["global", "tenant:acme", "batch:b1", "run:queued", "run:ended"])
@pytest.mark.parametrize(
    "name, words", [("us", "spent usd"), ("te", "escrowed tokens"), ("uf", "forfeited usd")]
)
@pytest.mark.parametrize("folded", [0, 1_000])
def test_an_amount_that_nobody_logged_is_named(books: Store, scope: str, name: str, words: str, folded: int):
    call(books, "ledger_fold", 0, folded)
    before = money(books, scope).get(name, 0)
    books.client.hincrby(books.keys.scope(scope), name, 1)
    verdict = books.audit.verify()
    assert (scope, words, before, before + 1, "log") in found(verdict)
    assert not verdict.agrees


def test_a_window_is_compared_too(books: Store):
    [window] = [
        str(key).removeprefix(books.keys.scope(""))
        for key in books.client.scan_iter(match=books.keys.scope("tenant:acme@day:*"))
    ]
    books.client.hincrby(books.keys.scope(window), "ts", 1)
    assert {(d.scope, d.field) for d in books.audit.verify().differences} == {(window, "spent tokens")}


Harm = Callable[[Store], object]


@pytest.mark.parametrize(
    "harm, difference",
    [
        pytest.param(
            lambda s: s.client.hdel(s.keys.run("queued", "open"), "escrow"),
            ("run:queued", "escrowed usd", 0, 30, "reservations"),
            id="an escrow that no run holds",
        ),
        pytest.param(
            lambda s: s.client.hset(s.keys.run("queued", "open"), "9-x:1", "8 0"),
            ("run:queued", "reserved usd", 8, 0, "reservations"),
            id="a reservation that is in no account",
        ),
        pytest.param(
            lambda s: s.client.hset(s.keys.scope("run:waiting"), "ui", 0),
            ("run:waiting", "idle usd", 9, 0, "reservations"),
            id="idle in no account",
        ),
        pytest.param(
            lambda s: s.client.hincrby(s.keys.scope("tenant:acme"), "ti", 1),
            ("tenant:acme", "idle tokens", 39, 40, "idle runs"),
            id="idle in an account alone",
        ),
        pytest.param(
            lambda s: s.client.zrem(s.keys.parked("batch:b1"), "parked"),
            ("run:parked", "in a list of parked runs", 1, 0, "parked runs"),
            id="parked where nobody looks",
        ),
        pytest.param(
            lambda s: s.client.zadd(s.keys.parked("batch:b1"), {"queued": 1}),
            ("run:queued", "parked in batch:b1", 0, 1, "parked runs"),
            id="in a list by mistake",
        ),
        pytest.param(
            lambda s: s.client.hset(s.keys.scope("run:ended"), "uo", -1),
            ("run:ended", "overage usd", 0, -1, "zero"),
            id="less than nothing",
        ),
        pytest.param(
            lambda s: s.client.delete(s.keys.scope("tenant:acme")),
            ("tenant:acme", "forfeited usd", 5, 0, "log"),
            id="an account that is gone",
        ),
        pytest.param(
            lambda s: s.client.delete(s.keys.scope("run:queued")),
            ("run:queued", "escrowed usd", 30, 0, "log"),
            id="the account of a run that is there",
        ),
    ],
)
@pytest.mark.parametrize("folded", [0, 1_000])
def test_what_is_wrong_is_named(books: Store, harm: Harm, difference: tuple, folded: int):
    call(books, "ledger_fold", 0, folded)
    harm(books)
    assert difference in found(books.audit.verify())


def test_an_entry_that_is_missing_is_a_gap_in_the_numbers(books: Store):
    books.client.xdel(books.keys.log, "0-4")
    assert ("log", "number", 4, 5, "numbers") in found(books.audit.verify())


def test_a_log_that_was_trimmed_by_others_is_a_gap_behind_the_checkpoint(books: Store):
    call(books, "ledger_fold", 0, 3)
    books.client.xtrim(books.keys.log, minid="0-7", approximate=False)
    assert ("log", "number", 4, 7, "numbers") in found(books.audit.verify())


def test_a_log_that_is_gone_is_noticed(books: Store):
    books.client.delete(books.keys.log)
    verdict = books.audit.verify()
    assert ("global", "forfeited usd", 0, 5, "log") in found(verdict)


@pytest.mark.parametrize("folded", [0, 1_000])
def test_a_batch_that_takes_the_name_of_one_that_has_expired_begins_at_nothing(store: Store, folded: int):
    open_batch(store)
    submit_run(store, "r1", batch="b1")
    settle(store, "r1", usd=5, end=True)
    for kind in (
        "scope:batch:b1",
        "batch:b1",
        "batch:b1:ids",
        "batch:b1:runs",
        "batch:b1:open",
        "checkpoint:batch:b1",
    ):
        store.client.delete(store.keys.prefix + kind)
    open_batch(store)
    submit_run(store, "r2", batch="b1")
    settle(store, "r2", usd=7, end=True)
    call(store, "ledger_fold", 0, folded)
    assert store.audit.verify().differences == []
    assert money(store, "batch:b1") == {"us": 7, "ts": 7}


@pytest.mark.parametrize("folded", [0, 1_000])
def test_a_run_that_has_expired_is_not_missed(store: Store, folded: int):
    submit_run(store, "r1")
    settle(store, "r1", usd=5, end=True)
    store.client.delete(store.keys.run("r1"), store.keys.scope("run:r1"))
    call(store, "ledger_fold", 0, folded)
    assert store.audit.verify().differences == []


def test_an_incident_is_listed_and_is_no_difference(books: Store):
    process, _ = books.ledger.operations.current()
    call(books, "ledger_incident", process, 1, 99, 1, 2_000, 4, 77, 6)
    verdict = books.audit.verify()
    assert verdict.agrees
    [incident] = verdict.incidents
    assert (incident.process, incident.reservations, incident.nano_usd, incident.tokens) == (
        process,
        4,
        77,
        6,
    )
    assert incident.till_ms - incident.since_ms == 2_000


def test_a_run_answers_for_all_that_it_has_started(store: Store, monkeypatch: pytest.MonkeyPatch):
    submit_run(store, "root")
    lease = claim_run(store, "root").lease
    reserve(store, lease, usd=5, tokens=5, escrow_usd=3, escrow_tokens=3)
    store.runs.commit_tools(lease, DELTA, Settlement(f"{lease.fence}:1", "settle", 5, 5))
    for run_id, ancestors in (("child", ("root",)), ("idle", ("root",)), ("grandchild", ("root", "child"))):
        spec = RunSpec(agent="a", tenant="acme", content_hash=run_id, ancestors=ancestors)
        store.runs.submit([(run_id, spec, [HELLO])], heads=["{}"], retention_ms=RETENTION_MS)
        settle(store, run_id, usd=1, escrow=4)
    store.runs.commit_gather(lease, DELTA, ["child", "idle"], {"g1": 60_000})
    store.ledger.set_limit("tenant:acme", usd=100, actor=BOSS)
    assert isinstance(reserve(store, claim_run(store, "idle").lease, usd=99, tokens=1, policy="park"), Parked)
    reserve(store, claim_run(store, "grandchild").lease, usd=7, tokens=7, escrow_usd=2, escrow_tokens=2)
    assert money(store, "run:root") == {
        "us": 8, "ts": 8, "ur": 7, "tr": 7, "ue": 13, "te": 13, "ui": 7, "ti": 7
    }  # fmt: skip
    assert store.audit.verify().differences == []
    store.client.hdel(store.keys.run("grandchild", "open"), "escrow")
    wrong = {scope for scope, field, *_ in found(store.audit.verify()) if field == "escrowed usd"}
    assert wrong == {"run:root", "run:child", "run:grandchild"}
    # More than may be read in one script are left out, where they would have to be added up.
    monkeypatch.setattr(audit, "DESCENDANTS", 1)
    wrong = {scope for scope, field, *_ in found(store.audit.verify()) if field == "escrowed usd"}
    assert wrong == {"run:child", "run:grandchild"}


@pytest.fixture
def workers(store: Store) -> Iterator[list[int]]:
    """Threads that spend, park, cancel and fold as fast as they can; answers how much each has done."""
    over, done = threading.Event(), [0, 0, 0, 0]
    store.ledger.set_limit("tenant:acme@day", usd=10**9, actor=BOSS)
    open_batch(store, usd=10**9)

    def work(place: int) -> None:
        while not over.is_set():
            run_id = f"w{place}-{done[place]}"
            submit_run(store, run_id, batch="b1")
            settle(store, run_id, usd=60)
            if done[place] % 3 == 0:
                reserve(store, claim_run(store, run_id).lease, usd=10**9, tokens=1, policy="park")
            if done[place] % 2 == 0:
                store.runs.cancel(run_id, "test")
            store.ledger.fold(kept=50, at_most=20)
            done[place] += 1

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(done))]
    for thread in threads:
        thread.start()
    yield done
    over.set()
    for thread in threads:
        thread.join()


def test_it_is_exact_while_workers_run(store: Store, workers: list[int], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(audit, "CHUNK", 7)
    first, rounds = store.journal.last(), 0
    while rounds < 5 or store.journal.last() < first + 500:
        verdict = store.audit.verify()
        assert verdict.differences == []
        assert verdict.idle_compared
        rounds += 1
        store.client.hset(store.keys.ledger, "pinned", 1)
    # And it would have seen one nano-USD.
    store.client.hincrby(store.keys.scope("global"), "us", 1)
    assert {(d.scope, d.field, d.state - d.books) for d in store.audit.verify().differences} == {
        ("global", "spent usd", 1)
    }
