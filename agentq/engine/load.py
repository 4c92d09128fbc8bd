"""Loading: rows are checked and kept in a file; once all are good, they are written to their batch in chunks.

Nothing of a load is admitted before all of it is there. A load that fails takes its rows back; one that is
killed is resumed by the same load again, which adds what is missing.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Self

from agentq.agent.agent import Agent
from agentq.core.errors import ConflictError, InputError, UsageError
from agentq.core.failpoints import failpoint
from agentq.core.ids import new_run_id
from agentq.core.records import Opened, RowEntry
from agentq.engine.estimate import Estimate
from agentq.engine.patterns import AgentOf, Patterns, Terms
from agentq.engine.pilot import Pilot, placed
from agentq.engine.rows import Row
from agentq.engine.spool import KeptRow, Spool
from agentq.store.batches import LoadingError, RowConflictError
from agentq.store.connect import Store

KEPT_PROBLEMS = 20
TOLD_ROWS = 500
HEARD_CHUNKS = 20
"""While rows are compared the server hears of the loader once in so many chunks: far less than a second."""

Told = Callable[[str, int], None]
"""Called now and then with `checked`, `compared` or `written`, and how many rows that are."""


def nobody(what: str, rows: int) -> None:
    """Nobody wants to know."""


class Load:
    """The rows of one `submit`, from the first check to the seal. Use it as a context."""

    def __init__(self, terms: Terms, agent_of: AgentOf, *, tell: Told = nobody) -> None:
        self.terms = terms
        self._patterns = Patterns(terms, agent_of)
        self._spool = Spool()
        self._seen: set[int] = set()
        self._copies: dict[str, int] = {}
        self._problems: list[str] = []
        self._bad = 0
        self._tell = tell
        self.rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._spool.close()

    @property
    def estimate(self) -> Estimate:
        """What the rows come to."""
        return self._patterns.estimate

    @property
    def agents(self) -> dict[str, Agent]:
        """The agents of the rows, by name."""
        return self._patterns.agents

    # ── checking ─────────────────────────────────────────────────────────────────────────────────

    def add(self, where: str, row: Row | str) -> None:
        """Check a row and keep it, or keep what is wrong with it: either is said by `check`.

        Raises:
            AgentQError: when there is no room for it.
        """
        if isinstance(row, str):
            self._problem(f"{where}: {row}")
            return
        try:
            row = self._named(row)
            payload = self._patterns.payload(row)
        except UsageError as error:
            self._problem(f"{where}: {error}" + (f" ({error.hint})" if error.hint else ""))
            return
        self._spool.add(where, row, payload)
        self.rows += 1
        if self.rows % TOLD_ROWS == 0:
            self._tell("checked", self.rows)

    def check(self) -> None:
        """Return when all rows are good.

        Raises:
            InputError: with the first problems, and how many there are.
        """
        if self._bad:
            raise InputError(self._problems, self._bad)

    def _problem(self, text: str) -> None:
        self._bad += 1
        if len(self._problems) < KEPT_PROBLEMS:
            self._problems.append(text)

    def _named(self, row: Row) -> Row:
        """The row under an id that no other of this load has.

        Only the hashes of ids are kept. Where one was there before, the file says whether its id was.
        """
        if not row.custom_id:
            return self._by_content(row)
        if hash(row.custom_id) in self._seen:
            if self._bad >= KEPT_PROBLEMS:  # nobody reads any more which row it is, and to look takes long
                raise UsageError(f"custom_id {row.custom_id!r} is that of another row too")
            if first := self._spool.where_is(row.custom_id):
                raise UsageError(f"custom_id {row.custom_id!r} is that of {first} too")
        self._seen.add(hash(row.custom_id))
        return row

    def _by_content(self, row: Row) -> Row:
        content = name = row.derived_id
        while hash(name) in self._seen:
            copy = self._copies[content] = self._copies.get(content, 1) + 1
            name = f"{content}-{copy}"
        self._seen.add(hash(name))
        return row.named(name)

    # ── writing ──────────────────────────────────────────────────────────────────────────────────

    def write(
        self,
        store: Store,
        *,
        agent: str,
        scopes_of: Callable[[str, Agent], tuple[str, ...]],
        retention_ms: int,
        options: Mapping[str, str | int] | None = None,
        pilot: Pilot | None = None,
        on_exhausted: str | None = None,
    ) -> int:
        """Write what the batch does not have yet and seal it; how many rows are new.

        Args:
            store: where to.
            agent: of the batch; empty for several.
            scopes_of: the further scopes of an agent's runs.
            retention_ms: how long the batch is kept when it is over.
            options: of the batch, also where it is there: max_in_flight, max_open, priority, at (ms), notify,
                confirm_above.
            pilot: the sample of a new batch that runs first.
            on_exhausted: what its runs do when its limits are reached; None leaves that.

        Raises:
            ConflictError: when the batch, or a row of it, is there with other content, or somebody else is
                loading it; it is then as it was.
        """
        loader = f"{os.getpid()}@{socket.gethostname()}:{secrets.token_hex(4)}"
        size = 0 if pilot is None else pilot.size(self.rows)
        first = {"pilot": size} if size else {}
        opened = self._open(store, loader, agent, retention_ms, {**(options or {}), **first})
        name = self.terms.batch
        failpoint("submit.after_open")
        try:
            if opened.total:
                self._refuse_conflicts(store, loader)
            if opened.total and size:
                # A load that was killed is gone on with; a batch that had its pilot needs no other.
                record = store.batches.read(name)
                size = size if record is not None and record.pilot == size else 0
            new = self._write(store, opened, loader, self._patterns.written(opened.now_ms, scopes_of), size)
            if on_exhausted is not None:
                store.ledger.set_limit(f"batch:{name}", on_exhausted=on_exhausted)
            if options:
                # Not before all rows are in: a load that is refused changes nothing.
                store.batches.tune(name, options)
        except LoadingError:
            raise
        except Exception:
            with suppress(Exception):  # a server that is gone, too; what went wrong first is what counts
                store.batches.abort(name, opened.total, loader=loader)
            raise
        store.batches.seal(name, loader=loader)
        failpoint("submit.after_write")
        return new

    def _open(
        self, store: Store, loader: str, agent: str, retention_ms: int, options: Mapping[str, str | int]
    ) -> Opened:
        terms, dead = self.terms, ""
        while True:
            try:
                return store.batches.open(
                    terms.batch,
                    agent=agent,
                    tenant=terms.tenant,
                    usd=terms.batch_usd,
                    tokens=terms.batch_tokens,
                    retention_ms=retention_ms,
                    loader=loader,
                    dead=dead,
                    options=options,
                )
            except LoadingError as error:
                if dead or not _is_dead(error.other):
                    raise
                dead = error.other

    def _refuse_conflicts(self, store: Store, loader: str) -> None:
        """Return when no row is there with other content.

        Raises:
            ConflictError: naming the first that is.
            LoadingError: when somebody else loads the batch by now, or has cancelled it.
        """
        name, first, count, compared = self.terms.batch, None, 0, 0
        for number, chunk in enumerate(self._spool.chunks(), start=1):
            if number % HEARD_CHUNKS == 0:
                store.batches.add(name, [], {}, loader=loader)
            known = store.batches.known(name, [kept.custom_id for kept in chunk])
            compared += len(chunk)
            self._tell("compared", compared)
            for kept in chunk:
                if known.get(kept.custom_id, (kept.content_hash, ""))[0] != kept.content_hash:
                    first, count = first or kept, count + 1
        if first is not None:
            raise self._conflict(first, count - 1)

    def _conflict(self, kept: KeptRow, more: int = 0) -> ConflictError:
        others = f", and {more} more" if more else ""
        return ConflictError(
            f"{kept.where}: batch {self.terms.batch!r} has {kept.custom_id!r} with other content{others}",
            hint="nothing was submitted; use another batch, or other custom_ids",
        )

    def _write(
        self, store: Store, opened: Opened, loader: str, patterns: Mapping[str, str], sample: int
    ) -> int:
        new = written = 0
        for chunk in self._spool.chunks():
            entries = [
                RowEntry(
                    run_id=f"{new_run_id()}_{opened.serial}",
                    custom_id=kept.custom_id,
                    content_hash=kept.content_hash,
                    priority=placed(kept.priority, place, sample, self.rows) if sample else kept.priority,
                    payload=kept.payload,
                )
                for place, kept in enumerate(chunk, start=written)
            ]
            try:
                new += sum(store.batches.add(self.terms.batch, entries, patterns, loader=loader))
            except RowConflictError as error:
                raise self._conflict(chunk[error.place]) from None
            failpoint("submit.after_chunk")
            written += len(chunk)
            self._tell("written", written)
        return new


def _is_dead(loader: str) -> bool:
    """Whether a loader ran on this machine and does not any more."""
    pid, _, rest = loader.partition("@")
    if rest.rpartition(":")[0] != socket.gethostname() or not pid.isdigit():
        return False
    with suppress(PermissionError):
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return True
    return False
