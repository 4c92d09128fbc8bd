"""What a verb is about: a run, a batch, or the runs that a filter means."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from agentq.cli.console import plural
from agentq.core.errors import NoSuchRunError, UsageError
from agentq.core.words import nearest

if TYPE_CHECKING:
    from agentq.app import AgentQ, Batch, Run
    from agentq.app.where import Where
    from agentq.cli.session import Session

_RUN = "run_"
_CHUNK = 500


def find(app: AgentQ, word: str) -> Run | Batch:
    """The run or the batch of this name.

    Raises:
        UsageError: when there is neither.
    """
    if not word.startswith(_RUN):
        return app.batch(word)
    with suppress(UsageError):
        return app.run(word)
    with suppress(UsageError):
        return app.batch(word)
    close = nearest(word, app.store.batches.names())
    raise NoSuchRunError(word, also=f", nor a batch of that name{close}")


@dataclass(frozen=True, slots=True)
class Chosen:
    """The runs that a filter means, by their ids."""

    where: Where
    runs: list[str]
    kind: str
    """Which runs it is about: live or ended."""

    @property
    def name(self) -> str:
        """The filter as it was typed."""
        return str(self.where)

    @property
    def nothing(self) -> str:
        """What to say when it means no run."""
        return f"no {self.kind} run is meant by {self.name}"


def target_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The argument TARGET and the options --where and --yes of a verb that acts on runs."""
    function = click.option("-y", "--yes", is_flag=True, help="Do not ask first.")(function)
    function = click.option(
        "--where",
        "filters",
        multiple=True,
        metavar="FILTER",
        help="In place of TARGET: the runs of which all this holds, as 'batch=july state:parked usd>0.5'. "
        "Keys: run, batch, tenant, agent, state, custom_id, stop_reason, stop_scope, usd, tokens, steps, "
        "attempts, generation, age.",
    )(function)
    return click.argument("target", nargs=-1)(function)


def choose(app: AgentQ, words: Sequence[str], filters: Sequence[str], *, ended: bool) -> Run | Batch | Chosen:
    """What was typed: a run, a batch, or with --where the runs that the filter means.

    Args:
        app: where they are.
        words: TARGET; behind --where further terms of the filter.
        filters: what stands behind --where.
        ended: whether the filter is about runs that have ended, of one batch, and not about live ones.

    Raises:
        UsageError: when there is no such thing, or not one.
    """
    from agentq.app.where import is_term

    if filters:
        if not all(map(is_term, words)):
            raise UsageError("give a target or --where, not both")
        return _filtered(app, [*filters, *words], ended=ended)
    if len(words) != 1:
        raise UsageError(
            "this is for one run or one batch" if words else "nothing is named",
            hint="name a run or a batch, or filter: --where state=parked agent=triage",
        )
    return find(app, words[0])


def _filtered(app: AgentQ, terms: Sequence[str], *, ended: bool) -> Chosen:
    from agentq.app.where import RUN_KEYS, where

    wanted = where(terms, keys=RUN_KEYS, now=app.store.watch.server_ms)
    batch = wanted.only("batch")
    if ended and batch is None:
        raise UsageError(
            "runs that have ended are found in their batch only", hint="add batch=NAME to the filter"
        )
    if batch is not None:
        app.batch(batch)
    found = [
        record.id
        for chunk in (app.store.batches.runs(str(batch)) if ended else _live(app, batch))
        for record in app.store.runs.read_many(chunk)
        if record is not None and record.state.is_live is not ended and wanted.holds(record)
    ]
    return Chosen(wanted, found, "ended" if ended else "live")


def _live(app: AgentQ, batch: str | None) -> Iterator[list[str]]:
    """All runs that are live, and the rows of the batch, or of all, that wait to become some."""
    from agentq.store.listing import waiting_rows

    live = list(app.store.watch.live())
    for start in range(0, len(live), _CHUNK):
        yield live[start : start + _CHUNK]
    yield from waiting_rows(app.store, app.store.batches.names() if batch is None else [batch])


def confirm(session: Session, verb: str, count: int, what: str, *, yes: bool) -> None:
    """Return when a person wants that done to so many runs.

    Raises:
        UsageError: when not, or nobody is there to ask.
    """
    if yes:
        return
    runs = f"{plural(count, 'run')} of {what}"
    if not session.console.can_ask:
        raise UsageError(f"there is nobody to ask here whether to {verb} {runs}", hint="-y says yes")
    if not click.confirm(f"{verb.capitalize()} {runs}?", err=True):
        raise UsageError("nothing was done")


def resume_them(batch: str) -> str:
    """What to type for runs of a batch that are paused by themselves."""
    return f"agentq resume --where batch={batch} state=held, or agentq resume RUN for one"
