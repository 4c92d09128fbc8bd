"""`agentq init` in an empty folder, and then exactly what it says."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from signal import SIGTERM

import pytest

from agentq.worker.embedded import stop_running
from tests.support.processes import ProcessGroup
from tests.support.wait import wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
AGENTQ = [sys.executable, "-m", "agentq"]


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def typed(folder: Path, *args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*AGENTQ, *args],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, f"{args} → {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def test_what_init_prints_works_as_it_is_printed(tmp_path: Path) -> None:
    said = typed(tmp_path, "init", "my shop")
    steps = [shlex.split(line) for line in said.stdout.splitlines() if line.startswith("  ")]
    assert [step[0] for step in steps] == ["cd", "agentq", "agentq", "agentq"]
    folder = tmp_path / steps[0][1]
    up = ProcessGroup([*AGENTQ, *steps[1][1:]], cwd=folder, env={"PYTHONPATH": str(ROOT)})
    try:
        wait_until(lambda: "ready  " in up.output or up.returncode is not None, "agentq up to be ready", 30)
        submitted = typed(folder, *steps[2][1:])
        assert "2 of 2 ended, 0.006000 USD" in submitted.stdout
        lines = [json.loads(line) for line in typed(folder, *steps[3][1:]).stdout.splitlines()]
        assert [(line["custom_id"], line["agentq"]["answer"]) for line in lines] == [
            ("order-1001", "Order 1001, a walnut table, was sent on Monday."),
            ("order-1002", "Order 1002, two oak chairs, is still in the workshop."),
        ]
        assert [line["agentq"]["steps"] for line in lines] == [2, 2], "the tool was called"
    finally:
        if up.returncode is None:
            up.signal(SIGTERM)
            with suppress(AssertionError):
                up.wait(20)
        up.end()
        stop_running(folder / ".agentq")


def test_the_agent_s_tool_is_the_one_that_its_script_calls(tmp_path: Path) -> None:
    typed(tmp_path, "init")
    code = "import agents; print(agents.get_order('1001'), '|', agents.get_order('7'))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "a walnut table, sent on Monday | there is no order 7\n"


def test_with_a_key_it_is_a_real_model(tmp_path: Path) -> None:
    typed(tmp_path, "init")
    code = "import agents; agent = agents.app.agents['orders']; print(agents.MODEL)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OPENAI_API_KEY": "k"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "openai:gpt-5-mini\n"


@pytest.mark.parametrize("name", ["agents.py", "rows.jsonl"])
def test_nothing_is_ever_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    refused = typed(tmp_path, "init", code=2)
    assert refused.stderr == (
        f"error: {name} is there already: nothing was written\n  agentq init DIR uses another folder\n"
    )
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "mine")]


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = typed(tmp_path, "init", "file/shop", code=2)
    assert refused.stderr == "error: file/shop cannot be written: Not a directory\n"


def test_as_json_it_says_the_same(tmp_path: Path) -> None:
    told = json.loads(typed(tmp_path, "init", "--json").stdout)
    assert told == {
        "folder": ".",
        "files": ["agents.py", "rows.jsonl"],
        "next": ["agentq up -A agents:app", "agentq submit rows.jsonl --wait", "agentq results rows"],
    }
