"""`agentq up` as a process in a folder, and the verbs against it, as a person types them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM
from textwrap import dedent
from typing import Any

import pytest

from agentq.worker.embedded import stop_running
from tests.support.processes import ProcessGroup
from tests.support.wait import wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
AGENTS = dedent(
    '''
    import time
    from pathlib import Path
    from agentq import AgentQ, Budgets, tool
    from agentq.provider.pricing import ModelPricing

    @tool
    def nap(seconds: float) -> str:
        """Rest."""
        Path("napping").touch()
        time.sleep(seconds)
        return "rested"

    @tool(side_effect=True, requires_approval=True)
    def refund(order_id: int) -> str:
        """Give money back."""
        return "refunded"

    app = AgentQ("shop", pricing={"scripted-v1": ModelPricing("scripted-v1", "1", "10", 128_000)})
    app.agent("helper", model="scripted", tools=[nap, refund])
    app.agent("greeter", model="scripted:greeting.json")
    app.agent("hasty", model="scripted", tools=[nap], budgets=Budgets(max_steps=1))
    celery = app.celery
    '''
)


class Desk:
    """A folder with agents in it, in which things are typed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.ups: list[ProcessGroup] = []
        (folder / "agents.py").write_text(AGENTS)
        (folder / "greeting.json").write_text('["Hello to you."]')

    def type(self, *args: str, input: str | None = None, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "agentq", *args],
            cwd=self.folder,
            env=self.env,
            input=input or "",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, f"{args} → {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def up(self, *args: str) -> ProcessGroup:
        """`agentq up`, ready."""
        argv = [sys.executable, "-m", "agentq", "up", "-A", "agents:app", "-c", "4", *args]
        process = ProcessGroup(argv, cwd=self.folder, env={"PYTHONPATH": str(ROOT)})
        self.ups.append(process)
        wait_until(
            lambda: "ready  " in process.output or process.returncode is not None, "agentq up to be ready", 30
        )
        assert process.returncode is None, process.output
        return process

    def rows(self, name: str, *scripts: list[object]) -> str:
        lines = [
            json.dumps({"custom_id": f"{name}-{number}", "input": "go", "metadata": {"script": script}})
            for number, script in enumerate(scripts, start=1)
        ]
        (self.folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        return f"{name}.jsonl"

    def counts(self, batch: str) -> dict[str, Any]:
        counts: dict[str, Any] = json.loads(self.type("status", batch, "--json").stdout)
        return counts

    def clear(self) -> None:
        for process in self.ups:
            if process.returncode is None:
                process.signal(SIGTERM)
                with suppress(AssertionError):
                    process.wait(20)
            process.end()
        stop_running(self.folder / ".agentq")


def nap(seconds: float) -> list[list[str]]:
    return [["nap", json.dumps({"seconds": seconds})]]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.clear()


def test_a_day_at_the_desk(desk: Desk) -> None:
    up = desk.up()

    file = desk.rows("first", ["done"], [nap(0.1), "rested"])
    done = desk.type("submit", file, "--agent", "helper", "--wait", "-o", "out.jsonl")
    assert "first: 2 of 2 ended, 0.004500 USD" in done.stdout
    assert "2 results written" in done.stderr

    again = desk.type("results", "first", "-o", "out.jsonl")
    assert "0 results written, 2 were there" in again.stderr
    lines = [json.loads(line) for line in (desk.folder / "out.jsonl").read_text().splitlines()]
    assert [line["custom_id"] for line in lines] == ["first-1", "first-2"]
    assert lines[1]["response"]["body"]["choices"][0]["message"]["content"] == "rested"

    resumed = desk.type("submit", file, "--agent", "helper", "--wait")
    assert "2 of 2 ended, 0.004500 USD" in resumed.stdout
    conflict = desk.rows("first", ["something else"])
    assert "other content" in desk.type("submit", conflict, "--agent", "helper", code=2).stderr

    assert "first" in desk.type("status").stdout
    assert desk.type("run", "greeter", "hi").stdout == "Hello to you.\n"
    shown = desk.type("show", lines[1]["id"], "--trace").stdout
    assert "nap:ok" in shown
    assert json.loads(desk.type("show", lines[1]["id"], "--raw").stdout)
    assert json.loads(desk.type("metrics", "first", "--json").stdout)["completion_rate"] == 1.0
    assert all(check["ok"] for check in json.loads(desk.type("doctor", "--json").stdout))
    assert "already runs" in desk.type("up", "-A", "agents:app", code=2).stderr

    up.signal(SIGINT)
    assert up.wait() == 130
    assert "no state server" in desk.type("status", code=7).stderr


def test_exit_codes_of_a_batch(desk: Desk) -> None:
    desk.up()
    stopped = desk.rows("stopped", [nap(0.01), nap(0.02), "x"])
    desk.type("submit", stopped, "--agent", "hasty", "--wait", code=4)
    (desk.folder / "failed.jsonl").write_text('{"input": "no script"}\n')
    desk.type("submit", "failed.jsonl", "--agent", "helper", "--wait", code=3)
    waiting = desk.rows("waiting", [[["refund", '{"order_id": 7}']], "done"])
    desk.type("submit", waiting, "--agent", "helper", "--wait", code=5)
    assert 'refund({"order_id": 7})' in desk.type("status", "waiting").stdout
    late = desk.rows("late", [nap(20), "done"])
    desk.type("submit", late, "--agent", "helper")
    desk.type("wait", "late", "--timeout", "0.3", code=6)
    assert "nobody to ask" in desk.type("cancel", "late", code=2).stderr
    assert desk.type("cancel", "late", "-y").stdout.startswith("late: 1 run cancelled\n")
    assert desk.type("cancel", "waiting", "-y").stdout == "waiting: 1 run cancelled\n"
    desk.type("wait", "waiting")
    assert desk.counts("waiting")["stop_reasons"] == {"cancelled": 1}


def test_leaving_a_watch_cancels_nothing(desk: Desk) -> None:
    desk.up()
    # Long enough for a watch that starts on a machine with other things to do.
    desk.type("submit", desk.rows("long", [nap(9), "done"]), "--agent", "helper")
    watch = ProcessGroup([sys.executable, "-m", "agentq", "watch", "long"], cwd=desk.folder, env=desk.env)
    try:
        wait_until(lambda: "0/1 done" in watch.output, "the watch to say something", 20)
        watch.signal(SIGINT)
        assert watch.wait() == 130
        assert "detached" in watch.output
    finally:
        watch.end()
    assert "finished" in desk.type("wait", "long").stdout


def test_ctrl_c_lets_the_step_at_hand_end_and_what_is_left_goes_on_later(desk: Desk) -> None:
    up = desk.up()
    desk.type("submit", desk.rows("long", [nap(1.5), nap(1.6), "done"]), "--agent", "helper")
    wait_until((desk.folder / "napping").exists, "the run to be at work", 20)
    up.signal(SIGINT)
    assert up.wait() == 130
    assert "killed" not in up.output

    desk.up()
    assert "1 of 1 ended" in desk.type("wait", "long", "--timeout", "40").stdout
    (line,) = desk.type("results", "long").stdout.splitlines()
    result = json.loads(line)["agentq"]
    assert (result["stop_reason"], result["steps"], result["usd"]) == ("finished", 3, "0.0045")


def test_a_killed_up_leaves_a_server_that_down_stops_and_up_goes_on_with(desk: Desk) -> None:
    up = desk.up()
    desk.type("submit", desk.rows("first", ["done"]), "--agent", "helper", "--wait")
    up.signal(SIGKILL)
    up.wait()
    assert "no state server" in desk.type("status", code=7).stderr
    assert "stopped" in desk.type("down").stdout
    assert "nothing runs" in desk.type("down").stdout
    desk.up()
    assert desk.counts("first")["ended"] == 1
    assert "stopped" in desk.type("down").stdout
    assert desk.ups[-1].wait() == 0


def test_bad_input_reaches_no_server(desk: Desk) -> None:
    desk.up()
    (desk.folder / "bad.jsonl").write_text('{"input": "a"}\n{"input": "b"}\n{"input": \n')
    refused = desk.type("submit", "bad.jsonl", "--agent", "helper", code=2)
    assert "bad.jsonl:3: not JSON" in refused.stderr
    refused = desk.type("submit", desk.rows("good", ["x"]), "--agent", "helpr", code=2)
    assert "did you mean 'helper'" in refused.stderr
    assert json.loads(desk.type("batches", "--json").stdout) == []


@pytest.mark.parametrize("verb", ["status", "doctor", "submit good.jsonl -A agents:app --agent helper"])
def test_a_server_that_is_not_there_is_exit_7_soon(desk: Desk, verb: str) -> None:
    desk.rows("good", ["x"])
    started = time.monotonic()
    failed = desk.type("--redis-url", "redis://127.0.0.1:1/0", *verb.split(), code=7)
    assert time.monotonic() - started < 30
    assert "Traceback" not in failed.stderr
    assert "127.0.0.1:1" in failed.stderr + failed.stdout


def test_a_server_that_listens_and_never_answers_is_exit_7_soon(desk: Desk) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        started = time.monotonic()
        failed = desk.type("--redis-url", f"redis://127.0.0.1:{port}/0", "status", code=7)
    assert time.monotonic() - started < 30
    assert "Traceback" not in failed.stderr
    assert f"127.0.0.1:{port}" in failed.stderr


def test_a_worker_joins_what_up_has_started_and_leaves_on_its_own(desk: Desk) -> None:
    desk.up()
    argv = [sys.executable, "-m", "agentq", "worker", "-c", "2", "--name", "second"]
    worker = ProcessGroup(argv, cwd=desk.folder, env=desk.env)
    try:
        wait_until(
            lambda: len(json.loads(desk.type("status", "--json").stdout)["workers"]) == 2, "two workers", 30
        )
        worker.signal(SIGTERM)
        assert worker.wait() == 0, worker.output
    finally:
        worker.end()
    assert len(json.loads(desk.type("status", "--json").stdout)["workers"]) == 1
