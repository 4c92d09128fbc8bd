"""A folder with agents in it, `agentq up` beside it, and what a person types there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGTERM
from textwrap import dedent
from typing import Any

from agentq.testing import FakeProvider
from agentq.worker.embedded import stop_running
from tests.support.processes import ProcessGroup
from tests.support.wait import wait_until

ROOT = Path(__file__).parents[2]
AGENTQ = (sys.executable, "-m", "agentq")
GOOD_KEY = "sk-good"
AGENTS = dedent(
    '''
    import os, time
    from agentq import AgentQ, Budgets, tool
    from agentq.provider.pricing import ModelPricing

    @tool
    def nap(seconds: float) -> str:
        """Rest."""
        time.sleep(seconds)
        return "rested"

    @tool(side_effect=True, requires_approval=True)
    def refund(order_id: int) -> str:
        """Give money back."""
        return "refunded"

    app = AgentQ("desk", pricing={"scripted-v1": ModelPricing("scripted-v1", "1", "10", 128_000)})
    celery = app.celery
    app.agent("helper", model="scripted", tools=[nap, refund],
              budgets=Budgets(max_steps=1000, max_tokens=None, max_seconds=None))
    app.agent("hasty", model="scripted", tools=[nap], budgets=Budgets(max_steps=1))
    app.agent("greeter", model="scripted:greeting.json")
    for name in ("remote", "locked"):
        app.agent(name, model="openai-chat:gpt-4o-mini", base_url=os.environ["PROVIDER_URL"],
                  api_key_file=f"{name}.key", budgets=Budgets(max_usd="1"))
    '''
)


class Desk:
    """Agents of every kind: one that waits for people, one that is cut short, one whose key is refused."""

    def __init__(self, folder: Path, provider_url: str) -> None:
        self.folder = folder
        self._run_ids: dict[str, list[str]] = {}
        self.env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PROVIDER_URL": provider_url,
            # A proxy of the machine is not asked for what is on this machine.
            "NO_PROXY": "127.0.0.1",
        }
        self.env.pop("OPENAI_API_KEY", None)
        (folder / "agents.py").write_text(AGENTS)
        (folder / "greeting.json").write_text('["Hello to you."]')
        (folder / "remote.key").write_text(GOOD_KEY)
        (folder / "locked.key").write_text("sk-wrong")

    def argv(self, *args: str) -> list[str]:
        """The command line of `agentq ARGS`."""
        return [*AGENTQ, *args]

    def start(self, *args: str) -> ProcessGroup:
        """`agentq ARGS`, going on by itself."""
        return ProcessGroup(self.argv(*args), cwd=self.folder, env=self.env)

    def type(
        self, *args: str, codes: Collection[int] = (0,), stdout: Any = subprocess.PIPE
    ) -> subprocess.CompletedProcess[str]:
        """`agentq ARGS`, which must end with one of these codes and without a traceback."""
        done = subprocess.run(
            self.argv(*args),
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode in codes, f"{args} → {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    def rows(self, name: str, *scripts: Sequence[Any]) -> str:
        """A file with a row for each script."""
        lines = [
            json.dumps({"custom_id": f"{name}-{number}", "input": "go", "metadata": {"script": script}})
            for number, script in enumerate(scripts, start=1)
        ]
        (self.folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        return f"{name}.jsonl"

    def submit(self, name: str, agent: str, *scripts: Sequence[Any], codes: Collection[int] = (0,)) -> None:
        """A batch of this name, until nothing in it moves."""
        self.type("submit", self.rows(name, *scripts), "--agent", agent, "--wait", codes=codes)

    def run_ids(self, batch: str) -> list[str]:
        """The runs of a batch, the newest first. Asked once: no rows are added to a batch here."""
        if batch not in self._run_ids:
            found = json.loads(self.type("runs", "--batch", batch, "--json").stdout)
            self._run_ids[batch] = [run["id"] for run in found["runs"]]
        return self._run_ids[batch]


def nap(seconds: float) -> list[list[str]]:
    """A turn of a script."""
    return [["nap", json.dumps({"seconds": seconds})]]


def naps() -> list[list[list[str]]]:
    """The script of a run that goes on for minutes, in steps of five seconds, and is in no loop."""
    return [nap(5 + number / 1000) for number in range(100)]


def refund(order_id: int) -> list[list[str]]:
    """A turn that waits for a person."""
    return [["refund", json.dumps({"order_id": order_id})]]


@contextmanager
def open_desk() -> Iterator[Desk]:
    """A desk with a running `agentq up`; everything ends with the block."""
    folder = Path(tempfile.mkdtemp(prefix="aqd-", dir="/tmp"))
    with FakeProvider(keys={GOOD_KEY}) as provider:
        desk = Desk(folder, provider.url)
        up = desk.start("up", "-A", "agents:app", "-c", "8")
        try:
            wait_until(
                lambda: "ready  " in up.output or up.returncode is not None, "agentq up to be ready", 60
            )
            assert up.returncode is None, up.output
            yield desk
        finally:
            if up.returncode is None:
                up.signal(SIGTERM)
                with suppress(AssertionError):
                    up.wait(30)
            up.end()
            stop_running(folder / ".agentq")
            shutil.rmtree(folder, ignore_errors=True)
