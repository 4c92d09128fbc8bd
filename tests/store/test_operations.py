"""What a process remembers of its reservations: it notices a rollback, reports it once, and books again."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from agentq.core.lifecycle import StopReason
from agentq.core.records import Delta, Granted, Lease, Recovering, Settlement
from agentq.store import Store
from tests.support.harness import (
    call,
    check_invariants,
    claim_run,
    due,
    dump,
    money,
    open_batch,
    reserve,
    reserve_args,
    state_of,
    submit_run,
    twice,
    untouched,
)

EMPTY = Delta("{}")


@pytest.fixture
def lease(store: Store) -> Lease:
    """A claimed run in a batch."""
    open_batch(store)
    submit_run(store, batch="b1")
    return claim_run(store).lease


def another(store: Store, run_id: str) -> Lease:
    submit_run(store, run_id)
    return claim_run(store, run_id).lease


def snapshot(store: Store) -> dict[str, bytes]:
    """The namespace as the disk has it."""
    raw = redis.Redis(connection_pool=_raw(store))
    return {key: raw.dump(key) for key in raw.scan_iter(match=f"{store.keys.prefix}*", count=1000)}  # type: ignore[misc]


def roll_back(store: Store, to: dict[str, bytes]) -> None:
    """All that was written since is lost. What an end has, has it still."""
    raw = redis.Redis(connection_pool=_raw(store))
    raw.delete(*raw.scan_iter(match=f"{store.keys.prefix}*", count=1000))
    for key, content in to.items():
        raw.restore(key, 0, content)


def _raw(store: Store) -> redis.ConnectionPool:
    kwargs = {**store.client.connection_pool.connection_kwargs, "decode_responses": False}
    return redis.ConnectionPool(connection_class=store.client.connection_pool.connection_class, **kwargs)


def incidents(store: Store) -> list[dict[str, Any]]:
    return [json.loads(text) for text in store.client.lrange(store.keys.incidents, 0, -1)]


def closing(lease: Lease, how: str, usd: int = 0, tokens: int = 0, n: int = 1) -> Settlement:
    return Settlement(f"{lease.fence}:{n}", how, usd, tokens)


def recovered(store: Store) -> None:
    store.client.hdel(store.keys.ledger, "recovering")


# ── noticing ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("way", ["reserve", "convert", "heartbeat", "stale commit"])
def test_a_rollback_is_noticed_whatever_is_asked_next(store: Store, lease: Lease, way: str):
    assert isinstance(reserve(store, lease, usd=10, tokens=1, escrow_usd=5, escrow_tokens=1), Granted)
    second = another(store, "r2")
    before = snapshot(store)
    assert isinstance(reserve(store, second, usd=70, tokens=7), Granted)
    roll_back(store, before)
    match way:
        case "reserve":
            assert isinstance(reserve(store, lease, 2, usd=1, tokens=1), Recovering)
        case "convert":
            assert isinstance(store.ledger.convert(lease, 2), Recovering)
        case "heartbeat":
            store.watch.sign_on("w1", 60)
        case _:
            gone = Lease("r1", "9-gone", 0)
            assert store.runs.commit_tools(gone, EMPTY, closing(gone, "settle")) == "STALE"
    [incident] = incidents(store)
    assert (incident["known"], incident["acknowledged"]) == ("1", "2")
    assert (incident["reservations"], incident["nano_usd"], incident["tokens"]) == ("1", "70", "7")
    assert int(incident["since"]) <= int(incident["till"]) <= store.watch.server_ms()
    assert money(store, "run:r2") == {"us": 70, "ts": 7, "uf": 70}
    check_invariants(store, ["r1", "r2"])


def test_a_lost_conversion_is_a_lost_reservation(store: Store, lease: Lease):
    reserve(store, lease, usd=10, tokens=1, escrow_usd=50, escrow_tokens=5)
    before = snapshot(store)
    assert isinstance(store.ledger.convert(lease, 2), Granted)
    roll_back(store, before)
    store.watch.sign_on("w1", 60)
    assert incidents(store)[0]["nano_usd"] == "50"
    assert money(store, "run:r1") == {"us": 50, "ts": 5, "uf": 50, "ur": 10, "tr": 1, "ue": 50, "te": 5}
    check_invariants(store, ["r1"])


def test_a_number_that_is_given_away_twice_is_proof_when_nobody_has_asked_in_between(
    store: Store, lease: Lease
):
    """A request that was sent before the loss and repeated after it carries no news of what came later."""
    waiting, lost = another(store, "r2"), another(store, "r3")
    before = snapshot(store)
    assert isinstance(reserve(store, lost, usd=70, tokens=7), Granted)
    roll_back(store, before)
    [word, reservation, _, number, _] = call(
        store, "budget_reserve", *_as(store, reserve_args(waiting, 1, (0, 10, 1, 0, 0)))
    )
    assert (word, number) == ("OK", "1")
    store.ledger.operations.acknowledge(int(number), waiting, reservation, 10, 1)
    store.ledger.report()
    assert incidents(store)[0]["nano_usd"] == "70"
    assert money(store, "run:r3") == {"us": 70, "ts": 7, "uf": 70}
    assert money(store, "run:r2") == {"ur": 10, "tr": 1}
    check_invariants(store, ["r1", "r2", "r3"])


def _as(store: Store, args: list[str | int]) -> list[str | int]:
    return [*args[:3], store.ledger.operations.process, 0, *args[5:]]


def test_a_reserve_whose_answer_comes_twice_is_no_alarm(store: Store, lease: Lease):
    for _ in range(3):
        assert isinstance(reserve(store, lease, usd=10, tokens=1), Granted)
    store.watch.sign_on("w1", 60)
    store.ledger.check()
    assert store.ledger.report() == 0
    assert incidents(store) == []


def test_a_conversion_counts_as_a_reservation_does(store: Store, lease: Lease):
    reserve(store, lease, usd=10, tokens=1, escrow_usd=50, escrow_tokens=5)
    store.ledger.convert(lease, 2)
    store.watch.sign_on("w1", 60)
    assert store.ledger.operations.current()[1] == 2
    assert incidents(store) == []


def test_a_ledger_without_its_mark_grants_nothing(
    store: Store, lease: Lease, caplog: pytest.LogCaptureFixture
):
    reserve(store, lease, usd=10, tokens=1, escrow_usd=50, escrow_tokens=5)
    store.client.delete(store.keys.ledger)
    with untouched(store):
        assert reserve(store, lease, 2, usd=1, tokens=1) == Recovering(0)
        assert store.ledger.convert(lease, 2) == Recovering(0)
    assert caplog.text.count("no_ledger") == 2


def test_denied_and_refused_requests_count_for_nothing(store: Store, lease: Lease):
    store.ledger.set_limit("batch:b1", usd=50)
    reserve(store, lease, usd=60, tokens=1)
    reserve(store, Lease("r1", "9-gone", 0), usd=1, tokens=1)
    assert store.ledger.operations.current()[1] == 0
    assert isinstance(reserve(store, lease, usd=40, tokens=1), Granted)
    store.watch.sign_on("w1", 60)
    assert store.ledger.operations.current()[1] == 1
    assert incidents(store) == []


def test_ten_thousand_processes_are_remembered_whatever_the_clock_says(store: Store, lease: Lease):
    reserve(store, lease, usd=10, tokens=1)
    process, _ = store.ledger.operations.current()
    store.watch.sign_on("w1", 60)
    key = f"{store.keys.prefix}processes"
    store.client.zadd(key, {process: 1}, xx=True)  # seen half a century ago
    store.client.zadd(key, {f"p{n}": n + 2 for n in range(9_999)})
    call(store, "worker_sign_on", "w2", 1000, "p5", 0, 1, "")
    store.watch.sign_on("w1", 60)
    assert incidents(store) == []
    store.client.zadd(key, {process: 1}, xx=True)
    call(store, "worker_sign_on", "w2", 1000, "one more", 0, 1, "")
    assert store.client.zcard(key) == 10_000
    assert store.client.hget(store.keys.ledger, f"op:{process}") is None


# ── reporting ────────────────────────────────────────────────────────────────────────────────────────


def test_an_incident_is_written_down_once(store: Store, lease: Lease):
    args = ("p1", 3, 9, 60_000, 1_500, 4, 700, 70, 1)
    assert twice(store, "ledger_incident", *args)[0] == "OK"
    assert len(incidents(store)) == 1
    # Another thread of the same process had heard of it too, late and with nothing to add.
    with untouched(store):
        call(store, "ledger_incident", "p1", 3, 9, 60_000, 0, 0, 0, 0, 2)
    call(store, "ledger_incident", "p2", 3, 9, 60_000, 1_500, 1, 7, 7, 1)
    assert [incident["process"] for incident in incidents(store)] == ["p1", "p2"]


def test_news_that_cannot_be_sent_are_sent_by_the_next_heartbeat(
    store: Store, lease: Lease, monkeypatch: pytest.MonkeyPatch
):
    before = snapshot(store)
    reserve(store, lease, usd=70, tokens=7)
    roll_back(store, before)
    with monkeypatch.context() as patch:
        patch.setattr(store.ledger, "_book_again", _unreachable)
        with pytest.raises(redis.ConnectionError):
            store.watch.sign_on("w1", 60)
    assert money(store, "run:r1") == {}
    store.watch.sign_on("w1", 60)
    assert money(store, "run:r1") == {"us": 70, "ts": 7, "uf": 70}
    assert len(incidents(store)) == 1
    store.watch.sign_on("w1", 60)
    assert len(incidents(store)) == 1


def _unreachable(_: object) -> None:
    raise redis.ConnectionError("gone")


def test_two_rollbacks_are_two_incidents(store: Store, lease: Lease):
    before = snapshot(store)
    reserve(store, lease, usd=70, tokens=7)
    roll_back(store, before)
    store.watch.sign_on("w1", 60)
    recovered(store)
    second = another(store, "r2")
    before = snapshot(store)
    assert isinstance(reserve(store, second, usd=20, tokens=2), Granted)
    roll_back(store, before)
    store.watch.sign_on("w1", 60)
    assert [incident["nano_usd"] for incident in incidents(store)] == ["70", "20"]
    assert money(store, "global") == {"us": 90, "ts": 9, "uf": 90}
    check_invariants(store, ["r1", "r2"])


def test_while_the_ledger_recovers_nothing_is_claimed_or_reserved_and_no_hint_is_sent(
    store: Store, lease: Lease
):
    submit_run(store, "r2")
    call(store, "ledger_incident", "p", 0, 1, 60_000, 0, 1, 7, 7, 1)
    assert store.runs.claim("r2", None, 15_000) is None
    assert isinstance(reserve(store, lease, usd=1, tokens=1), Recovering)
    store.client.zadd(store.keys.watch, {"r2": 1})
    assert due(store).hints == []
    until = int(str(store.client.hget(store.keys.ledger, "recovering")))
    # All that is queued is due as soon as it is over, however often a hint was lost before.
    assert store.watch.live()["r2"] == until
    store.client.hset(store.keys.ledger, "recovering", 1)
    store.client.zadd(store.keys.watch, {"r2": 1})
    assert due(store).hints == [("r2", 0)]
    assert isinstance(reserve(store, lease, usd=1, tokens=1), Granted)


# ── booking again ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "how, usd, tokens, booked",
    [
        ("settle", 40, 4, {"us": 40, "ts": 4}),
        ("settle", 90, 9, {"us": 90, "ts": 9, "uo": 20}),
        ("estimate", 70, 7, {"us": 70, "ts": 7}),
        ("release", 0, 0, {}),
        ("forfeit", 70, 7, {"us": 70, "ts": 7, "uf": 70}),
    ],
)
@pytest.mark.parametrize("lost", ["the reserve", "the claim too", "the run too"])
def test_a_call_under_way_is_booked_in_full_and_then_at_its_bill(
    store: Store, how: str, usd: int, tokens: int, *, booked: dict[str, int], lost: str
):
    """Wherever the rollback has taken the run to, and in each outcome of the call."""
    open_batch(store)
    before = {"the run too": snapshot(store)}
    submit_run(store, batch="b1")
    before["the claim too"] = snapshot(store)
    lease = claim_run(store).lease
    before["the reserve"] = snapshot(store)
    assert isinstance(reserve(store, lease, usd=70, tokens=7), Granted)
    roll_back(store, before[lost])
    store.watch.sign_on("w1", 60)
    for scope in lease.scopes.split():
        assert money(store, scope) == {"us": 70, "ts": 7, "uf": 70}, scope
    answer = store.runs.commit_tools(lease, EMPTY, closing(lease, how, usd, tokens))
    assert answer == {"the reserve": "OK", "the claim too": "STALE", "the run too": "MISSING"}[lost]
    for scope in lease.scopes.split():
        assert money(store, scope) == booked, scope
    state = dump(store)
    store.watch.sign_on("w1", 60)
    assert {**dump(store), "workers": 0, "processes": 0} == {**state, "workers": 0, "processes": 0}
    assert store.audit.verify().agrees
    if lost == "the run too":
        for name, (_, has_end) in dump(store).items():
            assert has_end or "r1" not in name, f"{name} of a run that is gone stays for ever"


@pytest.mark.parametrize("lost", ["the reserve", "the claim too", "the run too"])
def test_a_call_that_was_finished_and_is_lost_is_booked_again_at_its_bill(store: Store, lost: str):
    open_batch(store)
    before = {"the run too": snapshot(store)}
    submit_run(store, batch="b1")
    before["the claim too"] = snapshot(store)
    lease = claim_run(store).lease
    before["the reserve"] = snapshot(store)
    assert isinstance(reserve(store, lease, usd=70, tokens=7), Granted)
    store.runs.commit_end(lease, EMPTY, closing(lease, "settle", 40, 4), StopReason.FINISHED)
    roll_back(store, before[lost])
    store.watch.sign_on("w1", 60)
    assert incidents(store)[0]["nano_usd"] == "40"
    for scope in lease.scopes.split():
        assert money(store, scope) == {"us": 40, "ts": 4}, scope
    assert store.audit.verify().agrees


def test_a_commit_that_comes_before_anybody_has_noticed_is_booked_when_it_is_noticed(
    store: Store, lease: Lease
):
    """Its claim stands, so the script has no reason to refuse; the process remembers the bill."""
    before = snapshot(store)
    reserve(store, lease, usd=70, tokens=7)
    roll_back(store, before)
    assert store.runs.commit_continue(lease, EMPTY, closing(lease, "settle", 40, 4)) == "OK"
    assert money(store, "global") == {}
    store.watch.sign_on("w1", 60)
    assert money(store, "global") == {"us": 40, "ts": 4}
    check_invariants(store, ["r1"])


def test_what_was_given_back_is_no_loss(store: Store, lease: Lease):
    before = snapshot(store)
    reserve(store, lease, usd=70, tokens=7)
    store.runs.release(lease, delay_ms=0, settlement=closing(lease, "release"))
    roll_back(store, before)
    store.watch.sign_on("w1", 60)
    assert [incident["reservations"] for incident in incidents(store)] == ["0"]
    assert money(store, "global") == {}


def test_a_bill_that_comes_while_the_worst_case_is_being_booked_is_booked_too(store: Store, lease: Lease):
    operations = store.ledger.operations
    operations.acknowledge(1, lease, f"{lease.fence}:1", 70, 7)
    operations.rolled_back(0)
    [in_full] = operations.unbooked()
    operations.closed(lease, closing(lease, "settle", 40, 4))
    operations.booked([in_full])
    [at_its_bill] = operations.unbooked()
    assert (at_its_bill.how, at_its_bill.usd, at_its_bill.tokens) == ("settle", 40, 4)
    operations.booked([at_its_bill])
    assert operations.unbooked() == []


def test_what_the_server_has_is_not_booked_again(store: Store, lease: Lease):
    reserve(store, lease, usd=70, tokens=7)
    with untouched(store):
        args = ("r1", f"{lease.fence}:1", "forfeit", 70, 7, lease.scopes)
        assert call(store, "ledger_reassert", *args) == ["OPEN"]


def test_what_was_reserved_after_the_rollback_is_booked_once_though_another_thread_hears_of_it_later(
    store: Store, lease: Lease
):
    operations, other = store.ledger.operations, another(store, "r2")
    operations.acknowledge(1, other, f"{other.fence}:1", 20, 2)  # the server has lost it
    # Asked before that was acknowledged, made by the server that took over, and so number 1 too.
    args = _as(store, reserve_args(lease, 1, (0, 70, 7, 0, 0)))
    [_, reservation, _, number, _] = call(store, "budget_reserve", *args)
    operations.acknowledge(int(number), lease, reservation, 70, 7)
    store.ledger.rolled_back(0)  # what another thread was told before
    store.runs.commit_tools(lease, EMPTY, closing(lease, "settle", 40, 4))
    assert money(store, "run:r1") == {"us": 40, "ts": 4}
    assert money(store, "run:r2") == {"us": 20, "ts": 2, "uf": 20}
    assert operations.unbooked() == []
    check_invariants(store, ["r1", "r2"])


def test_a_settle_that_is_lost_leaves_the_reservation_to_the_rescue(store: Store, lease: Lease):
    """The reserve is on the disk: nothing is missing, and it is charged in full."""
    reserve(store, lease, usd=70, tokens=7)
    before = snapshot(store)
    store.runs.commit_continue(lease, EMPTY, closing(lease, "settle", 40, 4))
    roll_back(store, before)
    store.watch.sign_on("w1", 60)
    assert incidents(store) == []
    assert money(store, "global") == {"ur": 70, "tr": 7}
    assert state_of(store) == "running"


def test_what_is_booked_again_counts_in_the_windows_that_run_now(store: Store, lease: Lease):
    store.ledger.set_limit("tenant:acme@day", usd=100)
    before = snapshot(store)
    reserve(store, lease, usd=70, tokens=7)
    roll_back(store, before)
    store.watch.sign_on("w1", 60)
    [day] = [name for name in dump(store) if name.startswith("scope:tenant:acme@day:")]
    assert money(store, day.removeprefix("scope:")) == {"us": 70, "ts": 7, "uf": 70}
    assert dump(store)[day][1], "the day's account has no end"
    store.runs.commit_tools(lease, EMPTY, closing(lease, "settle", 40, 4))
    assert money(store, day.removeprefix("scope:")) == {"us": 40, "ts": 4}
    recovered(store)
    # 60 are left of today's hundred, and no more.
    assert not isinstance(reserve(store, lease, 2, usd=61, tokens=1), Granted)
    assert isinstance(reserve(store, lease, 2, usd=60, tokens=1), Granted)


def test_a_step_whose_kept_reply_is_lost_is_not_continued(store: Store, lease: Lease):
    """The lease stands, the reply does not: what the tools gave must not stand alone in the thread."""
    reserve(store, lease, usd=70, tokens=7)
    before = snapshot(store)
    settled = closing(lease, "settle", 40, 4)
    store.runs.commit_tools(lease, Delta("{}", ('{"role":"assistant","content":"x"}',)), settled)
    roll_back(store, before)
    results = Delta("{}", ('{"role":"tool","content":"y"}',))
    assert store.runs.commit_continue(lease, results, settled, kept=True) == "STALE"
    parts = store.runs.parts("r1")
    assert parts is not None
    assert len(json.loads(parts.messages)) == 1
    assert money(store, "global") == {"us": 40, "ts": 4}
    assert store.runs.release(lease, delay_ms=0) == "OK"
    check_invariants(store, ["r1"])
