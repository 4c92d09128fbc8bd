"""Plants each bug of the catalogue in a copy of the package and shows that the tests notice it.

    python -m tests.mutants.run              all
    python -m tests.mutants.run ZREM fence   those whose name has one of these words in it
    python -m tests.mutants.run --by tests/store/test_ledger_model.py   what these tests notice by themselves

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

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import Mutant

ROOT = Path(__file__).parents[2]
COPIED = ("agentq", "tests", "pyproject.toml")
EVERYTHING = "tests/store"
AT_ONCE = 2
TOO_LONG = 600
"""Seconds after which a run of tests that is still going has got stuck."""
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
_BROKEN = re.compile(
    r"Error compiling script|attempted to access nonexistent global"
    r"|attempt to (?:call|index|perform|compare|concatenate)|SyntaxError|NameError"
)
"""A script that does not even run is caught by anything, and shows nothing."""


class MutantError(Exception):
    """The catalogue or the copy is not as it must be; nothing can be concluded."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant: the test that noticed it, None when all passed."""

    mutant: Mutant
    caught_by: str | None
    seconds: float


def copy_tree(origin: Path, folder: Path) -> None:
    """Put what the tests need into an empty folder."""
    for name in COPIED:
        source, target = origin / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target)


def check_text(mutant: Mutant, folder: Path) -> None:
    """The text of a mutant stands where the catalogue says.

    Raises:
        MutantError: when it is not there exactly once.
    """
    path = folder / mutant.file
    found = path.read_text(encoding="utf-8").count(mutant.text) if path.exists() else 0
    if found != 1:
        raise MutantError(
            f"{mutant.name!r}: its text stands {found} times in {mutant.file}, not once; "
            f"write the mutant anew in tests/mutants:\n{mutant.text}"
        )


def plant(mutant: Mutant, folder: Path) -> None:
    """Make the change of a mutant in a copy."""
    path = folder / mutant.file
    body = path.read_text(encoding="utf-8")
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


def judge(mutant: Mutant, whole: Path, by: str | None) -> Verdict:
    """Plant one bug in a copy of `whole` and look for the test that notices it, among `by` if given."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="aqm-") as name:
        folder = Path(name)
        copy_tree(whole, folder)
        plant(mutant, folder)
        for tests in [(by,)] if by else [mutant.tests, (EVERYTHING,)]:
            failed, output = run_tests(folder, tests)
            if failed and (broken := _BROKEN.search(output)):
                raise MutantError(f"{mutant.name!r} breaks the code instead of a rule: {broken.group()}")
            if failed:
                break
    return Verdict(mutant, failed, time.monotonic() - began)


def check_whole(whole: Path, by: str | None) -> float:
    """The copy without a bug passes, and it is the copy that is tested; answers the seconds.

    Raises:
        MutantError: when it is not so.
    """
    began = time.monotonic()
    where = subprocess.run(
        [sys.executable, "-c", "import agentq; print(agentq.__file__)"],
        cwd=whole,
        env={**os.environ, "PYTHONPATH": str(whole)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    if not Path(where).is_relative_to(whole):
        raise MutantError(f"the tests would import agentq from {where} and not from the copy {whole}")
    for mutant in MUTANTS:
        check_text(mutant, whole)
    tests = [by] if by else sorted({test for mutant in MUTANTS for test in mutant.tests})
    failed, output = run_tests(whole, tests)
    if failed:
        raise MutantError(f"{failed} fails without any mutant; repair that first:\n{output[-3000:]}")
    return time.monotonic() - began


@click.command()
@click.argument("words", nargs=-1)
@click.option("--by", metavar="TESTS", help="What these tests notice by themselves.")
def main(words: Sequence[str], by: str | None) -> None:
    """Judge the mutants whose names have one of WORDS in them, all without words."""
    chosen = [mutant for mutant in MUTANTS if not words or any(word in mutant.name for word in words)]
    if not chosen:
        raise click.UsageError(f"no mutant has {' or '.join(words)} in its name; without words all are run")
    width = max(len(mutant.name) for mutant in chosen)
    try:
        caught = judge_all(chosen, by, width)
    except MutantError as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    click.echo(f"{caught} of {len(chosen)} mutants caught")
    sys.exit(0 if caught == len(chosen) else 1)


def judge_all(chosen: Sequence[Mutant], by: str | None, width: int) -> int:
    """Judge these mutants, a line for each; answers how many are caught."""
    caught = 0
    # One copy for all: the checkout may be edited meanwhile.
    with tempfile.TemporaryDirectory(prefix="aqm-") as name, ThreadPoolExecutor(AT_ONCE) as pool:
        whole = Path(name)
        copy_tree(ROOT, whole)
        click.echo(f"the copy without a mutant passes ({check_whole(whole, by):.0f} s)")
        for verdict in pool.map(lambda mutant: judge(mutant, whole, by), chosen):
            caught += verdict.caught_by is not None
            caught_by = (verdict.caught_by or "NOT CAUGHT").removeprefix("tests/")
            click.echo(f"{verdict.mutant.name:{width}} {verdict.seconds:5.1f} s  {caught_by}")
    return caught


if __name__ == "__main__":
    main()
