"""`make test-ledger`: the ledger's tests, the state machine with many more examples, one line at the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import click

EXAMPLES = "400"
"""In each of the machine's shards; `make test` has far fewer."""
LONGEST_SECONDS = 1500


def main() -> int:
    """Run the tests; 0 when nothing was violated."""
    with tempfile.TemporaryDirectory() as home:
        report = Path(home, "report.xml")
        pytest = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "worksteal", "-q"]
        settings = {"LEDGER_EXAMPLES": EXAMPLES} | os.environ | {"LEDGER_COUNTS": home}
        done = subprocess.run(
            [*pytest, f"--junitxml={report}", "tests/store", "tests/engine", *sys.argv[1:]],
            check=False,
            env=settings,
            timeout=LONGEST_SECONDS,
        )
        suite = ElementTree.parse(report).getroot().find("testsuite")
        assert suite is not None
        tests = int(suite.attrib["tests"])
        failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
        tally: Counter[str] = Counter()
        for counts in Path(home).glob("*.json"):
            tally.update(json.loads(counts.read_text(encoding="utf-8")))
    counted = ", ".join(f"{tally[name]:,} {name}" for name in ("examples", "steps", "replays"))
    click.echo(f"violations = {failed} ({tests:,} tests; the state machine: {counted})")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
