"""`agentq purge`: batches that are over go before their retention ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from agentq.cli.console import plural
from agentq.cli.globals import verb
from agentq.cli.names import NAMES
from agentq.cli.target import confirm
from agentq.core.errors import UsageError
from agentq.core.timespan import parse_span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentq.app import AgentQ
    from agentq.cli.session import Session


@verb("purge")
@click.argument("batch", nargs=-1, metavar="[BATCH]", type=NAMES["batch"])
@click.option("--older-than", metavar="SPAN", help="All that have been over for longer: 12h, 7d.")
@click.option(
    "--where",
    "filters",
    multiple=True,
    metavar="FILTER",
    help="In place of BATCH: those of which all this holds. Keys: batch, tenant, agent, age.",
)
@click.option("--threads", is_flag=True, help="Only what was said and done in its runs: their results stay.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask first.")
def command(  # noqa: PLR0917 - click passes all of them by name
    session: Session,
    batch: tuple[str, ...],
    older_than: str | None,
    filters: tuple[str, ...],
    threads: bool,
    yes: bool,
) -> None:
    """Remove BATCH, which is over, with its runs and their results, before its retention ends.

    Nothing that is live is ever removed. What was spent stays in the books of its tenant. With --threads the
    results stay until the retention ends, and only conversations, traces and results of tools go, which need
    the most room.
    """
    from agentq.store.purge import over_for_ms, purge_batch

    app = session.server_app()
    span_ms = None if older_than is None else parse_span(older_than)
    meant = _meant(app, batch, filters, everything=span_ms is not None)
    over = over_for_ms(app.store, meant)
    live = [name for name in meant if name not in over] if span_ms is None else []
    names = [name for name in meant if name in over and (span_ms is None or over[name] > span_ms)]
    if live and not filters:
        raise UsageError(f"{live[0]} is live: only what is over is removed", hint=f"agentq cancel {live[0]}")
    runs = sum(app.batch(name).counts()["total"] for name in names)
    if names:
        what = names[0] if len(names) == 1 else plural(len(names), "batch", "batches")
        if not yes:
            session.console.say(
                "only their threads go: without them no run can be retried"
                if threads
                else "their results go too: agentq results BATCH -o FILE keeps them"
            )
        confirm(session, "purge", runs, what, yes=yes)
    gone = [name for name in names if purge_batch(app.store, name, only_threads=threads)]
    live += [name for name in names if name not in gone]
    if session.console.json:
        session.console.document({"batches": gone, "runs": runs, "threads": threads, "live": live})
        return
    for name in gone:
        session.console.out(f"{name}: its threads are gone" if threads else f"{name} is gone")
    if not gone:
        session.console.out("no batch that is over is meant")
    if live:
        session.console.say(f"live, and still there: {', '.join(live)}")


def _meant(app: AgentQ, words: Sequence[str], filters: Sequence[str], *, everything: bool) -> list[str]:
    """The batches that were named or filtered.

    Raises:
        UsageError: for a name or a filter that there is not, both, or neither.
    """
    from agentq.app.where import BATCH_KEYS, is_term, where

    if not filters and len(words) == 1 and not everything:
        return [app.batch(words[0]).name]
    if (not filters and (words or not everything)) or not all(map(is_term, words)):
        raise UsageError(
            "this is for one batch, or for those that a filter means",
            hint="agentq purge BATCH, --older-than 7d, or --where 'batch=test-* age>1d'",
        )
    wanted = where([*filters, *words], keys=BATCH_KEYS, now=app.store.watch.server_ms)
    records = map(app.store.batches.read, app.store.batches.names())
    return [record.name for record in records if record is not None and wanted.holds_of(record)]
