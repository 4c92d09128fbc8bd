"""`agentq demo` from an empty folder: the promised figures, and nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from signal import SIGINT

import pytest

from agentq.demo.outcome import EXPECTED
from tests.support.processes import ProcessGroup
from tests.support.wait import wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]


def demo(tmp_path: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    folder, temporary = tmp_path / "empty", tmp_path / "tmp"
    folder.mkdir(exist_ok=True)
    temporary.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "agentq", "demo", *args],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(temporary), **env},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert list(folder.iterdir()) == []
    assert list(temporary.iterdir()) == []
    return done


def processes_of(folder: str) -> list[str]:
    """Command lines that name the folder, or run in it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            where = str((process / "cwd").readlink())
        except OSError:
            continue
        if folder in command or where.startswith(folder):
            found.append(command)
    return found


def test_the_figures_and_nothing_else_on_stdout(tmp_path: Path) -> None:
    done = demo(tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert list(shown) == ["detection_on", "detection_off"]
    for key, figures in EXPECTED.items():
        assert {name: shown[f"detection_{key}"][name] for name in figures} == figures
    assert processes_of(str(tmp_path)) == []


def test_the_table_for_people_whatever_the_settings_around_it(tmp_path: Path) -> None:
    done = demo(tmp_path, AGENTQ_REDIS_URL="redis://127.0.0.1:1/0", AGENTQ_LEASE_SECONDS="0.001")
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["detection", "on", "75.0", "%", "2.0", "3.0", "25.0", "%"] in lines
    assert ["detection", "off", "100.0", "%", "2.0", "7.0", "0.0", "%"] in lines
    assert ["demo-on", "0.076500", "0.000000", "0.000000", "51", "0.003825"] in lines
    assert "20/20 done" in done.stderr
    assert "agentq-demo-" not in done.stdout  # the folder of its own that is gone by now


def test_ctrl_c_leaves_nothing_either(tmp_path: Path) -> None:
    process = ProcessGroup(
        [sys.executable, "-m", "agentq", "demo"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(tmp_path)},
    )
    try:
        wait_until(lambda: "demo-on" in process.output, "the demo to be under way", 30)
        process.signal(SIGINT)
        assert process.wait() == 130
        assert "Traceback" not in process.output
    finally:
        process.end()
    assert list(tmp_path.iterdir()) == []
    assert processes_of(str(tmp_path)) == []
