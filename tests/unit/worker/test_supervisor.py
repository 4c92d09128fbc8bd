"""A parent with real children. The parent is a process of its own, so that it can be signalled and killed."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from pathlib import Path
from textwrap import dedent

import pytest

from agentq.core.errors import UnavailableError
from agentq.worker.supervisor import Child, Restarts, supervise, supervised
from tests.support.processes import is_alive
from tests.support.wait import wait_until

QUICK = Restarts(first_delay=0.01, longest_delay=0.02, quick_seconds=5, quick_crashes=5)

PARENT = """
    import signal, sys
    from agentq.worker.supervisor import Child, Restarts, supervise

    signal.signal(signal.SIGHUP, signal.{hangup})  # not as whoever runs the tests has it
    CHILD = '''{child}'''
    children = [Child(name, [sys.executable, "-c", CHILD]) for name in {names}]
    sys.exit(supervise(children, drain_seconds={drain}, on_ready=lambda: print("all ready", flush=True),
                       restarts=Restarts(first_delay=0.01)))
"""

# The lifeline ends those whose parent a failing test has killed.
DUTIFUL = """
import os, signal, sys, time
from agentq.worker.lifeline import watch_lifeline
watch_lifeline(lambda: os._exit(1))
def finish(*_):
    print("finishing", flush=True)
    time.sleep(0.2)
    print("done", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, finish)
print("at work", flush=True)
while True:
    time.sleep(0.05)
"""

STUBBORN = """
import os, signal, time
from agentq.worker.lifeline import watch_lifeline
watch_lifeline(lambda: os._exit(1))
signal.signal(signal.SIGTERM, lambda *_: print("no", flush=True))
print("at work", flush=True)
while True:
    time.sleep(0.05)
"""

TOLD_TWICE = """
import os, signal, sys, time
from agentq.worker.lifeline import watch_lifeline
watch_lifeline(lambda: os._exit(1))
def again(*_):
    print("twice", flush=True)
    sys.exit(0)
def told(*_):
    signal.signal(signal.SIGTERM, again)
    print("once", flush=True)
signal.signal(signal.SIGTERM, told)
print("at work", flush=True)
while True:
    time.sleep(0.05)
"""

WITH_LIFELINE = """
import os, signal, time
from agentq.worker.lifeline import watch_lifeline
assert watch_lifeline(lambda: os.kill(os.getpid(), signal.SIGTERM))
print("at work", flush=True)
while True:
    time.sleep(0.05)
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", dedent(code)]


@pytest.fixture
def start_parent(start_process):
    def start(child: str, *, names=("worker-1",), drain=20.0, hangup="SIG_DFL"):
        code = dedent(PARENT).format(child=child, names=list(names), drain=drain, hangup=hangup)
        parent = start_process(python(code))
        wait_until(lambda: parent.output.count("| at work") == len(names), "the children to work")
        return parent

    return start


def pids(output: str, name: str = "worker-1") -> list[int]:
    """The processes of a child so far, oldest first."""
    return [int(pid) for pid in re.findall(rf"{name} started, process (\d+)", output)]


def test_the_output_of_all_children_is_one_log_with_names(start_parent):
    parent = start_parent(DUTIFUL, names=("worker-1", "sweeper"))
    assert re.search(r"^worker-1 \| at work$", parent.output, re.MULTILINE)
    assert re.search(r"^sweeper  \| at work$", parent.output, re.MULTILINE)
    parent.signal(signal.SIGTERM)
    parent.wait()


def test_a_killed_child_is_started_again(start_parent):
    parent = start_parent(DUTIFUL)
    (first,) = pids(parent.output)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: parent.output.count("at work") == 2, "the second life")
    second = pids(parent.output)[-1]
    assert "worker-1 was killed by SIGKILL; starting it again in 0.01 s" in parent.output
    assert second != first
    assert is_alive(second)
    parent.signal(signal.SIGTERM)
    assert parent.wait() == 0
    assert not is_alive(second)


@pytest.mark.parametrize("number,code", [(signal.SIGINT, 130), (signal.SIGTERM, 0), (signal.SIGHUP, 0)])
def test_a_signal_lets_the_work_be_finished(start_parent, number, code):
    parent = start_parent(DUTIFUL, names=("worker-1", "worker-2"))
    parent.signal(number)
    assert parent.wait() == code
    for name in ("worker-1", "worker-2"):
        assert f"{name} | finishing" in parent.output
        assert f"{name} | done" in parent.output
    assert not any(is_alive(pid) for name in ("worker-1", "worker-2") for pid in pids(parent.output, name))


def test_a_hangup_is_nothing_under_nohup(start_parent):
    parent = start_parent(DUTIFUL, hangup="SIG_IGN")
    parent.signal(signal.SIGHUP)
    parent.signal(signal.SIGINT)
    assert parent.wait() == 130, "the first signal that it hears counts"


def test_ctrl_c_at_the_terminal_reaches_the_parent_only(start_parent):
    parent = start_parent(DUTIFUL)
    # What a terminal does: the signal goes to the whole foreground group.
    parent.signal_group(signal.SIGINT)
    assert parent.wait() == 130
    assert "worker-1 | done" in parent.output
    assert "KeyboardInterrupt" not in parent.output


