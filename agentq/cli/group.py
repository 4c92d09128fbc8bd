"""`agentq` itself: the list of verbs, and the one place where an error becomes an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from agentq.cli.failure import report
from agentq.cli.globals import VerbGroup
from agentq.cli.session import Session

VERBS = {
    "init": "A first agents.py, two rows, and what to type.",
    "demo": "Twenty tasks through real workers, with nothing to set up.",
    "up": "Run everything on this machine: server, workers, Flower.",
    "down": "Stop what `agentq up` started here.",
    "worker": "Run one worker process.",
    "submit": "Submit a file as a batch: JSONL, batch files of providers, CSV, text.",
    "run": "Run one agent once and print its answer.",
    "status": "Show everything, one batch or one run.",
    "watch": "Follow a batch until it ends.",
    "wait": "Wait for a batch; the exit code says how it ended.",
    "results": "Write the results of a batch as JSONL or CSV.",
    "runs": "List single runs: --where, --since, --batch.",
    "show": "Show one run: its answer, messages or trace.",
    "batches": "List the batches.",
    "schedules": "Batches made again and again: list, show, pause, resume, run, remove.",
    "metrics": "The metrics of a batch, in the order to read them.",
    "budget": "Money: show, set, topup, freeze, unfreeze, winddown, charge, adjust.",
    "ledger": "The ledger's books: verify, export.",
    "prices": "What models cost: list, check, import, diff.",
    "limits": "Rate limits of providers, as found by the fleet: list, resume.",
    "approvals": "Calls that wait for a person: list, show, approve, deny.",
    "cancel": "Cancel a run, or what is left of a batch.",
    "pause": "Start nothing of a run or a batch any more.",
    "resume": "Let a paused run or batch go on.",
    "tune": "Priority, caps and start of a batch, while it runs.",
    "tenants": "Who takes turns, and may have how much: list, set, limit.",
    "retry": "Let what ended without finishing go on, or fork a run.",
    "chaos": "Kill the workers of your own agents everywhere, and check what must hold.",
    "fake-provider": "Run a model provider on this machine: no key, no cost, and every fault.",
    "purge": "Remove batches that are over, before their retention ends.",
    "completion": "The completion script of bash, zsh or fish.",
    "doctor": "Check the server, the broker, the workers; --runs: every run.",
}


class LazyGroup(VerbGroup):
    """A group that knows its verbs by name and imports the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """All verbs, in the order in which they are met."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the verb's module and take the command of the same name out of it."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = import_module(f"agentq.cli.{cmd_name.replace('-', '')}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the verbs without importing any."""
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: ARG002
        windows_expand_args: bool = True,  # noqa: ARG002
        **extra: Any,
    ) -> NoReturn:
        """Run the verb and leave with its exit code."""
        session, stdout = Session(), sys.stdout
        run: Callable[..., Any] = super().main
        try:
            code = run(args, prog_name or "agentq", complete_var, standalone_mode=False, obj=session, **extra)
        except BaseException as error:  # noqa: BLE001 - the outermost place: all of them end here
            # Of a pipe that nobody reads click makes a plain exit, with a stream of its own before stdout.
            if isinstance(error, SystemExit) and sys.stdout is not stdout:
                error = BrokenPipeError()
            code = report(error, verbose=session.verbosity > 0, color=session.console.color)
        sys.exit(code if isinstance(code, int) else 0)


@click.group(
    cls=LazyGroup,
    epilog="First steps: `agentq demo` needs nothing; `agentq init` writes a first agent of your own.",
)
def main() -> None:
    """Run LLM agents in bulk: queued, budgeted, and never lost."""
