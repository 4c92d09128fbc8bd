"""The way in: rows are checked, all of them, before the first is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentq.agent.agent import Agent
from agentq.agent.budgets import Budgets
from agentq.agent.thread import Thread
from agentq.core.errors import ConflictError, InputError, UsageError
from agentq.core.money import to_nano
from agentq.core.records import RunRecord
from agentq.core.settings import Settings
from agentq.core.words import nearest
from agentq.engine.children import adopt, refuse_unpriced_inside
from agentq.engine.rows import Row, parse_row
from agentq.engine.submit import Draft, conflicts, draft_run, optional_scopes, refuse_unpriced, submit_drafts
from agentq.engine.workbench import Dispatch, MakeHint
from agentq.store.connect import Store


def checked_row(item: Mapping[str, Any] | Row, where: str = "submit") -> Row:
    """A row with its types.

    Raises:
        InputError: when it cannot be one.
    """
    if isinstance(item, Row):
        return item
    try:
        return parse_row(item)
    except ValueError as error:
        raise InputError([f"{where}: {error}"]) from None


def run_of(store: Store, batch: str, row: Row) -> str:
    """The run that a row of a batch became."""
    custom_id = row.custom_id or row.content_hash
    return store.batches.known(batch, [custom_id])[custom_id][1]


@dataclass(frozen=True, slots=True)
class Submission:
    """One call of `submit` or `submit_many`, for one tenant. `store` is asked for once all is checked."""

    agents: Mapping[str, Agent]
    settings: Settings
    store: Callable[[], Store]
    dispatch: Dispatch
    make_hint: MakeHint
    tenant: str
    budgets: Budgets | None
    parent: RunRecord | None = None
    """The run around what is submitted."""

    def one(self, agent: str, row: Row, thread: Thread | None) -> str:
        """Submit a single run and answer its id.

        Raises:
            UsageError: when something about it cannot be; nothing was submitted.
            ConflictError: when its custom_id exists with other content.
            UnavailableError: when Redis cannot be reached.
        """
        # Another agent's run is other content: its id must not give the first one's answer.
        row = replace(row, agent=agent)
        if self.parent is not None and not row.context:
            row = replace(row, context=self.parent.spec.context)
        draft = self._draft(agent, row, batch=None, thread=thread)
        store = self._ready({draft.spec.agent})
        if self.parent is not None:
            draft = adopt(draft, self.parent.id, self.parent.spec)
            if self.settings.on_unpriced == "refuse":
                around = draft.spec.scopes_of(draft.run_id)[:-1]
                refuse_unpriced_inside(store, agent, self.agents[agent], around)
        ((answer,),) = self._write(store, [draft])
        return answer[1]

    def many(
        self,
        agent: str | None,
        items: Iterable[Mapping[str, Any] | Row],
        *,
        batch: str,
        usd: int | None,
        tokens: int | None,
        on_exhausted: str | None = None,
    ) -> None:
        """Submit rows as a batch, or those that it does not have yet.

        Raises:
            InputError: naming every row that cannot be; nothing was submitted.
            ConflictError: when the batch, or an id in it, exists with other content; nothing was submitted,
                but for rows before an id that another process took in the meantime.
            UnavailableError: when Redis cannot be reached.
        """
        rows, drafts = self._drafts(agent, items, batch=batch, usd=usd, tokens=tokens)
        named = {draft.spec.agent for draft in drafts}
        store = self._ready(named)
        self._refuse_conflicts(store, batch, rows)
        store.batches.open(
            batch,
            agent=agent or (next(iter(named)) if len(named) == 1 else ""),
            tenant=self.tenant,
            usd=usd,
            tokens=tokens,
            retention_ms=self.settings.retention_ms,
        )
        if on_exhausted is not None:
            store.ledger.set_limit(f"batch:{batch}", on_exhausted=on_exhausted)
        try:
            for _ in self._write(store, drafts):
                pass
        except ConflictError:
            # Somebody has taken an id since it was looked for. This load is over; the batch may be too.
            store.batches.seal(batch)
            raise
        store.batches.seal(batch)

    # ── checking ─────────────────────────────────────────────────────────────────────────────────

    def _drafts(
        self,
        agent: str | None,
        items: Iterable[Mapping[str, Any] | Row],
        *,
        batch: str,
        usd: int | None,
        tokens: int | None,
    ) -> tuple[dict[str, Row], list[Draft]]:
        rows: dict[str, Row] = {}
        drafts: list[Draft] = []
        problems: list[str] = []
        for number, item in enumerate(items, start=1):
            where = (item.where if isinstance(item, Row) else "") or f"row {number}"
            try:
                row = _named(checked_row(item, where), rows)
                row = replace(row, agent=row.agent or agent or "")  # by its id, another agent's is a conflict
                if row.custom_id in rows:
                    first = rows[row.custom_id].where
                    raise UsageError(f"custom_id {row.custom_id!r} is that of {first} too")
                rows[row.custom_id] = replace(row, where=where)
                drafts.append(self._draft(row.agent, row, batch=batch, usd=usd, tokens=tokens))
            except InputError as error:
                problems += error.problems
            except UsageError as error:
                problems.append(f"{where}: {error}" + (f" ({error.hint})" if error.hint else ""))
        if problems:
            raise InputError(problems)
        return rows, drafts

    def _draft(
        self,
        name: str,
        row: Row,
        *,
        batch: str | None,
        thread: Thread | None = None,
        usd: int | None = None,
        tokens: int | None = None,
    ) -> Draft:
        if not name:
            raise UsageError("no agent is named, neither in the row nor for the batch")
        if name not in self.agents:
            known = ", ".join(sorted(self.agents)) or "none"
            raise UsageError(
                f"there is no agent {name!r}{nearest(name, self.agents)}", hint=f"this app has {known}"
            )
        settings = self.settings
        return draft_run(
            name,
            self.agents[name],
            row,
            tenant=self.tenant,
            batch=batch,
            budgets=self.budgets,
            thread=thread,
            batch_usd=usd,
            batch_tokens=tokens,
            capped=bool(settings.default_limits),
            on_unpriced=settings.on_unpriced,
            on_exhausted=settings.on_exhausted,
        )

    def _refuse_conflicts(self, store: Store, batch: str, rows: Mapping[str, Row]) -> None:
        hashes = {custom_id: row.content_hash for custom_id, row in rows.items()}
        clashing = conflicts(store, batch, hashes)
        if clashing:
            more = f", and {len(clashing) - 1} more" if len(clashing) > 1 else ""
            raise ConflictError(
                f"{rows[clashing[0]].where}: batch {batch!r} has {clashing[0]!r} with other content{more}",
                hint="nothing was submitted; use another batch, or other custom_ids",
            )

    # ── writing ──────────────────────────────────────────────────────────────────────────────────

    def _ready(self, agents: Iterable[str]) -> Store:
        """The store, reachable, with the limits of the settings in its ledger.

        Raises:
            UsageError: when a limit in USD that is set in the ledger could never fire for want of a price.
        """
        store = self.store()
        store.ping()
        for (kind, window), usd in self.settings.default_limits.items():
            scope = "global" if kind == "global" else f"tenant:{self.tenant}"
            store.ledger.set_limit(f"{scope}@{window}" if window else scope, usd=to_nano(usd))
        if self.settings.on_unpriced == "refuse":
            for name in agents:
                scopes = ["global", f"tenant:{self.tenant}", *self._optional_scopes(store, name)]
                windows = [f"{scope}@{window}" for scope in scopes for window in ("day", "month")]
                if any(account.limit_nano is not None for account in store.ledger.accounts(scopes + windows)):
                    refuse_unpriced(name, self.agents[name])
        return store

    def _optional_scopes(self, store: Store, name: str) -> tuple[str, ...]:
        """The scopes of an agent's runs that are not always there: wanted by a setting, or limited."""
        return optional_scopes(store, name, self.agents[name], self.settings.optional_scopes)

    def _write(self, store: Store, drafts: Sequence[Draft]) -> Iterable[list[tuple[str, str]]]:
        scopes = {name: self._optional_scopes(store, name) for name in {draft.spec.agent for draft in drafts}}
        return submit_drafts(
            [replace(draft, spec=replace(draft.spec, scopes=scopes[draft.spec.agent])) for draft in drafts],
            store=store,
            dispatch=self.dispatch,
            make_hint=self.make_hint,
            retention_ms=self.settings.retention_ms,
        )


def _named(row: Row, taken: Mapping[str, Row]) -> Row:
    """A row without a custom_id is known by its content; equal rows are counted."""
    if row.custom_id:
        return row
    name, count = row.content_hash, 2
    while name in taken:
        name, count = f"{row.content_hash}-{count}", count + 1
    return replace(row, custom_id=name)
