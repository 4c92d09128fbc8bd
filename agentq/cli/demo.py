"""`agentq demo`: the twenty tasks, twice, through real workers; then what they cost and what that means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentq.cli.demo_report import print_report
from agentq.cli.globals import verb

if TYPE_CHECKING:
    from agentq.cli.session import Session


@verb("demo")
def command(session: Session) -> int:
    """Run twenty tasks of an orders desk through Celery workers on a Redis of their own.

    Once with loop detection, once without. Needs no key, no network and no settings, and leaves nothing
    behind. Exit code 0: the figures are the expected ones, and the ledger agrees with the threads.
    """
    from agentq.cli.demo_stage import play

    outcomes = play(session)
    wrong = [problem for outcome in outcomes for problem in outcome.problems()]
    if session.console.json:
        session.console.document({f"detection_{outcome.key}": outcome.metrics for outcome in outcomes})
    else:
        print_report(session.console, outcomes)
    for problem in wrong:
        session.console.say(f"not as expected: {problem}")
    return 1 if wrong else 0
