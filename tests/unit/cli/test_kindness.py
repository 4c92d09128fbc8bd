"""Typing errors are met with the nearest right word, each in one place."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentq.core.words import nearest_file
from agentq.store import Store
from tests.support.harness import open_batch
from tests.unit.cli.fakes import FakeApp, invoke


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


@pytest.mark.parametrize("verb", ["submit x.jsonl --agent ordres", "run ordres hello"])
def test_an_unknown_agent_gets_the_nearest(app: FakeApp, verb: str) -> None:
    refused = invoke(*verb.split())
    assert refused.exit_code == 2
    assert "'ordres' (did you mean 'orders'?)" in refused.stderr


def test_a_file_that_is_not_there_is_one_of_its_folder_perhaps(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").touch()
    assert nearest_file(tmp_path / "row.jsonl") == f" (did you mean '{tmp_path}/rows.jsonl'?)"
    assert nearest_file(tmp_path / "nothing") == ""
    assert nearest_file(tmp_path / "no/folder.jsonl") == ""


def test_the_nearest_file_is_named_as_it_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").touch()
    assert nearest_file("rows.json") == " (did you mean 'rows.jsonl'?)"
