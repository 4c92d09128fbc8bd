"""A server of the test's own, an app in a folder, and real worker processes that may be killed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest

from agentq import AgentQ, Batch
from agentq.core.lifecycle import StopReason
from agentq.core.money import NANO
from agentq.core.records import RunRecord
from agentq.store.checkup import examine
from agentq.worker.command import worker_argv
from agentq.worker.embedded import EmbeddedServer
from agentq.worker.hints import hint_template
from tests.support.processes import ProcessGroup
from tests.support.wait import wait_until

ROOT = Path(__file__).parents[2]
APP = dedent(
    '''
    """Agents of the tests: a model that bills before it answers, and a tool that leaves a mark."""
    import json, os, time
    from agentq import AgentQ, Budgets, tool
    from agentq.provider.pricing import ModelPricing
    from agentq.provider.types import ChatResult, Role, ToolCall, Usage

    PRICE = ModelPricing("billed-1", "1", "10", 128_000)
    HERE = os.path.dirname(os.path.abspath(__file__))

    def append(name, line):
        fd = os.open(os.path.join(HERE, name), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, line.encode() + b"\\n")
        os.close(fd)

    class BilledClient:
        """Appends what a call costs to the bill, then takes its time, then answers."""
        provider, model = "test", "billed-1"

        def complete(self, req):
            turn = sum(m.role is Role.ASSISTANT for m in req.messages)
            usage = Usage(400 + turn, 90)
            append("bill", f"{req.metadata.get('row', 0)} {turn} {PRICE.cost_nano(usage)}")
            time.sleep(float(req.metadata.get("seconds", 0.02)))
            if req.tool_choice != "none" and turn < req.metadata["steps"] - 1:
                calls = (ToolCall("", "mark", json.dumps({"row": req.metadata["row"], "turn": turn})),)
                return ChatResult("", usage, "test", "billed-1", tool_calls=calls)
            return ChatResult("done", usage, "test", "billed-1")

    @tool
    def mark(row: int, turn: int) -> str:
        """Leave a mark."""
        append("marks", f"{row} {turn}")
        return "x" * 100

    app = AgentQ("fleet", pricing={"billed-1": PRICE})
    celery = app.celery
    app.agent("worker", model=BilledClient(), tools=[mark],
              budgets=Budgets(max_steps=1000, max_tokens=None, max_usd="5", max_seconds=None))
    '''
)


class Fleet:
    """Starts workers of one app on one server, and knows what the provider billed."""

    def __init__(self, home: Path, *, app: str = APP, **settings: object) -> None:
        self.home = home
        self.server = EmbeddedServer.start(home)
        (home / "fleet_app.py").write_text(app)
        self.env = {
            "AGENTQ_REDIS_URL": self.server.url,
            "AGENTQ_BROKER_URL": self.server.broker_url,
            **{f"AGENTQ_{name.upper()}": str(value) for name, value in settings.items()},
        }
        self._processes: list[ProcessGroup] = []
        self.app: AgentQ = self._module().app

    def _module(self) -> ModuleType:
        spec = importlib.util.spec_from_file_location(
            f"fleet_app_{self.home.name}", self.home / "fleet_app.py"
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.env.items():
                patch.setenv(name, value)
            spec.loader.exec_module(module)
        return module

    def type(self, *args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """`agentq …` as a person types it beside these workers; it must end with `code`."""
        done = subprocess.run(
            [sys.executable, "-m", "agentq", "-A", "fleet_app:app", *args],
            cwd=self.home,
            env={**os.environ, **self.env, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, f"{args} → {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    @property
    def queue(self) -> str:
        """The list that most messages go to."""
        return f"{self.app.store.keys.broker_prefix}steps\x06\x161"

    def admit(self) -> None:
        """Have rows admitted, and their messages sent, as if a worker had signed on; for a minute."""
        hint = hint_template(self.app.make_hint)
        self.app.store.watch.sign_on("a worker to come", 60, slots=16, hint=hint)

    def start_worker(self, *, concurrency: int = 8, **env: str) -> ProcessGroup:
        """A worker process, ready to take steps."""
        before = set(self.app.workers())
        name = f"w{len(self._processes)}"
        argv = worker_argv("fleet_app:app", concurrency=concurrency, name=name)
        process = ProcessGroup(argv, env={**self.env, **env}, cwd=self.home)
        self._processes.append(process)
        wait_until(lambda: set(self.app.workers()) - before, f"worker {name} to sign on", 30)
        return process

    def submit(
        self, rows: int, steps: int, *, batch: str = "b", seconds: float = 0.02, **options: Any
    ) -> Batch:
        """Runs that take so many steps each, each call so long."""
        return self.app.submit_many(
            "worker",
            [
                {
                    "input": f"row {row}",
                    "custom_id": str(row),
                    "metadata": {"row": row, "steps": steps, "seconds": seconds},
                }
                for row in range(rows)
            ],
            batch=batch,
            **options,
        )

    def lines(self, name: str) -> list[list[str]]:
        """The lines of `bill` (row, turn, nano-USD) or `marks` (row, turn) so far."""
        path = self.home / name
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def billed_nano(self) -> int:
        """All that the provider billed."""
        return sum(int(line[2]) for line in self.lines("bill"))

    def records(self, batch: str = "b") -> list[RunRecord]:
        """The runs of a batch, in order."""
        return [run.record() for run in self.app.batch(batch).runs()]

    def held(self, batch: str = "b") -> dict[str, str]:
        """The runs of a batch that some worker holds now, with their fences."""
        store = self.app.store
        found = {}
        for run_id in store.batches.live(batch):
            state, fence = store.client.hmget(store.keys.run(run_id), ["state", "fence"])
            if state == "running":
                found[run_id] = str(fence)
        return found

    def restart_server(self, signal: int = SIGKILL) -> None:
        """Kill the server and start it again on the same data."""
        os.kill(self.server.pid, signal)
        self.server.stop()
        self.server = EmbeddedServer.start(self.home)

    def check(self, batch: str, *, steps: int) -> None:
        """What must hold when everything has finished: each step once, the money whole, nothing left open."""
        for run in self.app.batch(batch).runs():
            record, thread = run.record(), run.thread()
            assert record.stop_reason is StopReason.FINISHED, record
            assert record.steps == steps, record
            assert [e.detail for e in thread.trace if e.kind == "step"] == [
                f"step {n + 1}" for n in range(steps)
            ]
            assert sum(bool(m.tool_calls) for m in thread.messages) == steps - 1
        self.check_closed(batch)

    def check_closed(self, batch: str) -> None:
        """What must hold when everything has ended, in whatever way: the money whole, nothing left open."""
        store = self.app.store
        for run in self.app.batch(batch).runs():
            assert store.ledger.open_reservations(run.id) == {}
            account = store.ledger.account(f"run:{run.id}")
            assert (account.reserved_nano, account.escrowed_nano) == (0, 0)
            assert account.spent_nano <= 5 * NANO
        for scope in ("global", "tenant:default", f"batch:{batch}"):
            account = store.ledger.account(scope)
            assert (account.reserved_nano, account.escrowed_nano) == (0, 0), account
            assert (account.tokens_reserved, account.tokens_escrowed) == (0, 0), account
        assert store.ledger.account("global").spent_nano >= self.billed_nano()
        assert store.watch.live() == {}
        found = examine(store).findings
        assert not found, found

    def check_undisturbed(self, batch: str, *, rows: int, steps: int) -> None:
        """And what must hold when no worker has died: none was taken for dead, no call made twice."""
        self.check(batch, steps=steps)
        assert {record.attempts for record in self.records(batch)} == {1}
        bought = sorted((int(row), int(turn)) for row, turn, _ in self.lines("bill"))
        assert bought == [(row, turn) for row in range(rows) for turn in range(steps)]
        account = self.app.store.ledger.account(f"batch:{batch}")
        assert (account.forfeited_nano, account.spent_nano) == (0, self.billed_nano())

    def end(self) -> None:
        """Kill everything that was started."""
        for process in self._processes:
            process.end()
        with suppress(Exception):
            self.app.celery.close()
        self.server.stop()


@pytest.fixture
def make_fleet() -> Iterator[type[Fleet]]:
    """`make_fleet(lease_seconds=…)`; its processes end with the test. `app` is another module than `APP`."""
    started: list[tuple[Fleet, Path]] = []

    def make(**settings: Any) -> Fleet:
        home = Path(tempfile.mkdtemp(prefix="aqf-", dir="/tmp"))
        started.append((Fleet(home, **settings), home))
        return started[-1][0]

    yield make  # type: ignore[misc]
    for fleet, home in started:
        fleet.end()
        shutil.rmtree(home, ignore_errors=True)
        sys.modules.pop(f"fleet_app_{home.name}", None)