def test_a_second_signal_is_passed_on_and_need_not_be_the_last(start_parent):
    parent = start_parent(TOLD_TWICE, names=("worker-1", "worker-2"), drain=600)
    parent.signal(signal.SIGINT)
    wait_until(lambda: parent.output.count("| once") == 2, "the children to hear of it")
    assert parent.returncode is None
    parent.signal(signal.SIGINT)
    assert parent.wait() == 130
    assert parent.output.count("| twice") == 2
    assert "is killed" not in parent.output


def test_a_child_that_hears_no_second_signal_is_killed(start_parent):
    parent = start_parent(STUBBORN, drain=600)
    parent.signal(signal.SIGINT)
    wait_until(lambda: "worker-1 | no" in parent.output, "the child to refuse")
    assert parent.returncode is None
    parent.signal(signal.SIGINT)
    assert parent.wait() == 130
    assert parent.output.count("worker-1 | no") == 2
    assert "worker-1 is killed 3 s after the second signal" in parent.output
    assert not is_alive(pids(parent.output)[0])


def test_after_the_drain_a_stubborn_child_is_killed(start_parent):
    parent = start_parent(STUBBORN, drain=0.2)
    parent.signal(signal.SIGTERM)
    assert parent.wait() == 0
    assert "worker-1 is killed after 0.2 s" in parent.output
    assert not is_alive(pids(parent.output)[0])


def test_when_the_parent_is_killed_the_children_see_it_and_end(start_parent):
    parent = start_parent(WITH_LIFELINE, names=("worker-1", "worker-2"))
    children = [*pids(parent.output, "worker-1"), *pids(parent.output, "worker-2")]
    parent.signal(signal.SIGKILL)
    parent.wait()
    wait_until(lambda: not any(is_alive(pid) for pid in children), "the children to end")


def test_the_lifeline_is_not_passed_on_by_the_environment(monkeypatch):
    from agentq.worker.lifeline import LIFELINE_FD, watch_lifeline

    reading, writing = os.pipe()
    closed = threading.Event()
    monkeypatch.setenv(LIFELINE_FD, str(reading))
    assert watch_lifeline(closed.set)
    assert LIFELINE_FD not in os.environ
    assert not closed.is_set()
    os.close(writing)
    assert closed.wait(10)
    os.close(reading)


@pytest.mark.parametrize("value", ["", "many", "987654", "0"])
def test_without_a_pipe_there_is_no_lifeline(monkeypatch, tmp_path, value):
    from agentq.worker.lifeline import LIFELINE_FD, watch_lifeline

    if value == "0":
        with (tmp_path / "file").open("w") as file:
            monkeypatch.setenv(LIFELINE_FD, str(file.fileno()))
            assert not watch_lifeline(pytest.fail)
        return
    monkeypatch.setenv(LIFELINE_FD, value)
    assert not watch_lifeline(pytest.fail)


def test_a_crash_loop_ends_with_1_after_five_restarts():
    said: list[str] = []
    code = supervise(
        [Child("worker-1", python("import sys; sys.exit('no such module')"))],
        drain_seconds=5,
        say=said.append,
        restarts=QUICK,
    )
    assert code == 1
    assert sum(line.endswith("no such module") for line in said) == 6
    assert said[-1].endswith("worker-1 ended with exit code 1, 6 times in a row: giving up")


def test_a_child_that_lives_long_enough_is_never_given_up(tmp_path):
    """Seven deaths, none of them quick."""
    said: list[str] = []
    stop = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        if sum("started, process" in line for line in said) == 8:
            stop.set()

    code = supervise(
        [Child("worker-1", ["true"])],
        drain_seconds=5,
        say=say,
        stop=stop,
        restarts=Restarts(first_delay=0.01, quick_seconds=0),
    )
    assert code == 0


def test_delays_double_up_to_ten_seconds():
    assert [Restarts().delay(n) for n in range(1, 8)] == [0.5, 1, 2, 4, 8, 10, 10]


def test_a_program_that_does_not_exist_is_one_sentence():
    said: list[str] = []
    assert supervise([Child("worker-1", ["/no/such/program"])], drain_seconds=5, say=said.append) == 1
    assert said == ["agentq   | worker-1 cannot be started: No such file or directory: /no/such/program"]


def test_each_child_waits_until_the_one_before_is_ready(tmp_path):
    """The second finds the file that makes the first one ready."""
    flag = tmp_path / "flag"
    first = f"import pathlib, time; time.sleep(0.3); pathlib.Path({str(flag)!r}).touch(); time.sleep(600)"
    second = f"import pathlib, time; print(pathlib.Path({str(flag)!r}).exists(), flush=True); time.sleep(600)"
    said: list[str] = []
    stop = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        if line.startswith("b "):
            stop.set()

    code = supervise(
        [Child("a", python(first), ready=flag.exists), Child("b", python(second))],
        drain_seconds=5,
        say=say,
        stop=stop,
    )
    assert code == 0
    assert "b      | True" in said


