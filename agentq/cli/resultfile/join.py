"""The proof that a file has what a batch has: every row that has ended once, and nothing missing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from agentq.cli.console import plural
from agentq.cli.resultfile.lineindex import Line, LineIndex
from agentq.cli.resultfile.version import version_of
from agentq.core.errors import AgentQError

if TYPE_CHECKING:
    from agentq.app import Batch, Result

_SHOWN = 5


class JoinError(AgentQError):
    """The results that were written are not those of the batch."""

    exit_code: ClassVar[int] = 3


@dataclass
class Join:
    """The rows of a batch as they were counted one by one.

    `rows` = `results` + `not_ended` + `behind`.
    """

    rows: int = 0
    results: int = 0
    not_ended: int = 0
    behind: int = 0
    """They have ended, and are not written: in input order it is not their turn."""
    held_up_by: str | None = None
    """Which run holds up those behind it."""
    total: int = 0
    """How many rows the batch had when they were counted."""
    expected: LineIndex = field(default_factory=LineIndex)
    """The lines that must be there."""

    def as_dict(self) -> dict[str, int]:
        """The counts, for JSON."""
        return {
            "rows": self.rows,
            "results": self.results,
            "not_ended": self.not_ended,
            "behind": self.behind,
        }

    def __str__(self) -> str:
        parts = [f"{plural(self.rows, 'row')} = {plural(self.results, 'result')}"]
        parts += [f"{self.not_ended} not ended"] if self.not_ended else []
        parts += [f"{self.behind} behind one that has not ended"] if self.behind else []
        return f"{' + '.join(parts)}; each custom_id once"


def count_rows(
    batch: Batch, take: Callable[[Result], None], has: Callable[[str], bool], *, in_order: bool
) -> Join:
    """Count the rows of a batch.

    Args:
        batch: the batch.
        take: gets each result that must be written: one that came meanwhile, too.
        has: whether there is a line of a run.
        in_order: rows behind the first one that has neither ended nor a line are not to be written.
    """
    join = Join(total=batch.record().total)
    for run_id, result in batch.outcomes():
        join.rows += 1
        if result is None:
            join.not_ended += 1
            if in_order and join.held_up_by is None and not has(run_id):
                join.held_up_by = run_id
        elif join.held_up_by is not None and not has(run_id):
            join.behind += 1
        else:
            take(result)
            join.results += 1
            join.expected.note(run_id, version_of(result), result.custom_id or run_id)
    return join


def check_join(batch: Batch, join: Join, written: LineIndex) -> None:
    """Return when all that was counted is written, once.

    Raises:
        JoinError: saying what is not so.
    """
    with closing(join.expected) as expected:
        missing, twice, foreign = [], [], []
        for line in expected:
            found = written.find(line.id)
            if found is None or found.version != line.version:
                missing.append(line)
            elif found.copies:
                twice.append(line)
            elif (found.custom_id or found.id) != line.custom_id:
                foreign.append(line)
        problems = [
            _said(lines, words)
            for lines, words in (
                (missing, "missing"),
                (twice, "there twice"),
                (foreign, "under another custom_id"),
            )
            if lines
        ]
        same = len(expected) - expected.custom_ids()
    if same:
        problems.append(f"{plural(same, 'result')} with a custom_id that another one has")
    # Rows that were added, or taken back, while they were counted are not missing.
    gone = min(join.total, batch.record().total) - join.rows
    if gone > 0:
        problems.append(f"{plural(gone, 'row')} of which nothing is kept any more")
    if problems:
        raise JoinError(
            f"the results of batch {batch.name} do not join: {'; '.join(problems)}",
            hint=f"of {join.rows} rows {join.results} have results; a new file gets all of them",
        )


def _said(lines: list[Line], words: str) -> str:
    names = ", ".join(line.custom_id for line in lines[:_SHOWN])
    return f"{plural(len(lines), 'result')} {words} ({names}{', …' if len(lines) > _SHOWN else ''})"
