"""`agentq tune` and `agentq tenants` as they are typed, on a real server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import Result

from agentq.app import Batch
from agentq.core.records import RowEntry
from agentq.store import Store
from tests.support.harness import RETENTION_MS
from tests.unit.cli.fakes import invoke

TEMPLATE = json.dumps(["acme", "global tenant:acme", "0", "", "{}", '{"agent":"a"', "", ""])


def typed(*args: str, code: int = 0) -> Result:
    done = invoke(*args)
    assert done.exit_code == code, (args, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


def told(*args: str) -> Any:
    return json.loads(typed(*args, "--json").stdout)


def load(store: Store, name: str, tenant: str, rows: int) -> None:
    """A sealed batch whose rows wait: no worker has ever signed on."""
    opened = store.batches.open(
        name, agent="a", tenant=tenant, usd=None, tokens=None, retention_ms=RETENTION_MS
    )
    entries = [
        RowEntry(
            f"run_{name}{row}_{opened.serial}", str(row), "h", 0, json.dumps(["t", str(row), "h", "", ""])
        )
        for row in range(rows)
    ]
    store.batches.add(name, entries, {"t": TEMPLATE})
    store.batches.seal(name)


@pytest.fixture
def july(store: Store) -> Store:
    load(store, "july", "acme", 3)
    return store


def test_without_an_option_it_says_how_the_rows_are_started(july: Store) -> None:
    assert typed("tune", "july").stdout.splitlines() == [
        "batch july of tenant acme: 2 rows waiting",
        "  priority   0",
        "  in flight  1, no cap",
        "  open       1, no cap",
    ]


def test_each_knob_is_set_and_taken_away(july: Store) -> None:
    options = ("--priority", "7", "--max-in-flight", "4", "--max-open", "9", "--at", "in 2h")
    set_to = told("tune", "july", *options)
    assert (set_to["priority"], set_to["max_in_flight"], set_to["max_open"]) == (7, 4, 9)
    assert set_to["starts_at"] > july.watch.server_ms() / 1000
    lines = typed("tune", "july").stdout.splitlines()
    assert lines[2:4] == ["  in flight  1 of at most 4", "  open       1 of at most 9"]
    assert lines[4].endswith("in 2 h") or "in 1 h 59 min" in lines[4]
    back = told("tune", "july", "--max-in-flight", "none", "--max-open", "none", "--at", "now")
    assert (back["priority"], back["max_in_flight"], back["max_open"], back["starts_at"]) == (
        7,
        None,
        None,
        None,
    )


@pytest.mark.parametrize(
    "args, said",
    [
        (["jly"], "there is no batch 'jly' (did you mean 'july'?)"),
        (["july", "--max-in-flight", "0"], "'0' is no whole number from 1 to 1,000,000, nor none"),
        (["july", "--max-open", "many"], "'many' is no whole number from 1 to 100,000,000, nor none"),
        (["july", "--priority", "10"], "10 is not in the range 0<=x<=9"),
        (["july", "--at", "later"], "'later' is no time"),
        (["july", "--at", "2020-01-01"], "'2020-01-01' is over"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_changes(july: Store, args: list[str], said: str) -> None:
    before = told("tune", "july")
    assert said in typed("tune", *args, code=2).stderr
    assert told("tune", "july") == before


def test_a_batch_that_is_over_is_not_tuned(july: Store) -> None:
    typed("cancel", "july", "-y")
    assert (
        "batch 'july' is over: no row of it waits" in typed("tune", "july", "--priority", "1", code=2).stderr
    )
    assert told("tune", "july")["rows"] == 0, "but it may be looked at"


def test_counts_are_of_the_moment_of_the_record_that_they_are_given(july: Store) -> None:
    batch = Batch(july, "july")
    before = batch.record()
    typed("cancel", "july", "-y")
    found = batch.counts(before)
    assert (found["ended"], found["rows"]) == (0, before.rows)
    assert batch.counts()["ended"] == 3


def test_the_tenants_are_listed_with_what_they_have(july: Store) -> None:
    load(july, "june", "blue", 5)
    typed("pause", "june", "-y")
    july.client.hset(july.keys.feeder, mapping={"window": 2, "tenant_max": 8})
    typed("tenants", "set", "acme", "--weight", "3", "--max-in-flight", "6")
    assert typed("tenants", "list").stdout.splitlines() == [
        "2 runs in flight, the window is 2",
        "tenant  in flight  of at most  rows  batches in turn  weight",
        "acme            1           6     2                1       3",
        "blue            1           8     4                0       1",
    ]
    assert told("tenants", "list") == {
        "window": 2,
        "in_flight": 2,
        "max_in_flight": None,
        "each_max_in_flight": 8,
        "tenants": [
            {"name": "acme", "in_flight": 1, "rows": 2, "batches": 1, "weight": 3, "max_in_flight": 6},
            {"name": "blue", "in_flight": 1, "rows": 4, "batches": 0, "weight": 1, "max_in_flight": None},
        ],
    }


def test_a_tenant_is_as_it_was_when_its_knobs_are_taken_away(july: Store) -> None:
    typed("tenants", "set", "acme", "--weight", "3", "--max-in-flight", "6")
    assert typed("tenants", "set", "acme", "--weight", "1").stdout == (
        "tenant acme: weight 1, at most 6 in flight\n"
    )
    assert told("tenants", "set", "acme", "--max-in-flight", "none")["max_in_flight"] is None
    left: Any = july.client.hkeys(july.keys.feeder)
    assert not [name for name in left if name.startswith(("max:", "weight:"))]


def test_a_tenant_that_there_is_not_is_named_or_meant(july: Store) -> None:
    refused = typed("tenants", "set", "acmee", "--weight", "2", code=2).stderr
    assert "there is no tenant 'acmee' (did you mean 'acme'?)" in refused
    assert "--new sets one before its first run" in refused
    typed("tenants", "set", "blue", "--weight", "2", "--new")
    assert [tenant["name"] for tenant in told("tenants", "list")["tenants"]] == ["acme", "blue"]
    assert "there is nothing to change" in typed("tenants", "set", "acme", code=2).stderr
    assert "cannot be the name of a tenant" in typed("tenants", "set", "a b", "--weight", "2", code=2).stderr


def test_with_nothing_there_it_says_so(store: Store) -> None:
    done = typed("tenants", "list")
    assert done.stdout == "0 runs in flight, the window is 0\n"
    assert "agentq submit FILE --tenant TENANT brings one" in done.stderr


def test_rows_that_nobody_works_on_are_said_to_be_so(july: Store) -> None:
    done = typed("tenants", "list")
    assert done.stdout.startswith("1 run in flight, the window is 0\n")
    assert done.stderr == "no worker is alive, so no row begins: agentq worker, or agentq up\n"
    july.client.hset(july.keys.feeder, "window", 2)
    assert typed("tenants", "list").stderr == ""


def test_what_all_may_have_is_set_and_taken_away(july: Store) -> None:
    july.client.hset(july.keys.feeder, "window", "12")
    assert typed("tenants", "limit", "--max-in-flight", "1", "--each", "5").stdout == (
        "all tenants: at most 1 in flight; each: at most 5 in flight; the window is 1\n"
    )
    assert told("tenants", "list")["max_in_flight"] == 1
    assert told("tune", "july")["in_flight"] == 1
    assert told("tenants", "limit", "--max-in-flight", "none", "--each", "2") == {
        "window": 12,
        "max_in_flight": None,
        "each_max_in_flight": 2,
    }
    typed("tune", "july", "--priority", "1")  # as a run that ends would
    assert told("tune", "july")["in_flight"] == 2, "the tenant's own share is full"
    refused = typed("tenants", "limit", code=2).stderr
    assert "there is nothing to change" in refused
