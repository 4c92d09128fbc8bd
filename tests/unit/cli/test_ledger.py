"""`agentq ledger` as it is typed, on a real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result

from agentq.core.records import Actor
from agentq.store import Store
from tests.support.harness import call
from tests.unit.cli.fakes import invoke


@pytest.fixture
def store(store: Store) -> Store:
    """With ten charges of a nano-USD each."""
    charge(store, 10)
    return store


def charge(store: Store, count: int) -> None:
    first = store.journal.last()
    for number in range(first, first + count):
        store.ledger.book("global", "charge", actor=Actor(f"c{number}", "boss", "x"), usd=1)


def typed(*args: str, code: int = 0) -> Result:
    done = invoke("ledger", *args)
    assert done.exit_code == code, (args, done.stdout, done.stderr)
    return done


def numbers(text: str) -> list[int]:
    return [json.loads(line)["seq"] for line in text.splitlines()]


# ── verify ───────────────────────────────────────────────────────────────────────────────────────────


def test_books_that_agree_are_0(store: Store) -> None:
    assert typed("verify").stdout == (
        "the books agree: 10 entries over a checkpoint at 0, 1 account, 0 runs\n"
    )
    found = json.loads(typed("verify", "--json").stdout)
    assert (found["agrees"], found["checkpoint"], found["last"], found["differences"]) == (True, 0, 10, [])


def test_books_that_do_not_are_3_and_say_what_is_different(store: Store) -> None:
    store.client.hset(store.keys.scope("global"), mapping={"us": 12, "tr": 7})
    shown = typed("verify", code=3)
    assert shown.stdout.splitlines() == [
        "2 differences found: 10 entries over a checkpoint at 0, 1 account, 0 runs",
        "  global: spent usd is 0.000000012, and by the log 0.000000010",
        "  global: reserved tokens is 7, and by the log 0",
    ]
    found = json.loads(typed("verify", "--json", code=3).stdout)
    assert found["differences"][0] == {
        "scope": "global",
        "field": "spent usd",
        "books": "0.00000001",
        "state": "0.000000012",
        "against": "log",
    }


def test_a_rollback_is_listed_with_its_interval_and_amount(store: Store) -> None:
    event = {
        "event": "ledger_rolled_back",
        "process": "p7",
        "since": "1795983610861",
        "till": "1795983612861",
        "reservations": "4",
        "nano_usd": "2500000",
        "tokens": "900",
    }
    store.client.rpush(store.keys.incidents, json.dumps(event))
    assert typed("verify").stdout.splitlines()[1] == (
        "  rollback noticed: between 2026-11-29 20:20:10.861 UTC and 2026-11-29 20:20:12.861 UTC the server "
        "lost 4 reservations of process p7, 0.002500 USD and 900 tokens at most"
    )
    [incident] = json.loads(typed("verify", "--json").stdout)["incidents"]
    assert (incident["usd"], incident["tokens"], incident["till"] - incident["since"]) == ("0.0025", 900, 2)


# ── export ───────────────────────────────────────────────────────────────────────────────────────────


def test_export_goes_to_stdout_or_appends_to_a_file(store: Store, tmp_path: Path) -> None:
    assert numbers(typed("export").stdout) == list(range(1, 11))
    assert numbers(typed("export", "--since", "8").stdout) == [8, 9, 10]
    assert "10 entries written" in typed("export", "-o", "x.jsonl").stderr
    charge(store, 1)
    assert "1 entry written, entries up to 10 were there" in typed("export", "-o", "x.jsonl").stderr
    assert numbers((tmp_path / "x.jsonl").read_text()) == list(range(1, 12))


def test_csv_has_one_head(store: Store, tmp_path: Path) -> None:
    assert typed("export", "--format", "csv").stdout.splitlines()[1].startswith("1,20")
    for _ in range(2):
        typed("export", "-o", "x.csv", "--format", "csv")
        charge(store, 2)
    lines = (tmp_path / "x.csv").read_text().splitlines()
    assert [line.partition(",")[0] for line in lines] == ["seq", *map(str, range(1, 13))]


def test_what_is_in_the_checkpoint_already_is_said(store: Store) -> None:
    call(store, "ledger_fold", 0, 6)
    exported = typed("export")
    assert numbers(exported.stdout) == [7, 8, 9, 10]
    assert "entries 1 to 6 are in the checkpoint" in exported.stderr
    assert "checkpoint" not in typed("export", "--since", "7").stderr


def test_a_gap_in_a_file_is_refused_until_it_is_wanted(store: Store, tmp_path: Path) -> None:
    typed("export", "-o", "x.jsonl")
    charge(store, 10)
    call(store, "ledger_fold", 0, 15)
    refused = typed("export", "-o", "x.jsonl", code=2)
    assert "x.jsonl ends with entry 10" in refused.stderr
    assert "5 would be missing" in refused.stderr
    assert "--since 16 goes on with the gap" in refused.stderr
    typed("export", "-o", "x.jsonl", "--since", "16")
    assert numbers((tmp_path / "x.jsonl").read_text()) == [*range(1, 11), *range(16, 21)]


def test_a_marked_log_keeps_what_was_not_exported(store: Store, tmp_path: Path) -> None:
    typed("export", "-o", "x.jsonl", "--mark")
    charge(store, 4)
    assert call(store, "ledger_fold", 2, 100) == ["OK", 10]
    typed("export", "-o", "x.jsonl", "--mark")
    assert numbers((tmp_path / "x.jsonl").read_text()) == list(range(1, 15))
    assert "keeps nothing back" in typed("export", "--unmark", "--since", "14").stderr
    assert store.client.hget(store.keys.ledger, "exported") is None


def test_a_mark_without_a_file_is_refused(store: Store) -> None:
    assert "--mark needs -o FILE" in typed("export", "--mark", code=2).stderr
    assert store.client.hget(store.keys.ledger, "exported") is None


def test_a_file_of_a_server_that_was_rolled_back_is_refused(store: Store, tmp_path: Path) -> None:
    typed("export", "-o", "x.jsonl")
    before = (tmp_path / "x.jsonl").read_text()
    # The last three entries are lost, and their numbers are given again.
    store.client.delete(store.keys.log)
    charge(store, 5)
    assert "this ledger has another one there" in typed("export", "-o", "x.jsonl", code=2).stderr
    charge(store, 20)
    assert "this ledger has another one there" in typed("export", "-o", "x.jsonl", code=2).stderr
    assert (tmp_path / "x.jsonl").read_text() == before


@pytest.mark.parametrize("target", ["nowhere/x.jsonl", "."])
def test_a_file_that_cannot_be_written_is_a_sentence(store: Store, target: str) -> None:
    assert "cannot be written" in typed("export", "-o", target, code=2).stderr
