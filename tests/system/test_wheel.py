"""What a user gets: the wheel alone, in an environment of its own, started from an empty folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# One group, so that the environment is made by one test process only.
pytestmark = [pytest.mark.system, pytest.mark.timeout(600), pytest.mark.xdist_group("wheel")]


def run(*argv: str | Path, cwd: Path, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """The finished program; a failure shows all that it said."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("AGENTQ_", "PYTHON", "PIP_TARGET"))}
    # Nothing of this checkout on the path: what is not in the wheel must be missing.
    inherited.pop("VIRTUAL_ENV", None)
    ran = subprocess.run(
        argv, cwd=cwd, env=inherited, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert ran.returncode == 0, f"{' '.join(map(str, argv))} → {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
    return ran


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, ROOT, cwd=folder)
    (built,) = folder.glob("agentq-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a new environment with the wheel and what it needs."""
    environment = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", environment, cwd=environment)
    run(environment / "bin/python", "-m", "pip", "install", "--quiet", wheel, cwd=environment)
    return environment / "bin"


def test_the_wheel_has_the_scripts_the_demo_and_the_type_marker(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    ours = {
        str(path.relative_to(ROOT))
        for pattern in ("store/lua/*.lua", "provider/*.json", "demo/*", "demo/first/*", "py.typed")
        for path in (ROOT / "agentq").glob(pattern)
        if path.is_file()
    }
    assert {"agentq/store/lua/_ledger.lua", "agentq/provider/quirks.json"} <= ours
    assert ours <= names


def test_the_wheel_has_nothing_that_is_not_agentq(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"agentq"}


def test_the_version_is_the_one_of_the_wheel(wheel, installed, tmp_path):
    said = run(installed / "agentq", "--version", cwd=tmp_path).stdout
    assert wheel.name.split("-")[1] in said


def test_the_demo_plays_in_an_empty_folder_and_gives_the_expected_figures(installed, tmp_path):
    figures = json.loads(run(installed / "agentq", "demo", "--json", cwd=tmp_path).stdout)
    on, off = figures["detection_on"], figures["detection_off"]
    assert (on["completion_rate"], on["steps_p95"]) == (0.75, 3.0)
    assert (off["completion_rate"], off["steps_p95"]) == (1.0, 7.0)
