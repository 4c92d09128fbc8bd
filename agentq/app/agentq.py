"""`AgentQ`: the way in. Its agents are defined in `agents.py`; what it stands on is in `installation.py`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, Unpack

from agentq.agent.budgets import Budgets
from agentq.agent.thread import Thread
from agentq.app.agents import Agents
from agentq.app.approval import Approval, approval_of
from agentq.app.batch import Batch
from agentq.app.options import batch_options
from agentq.app.run import Run
from agentq.app.schedule import Schedule, make_schedule
from agentq.app.schedule import Terms as ScheduleTerms
from agentq.app.submission import (
    Limits,
    Manner,
    Submission,
    each_in_turn,
    entry,
    one_by_one,
    run_of,
    single_row,
)
from agentq.app.where import CALL_KEYS, Terms, where
from agentq.core.errors import UsageError
from agentq.core.ids import check_name
from agentq.core.money import check_tokens, to_nano
from agentq.core.records import RunRecord
from agentq.engine.decide import Answer, Decided, Question, decide_many, questions
from agentq.engine.load import Load, Told, nobody
from agentq.engine.pilot import parse_pilot
from agentq.engine.rows import Row


class AgentQ(Agents):
    """One installation: a namespace in Redis, and the agents that run in it.

    Args:
        name: also the namespace, unless one is set.
        pricing: the prices of models, over those of the setting `prices_file`, over the built-in ones. An
            agent's own go over them.
        settings: see `agentq.core.settings.Settings`; each goes before the environment and the file.

    Raises:
        UsageError: for an unknown setting, one of the wrong kind, or a wrong file of prices.
    """

    def _chores(self) -> Mapping[str, Callable[[], None]]:
        from agentq.app.chores import chores_of  # for workers only: it brings an HTTP client

        return chores_of(self)

    # ── submitting ───────────────────────────────────────────────────────────────────────────────

    def submit(
        self,
        agent: str,
        input: Any,
        *,
        thread: str | Thread | None = None,
        parent: str | Run | None = None,
        tenant: str | None = None,
        batch: str | None = None,
        custom_id: str | None = None,
        budgets: Budgets | None = None,
        priority: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        context: Mapping[str, Any] | None = None,
    ) -> Run:
        """Submit one run.

        Args:
            input: text, a list of messages, or an object that is sent as JSON.
            thread: a run id or a thread whose conversation this run continues, on a copy.
            parent: a live run of which this one is a child: it has its tenant, and its context unless another
                is given, and spends inside its limits and those of its batch. It is no row of that batch.
            custom_id: unique in its batch, its parent, or its tenant: the same again gives the same run.
            priority: 0 to 9, of a row among those of its batch. A run by itself waits for no other.
            context: reaches the tools, never the model. `metadata` is a label for the caller.

        Raises:
            UsageError: when something about it cannot be; nothing was submitted.
            ConflictError: when the custom_id exists with other content.
            UnavailableError: when Redis cannot be reached.
        """
        row = single_row(
            {
                "input": input,
                "custom_id": custom_id,
                "metadata": metadata,
                "context": context,
                "priority": priority,
            }
        )
        around = None if parent is None else self._parent(parent, tenant, batch)
        if batch is not None and thread is not None:
            raise UsageError(
                "a run that continues a conversation is no row of a batch",
                hint="leave batch= out; or leave thread= out, and give the messages as input=",
            )
        if batch is not None:
            self.submit_many(agent, [row], batch=batch, tenant=tenant, budgets=budgets)
            return Run(self.store, run_of(self.store, batch, row), self.agents)
        continued = self.run(thread).thread() if isinstance(thread, str) else thread
        submission = self._submission(around.spec.tenant if around else tenant, budgets)
        one = replace(submission, parent=around).one(agent, row, continued)
        return Run(self.store, one, self.agents)

    def _parent(self, parent: str | Run, tenant: str | None, batch: str | None) -> RunRecord:
        record = (self.run(parent) if isinstance(parent, str) else parent).record()
        if tenant not in {None, record.spec.tenant}:
            raise UsageError(
                f"run {record.id} is of tenant {record.spec.tenant!r}, and so are its children",
                hint="leave tenant= out, or submit the run without a parent",
            )
        if batch is not None:
            raise UsageError(
                "a child is no row of a batch: it spends in its parent's",
                hint="leave batch= out, or submit the run without a parent",
            )
        return record

    def submit_many(
        self,
        agent: str | None,
        rows: Iterable[Mapping[str, Any] | Row],
        *,
        batch: str,
        tenant: str | None = None,
        budgets: Budgets | None = None,
        max_usd: Decimal | str | int | None = None,
        max_tokens: int | None = None,
        max_in_flight: int | None = None,
        max_open: int | None = None,
        priority: int | None = None,
        at: datetime | None = None,
        on_exhausted: str | None = None,
        notify: str | None = None,
        pilot: str | int | None = None,
    ) -> Batch:
        """Submit rows as a batch, or the missing ones of a batch. All are checked before one is written.

        The rows are taken one at a time and kept in a temporary file: in memory there are about 64 bytes
        of each.

        Args:
            agent: of the rows that name none themselves.
            rows: any iterable, also a generator.
            budgets: each run's. `max_usd` and `max_tokens` are the limits of the batch together.
            max_in_flight: how many of its runs may be queued or running at once.
            max_open: how many may have begun and not ended.
            priority: 0 to 9: before other batches of the tenant, the highest first.
            at: none of its rows is started before.
            on_exhausted: what its runs do when its limits are reached: `park`, `stop` or `winddown`.
            notify: a URL that is told when the batch is over: docs/webhooks.md.
            pilot: so many rows, or `1%` of them, run first; when they say that the batch will cost more than
                its limit, it is paused for a person.

        Raises:
            InputError: naming the rows that cannot be; nothing was submitted.
            ConflictError: when the batch, or an id in it, exists with other content; nothing was submitted.
            UnavailableError: when Redis cannot be reached.
        """
        options = batch_options(max_in_flight, max_open, priority, at) | self.notice_to(notify)
        with self.load(batch, tenant=tenant, budgets=budgets, max_usd=max_usd, max_tokens=max_tokens) as load:
            for number, item in enumerate(one_by_one(rows), start=1):
                load.add(*entry(item, number, agent))
            sample = None if pilot is None else parse_pilot(str(pilot))
            return self.write(load, agent=agent, on_exhausted=on_exhausted, options=options, pilot=sample)

    async def submit_async(
        self,
        agent: str | None,
        rows: AsyncIterable[Mapping[str, Any] | Row],
        *,
        batch: str,
        on_exhausted: str | None = None,
        max_in_flight: int | None = None,
        max_open: int | None = None,
        priority: int | None = None,
        at: datetime | None = None,
        notify: str | None = None,
        pilot: str | int | None = None,
        **limits: Unpack[Limits],
    ) -> Batch:
        """As `submit_many`, with rows that come asynchronously. They are written in a thread."""
        options = batch_options(max_in_flight, max_open, priority, at) | self.notice_to(notify)
        with self.load(batch, **limits) as load:
            number = 0
            async for item in each_in_turn(rows):
                number += 1
                load.add(*entry(item, number, agent))
            sample = None if pilot is None else parse_pilot(str(pilot))
            return await asyncio.to_thread(
                self.write, load, agent=agent, on_exhausted=on_exhausted, options=options, pilot=sample
            )

    def schedule(
        self,
        name: str,
        cron: str,
        rows: Iterable[Mapping[str, Any] | Row],
        *,
        agent: str | None = None,
        tz: str | None = None,
        overlap: Literal["skip", "allow"] = "skip",
        **terms: Unpack[ScheduleTerms],
    ) -> Schedule:
        """Have workers make a batch of these rows again and again: `NAME.20261201-0800`, and so on.

        The rows are checked and kept in Redis, up to 50 MB compressed. The same schedule again is left alone.

        Args:
            name: of the schedule.
            cron: minute hour day month weekday, as `0 8 * * 1-5`.
            rows: any iterable, as for `submit_many`.
            agent: of the rows that name none themselves.
            tz: the time zone of `cron`, as `Europe/Berlin`; None for that of this machine.
            overlap: when a time comes before the last batch is over: `skip` it, or `allow` both.
            terms: of each batch, as for `submit_many`: tenant, budgets, max_usd, max_tokens, max_in_flight,
                max_open, priority, on_exhausted, notify.

        Raises:
            UsageError: when the expression, the zone or a term cannot be, or the rows are too many.
            InputError: naming the rows that cannot be; nothing was kept.
            ConflictError: when there is another schedule of that name.
            UnavailableError: when Redis cannot be reached.
        """
        return make_schedule(self, name, cron, rows, agent=agent, tz=tz, overlap=overlap, terms=terms)

    def schedules(self) -> list[Schedule]:
        """All schedules, whose turn is next first."""
        return [Schedule(self, name) for name in self.store.schedules.names()]

    def load(
        self,
        batch: str,
        *,
        tenant: str | None = None,
        budgets: Budgets | None = None,
        max_usd: Decimal | str | int | None = None,
        max_tokens: int | None = None,
        tell: Told = nobody,
    ) -> Load:
        """Begin to check rows for a batch: `add` them, then `write` the load. Nothing is connected yet.

        Raises:
            UsageError: when the batch cannot be called that.
        """
        submission = self._submission(tenant, budgets)
        return submission.load(
            check_name("batch", batch),
            usd=None if max_usd is None else to_nano(max_usd),
            tokens=None if max_tokens is None else check_tokens(max_tokens),
            tell=tell,
        )

    def write(self, load: Load, **how: Unpack[Manner]) -> Batch:
        """Write the rows of a load to their batch: see `submit_many`.

        Args:
            load: with all its rows added.
            how: agent of the batch, None for that of its rows; on_exhausted and pilot, see `submit_many` and
                `parse_pilot`; options, see `batch_options`.
        """
        self._submission(load.terms.tenant, load.terms.budgets).write(load, **how)
        return Batch(self.store, load.terms.batch, self.agents)

    def notice_to(self, url: str | None) -> dict[str, str]:
        """The option of a batch that has a URL told when it is over; nothing for None.

        Raises:
            UsageError: when it is no URL, is not allowed, or there is no secret to sign with.
        """
        if url is None:
            return {}
        from agentq.engine.notify import check_notify  # brings an HTTP client

        return {"notify": check_notify(url, self.settings)}

    def _submission(self, tenant: str | None, budgets: Budgets | None) -> Submission:
        if budgets is not None and not isinstance(budgets, Budgets):
            raise UsageError(
                f"budgets={budgets!r} are none", hint='budgets=Budgets(max_usd="0.10", max_steps=8)'
            )
        return Submission(
            agents=self.agents,
            agent_for=self.agent_for,
            settings=self.settings,
            store=lambda: self.store,
            dispatch=self.dispatch,
            make_hint=self.make_hint,
            tenant=check_name("tenant", "default" if tenant is None else tenant),
            budgets=None if budgets is None else budgets.over(self.run_limits),
        )

    # ── looking ──────────────────────────────────────────────────────────────────────────────────

    def run(self, run_id: str) -> Run:
        """The run of this id.

        Raises:
            UsageError: when there is none.
        """
        run = Run(self.store, run_id, self.agents)
        run.record()
        return run

    def batch(self, name: str) -> Batch:
        """The batch of this name.

        Raises:
            UsageError: when there is none.
        """
        batch = Batch(self.store, name, self.agents)
        batch.record()
        return batch

    def batches(self) -> list[Batch]:
        """All batches, the newest first."""
        return [Batch(self.store, name, self.agents) for name in self.store.batches.names()]

    # ── deciding ─────────────────────────────────────────────────────────────────────────────────

    def approvals(self, where: Terms | None = None) -> list[Approval]:
        """The calls that wait for a person, who has waited longest first.

        Args:
            where: which of them, as `tool=cancel_order batch:july,june usd>0.5` or a mapping; all terms must
                hold. Keys are tool, kind and those of runs (docs/cli.md, "Filters").

        Raises:
            UsageError: for a key that there is not, with the nearest that there is.
        """
        return [approval_of(question, self.store, self.agents) for question in self._questions(where)]

    def approve_all(self, where: Terms | None, *, by: str, reason: str | None = None) -> Decided:
        """Approve the calls that wait and are meant by `where` (None: all), 500 in a round trip.

        Returns:
            How many were approved, for which somebody was first, whose time was over, and whose run does
            not wait any more.

        Raises:
            UsageError: for a wrong `where`; nothing was decided.
        """
        return self._decide_all(where, Answer("approve", by, reason or ""))

    def deny_all(self, where: Terms | None, *, by: str, reason: str | None = None) -> Decided:
        """Deny the calls that wait and are meant by `where` (None: all); the model reads the reason.

        Raises:
            UsageError: for a wrong `where`; nothing was decided.
        """
        return self._decide_all(where, Answer("deny", by, reason or ""))

    def _decide_all(self, where: Terms | None, answer: Answer) -> Decided:
        calls = [(question.run.id, question.call.id) for question in self._questions(where)]
        return decide_many(self.store, calls, answer)

    def _questions(self, terms: Terms | None) -> list[Question]:
        wanted = where(terms, keys=CALL_KEYS, now=self.store.watch.server_ms)
        return list(questions(self.store, wanted.holds_for))
