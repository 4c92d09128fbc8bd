"""`agentq ledger`: whether the books agree, and the log for those who keep others."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentq.cli.budgettree import usd
from agentq.cli.console import plural
from agentq.cli.globals import Verb, VerbGroup
from agentq.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentq.cli.exportfile import ExportFile
    from agentq.cli.session import Session
    from agentq.store.audit import Difference, Incident, Verdict
    from agentq.store.journal import Entry, Journal

DRIFT = 3
"""The exit code when the books do not agree."""
SHOWN = 20


@click.group("ledger", cls=VerbGroup)
def command() -> None:
    """The ledger's books, and its log of everything that changed them."""


@command.command("verify", cls=Verb)
@click.pass_obj
def verify(session: Session) -> int:
    """Add the log up over the last checkpoint and compare it with all accounts and with what runs hold.

    Exact while workers run. The exit code is 0 when all agrees and 3 when not. A rollback of the server
    that was noticed is listed, and is no difference.
    """
    verdict = session.server_app().store.audit.verify()
    if session.console.json:
        session.console.document(_verdict_fields(verdict))
    else:
        _show(session, verdict)
    return 0 if verdict.agrees else DRIFT


@command.command("export", cls=Verb)
@click.option("-o", "--output", metavar="FILE", help="Append to FILE what it does not have yet.")
@click.option("--since", type=click.IntRange(min=1), metavar="SEQ", help="From this entry on.")
@click.option("--format", "kind", type=click.Choice(["jsonl", "csv"]), default="jsonl", show_default=True)
@click.option(
    "--mark", is_flag=True, help="Let the log keep what comes after, until the next export; needs -o."
)
@click.option("--unmark", is_flag=True, help="Nobody exports any more: the log keeps nothing back.")
@click.pass_obj
def export(  # noqa: PLR0917 - click passes all of them by name
    session: Session, output: str | None, since: int | None, kind: str, mark: bool, unmark: bool
) -> None:
    """Write the log: each change of the ledger in a line, with its number, scopes, amounts, actor and reason.

    The log keeps about 100,000 entries; older ones are in the checkpoint and no longer to be had. With
    --mark it keeps what was not exported, but never more than ten times as many.
    """
    from agentq.cli.exportfile import COLUMNS, ExportFile, as_csv, as_jsonl

    if (mark and not output) or (mark and unmark):
        raise UsageError(
            "--mark needs -o FILE, and no --unmark: what goes down a pipe may be lost",
            hint="agentq ledger export -o FILE --mark",
        )
    file = ExportFile(Path(output), kind) if output else None
    journal = session.server_app().store.journal
    if unmark:
        journal.mark(None)
        session.console.say("the log keeps nothing back any more")
    after = _begin(session, journal, file, since)
    if file is None:
        if kind == "csv":
            click.echo(",".join(COLUMNS))
        line = as_csv if kind == "csv" else as_jsonl
        for entry in _gapless(journal, after):
            click.echo(line(entry), nl=False)
        return
    count, last = 0, after
    with file.appending() as out:
        for entry in _gapless(journal, after):
            out.write(file.line(entry))
            count, last = count + 1, entry.seq
    if mark:
        journal.mark(last)
    there = f", entries up to {file.last} were there" if file.last else ""
    session.console.say(f"{output}: {count} {'entry' if count == 1 else 'entries'} written{there}")


def _begin(session: Session, journal: Journal, file: ExportFile | None, since: int | None) -> int:
    """The number behind which to begin.

    Raises:
        UsageError: when the file and the log do not fit together.
    """
    folded, last = journal.folded(), journal.last()
    if file is None or file.last is None:
        after = since - 1 if since else 0
        if after < folded:
            session.console.say(f"entries 1 to {folded} are in the checkpoint, and not to be had one by one")
        return max(after, folded)
    if file.last > last or (file.last > folded and not _is_of(journal, file)):
        raise UsageError(
            f"{file.path} ends with entry {file.last}, and this ledger has another one there: the server was "
            "rolled back, or the file is of another ledger",
            hint="begin a new file, and compare the two: agentq ledger verify lists the rollbacks",
        )
    after = max(file.last, since - 1) if since else file.last
    if after < folded:
        raise UsageError(
            f"{file.path} ends with entry {file.last}, and entries up to {folded} are no longer in the log: "
            f"{folded - after} would be missing",
            hint=f"--since {folded + 1} goes on with the gap; --mark lets the log keep what was not exported",
        )
    return after


