"""`python -m tests.chaos [AGENT …]`: our own agents, a matrix each; exit code 0 when all invariants hold."""

from __future__ import annotations

import sys
import time

import click

from agentq.cli.chaos_report import ChaosProgress, print_report
from agentq.cli.console import Console
from agentq.testing import make_plan, run_chaos
from tests.chaos.agents import SCRIPTS, app

REFERENCE = "tests.chaos.agents:app"
PASSES = 5


@click.command()
@click.argument("names", nargs=-1, metavar="[AGENT]...", type=click.Choice(list(SCRIPTS)))
@click.option("--only", multiple=True, metavar="PATTERN", help="Only such cases.")
def main(names: tuple[str, ...], only: tuple[str, ...]) -> None:
    """Play agents of ours, one after the other; all that have a script when none is named."""
    console, began = Console(), time.monotonic()
    cases = violations = 0
    for name in names or SCRIPTS:
        console.out(f"── {name}")
        progress = ChaosProgress(console)
        report = run_chaos(
            REFERENCE,
            app,
            make_plan(app, agent=name, script=SCRIPTS[name]),
            only=only,
            passes=PASSES,
            begin=progress.begin,
            progress=progress.show,
        )
        print_report(console, report, again=f"python -m tests.chaos {name}")
        cases += len(report.outcomes)
        violations += len(report.violations)
    console.out(f"── {cases} cases of {len(names or SCRIPTS)} agents in {time.monotonic() - began:.0f} s")
    console.out(f"violations = {violations}")
    sys.exit(1 if violations else 0)


if __name__ == "__main__":
    main()
