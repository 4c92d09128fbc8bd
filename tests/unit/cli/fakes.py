"""Stand-ins for the app, so that the command line is tested without a server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from click.testing import CliRunner, Result

from agentq.agent import Agent, ScriptedClient
from agentq.app.result import Result as RunResult
from agentq.cli.group import main
from agentq.core.errors import UsageError
from agentq.core.lifecycle import RunState, StopReason
from agentq.core.records import Account, BatchRecord, Parked, RunRecord, RunSpec
from agentq.core.settings import Settings
from agentq.core.words import nearest
from agentq.engine.cancel import Cancelled
from agentq.engine.load import Load
from agentq.engine.patterns import Terms
from agentq.engine.rows import Row
from agentq.provider.types import Usage
from agentq.tools import ToolExecutor, ToolRegistry


def invoke(*args: str, input: str | None = None, color: bool = False) -> Result:
    """`agentq ARGS`, streams apart; with `color` on streams that can show some."""
    return CliRunner().invoke(main, list(args), input=input, color=color)


def result(custom_id: str, reason: StopReason = StopReason.FINISHED, **changes: Any) -> RunResult:
    """A result with everything in it."""
    fields: dict[str, Any] = {
        "custom_id": custom_id,
        "run_id": f"run_{custom_id}",
        "state": "ended",
        "stop_reason": reason,
        "answer": "done",
        "output": None,
        "steps": 2,
        "usage": Usage(1000, 200),
        "usd": Decimal("0.003"),
        "attempts": 1,
        "error": None if reason.is_success or reason.is_budget else {"code": reason.value, "message": "why"},
        "stop_scope": None,
        "stop_detail": None,
        "started_ms": 1_700_000_000_000,
        "ended_ms": 1_700_000_001_500,
        "metadata": {"k": "v"},
        "agent": "orders",
    }
    return RunResult(**(fields | changes))


@dataclass
class FakeBatch:
    """A batch whose runs have all ended, unless told otherwise."""

    name: str = "b"
    reasons: Mapping[str, int] = field(default_factory=lambda: {"finished": 2})
    waiting: int = 0
    queued: int = 0
    money: Mapping[Parked, int] = field(default_factory=dict)
    found: list[RunResult] = field(default_factory=lambda: [result("a"), result("b")])
    cancelled: bool = False
    at_work: Mapping[str, str] = field(default_factory=dict)
    held: int = 0
    refused: int = 0

    def counts(self, record: BatchRecord | None = None) -> dict[str, int]:
        ended = sum(self.reasons.values())
        live = {"queued": self.queued, "running": 0, "cancelling": 0, "waiting": self.waiting}
        live["parked"] = sum(self.money.values())
        live["held"] = self.held
        return {"total": ended + sum(live.values()), "rows": 0, "ended": ended, **live}

    def parked(self) -> Mapping[Parked, int]:
        return self.money

    def live(self, limit: int) -> Iterator[RunRecord]:
        return (run_record(state=RunState.QUEUED, stop_reason=None) for _ in range(min(self.queued, limit)))

    def stop_reasons(self) -> dict[str, int]:
        return dict(self.reasons)

    def account(self) -> Account:
        return Account(f"batch:{self.name}", spent_nano=6_000_000)

    def record(self) -> BatchRecord:
        counts = self.counts()
        return BatchRecord(
            *(self.name, "orders", "default", counts["total"], counts["ended"], True, 0, self.reasons),
            counters={"refused": self.refused},
        )

    def forecast(self) -> None:
        return None

    def results(self) -> Iterator[RunResult]:
        return iter(self.found)

    def cancel(self, by: str = "python") -> Cancelled:
        self.cancelled = True
        return Cancelled(live=self.queued, stopped_at=dict(self.at_work))


class FakeInbox:
    """A store in which nobody is asked."""

    @property
    def approvals(self) -> FakeInbox:
        return self

    def count(self) -> int:
        return 0

    @property
    def watch(self) -> FakeInbox:
        return self

    def server_ms(self) -> int:
        return 0

    @property
    def batches(self) -> FakeInbox:
        return self

    def names(self) -> list[str]:
        return []

    def read(self, name: str) -> None:
        """No batch is there."""


@dataclass
class FakeApp:
    """An app that has one batch."""

    only: FakeBatch = field(default_factory=FakeBatch)
    settings: Settings = field(default_factory=lambda: Settings(redis_url="redis://nowhere:1/0"))
    agents: dict[str, Any] = field(default_factory=lambda: {"orders": object(), "triage": object()})
    submitted: list[Any] = field(default_factory=list)
    store: FakeInbox = field(default_factory=FakeInbox)

    def ping(self) -> None:
        pass

    def workers(self) -> list[str]:
        return []

    def batch(self, name: str) -> FakeBatch:
        if name != self.only.name:
            raise UsageError(f"there is no batch {name!r}", hint="agentq batches lists those that there are")
        return self.only

    def batches(self) -> list[FakeBatch]:
        return [self.only]

    def load(self, batch: str, **_: Any) -> FakeLoad:
        return FakeLoad(self, batch)

    def notice_to(self, url: str | None) -> dict[str, str]:
        assert url is None
        return {}

    def write(self, load: FakeLoad, **_: Any) -> FakeBatch:
        load.check()
        self.submitted += load.added
        return self.only


class FakeLoad(Load):
    """A load that is written nowhere: it says which rows it was given."""

    def __init__(self, app: FakeApp, batch: str) -> None:
        self._app = app
        self.added: list[Row] = []
        super().__init__(Terms(batch=batch, tenant="default", on_unpriced="allow"), self._agent_of)

    def add(self, where: str, row: Row | str) -> None:
        super().add(where, row)
        if isinstance(row, Row):
            self.added.append(row)

    def _agent_of(self, name: str, call: Mapping[str, Any] | None) -> Agent:
        assert call is None
        agents = self._app.agents
        if name not in agents:
            unknown = f"there is no agent {name!r}{nearest(name, agents)}"
            raise UsageError(unknown if name else "no agent is named")
        return Agent(ScriptedClient(["done"]), ToolExecutor(ToolRegistry([])))


def run_record(**changes: Any) -> RunRecord:
    """A run that has ended well."""
    fields: dict[str, Any] = {
        "id": "run_a",
        "spec": RunSpec("orders"),
        "state": RunState.ENDED,
        "step": 2,
        "phase": "model",
        "created_ms": 0,
        "stop_reason": StopReason.FINISHED,
        "answer": "done",
    }
    return RunRecord(**(fields | changes))
