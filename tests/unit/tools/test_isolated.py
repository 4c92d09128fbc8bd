"""A tool in a process of its own is killed at its timeout, with all that it has started."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from agentq.tools import CallContext, ToolExecutor, ToolRegistry, ToolResult, tool
from agentq.tools import processes as module
from agentq.tools.processes import PROCESSES, Processes
from tests.support.processes import StartProcess, is_alive
from tests.support.wait import wait_until

ROOT = Path(__file__).parents[3]
LONG_S = 60


class Parcel(BaseModel):
    """What is sent."""

    weight: int
    day: date


isolated = partial(tool, isolation="process")


@isolated(timeout_s=30)
def where(ctx: CallContext, parcel: Parcel) -> dict[str, Any]:
    """Say what arrived."""
    return {"pid": os.getpid(), "weight": parcel.weight, "day": parcel.day, "ctx": ctx.extra["shelf"]}


@isolated(timeout_s=1)
def sleep(pids: str) -> str:
    """Sleep."""
    note(pids, os.getpid())
    time.sleep(LONG_S)
    return "awake"


@isolated(side_effect=True, timeout_s=1)
def act(pids: str) -> str:
    """Act slowly."""
    note(pids, os.getpid())
    time.sleep(LONG_S)
    return "acted"


@isolated(timeout_s=2)
def litter(pids: str) -> str:
    """Start what outlives a tool: in its group, in a session of its own, and one whose parent is gone."""
    for alone in (False, True):
        note(pids, subprocess.Popen(["sleep", "600"], start_new_session=alone).pid)
    script = (
        "from subprocess import DEVNULL as no, Popen;"
        "print(Popen(['sleep', '600'], start_new_session=True, stdout=no, stderr=no).pid)"
    )
    note(pids, int(subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout))
    time.sleep(LONG_S)
    return ""


@isolated(timeout_s=30)
def leave(code: int) -> str:
    """End the process."""
    os._exit(code)


@isolated(timeout_s=30)
def crash() -> str:
    """Read where nothing is."""
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    return ctypes.string_at(0).decode()


@isolated(timeout_s=30)
def fail() -> str:
    """Fail."""
    raise LookupError("x" * 5000)


@isolated(timeout_s=30, max_result_chars=10)
def long(chars: int) -> str:
    """Be long."""
    return "x" * chars


@isolated(timeout_s=30)
def family(ctx: CallContext) -> str:
    """Start a child run."""
    return ctx.spawn("other", "hello")


@isolated(timeout_s=30)
async def later(n: int) -> int:
    """Answer later."""
    await asyncio.sleep(0)
    return n + os.getpid() * 0


@isolated(timeout_s=30)
def pid() -> int:
    """Say the process."""
    time.sleep(0.2)
    return os.getpid()


def note(path: str, pid: int) -> None:
    with Path(path).open("a") as file:
        file.write(f"{pid}\n")


def noted(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


TOOLS = (where, sleep, act, litter, leave, crash, fail, long, family, later, pid)
EXECUTOR = ToolExecutor(ToolRegistry(TOOLS))


@pytest.fixture(autouse=True, scope="module")
def _no_process_is_left() -> Iterator[None]:
    yield
    PROCESSES.close()


@pytest.fixture
def pids(tmp_path: Path) -> Path:
    return tmp_path / "pids"


@pytest.fixture
def warm() -> None:
    """A process is there: how long one takes to start is not what is measured."""
    assert call("later", n=1).ok


def call(name: str, /, ctx: CallContext | None = None, **arguments: Any) -> ToolResult:
    import json

    return EXECUTOR.call(name, json.dumps(arguments), ctx)


def test_it_gets_its_arguments_and_the_context_and_runs_elsewhere() -> None:
    result = EXECUTOR.call(
        "where",
        '{"parcel": {"weight": 3, "day": "2026-01-02"}}',
        CallContext(extra={"shelf": 4}),
    )
    assert result.ok, result.content
    assert '"weight":3,"day":"2026-01-02","ctx":4' in result.content
    assert f'"pid":{os.getpid()},' not in result.content


def test_the_function_itself_stays_in_the_process_that_calls_it() -> None:
    assert pid() == os.getpid()


def test_a_call_that_sleeps_is_over_in_time_and_leaves_no_process(warm: None, pids: Path) -> None:
    started = time.monotonic()
    result = call("sleep", pids=str(pids))
    assert time.monotonic() - started < 2
    assert (result.ok, result.error_code, result.retryable) == (False, "timeout", True)
    (left,) = noted(pids)
    assert not is_alive(left)


def test_a_side_effect_that_was_killed_may_have_acted(warm: None, pids: Path) -> None:
    result = call("act", pids=str(pids))
    assert (result.error_code, result.retryable) == ("outcome_unknown", False)
    assert not is_alive(noted(pids)[0])


def test_what_a_tool_has_started_is_killed_with_it(warm: None, pids: Path) -> None:
    assert call("litter", pids=str(pids)).error_code == "timeout"
    assert len(noted(pids)) == 3
    assert [is_alive(left) for left in noted(pids)] == [False] * 3


@pytest.mark.parametrize(
    "name, arguments, says",
    [
        ("leave", {"code": 7}, "no answer: its process ended with exit code 7"),
        ("crash", {}, "no answer: its process was ended by SIGSEGV"),
    ],
)
def test_a_process_that_dies_is_an_error_of_its_call_alone(
    name: str, arguments: dict[str, Any], says: str
) -> None:
    result = call(name, **arguments)
    assert result.error_code == "tool_error"
    assert says in result.content
    assert call("later", n=3).content == "3"


def test_what_it_raises_is_told_by_class() -> None:
    result = call("fail")
    assert result.error_code == "tool_error"
    assert result.content.startswith("The tool failed with LookupError: xxx")
    assert len(result.content) < 700
    assert "UsageError: ctx.spawn is not there in a tool with isolation='process'" in call("family").content


def test_a_long_result_is_cut_and_says_by_how_much() -> None:
    assert call("long", chars=25).content == "x" * 10 + "\n[cut: 15 more characters omitted]"
    assert call("long", chars=40_000_000).content.endswith("[cut: 39999990 more characters omitted]")


def test_arguments_that_cannot_cross_are_an_error_before_anything_is_done() -> None:
    extra = CallContext(extra={"shelf": threading.Lock()})
    result = EXECUTOR.call("where", '{"parcel": {"weight": 3, "day": "2026-01-02"}}', extra)
    assert "arguments that cannot be sent to its process" in result.content
    huge = CallContext(extra={"shelf": "x" * 17_000_000})
    assert (
        "too long" in EXECUTOR.call("where", '{"parcel": {"weight": 3, "day": "2026-01-02"}}', huge).content
    )
    assert call("later", n=3).content == "3"


def test_a_process_is_used_again_and_many_work_side_by_side() -> None:
    first = call("pid").content
    assert call("pid").content == first
    found = EXECUTOR.call_many([("pid", "{}")] * 6)
    assert len({result.content for result in found}) == 6
    assert all(result.ok for result in found)


def test_a_call_without_a_place_waits_for_one_and_is_not_begun_after_its_time(
    monkeypatch: pytest.MonkeyPatch, pids: Path
) -> None:
    few = Processes(limit=1)
    monkeypatch.setattr(module, "PROCESSES", few)
    try:
        assert call("later", n=1).ok
        first, second = EXECUTOR.call_many([("sleep", f'{{"pids": "{pids}"}}')] * 2)
        codes = sorted([first.content, second.content])
        assert codes[0].startswith("No answer within 1 s.")
        assert codes[1].startswith("The tool was not started: 1 others are at work")
        assert {first.error_code, second.error_code} == {"timeout"}
        assert len(noted(pids)) == 1
    finally:
        few.close()


def test_a_process_that_is_slow_to_start_serves_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = Processes()
    monkeypatch.setattr(module, "PROCESSES", fresh)
    monkeypatch.setattr(later.tool_spec.fn, "timeout_s", 0.01)
    try:
        result = call("later", n=1)
        assert (result.error_code, result.retryable) == ("timeout", True)
        assert "its process needs longer than that to start" in result.content
        monkeypatch.undo()
        monkeypatch.setattr(module, "PROCESSES", fresh)
        assert call("later", n=1).ok
        assert len(fresh._hosts) == 1
    finally:
        fresh.close()


def test_a_dead_process_is_not_given_a_call(warm: None) -> None:
    idle = int(call("pid").content)
    os.kill(idle, signal.SIGKILL)
    wait_until(lambda: not is_alive(idle), "the process to die")
    assert call("pid").content != str(idle)


def test_few_idle_processes_are_kept() -> None:
    EXECUTOR.call_many([("pid", "{}")] * 8)
    assert len(PROCESSES._hosts) <= module.MAX_IDLE


PROGRAM = textwrap.dedent(
    """
    import os, subprocess, sys, threading, time
    from agentq.tools import ToolExecutor, ToolRegistry, tool

    @tool(isolation="process", timeout_s=60)
    def hang() -> str:
        '''Hang.'''
        other = subprocess.Popen(["sleep", "600"], start_new_session=True)
        print(os.getpid(), os.getppid(), other.pid, flush=True)
        time.sleep(60)

    @tool(isolation="process", timeout_s=60)
    def here() -> str:
        '''Say where.'''
        return __name__

    if __name__ == "__main__":
        executor = ToolExecutor(ToolRegistry([hang, here]))
        print(executor.call("here", "").content, flush=True)
        if sys.argv[1:] == ["hang"]:
            executor.call("hang", "")
    """
)


def test_a_program_that_is_run_as_a_file_has_isolated_tools_and_leaves_nothing(tmp_path: Path) -> None:
    """It is imported under another name, so it does not start again; it ends without a word of warning."""
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "program.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "__mp_main__\n", "")


@pytest.mark.parametrize("victim", ["worker", "guardian"])
def test_nothing_is_left_when_the_worker_or_the_guardian_is_killed(
    tmp_path: Path, start_process: StartProcess, victim: str
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    argv = [sys.executable, "program.py", "hang"]
    worker = start_process(argv, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    line = wait_until(lambda: worker.output.splitlines()[1:], "the tool to hang", 30)[0]
    its, guardian, started = (int(word) for word in line.split())
    os.kill(worker.pid if victim == "worker" else guardian, signal.SIGKILL)
    gone: Callable[[], bool] = lambda: not is_alive(its)  # noqa: E731
    wait_until(gone, "the tool's process to end")
    if victim == "worker":
        wait_until(lambda: not is_alive(started), "what the tool has started to end")
        wait_until(lambda: not is_alive(guardian), "the guardian to end")
    else:
        os.kill(started, signal.SIGKILL)


def test_a_fork_of_the_worker_does_not_keep_a_tool_alive(warm: None) -> None:
    """The child lets go of the processes of its parent, and starts its own."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write_end, b"0" if PROCESSES._hosts or PROCESSES._idle else b"1")
        os._exit(0)
    os.close(write_end)
    assert os.read(read_end, 1) == b"1"
    os.close(read_end)
    os.waitpid(child, 0)
    assert call("later", n=3).content == "3"


def test_what_no_other_process_could_import_is_refused_where_it_is_defined() -> None:
    def inner() -> str:
        """Be inside."""
        return ""

    with pytest.raises(ValueError, match="inner: with isolation='process' it must be a function of a module"):
        tool(isolation="process")(inner)
    with pytest.raises(ValueError, match="must be a function of a module, not a lambda"):
        tool(isolation="process", name="x", description="d")(lambda: 1)
    with pytest.raises(ValueError, match="isolation is 'thread' or 'process', not 'fork'"):
        tool(isolation="fork")(inner)  # type: ignore[call-overload]
    shell = subprocess.run(
        [sys.executable, "-"],
        input="from agentq import tool\n@tool(isolation='process')\ndef f() -> str:\n    'Doc.'\n\n",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "with isolation='process' it must be in a file" in shell.stderr
