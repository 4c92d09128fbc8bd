"""Follow a batch until nothing in it moves by itself."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from agentq.cli.console import plural
from agentq.cli.holdups import holdup_lines, holdups
from agentq.cli.progress import progress
from agentq.cli.tally import TIMED_OUT, Tally, money_lines
from agentq.cli.target import resume_them

if TYPE_CHECKING:
    from agentq.app import Batch
    from agentq.cli.session import Session

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 1.0
_READS_PAUSE = 4
"""Where many runs wait it takes time to count them: it is paused for so many times that, at least."""
_LOOK_SECONDS = 10.0
"""While nothing is at work: how often it is looked what the runs wait for. Each is said once."""


def follow(session: Session, batch: Batch, *, timeout: float | None = None, events: bool = True) -> Tally:
    """Show progress until all runs have ended or wait for a person or for money, or the time is up."""
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = _FIRST_PAUSE
    look, said = time.monotonic() + _LOOK_SECONDS, set[str]()
    with progress(session.console, events=events) as shown:
        while True:
            began = time.monotonic()
            tally = Tally.read(batch)
            pause = max(pause, _READS_PAUSE * (time.monotonic() - began))
            shown.show(tally)
            if tally.is_settled or (deadline is not None and time.monotonic() >= deadline):
                return tally
            if time.monotonic() >= look and not tally.running:
                found = holdups(batch, tally)
                for line in holdup_lines({words: found[words] for words in found if words not in said}):
                    session.console.say(line)
                look, said = time.monotonic() + _LOOK_SECONDS, said | set(found)
            time.sleep(pause if deadline is None else min(pause, max(0.0, deadline - time.monotonic())))
            pause = max(pause, min(pause * 1.2, _LONGEST_PAUSE))


def conclude(session: Session, batch: Batch, tally: Tally) -> int:
    """Say how it ended, on stdout; give the exit code."""
    console = session.console
    if not tally.is_settled:
        code = TIMED_OUT
        console.say(
            f"time is up: {tally.total - tally.ended} of {tally.total} runs have not ended; they go on"
        )
        console.say(f"  agentq watch {batch.name}")
    else:
        code = tally.exit_code()
    if console.json:
        console.event("result", exit_code=code, **tally.as_dict())
        return code
    console.out(f"{batch.name}: {tally}")
    for reason, count in sorted(tally.stop_reasons.items(), key=lambda item: (-item[1], item[0])):
        console.out(f"  {reason:<20}{count:>8}")
    say_what_waits(session, batch, tally)
    return code


def say_what_waits(session: Session, batch: Batch, tally: Tally) -> None:
    """Say what keeps the rest of a batch back, and what to type about it; nothing when it is over."""
    console = session.console
    if tally.waiting:
        console.say(f"waiting for approval: {plural(tally.waiting, 'run')}")
        console.say(f"  agentq approvals list batch={batch.name}")
        console.say(f"  agentq approvals approve --where batch={batch.name}")
    if tally.paused_by is not None and tally.held + tally.rows:
        console.say(f"paused by {tally.paused_by}: {plural(tally.held + tally.rows, 'run')}")
        console.say(f"  agentq resume {batch.name}")
    elif tally.held:
        console.say(f"paused: {plural(tally.held, 'run')}")
        console.say(f"  {resume_them(batch.name)}")
    if tally.broken_off:
        console.say(f"its load was broken off, and {tally.loading} rows of it have not begun")
        console.say(f"  the same agentq submit again goes on with it, agentq cancel {batch.name} ends it")
    for line in holdup_lines(holdups(batch, tally)):
        console.say(line)
    for line in money_lines(tally.money):
        console.say(line)


def detached(session: Session, name: str) -> None:
    """Say that leaving changed nothing."""
    session.console.say(f"\ndetached: nothing was cancelled; agentq watch {name} shows it again")