def _gapless(journal: Journal, after: int) -> Iterator[Entry]:
    """The entries behind this number, each of them.

    Raises:
        UsageError: when the log is folded faster than it is read; what was yielded is whole.
    """
    for entry in journal.read(after):
        if entry.seq != after + 1:
            raise UsageError(
                f"entries {after + 1} to {entry.seq - 1} went into the checkpoint while this was written",
                hint=f"--since {entry.seq} goes on with the gap; --mark prevents it from the next time on",
            )
        after = entry.seq
        yield entry


def _is_of(journal: Journal, file: ExportFile) -> bool:
    """Whether the file's last line is what the log says under its number."""
    number = file.last or 0
    return any(file.line(entry) == file.last_line for entry in journal.read(number - 1, number))


def _show(session: Session, verdict: Verdict) -> None:
    console = session.console
    entries = verdict.last - verdict.folded
    outcome = "the books agree" if verdict.agrees else f"{plural(verdict.found, 'difference')} found"
    console.out(
        f"{outcome}: "
        f"{entries} {'entry' if entries == 1 else 'entries'} over a checkpoint at {verdict.folded}, "
        f"{plural(verdict.accounts, 'account')}, {plural(verdict.runs, 'run')}"
    )
    for difference in verdict.differences[:SHOWN]:
        console.out(f"  {_line(difference)}")
    if verdict.found > SHOWN:
        console.out(f"  … and {verdict.found - SHOWN} more; --json has the first 1,000")
    for incident in verdict.incidents:
        console.out(
            f"  rollback noticed: between {_clock(incident.since_ms)} and {_clock(incident.till_ms)} the "
            f"server lost {plural(incident.reservations, 'reservation')} of process {incident.process}, "
            f"{usd(incident.nano_usd)} USD and {incident.tokens} tokens at most"
        )
    if not verdict.idle_compared:
        console.say("  too many runs live to add up what idle ones hold; everything else was compared")
    if not verdict.agrees:
        console.say("  agentq budget show looks at a scope; agentq budget adjust corrects what it has spent")


def _line(difference: Difference) -> str:
    books, state = difference.books, difference.state
    texts = (usd(books), usd(state)) if difference.field.endswith("usd") else (str(books), str(state))
    return f"{difference.scope}: {difference.field} is {texts[1]}, and by the {difference.against} {texts[0]}"


def _verdict_fields(verdict: Verdict) -> dict[str, Any]:
    return {
        "agrees": verdict.agrees,
        "checkpoint": verdict.folded,
        "last": verdict.last,
        "accounts": verdict.accounts,
        "runs": verdict.runs,
        "idle_compared": verdict.idle_compared,
        "found": verdict.found,
        "differences": [_difference_fields(difference) for difference in verdict.differences],
        "incidents": [_incident_fields(incident) for incident in verdict.incidents],
    }


def _difference_fields(difference: Difference) -> dict[str, Any]:
    from agentq.core.money import to_usd

    books, state = difference.books, difference.state
    is_money = difference.field.endswith("usd")
    return {
        "scope": difference.scope,
        "field": difference.field,
        "books": to_usd(books) if is_money else books,
        "state": to_usd(state) if is_money else state,
        "against": difference.against,
    }


def _incident_fields(incident: Incident) -> dict[str, Any]:
    from agentq.core.money import to_usd

    return {
        "process": incident.process,
        "since": incident.since_ms / 1000,
        "till": incident.till_ms / 1000,
        "reservations": incident.reservations,
        "usd": to_usd(incident.nano_usd),
        "tokens": incident.tokens,
    }


def _clock(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"
