"""What `agentq doctor --runs` prints: the runs, what was found about them, and what to do."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentq.cli.console import Console
    from agentq.store.checkup import Checkup, Finding

SHOWN = 20
"""Findings of a kind that are shown."""


def show(console: Console, checkup: Checkup) -> None:
    """For a person: the last line is `violations = N`."""
    console.out(_summary(checkup))
    for code, count in sorted(checkup.found.items()):
        kept = [finding for finding in checkup.findings if finding.code == code]
        console.out(f"{code}: {count}")
        for finding in kept[:SHOWN]:
            console.out(f"  {_line(finding)}")
        if count > SHOWN:
            console.out(f"  … and {count - SHOWN:,} more; --json has the first 1,000")
        if not all(finding.repaired for finding in kept):
            console.out(f"  → {kept[0].advice}")
    for batch in checkup.uncounted:
        console.say(f"batch {batch} went on changing: its counters were not compared with its runs")
    if checkup.repaired:
        console.out(f"repaired = {checkup.repaired}")
    console.out(f"violations = {checkup.violations}")


def document(checkup: Checkup) -> dict[str, Any]:
    """For a program."""
    return {
        "runs": dict(checkup.runs),
        "batches": checkup.batches,
        "keys": checkup.keys,
        "found": dict(checkup.found),
        "repaired": checkup.repaired,
        "violations": checkup.violations,
        "uncounted": checkup.uncounted,
        "findings": [asdict(finding) for finding in checkup.findings],
    }


def _summary(checkup: Checkup) -> str:
    states = ", ".join(f"{count:,} {state}" for state, count in sorted(checkup.runs.items()))
    total = checkup.runs.total()
    runs = f"{total:,} {'run' if total == 1 else 'runs'}"
    batches = f"{checkup.batches:,} {'batch' if checkup.batches == 1 else 'batches'}"
    return f"{runs}{': ' if states else ''}{states}; {batches}, {checkup.keys:,} keys"


def _line(finding: Finding) -> str:
    return f"{finding.subject}: {finding.sentence}{' (repaired)' if finding.repaired else ''}"
