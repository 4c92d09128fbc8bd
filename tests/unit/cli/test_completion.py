"""What Tab offers: verbs, options, and the names that there are; and nothing, silently, without a server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from agentq.cli.completion import SHELLS, VARIABLE
from agentq.cli.group import VERBS, main
from agentq.cli.names import MOST
from agentq.cli.session import Session
from agentq.store import Store
from tests.support.harness import open_batch, submit_run
from tests.unit.cli.fakes import invoke

ROOT = Path(__file__).parents[3]


def offered(*words: str) -> list[str]:
    """What is offered for the last of these words."""
    asked = ShellComplete(main, {"obj": Session()}, "agentq", VARIABLE)
    return [item.value for item in asked.get_completions(list(words[:-1]), words[-1])]


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_has_a_script_that_asks_agentq(shell: str) -> None:
    script = invoke("completion", shell).stdout
    assert VARIABLE in script
    assert json.loads(invoke("completion", shell, "--json").stdout) == {
        "shell": shell,
        "script": script.removesuffix("\n"),
    }


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_understands_its_script() -> None:
    script = invoke("completion", "bash").stdout
    subprocess.run(["bash", "-n"], input=script, text=True, check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_gets_what_may_follow_from_its_script(tmp_path: Path) -> None:
    program = tmp_path / "agentq"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m agentq "$@"\n')
    program.chmod(0o755)
    script = """
        eval "$(agentq completion bash)"
        compopt() { echo compopt "$@"; }  # outside of a real Tab bash's own refuses
        tab() { COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _agentq_completion agentq; echo "${COMPREPLY[*]}"; }
        tab agentq statu
        tab agentq submit ro
        tab agentq statsu ''
    """
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    status, files, *unknown = done.stdout.splitlines()
    assert (status, files, done.stderr) == ("status", "compopt -o default", "")
    assert "statsu" not in " ".join(unknown)


@pytest.mark.parametrize(
    "words",
    [
        ("submit", "ro"),
        ("submit", "rows.jsonl", "-o", "ro"),
        ("results", "july", "--errors", "ro"),
        ("results", "july", "--retry-file", "ro"),
        ("ledger", "export", "-o", "ro"),
        ("prices", "diff", "ro"),
        ("chaos", "--script", "ro"),
    ],
)
def test_the_name_of_a_file_is_left_to_the_shell(words: tuple[str, ...]) -> None:
    asked = ShellComplete(main, {"obj": Session()}, "agentq", VARIABLE)
    found = asked.get_completions(list(words[:-1]), words[-1])
    assert [(item.type, item.value) for item in found] == [("file", "ro")]


def test_another_shell_is_refused_with_those_that_there_are() -> None:
    refused = invoke("completion", "csh")
    assert refused.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in refused.stderr
    missing = invoke("completion")
    assert missing.exit_code == 2
    assert missing.stderr.startswith("error: missing argument 'SHELL'. Choose from: bash, zsh, fish\n")


def test_verbs_and_options_need_no_server() -> None:
    assert offered("") == list(VERBS)
    assert offered("sta") == ["status"]
    assert "--per-run-usd" in offered("submit", "--per")
    assert offered("budget", "top") == ["topup"]


def test_names_of_batches_runs_and_agents_are_those_that_there_are(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("july", "june", "may"):
        open_batch(store, name)
    submit_run(store, "run_1", batch="july")
    assert offered("watch", "ju") == ["july", "june"]
    assert offered("status", "") == ["july", "june", "may"]
    assert offered("cancel", "run_") == ["run_1"]
    assert offered("show", "") == ["run_1"]
    assert offered("runs", "--batch", "m") == ["may"]
    monkeypatch.setenv("AGENTQ_APP", "agentq.demo.agents:app")
    assert offered("run", "orders-") == ["orders-no-detection"]
    assert offered("submit", "--agent", "o") == ["orders", "orders-no-detection"]


def test_no_more_names_are_offered_than_somebody_chooses_among(store: Store) -> None:
    for number in range(MOST + 5):
        open_batch(store, f"b{number}")
    assert len(offered("watch", "b")) == MOST


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"AGENTQ_REDIS_URL": "redis://127.0.0.1:1/0"},
        {"AGENTQ_REDIS_URL": "localhost"},
        {"AGENTQ_REDIS_ULR": "x"},
        {"AGENTQ_APP": "loud:app"},
    ],
)
def test_without_a_server_or_with_a_wrong_setting_nothing_is_offered_and_nothing_is_said(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    (tmp_path / "loud.py").write_text(
        "import sys\nprint('out')\nprint('err', file=sys.stderr)\nraise SystemExit(9)\n"
    )
    for words in ("agentq watch ", "agentq run "):
        asked = subprocess.run(
            [sys.executable, "-m", "agentq"],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                VARIABLE: "bash_complete",
                "COMP_WORDS": words,
                "COMP_CWORD": "2",
                **settings,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert (asked.stdout.strip(), asked.stderr) == ("", "")