def test_a_child_that_never_is_ready_fails_the_start():
    said: list[str] = []

    def never() -> bool:
        raise ConnectionError("not yet")

    code = supervise(
        [Child("a", ["sleep", "600"], ready=never)], drain_seconds=5, say=said.append, ready_seconds=0.2
    )
    assert code == 1
    assert "a is not ready after 0.2 s" in said[-1]


@pytest.mark.parametrize("exit_code,expected", [(0, 0), (3, 1)])
def test_when_a_child_that_is_not_restarted_ends_all_ends_with_its_success(exit_code, expected):
    said: list[str] = []
    children = [
        Child("server", ["sleep", "600"]),
        Child("once", python(f"import sys; sys.exit({exit_code})"), restart=False),
    ]
    assert supervise(children, drain_seconds=5, say=said.append) == expected
    (server,) = pids("\n".join(said), "server")
    assert not is_alive(server)


def test_one_that_is_to_be_stopped_last_outlives_the_others():
    said: list[str] = []
    stop = threading.Event()
    children = [
        Child("last", python(DUTIFUL), stop_last=True),
        Child("worker-1", python(DUTIFUL)),
    ]

    def say(line: str) -> None:
        said.append(line)
        if sum("at work" in line for line in said) == 2:
            stop.set()

    assert supervise(children, drain_seconds=20, say=say, stop=stop) == 0
    assert said.index("worker-1 | done") < said.index("last     | finishing")


def test_what_a_dead_child_started_in_its_group_is_gone_before_its_next_life():
    code = """
        import os, subprocess, time
        helper = subprocess.Popen(["sleep", "600"])
        print("helper", helper.pid, flush=True)
        os.kill(os.getpid(), 9)
    """
    said: list[str] = []
    alive: list[bool] = []

    def say(line: str) -> None:
        if "starting it again" in line:
            alive.extend(is_alive(int(said_line.split()[-1])) for said_line in said if "helper" in said_line)
        said.append(line)

    restarts = Restarts(first_delay=0.01, quick_crashes=1)
    assert supervise([Child("worker-1", python(code))], drain_seconds=5, say=say, restarts=restarts) == 1
    assert alive == [False]


def test_a_line_without_end_and_strange_bytes_do_not_stop_the_log():
    code = r"""
        import sys
        sys.stdout.buffer.write(b"x" * 200_000 + b"\nbad \xff byte\r\nno newline")
    """
    said: list[str] = []
    supervise([Child("a", python(code), restart=False)], drain_seconds=5, say=said.append)
    lines = [line.removeprefix("a      | ") for line in said if line.startswith("a ")]
    assert sum(line.count("x") for line in lines) == 200_000
    assert max(map(len, lines)) < 150_000
    assert lines[-2:] == ["bad � byte", "no newline"]


def test_a_reader_of_the_log_that_is_gone_stops_nothing():
    def broken(line: str) -> None:
        raise BrokenPipeError

    assert supervise([Child("a", python("print(1)"), restart=False)], drain_seconds=5, say=broken) == 0


def test_a_child_gets_the_parents_environment_and_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("FROM_PARENT", "1")
    said: list[str] = []
    code = "import os; print(os.getcwd(), os.environ['FROM_PARENT'], os.environ['OWN'], os.read(0, 1))"
    child = Child("a", python(code), env={"OWN": "2"}, cwd=tmp_path, restart=False)
    assert supervise([child], drain_seconds=5, say=said.append) == 0
    assert f"a      | {Path(tmp_path).resolve()} 1 2 b''" in said


def test_a_block_has_its_children_while_it_lasts():
    said: list[str] = []
    with supervised(
        [Child("a", python(DUTIFUL), ready=lambda: any("at work" in s for s in said))],
        drain_seconds=20,
        say=said.append,
    ) as gone:
        (pid,) = pids("\n".join(said), "a")
        assert is_alive(pid)
        assert not gone.is_set()
    assert gone.is_set()
    assert "a      | done" in said
    assert not is_alive(pid)


def test_a_block_whose_children_cannot_start_is_not_entered():
    with (
        pytest.raises(UnavailableError, match="worker-1 could not be started"),
        supervised(
            [Child("worker-1", ["/no/such/program"], ready=lambda: False)],
            drain_seconds=5,
            say=lambda _: None,
        ),
    ):
        pytest.fail("entered")


def test_a_block_learns_that_its_children_failed():
    children = [Child("a", python("import time; time.sleep(0.3)"), restart=False)]
    with supervised(children, drain_seconds=5, say=lambda _: None) as gone:
        assert gone.wait(20)


def test_an_error_in_the_block_drains_the_children():
    said: list[str] = []
    children = [Child("a", python(DUTIFUL), ready=lambda: any("at work" in line for line in said))]
    with pytest.raises(RuntimeError, match="mine"), supervised(children, drain_seconds=20, say=said.append):
        raise RuntimeError("mine")
    assert "a      | done" in said


def test_two_children_of_one_name_are_refused():
    with pytest.raises(ValueError, match="different names"):
        supervise([Child("a", ["true"]), Child("a", ["true"])], drain_seconds=1)
