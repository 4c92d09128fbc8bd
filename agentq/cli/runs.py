"""`agentq runs`: single runs, the newest first."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from agentq.cli.card import run_fields
from agentq.cli.console import plural
from agentq.cli.globals import verb
from agentq.cli.inbox import span
from agentq.core.money import format_usd
from agentq.core.timespan import parse_moment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentq.cli.session import Session
    from agentq.core.records import RunRecord

LIMIT = 50
LOOKED_AT = 100_000
"""The most runs that are looked at for those that a filter means."""
HEAD = ("run", "batch", "custom_id", "agent", "state", "stop reason", "steps", "USD", "age")
_LEFT = (0, 1, 2, 3, 4, 5)
_WIDTH = 40


@verb("runs")
@click.argument("terms", nargs=-1, metavar="[FILTER]...")
@click.option(
    "--where",
    "filters",
    multiple=True,
    metavar="FILTER",
    help="The same as FILTER: 'state:ended stop_reason:cost_budget usd>0.5'.",
)
@click.option(
    "--since", metavar="WHEN", help="Submitted or ended since then: 2h, 1d, or 2026-11-30T08:00 (UTC)."
)
@click.option("--batch", metavar="NAME", help="Of this batch.")
@click.option(
    "--limit",
    type=click.IntRange(1, LOOKED_AT),
    default=LIMIT,
    show_default=True,
    metavar="N",
    help="How many.",
)
def command(  # noqa: PLR0917 - click passes all of them by name
    session: Session,
    terms: tuple[str, ...],
    filters: tuple[str, ...],
    since: str | None,
    batch: str | None,
    limit: int,
) -> None:
    """List runs, the newest first: all rows of batches, and the live runs that are in none.

    FILTER is key:value, key!=value or, of a number, key>value; all must hold. Keys: run, batch, tenant,
    agent, state, custom_id, stop_reason, stop_scope, usd, tokens, steps, attempts, generation, age.
    """
    from agentq.app.where import RUN_KEYS, where
    from agentq.store.listing import newest, row_of

    app = session.server_app()
    now_ms = app.store.watch.server_ms()
    words = [*filters, *terms, *([f"batch={batch}"] if batch is not None else [])]
    wanted = where(words, keys=RUN_KEYS, now=lambda: now_ms)
    since_ms = None if since is None else parse_moment(since, now_ms)
    one, row = wanted.only("batch"), wanted.only("custom_id")
    names = [found.name for found in app.batches()] if one is None else [app.batch(one).name]
    if one is not None and row is not None:
        looked = _Looked(iter(row_of(app.store, one, row)))
    else:
        looked = _Looked(newest(app.store, names, alone=one is None))
    matching = (
        record
        for record in looked
        if (since_ms is None or max(record.created_ms, record.ended_ms or 0) >= since_ms)
        and wanted.holds(record)
    )
    shown = list(islice(matching, limit + 1))
    more, shown = len(shown) > limit, shown[:limit]
    if session.console.json:
        runs = [{**run_fields(record), "age_seconds": _age_ms(record, now_ms) / 1000} for record in shown]
        session.console.document({"runs": runs, "more": more or looked.is_cut})
        return
    if shown:
        session.console.table(HEAD, [_row(record, now_ms) for record in shown], left=_LEFT)
    else:
        session.console.say("no such run" if words or since else "no runs yet; agentq submit FILE makes some")
    if more:
        session.console.say(f"{plural(limit, 'run')} shown, the newest: --limit N shows more")
    if looked.is_cut:
        further = (
            "--batch NAME looks at that batch only"
            if one is None
            else f"agentq results {one} has all that have ended"
        )
        session.console.say(f"only the newest {LOOKED_AT:,} were looked at: {further}")


class _Looked:
    """The first runs of many, and whether there were more."""

    def __init__(self, records: Iterator[RunRecord]) -> None:
        self._records = records
        self.is_cut = False

    def __iter__(self) -> Iterator[RunRecord]:
        yield from islice(self._records, LOOKED_AT)
        self.is_cut = next(self._records, None) is not None


def _age_ms(record: RunRecord, now_ms: int) -> int:
    return max(0, now_ms - record.created_ms)


def _row(record: RunRecord, now_ms: int) -> tuple[Any, ...]:
    spec, reason = record.spec, record.stop_reason
    return (
        record.id,
        spec.batch or "-",
        _short(spec.custom_id or "-"),
        _short(spec.agent),
        record.state.value,
        reason.value if reason else "-",
        record.steps,
        format_usd(record.usd_nano),
        span(max(1000, _age_ms(record, now_ms))),
    )


def _short(text: str) -> str:
    """Of what a caller chose, so much as leaves room for the other columns, in one line."""
    line = " ".join(text.split())
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…"
