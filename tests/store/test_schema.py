"""The form of the state: a newer one comes into force when nobody is left who would not understand it."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import pytest

from agentq.core.errors import SchemaError
from agentq.store import Store
from tests.support.harness import call, dump, open_batch, submit_run, untouched

NOW = 1
"""The form that this release writes."""
OLDER, NEWER = NOW - 1, NOW + 1


def sign_on(store: Store, worker: str = "w1") -> list[str]:
    return call(store, "worker_sign_on", worker, 60_000, f"process of {worker}", 0, 1, "")


def in_force(store: Store) -> Any:
    return store.client.hget(store.keys.ledger, "schema")


def an_older_worker(store: Store, worker: str = "old", *, alive: bool = True) -> None:
    """One of a release that knows the form before this one."""
    until = store.watch.server_ms() + (60_000 if alive else -1)
    store.client.zadd(store.keys.workers, {worker: until})
    store.client.hset(store.keys.schemas, worker, OLDER)


def test_the_first_worker_puts_its_form_into_force(store: Store):
    assert in_force(store) is None
    assert sign_on(store) == ["OK"]
    assert in_force(store) == str(NOW)
    assert dump(store)["schemas"][0] == {"w1": str(NOW)}


def test_while_an_older_worker_is_alive_the_older_form_stays(store: Store):
    an_older_worker(store)
    assert sign_on(store) == ["OK"]
    assert in_force(store) is None
    store.watch.sign_off("old")
    assert sign_on(store) == ["OK"]
    assert in_force(store) == str(NOW)


def test_a_worker_that_says_nothing_of_its_form_is_older_than_all(store: Store):
    store.client.zadd(store.keys.workers, {"old": store.watch.server_ms() + 60_000})
    sign_on(store)
    assert in_force(store) is None


def test_who_is_dead_holds_nothing_up_and_leaves_the_list(store: Store):
    an_older_worker(store, alive=False)
    sign_on(store)
    assert in_force(store) == str(NOW)
    assert dump(store)["schemas"][0] == {"w1": str(NOW)}
    assert store.watch.workers() == ["w1"]


def test_who_stops_in_good_order_leaves_the_list(store: Store):
    sign_on(store)
    sign_on(store, "w2")
    store.watch.sign_off("w2")
    assert dump(store)["schemas"][0] == {"w1": str(NOW)}


def test_an_older_worker_is_told_and_counts_as_nobody(store: Store):
    store.client.hset(store.keys.ledger, "schema", NEWER)
    with untouched(store), pytest.raises(SchemaError, match=str(NEWER)) as raised:
        store.watch.sign_on("w1", 60)
    assert raised.value.hint, "it says what to do"


def test_a_newer_state_takes_no_run_from_an_older_release(store: Store):
    submit_run(store)
    store.client.hset(store.keys.ledger, "schema", NEWER)
    with untouched(store), pytest.raises(SchemaError, match=str(NEWER)):
        submit_run(store, "r2")


BY_PEOPLE: dict[str, list[str | int]] = {
    "run_pause": ["r1", "ann"],
    "run_resume": ["r1", 1],
    "run_cancel": ["r1", "ann"],
    "runs_cancel": ["ann", 1, "r1"],
    "run_retry": ["r1", "op", 0, "{}", 1, "", "", "[]", "ann", 0],
    "batch_pause": ["b1", "ann"],
    "batch_cancel": ["b1", "ann"],
    "approval_decide": ["r1", "c1", "op", "approve", "ann", "", ""],
    "budget_set": ["op", "ann", "why", "tenant:acme", "5", "=", "=", 0],
    "budget_topup": ["op", "ann", "why", "tenant:acme", 5, 0],
    "budget_freeze": ["op", "ann", "why", "tenant:acme", 1],
    "budget_winddown": ["op", "ann", "why", "tenant:acme", 1],
    "budget_book": ["op", "ann", "why", "tenant:acme", "charge", 5, 5],
    "batch_open": ["b1", "a", "acme", "", "", 1000, "me", 1000, "", 0],
    "batch_add": ["b1", "me", 1000, 0, 5, "r2", "c2", "h2", 0, "[]"],
    "batch_abort": ["b1", "me", 0, 1],
    "batch_seal": ["b1", "me", 1],
    "batch_drop": ["b1", "cost_budget"],
    "batch_decide": ["b1", 0, ""],
    "batch_revive": ["b1"],
    "batch_tune": ["b1", 2, "priority", 1],
    "feeder_tune": ["acme", 2, "max", 1],
    "batch_check": ["b1", 1],
    "batch_purge": ["b1", 0, 10],
    "batch_recount": ["b1", 2, "total", 1, 2, "total", 2],
    "key_check": [1000, "nobody's", ""],
    "index_check": ["watch", 1, "r9"],
    "run_check": ["r1", 1, 1000],
    "ledger_mark": [7],
    "governor_resume": ["openai:k", "ann"],
    "schedule_set": ["s", "{}", "h", 1, 3, "ab", 1, 1],
    "schedule_claim": ["me", 1000],
    "schedule_renew": ["s", "me", 1000],
    "schedule_done": ["s", "me", "due", 1, "s.1", "made", "", 2, ""],
    "schedule_pause": ["s", "ann", ""],
    "schedule_ask": ["s"],
    "schedule_remove": ["s"],
    "notice_claim": [1000, 10, "1", 1000],
    "notice_done": ["b1", 1, 0, "", ""],
}
BY_WORKERS = {
    "budget_reserve",
    "budget_convert",
    "budget_wake",
    "effect_begin",
    "effect_done",
    "result_keep",
    "governor_hear",
    "governor_take",
    "lease_renew",
    "run_leave_hint",
    "run_rescue",
    "step_commit",
    "step_release",
    "ledger_audit",
    "ledger_fold",
    "ledger_idle",
    "ledger_incident",
    "ledger_reassert",
}
"""Of a step that was claimed before, a tick or sign-on that has asked, or an audit, which only looks."""
ASKED_ELSEWHERE = {"run_submit", "step_claim", "tick", "worker_sign_on"}
"""They have tests of their own."""


def test_every_script_leaves_a_newer_state_alone_or_is_known_to_come_after_one_that_does():
    folder = files("agentq.store") / "lua"
    names = {file.name.removesuffix(".lua") for file in folder.iterdir() if file.name[0] != "_"}
    assert names == BY_PEOPLE.keys() | BY_WORKERS | ASKED_ELSEWHERE


@pytest.mark.parametrize("script", BY_PEOPLE)
def test_what_people_do_with_an_older_release_leaves_a_newer_state_alone(store: Store, script: str):
    open_batch(store)
    submit_run(store, batch="b1")
    store.client.hset(store.keys.ledger, "schema", NEWER)
    with untouched(store), pytest.raises(SchemaError, match=str(NEWER)):
        call(store, script, *BY_PEOPLE[script])


def test_one_of_many_calls_says_it_for_all(store: Store):
    submit_run(store)
    store.client.hset(store.keys.ledger, "schema", NEWER)
    with untouched(store), pytest.raises(SchemaError, match=str(NEWER)):
        store.control.pause_many(["r1", "r1"], "ann")


def test_what_is_in_force_is_never_lowered(store: Store):
    sign_on(store)
    an_older_worker(store)
    sign_on(store)
    assert in_force(store) == str(NOW)
