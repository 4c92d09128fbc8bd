"""The results of a batch in a file that can be written again and again and only grows by what is new.

A run that was retried since has another result: it is appended too, and the last line of a run counts.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agentq.cli.resultfile.form import check_form
from agentq.cli.resultfile.linefile import LineFile
from agentq.cli.resultfile.outputs import STDOUT, Outputs

if TYPE_CHECKING:
    from agentq.app import Batch
    from agentq.cli.session import Session


def check_output(target: str) -> None:
    """Return when results can be written to `target`, as far as that can be known before there are any.

    Raises:
        UsageError: when it holds something else, or its folder does not exist.
    """
    if target != STDOUT:
        LineFile(Path(target), check_form(target)).check()


def write_results(session: Session, batch: Batch, target: str) -> None:
    """Append the ended runs that `target` does not have yet, in input order; `-` is stdout.

    Raises:
        UsageError: when `target` cannot be written.
    """
    with Outputs.choose(batch, target) as outputs:
        for result in batch.results():
            outputs.take(result)
        outputs.flush()
        outputs.say(session.console, batch.name)
