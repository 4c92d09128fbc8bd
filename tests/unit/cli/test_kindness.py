"""Typing errors are met with the nearest right word, each in one place."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentq.store import Store
from tests.support.harness import open_batch
from tests.support.rows import add_rows, open_for
from tests.unit.cli.fakes import invoke

DEMO = "agentq.demo.agents:app"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which things are typed."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "args, said",
    [
        (["statsu"], "there is no verb 'statsu' (did you mean 'status'?)\n  agentq --help lists them"),
        (
            ["budget", "shwo"],
            "there is no verb 'budget shwo' (did you mean 'show'?)\n  agentq budget --help lists them",
        ),
        (
            ["submit", "x", "--bathc", "b"],
            "no such option '--bathc' (did you mean '--batch'?)\n",
        ),
        (["status", "--josn"], "no such option '--josn' (did you mean '--json'?)"),
        (["--redis-ulr", "x", "status"], "no such option '--redis-ulr' (did you mean '--redis-url'?)"),
        (["status", "-x"], "no such option '-x'\n"),
        (["submit", "x", "--max-open", "y"], "invalid value for '--max-open': 'y' is no whole number\n"),
        (["wait", "x", "--timeout", "y"], "invalid value for '--timeout': 'y' is no number\n"),
    ],
)
def test_an_unknown_verb_or_option_gets_the_nearest(args: list[str], said: str) -> None:
    refused = invoke(*args)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"error: {said}")


@pytest.mark.parametrize(
    "verb", ["results", "watch", "wait", "metrics", "status", "cancel -y", "pause -y", "retry"]
)
def test_an_unknown_batch_gets_the_nearest(store: Store, verb: str) -> None:
    open_batch(store, "july")
    refused = invoke(*verb.split(), "jluy")
    assert refused.exit_code == 2
    assert "there is no batch 'jluy' (did you mean 'july'?)\n  agentq batches lists" in refused.stderr


def test_what_is_neither_a_run_nor_a_batch_gets_the_nearest_batch(store: Store) -> None:
    open_batch(store, "run_july")
    refused = invoke("status", "run_jluy")
    assert refused.exit_code == 2
    assert "there is no run 'run_jluy', nor a batch of that name (did you mean 'run_july'?)" in refused.stderr


def test_a_run_that_there_is_not_is_answered_with_where_runs_are_listed(store: Store) -> None:
    open_batch(store, "july")
    hint = "\n  it may be older than the retention; agentq runs lists those that there are\n"
    for words in ("show run_1", "status run_1", "cancel run_1", "budget set run:run_1 --max-usd 1"):
        refused = invoke(*words.split())
        assert refused.exit_code == 2
        assert refused.stderr.startswith("error: there is no run 'run_1'"), words
        assert refused.stderr.endswith(hint), words
    refused = invoke("show", "july")
    assert refused.exit_code == 2
    assert refused.stderr == (
        "error: 'july' is a batch, and this shows one run\n"
        "  agentq status july shows it, agentq runs --batch july lists its runs\n"
    )


def test_a_module_that_there_is_not_is_one_of_the_folder_perhaps(here: Path) -> None:
    (here / "agents.py").touch()
    refused = invoke("-A", "agnets:app", "submit", "rows.jsonl")
    assert refused.exit_code == 2
    assert "there is no module 'agnets' (did you mean 'agents'?)\n" in refused.stderr


def test_init_of_a_file_says_that_it_is_none_of_a_folder(here: Path) -> None:
    (here / "shop").touch()
    refused = invoke("init", "shop")
    assert refused.exit_code == 2
    assert refused.stderr == ("error: shop is a file, not a folder\n  agentq init DIR uses another folder\n")


@pytest.mark.parametrize(
    "verb", ["budget", "schedules", "approvals", "prices", "ledger", "limits", "tenants"]
)
def test_the_help_of_a_group_says_whole_sentences(verb: str) -> None:
    listed = invoke(verb, "--help").stdout.partition("\nVerbs:\n")[2]
    assert listed
    assert "..." not in listed


@pytest.mark.parametrize("verb", ["submit rows.jsonl --agent ordres", "run ordres hello"])
def test_an_unknown_agent_gets_the_nearest(here: Path, verb: str) -> None:
    (here / "rows.jsonl").write_text('{"input": "a"}\n')
    refused = invoke("-A", DEMO, *verb.split())
    assert refused.exit_code == 2
    assert "'ordres' (did you mean 'orders'?)" in refused.stderr


def test_a_file_that_is_not_there_is_one_of_its_folder_perhaps(here: Path) -> None:
    (here / "rows.jsonl").touch()
    refused = invoke("-A", DEMO, "submit", "row.jsonl", "--agent", "orders")
    assert refused.exit_code == 2
    assert "row.jsonl: no such file or directory (did you mean 'rows.jsonl'?)" in refused.stderr


@pytest.mark.parametrize("rows", [0, 2])
def test_a_load_that_was_broken_off_is_told_by_wait_and_status(store: Store, rows: int) -> None:
    opened = open_for(store, loader="17@host:abcd")
    if rows:
        add_rows(store, opened, list(range(rows)), loader="17@host:abcd")
    store.client.hset(store.keys.batch("b1"), "loader", "17@host:abcd 1 0")
    waited = invoke("wait", "b1")
    assert waited.exit_code == 5
    assert f"its load was broken off, and {rows} rows of it have not begun\n" in waited.stderr
    assert "the same agentq submit again goes on with it" in waited.stderr
    shown = invoke("status", "b1")
    assert "by 17 on host was broken off: the same agentq submit again goes on with it" in shown.stdout


def test_a_load_that_came_to_no_row_can_be_cancelled_and_purged(store: Store) -> None:
    open_for(store, loader="17@host:abcd")
    assert invoke("purge", "b1", "-y").exit_code == 2
    assert invoke("cancel", "b1").stdout == "b1: 0 runs cancelled\n"
    assert invoke("purge", "b1", "-y").stdout == "b1 is gone\n"
