"""`AgentQ`: the agents, and the way in. What it stands on is in `installation.py`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, Unpack, cast

from agentq.agent.agent import Agent, OnAnswer, OnChange, OnOverflow
from agentq.agent.budgets import Budgets
from agentq.agent.loopdetect import LoopDetector
from agentq.agent.thread import Thread
from agentq.app.approval import Approval, approval_of
from agentq.app.batch import Batch
from agentq.app.installation import Installation
from agentq.app.options import batch_options
from agentq.app.run import Run
from agentq.app.schedule import Schedule, make_schedule
from agentq.app.schedule import Terms as ScheduleTerms
from agentq.app.submission import Limits, Submission, each_in_turn, entry, one_by_one, run_of, single_row
from agentq.app.where import CALL_KEYS, Terms, where
from agentq.core.errors import UsageError
from agentq.core.ids import check_name
from agentq.core.money import check_tokens, to_nano
from agentq.core.records import RunRecord
from agentq.core.settings import check_on_exhausted
from agentq.core.words import nearest
from agentq.engine.decide import Answer, Decided, Question, decide_many, questions
from agentq.engine.load import Load, Told, nobody
from agentq.engine.notify import check_notify
from agentq.engine.pilot import Pilot, parse_pilot
from agentq.engine.rows import Row
from agentq.provider.bounds import TokenBounds
from agentq.provider.client import LLMClient
from agentq.provider.pricing import ModelPricing
from agentq.provider.resilient import ResilientClient, RetryPolicy
from agentq.provider.resolve import ADAPTERS, resolve_model
from agentq.tools import ToolExecutor, ToolRegistry
from agentq.tools.spec import OnUnknown

_DETECTOR = LoopDetector()


class AgentQ(Installation):
    """One installation: a namespace in Redis, and the agents that run in it.

    Args:
        name: also the namespace, unless one is set.
        pricing: the prices of models, over those of the setting `prices_file`, over the built-in ones. An
            agent's own go over them.
        settings: see `agentq.core.settings.Settings`; each goes before the environment and the file.

    Raises:
        UsageError: for an unknown setting, one of the wrong kind, or a wrong file of prices.
    """

    # ── agents ───────────────────────────────────────────────────────────────────────────────────

    def agent(
        self,
        name: str,
        *,
        model: str | LLMClient,
        fallbacks: Sequence[str | LLMClient] = (),
        retry: RetryPolicy | None = None,
        base_url: str | None = None,
        api_key_file: str | None = None,
        provider: str | None = None,
        quirks: Mapping[str, Any] | None = None,
        model_options: Mapping[str, Any] | None = None,
        system: str = "",
        tools: Sequence[Any] = (),
        budgets: Budgets | None = None,
        output: Any = None,
        loop_detector: LoopDetector | None = _DETECTOR,
        max_tool_errors: int = 4,
        max_output_tokens: int = 2048,
        min_output_tokens: int | None = None,
        allowlist: Sequence[str] | None = None,
        pricing: Mapping[str, ModelPricing] | None = None,
        max_calls_per_step: int = 16,
        max_tool_bytes_per_step: int = 16_000,
        closing_seconds: float = 30.0,
        on_exhausted: str | None = None,
        key: str | None = None,
        on_denied: OnAnswer = "tell",
        on_expired: OnAnswer = "stop",
        on_unknown: OnUnknown = "tell",
        on_change: OnChange = "continue",
        context_window: int | None = None,
        on_overflow: OnOverflow = "stop",
    ) -> Agent:
        """Define an agent under a name that rows may ask for.

        Args:
            model: `openai:`, `openai-chat:` or `anthropic:` and a model's id, an object with
                `complete(ChatRequest)`, `scripted`, or `module:factory`.
            fallbacks: models that are asked in turn once the one before has failed as often as `retry` says,
                or in a way that no wait cures.
            retry: how often and how long each of them is tried; a single model 8 times, within the setting
                `patience_seconds`.
            base_url: where a provider's model is, in place of OPENAI_BASE_URL or ANTHROPIC_BASE_URL.
            api_key_file: a file with its key, in place of OPENAI_API_KEY or ANTHROPIC_API_KEY.
            provider: the name under which its prices are looked up, where the address does not say it.
            quirks: what this model wants otherwise than known, as `{"output_cap": "max_tokens"}`.
            model_options: added to each request as it is, as `{"reasoning": {"effort": "low"}}`. These five
                are of `model`; a fallback that needs its own is given as an object.
            loop_detector: the thresholds of each run's detector; None switches it off.
            min_output_tokens: the least output that a step may be cut to when money is short; None: an eighth
                of max_output_tokens, but not under 256; equal to max_output_tokens: never cut. A client's own
                `bound` is asked for each of at most four sizes of a step, and for the closing turn after it.
            tools: functions with `@tool`, and servers as `agentq.tools.mcp.MCPServer(…)`.
            allowlist: the tools that it may see and use; None for all of `tools`.
            max_tool_bytes_per_step: of all results of a step together. A run sets the worst case of so much
                aside for its closing turn: with a client that has no `bound`, four tokens a byte.
            closing_seconds: the deadline of the closing turn.
            on_exhausted: what its runs do when a scope around them is dry: `park`, `stop` or `winddown`; by
                default as the setting says. What is set on the scope itself goes before it.
            key: the name of the provider's account that pays; its runs are in the scope `key:<name>` too.
            on_denied: a call that a person refuses is told to the model (`tell`), or ends the run (`stop`).
            on_expired: the same for one on which nobody decides in time.
            on_unknown: when nobody knows whether a call with a side effect has acted: `tell` the model, or
                `ask` a person whether to make it again. A tool's own goes before it.
            on_change: a worker with another definition of the agent than the run has met may go on with it
                (`continue`), leave it to workers that have the old one (`pin`), or close it (`finish`).
            output: a pydantic model of an object. A final answer must be JSON of it: one that is not is sent
                back once, and then the run ends as `output_invalid`.
            context_window: how many tokens a call may have, input and output together; None: as the price of
                the model says, and not checked where that says nothing.
            on_overflow: a run whose next call would be longer ends as `context_overflow` (`stop`), or has its
                oldest turns summed up by a call of its model (`compact`).

        Raises:
            UsageError: when the name is taken, the model cannot be had, the allowlist names no tool of it, or
                the output is no such model.
        """
        check_name("agent", name)
        if name in self.agents:
            raise UsageError(f"there is an agent {name!r} already")
        registry = ToolRegistry(tools)
        for allowed in allowlist or ():
            if not registry.may_have(allowed):
                raise UsageError(
                    f"agent {name!r}: its allowlist names {allowed!r}, which is none of its tools"
                    f"{nearest(allowed, registry.own_names())}"
                )
        self.agents[name] = Agent(
            self._client(
                model,
                fallbacks,
                retry,
                base_url=base_url,
                api_key_file=api_key_file,
                provider=provider,
                quirks=quirks,
                options=model_options,
            ),
            ToolExecutor(registry),
            name=name,
            system=system,
            budgets=budgets or Budgets(),
            pricing=self.pricing | dict(pricing or {}),
            allowlist=allowlist,
            max_tool_errors=max_tool_errors,
            max_output_tokens=max_output_tokens,
            min_output_tokens=min_output_tokens,
            loop_detector=loop_detector,
            max_calls_per_step=max_calls_per_step,
            max_tool_bytes_per_step=max_tool_bytes_per_step,
            closing_seconds=closing_seconds,
            on_exhausted=None if on_exhausted is None else check_on_exhausted(on_exhausted),
            key=None if key is None else check_name("key", key),
            on_denied=on_denied,
            on_expired=on_expired,
            on_unknown=on_unknown,
            on_change=on_change,
            output=output,
            context_window=context_window,
            on_overflow=on_overflow,
            token_bounds=cast("TokenBounds", self.settings.token_bounds),
        )
        return self.agents[name]

    def _client(
        self,
        model: str | LLMClient,
        fallbacks: Sequence[str | LLMClient],
        retry: RetryPolicy | None,
        **options: Any,
    ) -> LLMClient:
        primary = resolve_model(model, **options, **self._call_seconds(model))()
        if not fallbacks and retry is None:
            return primary
        following = [resolve_model(link, **self._call_seconds(link))() for link in fallbacks]
        return ResilientClient(primary, following, policy=retry)

    def _call_seconds(self, model: str | LLMClient) -> dict[str, float]:
        is_http = isinstance(model, str) and model.partition(":")[0] in ADAPTERS
        return {"call_seconds": self.settings.call_timeout_seconds} if is_http else {}

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

    def write(
        self,
        load: Load,
        *,
        agent: str | None = None,
        on_exhausted: str | None = None,
        options: Mapping[str, str | int] | None = None,
        pilot: Pilot | None = None,
    ) -> Batch:
        """Write the rows of a load to their batch: see `submit_many`.

        Args:
            load: with all its rows added.
            agent: of the batch; None for that of its rows.
            on_exhausted: see `submit_many`.
            options: see `batch_options`.
            pilot: see `parse_pilot`.
        """
        self._submission(load.terms.tenant, load.terms.budgets).write(
            load,
            agent=agent,
            on_exhausted=None if on_exhausted is None else check_on_exhausted(on_exhausted),
            options=options,
            pilot=pilot,
        )
        return Batch(self.store, load.terms.batch, self.agents)

    def notice_to(self, url: str | None) -> dict[str, str]:
        """The option of a batch that has a URL told when it is over; nothing for None.

        Raises:
            UsageError: when it is no URL, is not allowed, or there is no secret to sign with.
        """
        return {} if url is None else {"notify": check_notify(url, self.settings)}

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
            budgets=budgets,
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
