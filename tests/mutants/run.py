"""Plants each bug of the catalogue in a copy of the package and shows that the tests notice it.

    python -m tests.mutants.run              all
    python -m tests.mutants.run ZREM fence   those whose name has one of these words in it

The checkout is not touched. First the copy must pass as it is: otherwise "caught" would mean nothing. Then
each mutant is given to the tests that the catalogue names for it; where those pass, to all tests of the
store and so to the state machine. Exit code 0 when all are caught, else 1.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import click

from tests.mutants.catalogue import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
COPIED = ("agentq", "tests", "pyproject.toml")
EVERYTHING = "tests/store"
AT_ONCE = 2
TOO_LONG = 600
"""Seconds after which a run of tests that is still going has got stuck."""
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
_BROKEN = ("Error compiling script", "attempted to access nonexistent global", "SyntaxError", "NameError")
"""A script that does not even run is caught by anything, and shows nothing."""


class MutantError(Exception):
    """The catalogue or the copy is not as it must be; nothing can be concluded."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant: the test that noticed it, None when all passed."""

    mutant: Mutant
    caught_by: str | None
    seconds: float


def copy_tree(folder: Path) -> None:
    """Put what the tests need into an empty folder."""
    for name in COPIED:
        source, target = ROOT / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target)


def plant(mutant: Mutant, folder: Path) -> None:
    """Make the change of a mutant in a copy.

    Raises:
        MutantError: when its text does not stand there exactly once.
    """
    path = folder / mutant.file
    body = path.read_text(encoding="utf-8")
    found = body.count(mutant.text)
    if found != 1:
        raise MutantError(
            f"{mutant.name!r}: its text stands {found} times in {mutant.file}, not once; "
            f"write the mutant anew in tests/mutants/catalogue.py:\n{mutant.text}"
        )
    path.write_text(body.replace(mutant.text, mutant.planted), encoding="utf-8")


def run_tests(folder: Path, tests: Sequence[str]) -> tuple[str | None, str]:
    """Run tests of a copy up to the first that fails: its name, or None, and what was printed.

    Raises:
        MutantError: when pytest could not run them (a file that is not there, an error of import).
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AGENTQ_")}
    environment |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    if server := os.environ.get("AGENTQ_REDIS_SERVER"):
        environment["AGENTQ_REDIS_SERVER"] = server
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", "-p", "no:cacheprovider", *tests],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TOO_LONG,
        check=False,
    )
    if done.returncode == 0:
        return None, done.stdout
    failed = _FAILED.search(done.stdout)
    if done.returncode != 1 or failed is None:
        raise MutantError(f"pytest could not run {' '.join(tests)}:\n{done.stdout[-3000:]}{done.stderr}")
    return failed.group(1), done.stdout


def judge(mutant: Mutant) -> Verdict:
    """Plant one bug and look for the test that notices it."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="aqm-") as name:
        folder = Path(name)
        copy_tree(folder)
        plant(mutant, folder)
        for tests in (mutant.tests, (EVERYTHING,)):
            failed, output = run_tests(folder, tests)
            broken = next((word for word in _BROKEN if word in output), None) if failed else None
            if broken:
                raise MutantError(f"{mutant.name!r} breaks the code instead of a rule: {broken}")
            if failed:
                break
    return Verdict(mutant, failed, time.monotonic() - began)


def check_copy() -> float:
    """The copy without a bug passes, and it is the copy that was tested; answers the seconds.

    Raises:
        MutantError: when it is not so.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="aqm-") as name:
        folder = Path(name)
        copy_tree(folder)
        where = subprocess.run(
            [sys.executable, "-c", "import agentq; print(agentq.__file__)"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        if not Path(where).is_relative_to(folder):
            raise MutantError(f"the tests would import agentq from {where} and not from the copy {folder}")
        tests = sorted({test for mutant in MUTANTS for test in mutant.tests})
        failed, output = run_tests(folder, tests)
        if failed:
            raise MutantError(f"{failed} fails without any mutant; repair that first:\n{output[-3000:]}")
    return time.monotonic() - began


def main(words: Sequence[str]) -> int:
    """Judge the mutants whose names have one of these words in them, all without words."""
    chosen = [m for m in MUTANTS if not words or any(word in m.name for word in words)]
    try:
        click.echo(f"the copy without a mutant passes ({check_copy():.0f} s)")
        with ThreadPoolExecutor(AT_ONCE) as pool:
            verdicts = []
            for verdict in pool.map(judge, chosen):
                verdicts.append(verdict)
                caught_by = (verdict.caught_by or "NOT CAUGHT").removeprefix("tests/")
                click.echo(f"{verdict.mutant.name:50} {verdict.seconds:5.1f} s  {caught_by}")
    except MutantError as error:
        click.echo(str(error), err=True)
        return 1
    caught = sum(verdict.caught_by is not None for verdict in verdicts)
    click.echo(f"{caught} of {len(chosen)} mutants caught")
    return 0 if chosen and caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
