"""What `agentq chaos` shows: how far it is, then a table of the cases and a sentence for each violation."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from agentq.cli.console import Console, columns, plural

if TYPE_CHECKING:
    from agentq.testing import Outcome, Report

PLAIN_SECONDS = 10.0
SHOWN = 10
"""Failed cases that are written out; `--json` has all of them."""


class ChaosProgress:
    """One line, redrawn on a terminal, elsewhere one each ten seconds; failed cases are named at once."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total = 0
        self._done = 0
        self._failed = 0
        self._due = 0.0

    def begin(self, cases: int) -> None:
        """So many cases are to be played."""
        self._total = cases
        self._due = time.monotonic() + PLAIN_SECONDS
        self._console.say(f"{plural(cases, 'case')} to play; the longest take half a minute")

    def show(self, outcome: Outcome) -> None:
        """One more case is over."""
        self._done += 1
        line = f"{self._done} of {self._total} cases"
        self._failed += bool(outcome.violations)
        if outcome.violations and self._failed <= SHOWN:
            clear = "\r" if self._console.is_live else ""
            self._console.say(f"{clear}{outcome.case.name}: {outcome.violations[0].sentence}")
        if self._console.is_live:
            click.echo(f"\r{line}", err=True, nl=self._done == self._total)
        elif time.monotonic() >= self._due:
            self._console.say(line)
            self._due = time.monotonic() + PLAIN_SECONDS


def print_report(console: Console, report: Report, *, again: str) -> None:
    """The table, the points that were not reached, each violation, and the count of them as the last line."""
    from agentq.testing.case import FAULTS

    for agent, reason, steps in report.undisturbed:
        console.out(f"undisturbed: {agent} ends as {reason} after {plural(steps, 'step')}")
    cells: dict[str, dict[str, str]] = {}
    for outcome in report.outcomes:
        at, _, fault = outcome.case.name.partition("/")
        cells.setdefault(at, {})[fault] = "FAILS" if outcome.violations else "ok"
    table = [(at, *(found.get(fault, "") for fault in FAULTS)) for at, found in cells.items()]
    for line in columns(("killed at", *FAULTS), table, left=range(len(FAULTS) + 1)):
        console.out(line)
    for point, reason in report.unreached.items():
        console.out(f"not reached: {point}: {reason}")
    if report.threads_of_app:
        names = ", ".join(report.threads_of_app)
        console.out(f"the app starts threads when it is imported; no killed worker had them: {names}")
    for note in _notes(report):
        console.out(f"note: {note}")
    _print_violations(console, report, again)
    console.out(f"{plural(len(report.outcomes), 'case')} in {report.seconds:.0f} s")
    console.out(f"violations = {len(report.violations)}")


def _notes(report: Report) -> list[str]:
    """What is no violation, and only a person can look after."""
    return [
        f"{name} was called {'up to ' if cases > 1 else ''}{most} times with one key in "
        f"{plural(cases, 'case')}: see that it acted once"
        for name, (most, cases) in report.repeated.items()
    ]


def _print_violations(console: Console, report: Report, again: str) -> None:
    failed = [outcome for outcome in report.outcomes if outcome.violations]
    for outcome in failed[:SHOWN]:
        name = outcome.case.name
        for violation in outcome.violations:
            where = f" · {violation.run}" if violation.run else ""
            console.out(f"{name}{where} · {violation.invariant}: {violation.sentence}")
        console.out(f"  {again} --only '{name}'")
        console.out(f"  its logs: {outcome.folder}")
    if len(failed) > SHOWN:
        console.out(f"… and {plural(len(failed) - SHOWN, 'case')} more; --json lists all")


def as_document(report: Report) -> dict[str, Any]:
    """The report as one JSON document."""
    return {
        "cases": [
            {"case": outcome.case.name, "seconds": round(outcome.seconds, 1), "ok": not outcome.violations}
            for outcome in report.outcomes
        ],
        "undisturbed": [
            {"agent": agent, "stop_reason": reason, "steps": steps}
            for agent, reason, steps in report.undisturbed
        ],
        "not_reached": report.unreached,
        "notes": _notes(report),
        "violations": [
            {"case": v.case, "run_id": v.run, "invariant": v.invariant, "sentence": v.sentence}
            for v in report.violations
        ],
        "logs": None if report.folder is None else str(report.folder),
        "seconds": round(report.seconds, 1),
    }
