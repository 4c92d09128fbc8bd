"""`agentq chaos`: the user's own agents, killed at every crash point; and what must hold afterwards."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentq.cli.chaos_report import ChaosProgress, as_document, print_report
from agentq.cli.console import plural
from agentq.cli.globals import verb
from agentq.cli.loading import rows_of
from agentq.core.errors import InputError, UsageError

if TYPE_CHECKING:
    from agentq.app import AgentQ
    from agentq.cli.session import Session
    from agentq.testing import Plan


@verb("chaos")
@click.argument("file", required=False)
@click.option("--agent", metavar="NAME", help="The agent to play, or of rows that name none; else all.")
@click.option(
    "--script", metavar="TURNS.json", help="What the model does: a list of turns, as `scripted` plays it."
)
@click.option(
    "--only",
    multiple=True,
    metavar="PATTERN",
    help="Only such cases: step.after_model/lost, 'effect.*', '*/freeze'. May be given again.",
)
@click.option(
    "--passes",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    metavar="N",
    help="At how many passes of each point a process dies, a case each.",
)
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Cases at once.  [default: 16 a core]")
@click.option("-y", "--yes", is_flag=True, help="Do not ask: the tools may really run.")
def command(  # noqa: PLR0917 - click passes all of them by name
    session: Session,
    file: str | None,
    agent: str | None,
    script: str | None,
    only: tuple[str, ...],
    passes: int,
    jobs: int | None,
    yes: bool,
) -> int:
    """Kill the workers of your agents at every crash point, and check that nothing is lost or doubled.

    A scripted model plays in place of the real one; your tools really run, once and more in each case.
    Without FILE (rows, as for submit) and --script, each tool is called once with the least arguments that
    fit. Exit code 0: every invariant holds; 1: the report says which does not, and how to see it again.
    """
    from agentq.testing import make_plan, run_chaos
    from agentq.testing.case import chosen, possible
    from agentq.testing.chaos import JOBS

    chosen(possible(passes), only)  # what no app can match is refused before anything is asked
    app = session.user_app("chaos")
    rows = [] if file is None else _rows(app, file, agent)
    plan = make_plan(app, agent=agent, rows=rows, script=None if script is None else _script(script))
    _announce(session, plan)
    if session.console.can_ask and not yes and not click.confirm("Run them?", err=True):
        session.console.say("nothing was run")
        return 0
    progress = ChaosProgress(session.console)
    report = run_chaos(
        session.app_path,
        app,
        plan,
        only=only,
        passes=passes,
        jobs=jobs or JOBS,
        begin=progress.begin,
        progress=progress.show,
    )
    if session.console.json:
        session.console.document(as_document(report))
    else:
        given = {"-A": session.app_path, "--agent": agent, "--script": script, "--passes": str(passes)}
        words = [word for option, value in given.items() if value for word in (option, value)]
        again = shlex.join(["agentq", "chaos", *words, *([file] if file else [])])
        print_report(session.console, report, again=again)
    return 1 if report.violations else 0


def _announce(session: Session, plan: Plan) -> None:
    say = session.console.say
    calls = plan.calls()
    say(f"{plural(len(plan.rows), 'run')} in each case, with a scripted model. The tools really run:")
    for name, count in sorted(calls.items()):
        say(f"  {name}" + (f" × {count}" if count > 1 else ""))
    if not calls:
        say("  none: the script calls no tools")
    for name, reason in plan.left_out.items():
        say(f"left out: {name}: {reason}")


def _rows(app: AgentQ, file: str, agent: str | None) -> list[dict[str, Any]]:
    from agentq.engine.rows import Row

    found: list[Row] = []
    try:
        with app.load("chaos") as load:
            for where, row in rows_of(app, file, agent=agent):
                load.add(where, row)
                if isinstance(row, Row):
                    found.append(row)
            load.check()
    except InputError as error:
        hint = "no tool was run; FILE has a row on each line, as for agentq submit"
        raise UsageError(str(error), hint=hint) from None
    return [
        {
            "input": row.input,
            "custom_id": row.custom_id or f"row-{number}",
            "agent": row.agent,
            "metadata": dict(row.metadata),
            "context": dict(row.context),
        }
        for number, row in enumerate(found, start=1)
    ]


def _script(path: str) -> list[Any]:
    hint = 'for example [[["get_order", "{\\"order_id\\": 1}"]], "It is on its way."]'
    try:
        turns = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--script {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"--script {path}: this is not JSON: {error}", hint=hint) from None
    if not isinstance(turns, list) or not turns:
        raise UsageError(f"--script {path}: a script is a list of at least one turn", hint=hint)
    return turns
