"""`agentq doctor --runs` as it is typed, on a real server."""

from __future__ import annotations

import json

import pytest
from click.testing import Result

from agentq.store import Store
from tests.support.harness import claim_run, dump, open_batch, submit_run
from tests.unit.cli.fakes import invoke


@pytest.fixture
def store(store: Store) -> Store:
    """With 30 queued runs, one of which is at work."""
    open_batch(store)
    for number in range(30):
        submit_run(store, f"r{number}", batch="b1")
    claim_run(store, "r0")
    return store


def typed(*args: str, code: int = 0) -> Result:
    done = invoke("doctor", *args)
    assert done.exit_code == code, (args, done.stdout, done.stderr)
    return done


def forget(store: Store, *run_ids: str) -> None:
    """Nobody watches these runs."""
    store.client.zrem(store.keys.watch, *run_ids)


def test_runs_that_are_as_they_must_be_are_0(store: Store) -> None:
    keys = len(dump(store, without=()))
    assert typed("--runs").stdout.splitlines() == [
        f"30 runs: 29 queued, 1 running; 1 batch, {keys} keys",
        "violations = 0",
    ]


def test_what_is_found_is_3_and_says_what_to_do(store: Store) -> None:
    forget(store, "r3")
    assert typed("--runs", code=3).stdout.splitlines()[1:] == [
        "unwatched: 1",
        "  run r3: it is queued and not in `watch`: nobody will look at it",
        "  → agentq doctor --runs --repair puts it right",
        "violations = 1",
    ]
    [finding] = json.loads(typed("--runs", "--json", code=3).stdout)["findings"]
    assert finding == {
        "code": "unwatched",
        "subject": "run r3",
        "sentence": "it is queued and not in `watch`: nobody will look at it",
        "repaired": False,
        "advice": "agentq doctor --runs --repair puts it right",
    }


def test_what_is_repaired_is_0_and_there_no_more(store: Store) -> None:
    forget(store, "r3")
    assert typed("--runs", "--repair").stdout.splitlines()[1:] == [
        "unwatched: 1",
        "  run r3: it is queued and not in `watch`: nobody will look at it (repaired)",
        "repaired = 1",
        "violations = 0",
    ]
    assert typed("--runs").stdout.splitlines()[1:] == ["violations = 0"]


def test_what_a_person_must_see_to_is_3_also_with_repair(store: Store) -> None:
    forget(store, "r3")
    store.client.hset(store.keys.run("r4"), "state", "odd")
    shown = json.loads(typed("--runs", "--repair", "--json", code=3).stdout)
    assert (shown["found"], shown["repaired"], shown["violations"]) == ({"unwatched": 1, "state": 1}, 1, 1)
    assert shown["runs"] == {"queued": 28, "running": 1, "odd": 1}


def test_twenty_of_a_kind_are_shown(store: Store) -> None:
    forget(store, *(f"r{number}" for number in range(25)))
    lines = typed("--runs", code=3).stdout.splitlines()
    assert lines[1] == "unwatched: 25"
    assert len([line for line in lines if line.startswith("  run ")]) == 20
    assert lines[-3] == "  … and 5 more; --json has the first 1,000"
    assert len(json.loads(typed("--runs", "--json", code=3).stdout)["findings"]) == 25


def test_repair_without_runs_is_refused(store: Store) -> None:
    refused = typed("--repair", code=2)
    assert "--repair needs --runs" in refused.stderr
    assert "agentq doctor --runs --repair" in refused.stderr


def test_a_server_that_does_not_answer_is_7(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTQ_REDIS_URL", "redis://127.0.0.1:1/0")
    assert "cannot be reached" in typed("--runs", code=7).stderr


def test_a_newer_state_is_left_alone_in_a_sentence(store: Store) -> None:
    store.client.hset(store.keys.ledger, "schema", 99)
    refused = typed("--runs", "--repair", code=1)
    assert refused.stderr.startswith("error: the state has the form 99 of a newer agentq")
