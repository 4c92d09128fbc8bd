"""Schedules from Python: `AgentQ.schedule` makes one, and a `Schedule` looks at it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from agentq.agent.budgets import Budgets
from agentq.app.batch import Batch
from agentq.app.options import batch_options
from agentq.app.submission import entry, one_by_one
from agentq.core.errors import UsageError
from agentq.core.money import to_nano, to_usd
from agentq.core.words import nearest
from agentq.core.zones import local_zone, zone_of
from agentq.engine.load import Load, Told, nobody
from agentq.engine.plan import Plan, RowPack, batch_at, check_plan, check_schedule, next_time
from agentq.engine.rows import Row
from agentq.store.schedules import ScheduleRecord

if TYPE_CHECKING:
    from agentq.app.agentq import AgentQ


class Terms(TypedDict, total=False):
    """How each batch of a schedule is made: see `AgentQ.submit_many`."""

    tenant: str | None
    budgets: Budgets | None
    max_usd: Decimal | str | int | None
    max_tokens: int | None
    max_in_flight: int | None
    max_open: int | None
    priority: int | None
    on_exhausted: str | None
    notify: str | None


class Schedule:
    """Rows that become a batch again and again. Everything is read from Redis when it is asked for."""

    def __init__(self, app: AgentQ, name: str) -> None:
        self._app = app
        self.name = name

    def __repr__(self) -> str:
        return f"Schedule({self.name!r})"

    def record(self) -> ScheduleRecord:
        """Everything about the schedule but its rows.

        Raises:
            UsageError: when there is none of this name.
        """
        record = self._app.store.schedules.read(self.name)
        if record is None:
            raise self._missing()
        return record

    def plan(self) -> Plan:
        """What it says: when, and on which terms.

        Raises:
            UsageError: when there is none of this name.
        """
        return Plan.from_json(self.record().spec)

    @property
    def next(self) -> datetime | None:
        """When its next batch is made, in its own time zone; None while it is paused, or when it never is."""
        record = self.record()
        if record.next_ms is None or record.paused is not None:
            return None
        return _local(record.next_ms, Plan.from_json(record.spec))

    @property
    def last(self) -> Batch | None:
        """The batch that it has made last; None when there is none, or it is kept no longer."""
        last = self.record().last
        if last is None or self._app.store.batches.read(last) is None:
            return None
        return Batch(self._app.store, last, self._app.agents)

    def pause(self, by: str = "python") -> None:
        """Make no batch any more until it is resumed.

        Raises:
            UsageError: when there is none of this name.
        """
        self._there(self._app.store.schedules.pause(self.name, by))

    def resume(self) -> datetime | None:
        """Take back `pause`; its next time. What was due meanwhile is left out.

        Raises:
            UsageError: when there is none of this name.
        """
        store = self._app.store
        self._there(store.schedules.resume(self.name, next_time(self.plan(), store.watch.server_ms())))
        return self.next

    def run(self) -> str:
        """Have a worker make a batch now, also of a schedule that is paused; what the batch will be called.

        It is called after this minute: asked for twice in a minute it is the same one.

        Raises:
            UsageError: when there is none of this name.
        """
        plan = self.plan()
        asked_ms = self._app.store.schedules.ask(self.name)
        if asked_ms is None:
            raise self._missing()
        return batch_at(self.name, plan, asked_ms)

    def remove(self) -> None:
        """Forget it, with its rows. Its batches stay.

        Raises:
            UsageError: when there is none of this name.
        """
        self._there(self._app.store.schedules.remove(self.name))

    def _there(self, is_there: bool) -> None:
        if not is_there:
            raise self._missing()

    def _missing(self) -> UsageError:
        close = nearest(self.name, self._app.store.schedules.names())
        return UsageError(
            f"there is no schedule {self.name!r}{close}", hint="agentq schedules lists those that there are"
        )


def _local(time_ms: int, plan: Plan) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, UTC).astimezone(zone_of(plan.zone))


# ── making one ───────────────────────────────────────────────────────────────────────────────────────


class ScheduleDraft:
    """A schedule that is being made: its rows are checked like those of a batch, then kept. A context.

    Args:
        app: whose agents the rows name.
        name: of the schedule; its batches have their time behind it.
        cron: minute hour day month weekday.
        agent: of the rows that name none.
        tz: the time zone of `cron`; None for that of this machine.
        overlap: what to do when the batch before is not over yet: `skip` or `allow`.
        tell: see `agentq.engine.load.Told`.
        terms: see `Terms`.

    Raises:
        UsageError: when the name, the expression, the zone or one of the terms cannot be.
    """

    def __init__(
        self,
        app: AgentQ,
        name: str,
        cron: str,
        *,
        agent: str | None = None,
        tz: str | None = None,
        overlap: str = "skip",
        tell: Told = nobody,
        terms: Terms | None = None,
    ) -> None:
        self._app = app
        self.name = check_schedule(name)
        self.plan = Plan(
            cron=" ".join(cron.split()) if isinstance(cron, str) else cron,
            zone=local_zone() if tz is None else tz,
            overlap=overlap,
            agent=agent,
            **_terms(app, terms or {}),
        )
        check_plan(self.plan, 0)
        self._pack = RowPack()
        self._load = load_for(app, name, self.plan, tell)

    def __enter__(self) -> ScheduleDraft:
        return self

    def __exit__(self, *_: object) -> None:
        self._load.close()

    @property
    def load(self) -> Load:
        """What checks the rows, with what one batch of them comes to."""
        return self._load

    def add(self, where: str, row: Row | str) -> None:
        """Check a row and keep it, or keep what is wrong with it.

        Raises:
            UsageError: when the rows are more than a schedule may keep.
        """
        self._load.add(where, row)
        if isinstance(row, Row):
            self._pack.add(row)

    def write(self) -> tuple[Schedule, bool]:
        """Keep the schedule; it, and whether it is new: the same again is left alone.

        Raises:
            InputError: naming rows that cannot be; nothing was kept.
            ConflictError: when there is another one of that name.
            UnavailableError: when Redis cannot be reached.
        """
        self._load.check()
        if not self._pack.rows:
            raise UsageError(
                "a schedule needs rows: there are none", hint="each of its batches is made of the same ones"
            )
        store = self._app.store
        store.ping()
        chunks = self._pack.chunks()
        is_new = store.schedules.set(
            self.name,
            self.plan.to_json(),
            digest=self._pack.digest(self.plan),
            rows=self._pack.rows,
            chunks=chunks,
            next_ms=check_plan(self.plan, store.watch.server_ms()),
        )
        return Schedule(self._app, self.name), is_new


def make_schedule(
    app: AgentQ,
    name: str,
    cron: str,
    rows: Iterable[Mapping[str, Any] | Row],
    *,
    agent: str | None,
    tz: str | None,
    overlap: Literal["skip", "allow"],
    terms: Terms,
) -> Schedule:
    """See `AgentQ.schedule`."""
    with ScheduleDraft(app, name, cron, agent=agent, tz=tz, overlap=overlap, terms=terms) as draft:
        for number, item in enumerate(one_by_one(rows), start=1):
            draft.add(*entry(item, number, agent))
        return draft.write()[0]


def _terms(app: AgentQ, terms: Terms) -> dict[str, Any]:
    """The terms as a plan has them.

    Raises:
        UsageError: when one of them cannot be.
    """
    usd, budgets = terms.get("max_usd"), terms.get("budgets")
    fed = batch_options(terms.get("max_in_flight"), terms.get("max_open"), terms.get("priority"), None)
    return {
        "tenant": terms.get("tenant"),
        "budgets": None if budgets is None else budgets.over(app.run_limits).as_dict(),
        "max_usd": None if usd is None else f"{to_usd(to_nano(usd)):f}",
        "max_tokens": terms.get("max_tokens"),
        "on_exhausted": terms.get("on_exhausted"),
        "options": {**fed, **app.notice_to(terms.get("notify"))},
    }


def load_for(app: AgentQ, batch: str, plan: Plan, tell: Told) -> Load:
    """Begin to check rows for a batch on the terms of a plan."""
    return app.load(
        batch,
        tenant=plan.tenant,
        budgets=None if plan.budgets is None else Budgets.from_dict(plan.budgets),
        max_usd=plan.max_usd,
        max_tokens=plan.max_tokens,
        tell=tell,
    )
