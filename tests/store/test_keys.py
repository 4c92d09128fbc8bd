"""Every key is in the table of `keys.py`, with its type and its fields, and has an end or is permanent."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from agentq.core.lifecycle import StopReason
from agentq.core.records import Actor, Delta, Failure, Pace, Parked, Retrial, RunSpec, Settlement
from agentq.store import Store, keys
from agentq.store.approvals import Wanted
from agentq.store.effects import Effect
from agentq.store.keys import PERMANENT
from tests.support.harness import (
    HELLO,
    LEASE_MS,
    age,
    call,
    check_invariants,
    claim_run,
    due,
    dump,
    open_batch,
    ready,
    reserve,
    steady,
    submit_run,
)
from tests.support.leaks import assert_no_leaks
from tests.support.rows import add_rows, finish, load_rows, open_for, row_id, window

ENDINGS = ("finished", "cancelled", "thawed", "exhausted", "expired", "cancelled in a call")
FIXED_FIELDS = {
    "run:<r>", "scope:run:<r>", "scope:batch:<b>", "scope:<s>", "clock", "batch:<b>", "ledger", "feeder",
}  # fmt: skip
ELSEWHERE = ("schedule", "notices", "pilots")
"""They have tests of their own."""
DELTA = Delta('{"step":1}', ('{"role":"assistant"}',), ('["step"]',), {"pay:1": "done"})


def end(store: Store, run_id: str, ending: str) -> None:
    """Bring a run to this end, with money in its books."""
    lease = claim_run(store, run_id).lease
    reserve(store, lease, 1, usd=7, tokens=7, escrow_usd=3, escrow_tokens=3)
    store.results.keep(lease, "r0123456789", "long", most=1, most_bytes=9)
    settle = Settlement(f"{lease.fence}:1", "settle", 5, 5)
    match ending:
        case "finished":
            store.runs.commit_tools(lease, DELTA, settle)
            store.runs.commit_end(lease, DELTA, None, StopReason.FINISHED, answer="x", scope="s", detail="d")
        case "cancelled":
            store.runs.release(lease, delay_ms=9_000, settlement=settle, failed=Failure("why", 1))
            store.runs.cancel(run_id, "test")
        case "cancelled in a call":
            store.runs.cancel(run_id, "test")
            store.runs.commit_continue(lease, DELTA, settle)
        case "expired":
            store.runs.commit_wait(lease, DELTA, settle, [{"id": "c"}], 60_000)
            age(store, run_id)
            store.watch.rescue(run_id, LEASE_MS)
        case "exhausted" | "thawed":
            for _ in range(5):
                steady(store)
                age(store, run_id)
                store.watch.rescue(run_id, LEASE_MS)
                ready(store, run_id)
                store.runs.claim(run_id, None, LEASE_MS)
            if ending == "thawed":
                store.runs.commit_continue(lease, DELTA, settle)


def rows(store: Store) -> None:
    """Batches whose rows became runs, or ended without ever being one."""
    window(store, 10)
    for run_id in load_rows(store, 2, "b2"):
        finish(store, run_id, tokens=5)
    for n, reason in enumerate((StopReason.CANCELLED, StopReason.COST_BUDGET, StopReason.TOKEN_BUDGET)):
        load_rows(store, 1, f"b3-{n}", at=10**15)
        if reason is StopReason.CANCELLED:
            store.batches.cancel(f"b3-{n}", "ann")
        else:
            store.batches.drop(f"b3-{n}", reason)
    due(store)


def everything(store: Store) -> list[str]:
    """A namespace in which everything has happened and ended; answers its runs."""
    store.ledger.set_limit("global", usd=10**9, tokens=10**9)
    store.ledger.set_limit("tenant:acme", usd=10**9, tokens=None, on_exhausted="park")
    store.ledger.set_limit("tenant:acme@day", usd=10**9)
    store.ledger.set_limit("tenant:acme@month", tokens=10**9, actor=Actor("o1", "ann"))
    store.ledger.set_limit("agent:a", usd=1)
    store.ledger.book("tenant:acme", "charge", usd=6 * 10**8, actor=Actor("o2", "ann", "an alert"))
    open_batch(store, usd=10**6, tokens=10**6)
    runs = []
    for number, ending in enumerate(ENDINGS):
        for batch in ("b1", None):
            run_id = f"{'b' if batch else 's'}{number}"
            submit_run(store, run_id, batch=batch, custom_id=f"c{run_id}", usd=1000, tokens=1000)
            runs.append(run_id)
            end(store, run_id, ending)
    store.batches.seal("b1")
    rows(store)
    store.watch.sign_on("w1", 60)
    store.client.hdel(store.keys.ledger, f"op:{store.ledger.operations.process}")
    store.ledger.check()
    store.client.hdel(store.keys.ledger, "recovering")
    call(store, "ledger_reassert", runs[0], "9-lost:1", "settle", 5, 5, "")
    due(store)
    call(store, "ledger_fold", 10, 20)
    store.ledger.freeze("agent:b", actor=Actor("o3", "ann"))
    for caller in range(20):
        store.governor.take(f"c{caller}", Pace("openai:k1:gpt", 10), 10)
    store.governor.hear_quota("openai:k1:gpt", "no money")
    store.client.hset(store.keys.account("openai:k1"), "probe", 1)
    store.governor.take("prober", Pace("openai:k1:gpt", 10), 10)
    # What a tick has not logged yet.
    store.ledger.book("agent:a", "charge", usd=1, actor=Actor("o4", "ann"))
    return runs


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("batch", ["b1", None])
def test_an_ended_run_leaves_no_key_without_an_end(store: Store, ending: str, batch: str | None):
    if batch:
        open_batch(store, usd=1000)
    submit_run(store, "r1", batch=batch, custom_id="x", usd=1000, tokens=1000)
    end(store, "r1", ending)
    if batch:
        store.batches.seal("b1")
    assert_no_leaks(store.client, store.keys.prefix, [*PERMANENT, "scope:global", "scope:tenant:*"])
    check_invariants(store, ["r1"])


def test_a_namespace_in_which_all_has_ended_has_only_permanent_keys_without_an_end(store: Store):
    runs = everything(store)
    endless = {name for name, (_, has_end) in dump(store, without=()).items() if not has_end}
    scopes = {"global", "tenant:acme", "tenant:acme@day", "tenant:acme@month", "agent:a", "agent:b"}
    stay = {f"scope:{scope}" for scope in scopes} | {"checkpoint:global", "checkpoint:tenant:acme"}
    assert endless - set(PERMANENT) == stay
    check_invariants(store, runs)


def table() -> dict[str, tuple[str, str]]:
    """The table in `keys.py`: key to type and to the text about its fields or members."""
    lines = (keys.__doc__ or "").splitlines()
    rule = next(i for i, line in enumerate(lines) if line.lstrip().startswith("──"))
    starts = [found.start() for found in re.finditer("─+", lines[rule])]
    rows: dict[str, tuple[str, str]] = {}
    last = ""
    for line in itertools.takewhile(str.strip, lines[rule + 1 :]):
        name, kind, fields = (line[a:b].strip() for a, b in itertools.pairwise(starts))
        last = name or last
        rows[last] = (kind, fields) if name else (rows[last][0], f"{rows[last][1]} {fields}")
    return rows


def row_of(rows: dict[str, tuple[str, str]], name: str) -> str:
    """The most special row for this key."""
    placeholders = {
        r"<([rbtn]|tenant|batch|serial)>": "[^:]+", r"<(s|custom_id|list|scope|id|lane|account)>": ".+",
        "<window>": "(day|month)", "@day:<date>": r"@(day|month):[0-9-]+", r":\*$": ":[^:]+",
    }  # fmt: skip

    def pattern(row: str) -> str:
        for placeholder, meaning in placeholders.items():
            row = re.sub(placeholder, lambda _: meaning, row)  # noqa: B023 - used at once
        return row

    found = [row for row in rows if re.fullmatch(pattern(row), name)]
    assert found, f"keys.py's table has no row for {name}"
    return max(found, key=len)


def seen(store: Store) -> dict[str, Any]:
    """Every key with its type and, for a hash, its fields."""
    prefix = store.keys.prefix
    found = {}
    for key in store.client.scan_iter(match=f"{prefix}*", count=1000):
        kind = store.client.type(key)
        found[key.removeprefix(prefix)] = (kind, set(store.client.hkeys(key)) if kind == "hash" else set())
    return found


def test_the_table_names_every_key_with_its_type_and_fields(store: Store):
    happened: list[dict[str, Any]] = []
    load_rows(store, 3, "b7", max_in_flight=1, max_open=2, priority=3, notify="https://example.org")
    window(store, 10)
    store.feeder.tune("acme", {"max": 9, "weight": 2})
    store.feeder.tune("", {"max": 90, "tenant_max": 9})
    add_rows(store, open_for(store, "b7"), [3], "b7")
    happened.append(seen(store))
    due(store)
    call(store, "tick", LEASE_MS, 1, 1, 1, 1, 1)
    open_batch(store, "b9", usd=1000)
    submit_run(store, "live", batch="b9", custom_id="x")
    lease = claim_run(store, "live").lease
    reserve(store, lease, 1, usd=7, tokens=7, escrow_usd=3, escrow_tokens=3)
    effect = Effect(lease, "c1", "pay:0123456789abcdef", once=True)
    assert store.effects.begin(effect, retry=False, reads={}) == ("GO", "")
    assert store.results.keep(lease, "r0123456789", "long", most=1, most_bytes=9) == "OK"
    happened.append(seen(store))
    calls = [{"id": "c1"}, {"id": "c2"}]
    store.runs.commit_wait(lease, DELTA, None, calls, 60_000, fields={"on_expired": "tell"})
    store.control.pause_many(["live"], "me")
    (taken,) = store.approvals.decide([Wanted("live", "c1", "approve", "me")])
    assert (taken.word, taken.left) == ("DECIDED", 1)
    happened.append(seen(store))
    submit_run(store, "dry", batch="b9")
    lease = claim_run(store, "dry").lease
    parked = reserve(store, lease, 1, usd=991, tokens=1, policy="park")
    assert parked == Parked("batch:b9", "usd", "winddown")
    happened.append(seen(store))
    store.ledger.sweep("batch:b9")
    happened.append(seen(store))
    store.ledger.winddown("batch:b9", actor=Actor("o9", "ann"))
    happened.append(seen(store))
    submit_run(store, "parent")
    parent = claim_run(store, "parent").lease
    child = RunSpec(agent="a", tenant="acme", ancestors=("parent",))
    store.runs.submit([("child", child, [HELLO])], heads=["{}"], retention_ms=1)
    store.runs.commit_gather(parent, DELTA, ["child"], {"0:t:1": 60_000}, {"wake_hint": "5000 q m"})
    happened.append(seen(store))
    submit_run(store, "again")
    age(store, "again")
    assert due(store).hints == [("again", 0), ("dry", 0)]
    happened.append(seen(store))
    store.runs.release(claim_run(store, "again").lease, delay_ms=1000, failed=Failure("why", 1))
    happened.append(seen(store))
    everything(store)
    happened.append(seen(store))
    submit_run(store, "worse")
    again = claim_run(store, "worse").lease
    store.runs.commit_end(again, DELTA, None, StopReason.MODEL_ERROR)
    happened.append(seen(store))
    assert store.control.retry_many([Retrial("worse", 0, "{}", 1, "[]", "ann")]) == [("RETRIED", "0")]
    happened.append(seen(store))
    load_rows(store, 20, "b6")
    happened.append(seen(store))
    store.runs.release(claim_run(store, row_id(0, "1")).lease, delay_ms=1000)
    happened.append(seen(store))
    rows = table()
    used: set[str] = set()
    for keys_then in happened:
        for name, (kind, fields) in keys_then.items():
            row = row_of(rows, name)
            used.add(row)
            assert kind == rows[row][0], name
            if row in FIXED_FIELDS:
                text = rows["scope:<s>" if rows[row][1] == "as every scope" else row][1]
                unknown = fields - set(text.replace(",", "").split())
                free = ("stop:", "op:", "sweep:", "max:", "weight:", "m:")
                assert not {field for field in unknown if not field.startswith(free)}, row
    assert used == {row for row in rows if not row.startswith(ELSEWHERE)}
