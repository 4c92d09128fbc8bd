"""The bound on what a run writes is held by the program that measures it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]


def test_a_run_writes_at_most_a_little_more_than_twice_its_messages():
    """Twice the steps, twice the bytes; the program ends with 0 only when both bounds hold."""
    done = subprocess.run(
        [sys.executable, "benchmarks/growth.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("met:")
