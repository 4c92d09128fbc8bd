"""Runs that act, on workers that are killed all the time and a server that is restarted: the short form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]


def test_side_effects_of_killed_workers_are_never_doubled_and_where_a_key_is_kept_never_lost():
    """The program ends with 0 only when nothing at all was wrong, and when steps were taken from the dead."""
    load = ["--runs", "150", "--steps", "4", "--seconds", "0.2", "--lease", "3", "--every", "2"]
    argv = [sys.executable, "benchmarks/endurance.py", *load]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "violations = 0"
