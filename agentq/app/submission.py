"""The way in: rows are checked, all of them, before the first is written."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, TypedDict, Unpack

from agentq.agent.agent import Agent
from agentq.agent.budgets import Budgets
from agentq.agent.thread import Thread
from agentq.core.errors import InputError, UsageError
from agentq.core.money import to_nano
from agentq.core.records import RunRecord
from agentq.core.settings import Settings, check_on_exhausted
from agentq.engine.children import adopt, refuse_unpriced_inside
from agentq.engine.load import Load, Told, nobody
from agentq.engine.patterns import Terms
from agentq.engine.pilot import Pilot
from agentq.engine.problem import sentence
from agentq.engine.rows import FIELDS, Row, parse_row
from agentq.engine.submit import Draft, draft_run, optional_scopes, refuse_unpriced, submit_drafts
from agentq.engine.workbench import Dispatch, MakeHint
from agentq.store.connect import Store


def single_row(fields: Mapping[str, Any]) -> Row:
    """The row of a run that is submitted by itself; None leaves a field out.

    Raises:
        InputError: when it cannot be one.
    """
    try:
        return parse_row({name: value for name, value in fields.items() if value is not None})
    except ValueError as error:
        raise InputError([f"submit: {sentence(error)}"]) from None


class Limits(TypedDict, total=False):
    """Who pays for a batch and how much at most: see `AgentQ.submit_many`."""

    tenant: str | None
    budgets: Budgets | None
    max_usd: Decimal | str | int | None
    max_tokens: int | None


class Manner(TypedDict, total=False):
    """How the rows of a load are written: see `AgentQ.write`."""

    agent: str | None
    on_exhausted: str | None
    options: Mapping[str, str | int] | None
    pilot: Pilot | None


def one_by_one(rows: Iterable[Mapping[str, Any] | Row]) -> Iterable[Mapping[str, Any] | Row]:
    """The rows, when they can be taken one at a time.

    Raises:
        UsageError: for a text, one row by itself, what comes asynchronously, and what is no iterable.
    """
    if isinstance(rows, AsyncIterable):
        raise UsageError(
            "rows that come asynchronously are for submit_async", hint="await app.submit_async(…)"
        )
    if isinstance(rows, str | bytes | Mapping | Row) or not isinstance(rows, Iterable):
        raise UsageError(
            f"rows are a list of rows, or another iterable, not {type(rows).__name__}",
            hint='for example [{"input": "Where is order 1002?"}]',
        )
    return rows


def each_in_turn(rows: AsyncIterable[Mapping[str, Any] | Row]) -> AsyncIterable[Mapping[str, Any] | Row]:
    """The rows, when they come asynchronously.

    Raises:
        UsageError: when they do not.
    """
    if not isinstance(rows, AsyncIterable):
        raise UsageError(
            f"submit_async takes rows that come asynchronously, not {type(rows).__name__}",
            hint="app.submit_many(…) takes a list or another iterable",
        )
    return rows


def entry(item: Mapping[str, Any] | Row, number: int, agent: str | None) -> tuple[str, Row | str]:
    """Where the `number`-th item stands, and its row, of this agent if it names none; or what is wrong."""
    where = (item.where if isinstance(item, Row) else "") or f"row {number}"
    try:
        if not isinstance(item, Row):
            return where, parse_row(item, agent=agent or "")
        row = from_outside(item)
        # Its id is that of the row as it came, whatever agent it gets.
        return where, row if row.agent or not agent else replace(row, agent=agent, line_hash=row.derived_id)
    except ValueError as error:
        return where, sentence(error)


def run_of(store: Store, batch: str, row: Row) -> str:
    """The run that a row of a batch became."""
    custom_id = row.custom_id or row.derived_id
    return store.batches.known(batch, [custom_id])[custom_id][1]


def from_outside(row: Row) -> Row:
    """A row that somebody has made by hand, checked as one that was read. Its id stays that of what it says.

    Raises:
        ValueError: when it cannot be one.
    """
    fields = {name: said for name in FIELDS if (said := getattr(row, name)) not in ("", None, {})}
    checked = parse_row({"input": row.input, **fields}, call=row.call, where=row.where)
    return replace(checked, line_hash=row.line_hash)


@dataclass(frozen=True, slots=True)
class Submission:
    """One call of `submit` or `submit_many`, for one tenant. `store` is asked for once all is checked."""

    agents: Mapping[str, Agent]
    agent_for: Callable[[str, Mapping[str, Any]], Agent]
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
        draft = self._draft(agent, row, thread=thread)
        store = self._ready({agent: self.agents[agent]})
        if self.parent is not None:
            draft = adopt(draft, self.parent.id, self.parent.spec)
            if self.settings.on_unpriced == "refuse":
                around = draft.spec.scopes_of(draft.run_id)[:-1]
                refuse_unpriced_inside(store, agent, self.agents[agent], around)
        return self._write(store, draft)

    def load(
        self, batch: str, *, usd: int | None = None, tokens: int | None = None, tell: Told = nobody
    ) -> Load:
        """Begin to check rows for a batch, whose own limits are these. Nothing is connected yet.

        Args:
            batch: its name.
            usd: in nano-USD, likewise `tokens`.
            tell: see `Told`.
        """
        terms = Terms(
            batch=batch,
            tenant=self.tenant,
            budgets=self.budgets,
            batch_usd=usd,
            batch_tokens=tokens,
            capped=bool(self.settings.default_limits),
            on_unpriced=self.settings.on_unpriced,
            on_exhausted=self.settings.on_exhausted,
        )
        return Load(terms, self._agent_of, tell=tell)

    def write(self, load: Load, **how: Unpack[Manner]) -> int:
        """Write the rows of a load that the batch does not have yet; how many these are.

        Raises:
            InputError: naming rows that cannot be; nothing was submitted.
            UsageError: when there is no such way to be dry; nothing was submitted.
            ConflictError: when the batch, or an id in it, exists with other content; nothing was submitted.
            UnavailableError: when Redis cannot be reached.
        """
        on_exhausted = how.get("on_exhausted")
        if on_exhausted is not None:
            check_on_exhausted(on_exhausted)
        load.check()
        agents = load.agents
        store = self._ready(agents)
        return load.write(
            store,
            agent=how.get("agent") or (next(iter(agents)) if len(agents) == 1 else ""),
            scopes_of=lambda name, known: optional_scopes(store, name, known, self.settings.optional_scopes),
            retention_ms=self.settings.retention_ms,
            options=how.get("options"),
            pilot=how.get("pilot"),
            on_exhausted=on_exhausted,
        )

    # ── checking ─────────────────────────────────────────────────────────────────────────────────

    def _agent_of(self, name: str, call: Mapping[str, Any] | None) -> Agent:
        if not name:
            known = ", ".join(sorted(self.agents)) or "no agents"
            raise UsageError(f"no agent is named, neither in the row nor for the batch; the app has {known}")
        return self.agent_for(name, call or {})

    def _draft(self, name: str, row: Row, *, thread: Thread | None = None) -> Draft:
        settings = self.settings
        return draft_run(
            name,
            self._agent_of(name, None),
            row,
            tenant=self.tenant,
            budgets=self.budgets,
            thread=thread,
            capped=bool(settings.default_limits),
            on_unpriced=settings.on_unpriced,
            on_exhausted=settings.on_exhausted,
        )

    # ── writing ──────────────────────────────────────────────────────────────────────────────────

    def _ready(self, agents: Mapping[str, Agent]) -> Store:
        """The store, reachable, with what the settings limit in it.

        Raises:
            UsageError: when a limit in USD that is set in the ledger could never fire for want of a price.
        """
        store = self.store()
        store.ping()
        for (kind, window), usd in self.settings.default_limits.items():
            scope = "global" if kind == "global" else f"tenant:{self.tenant}"
            store.ledger.set_limit(f"{scope}@{window}" if window else scope, usd=to_nano(usd))
        if self.settings.feeder_limits:
            store.feeder.tune("", self.settings.feeder_limits)
        if self.settings.on_unpriced == "refuse":
            for name, agent in agents.items():
                optional = optional_scopes(store, name, agent, self.settings.optional_scopes)
                scopes = ["global", f"tenant:{self.tenant}", *optional]
                windows = [f"{scope}@{window}" for scope in scopes for window in ("day", "month")]
                if any(account.limit_nano is not None for account in store.ledger.accounts(scopes + windows)):
                    refuse_unpriced(name, agent)
        return store

    def _write(self, store: Store, draft: Draft) -> str:
        name = draft.spec.agent
        scopes = optional_scopes(store, name, self.agents[name], self.settings.optional_scopes)
        ((_, run_id),) = submit_drafts(
            [replace(draft, spec=replace(draft.spec, scopes=scopes))],
            store=store,
            dispatch=self.dispatch,
            make_hint=self.make_hint,
            retention_ms=self.settings.retention_ms,
        )
        return run_id
