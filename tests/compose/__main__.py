"""`python -m tests.compose`: docker-compose.yml on a real engine, as docs/deployment.md has it.

The engine is the one that `docker info` finds; else a throw-away one is started (`engine.sh`: Debian 12,
root). The last line is the verdict. The exit code is 0 when every check held, 1 when one did not, 2 when
there is no engine.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from agentq import __version__
from tests.compose.stack import (
    IMAGE,
    PASSWORD,
    ROOT,
    USER,
    CommandFailedError,
    MissedError,
    Stack,
    free_port,
    new_stack,
    wait_for,
)

HERE = Path(__file__).parent
NO_ENGINE = 2
SERVICES = ("redis", "worker", "flower")
NAPS = 8
NAP_SECONDS = 4


def refuses_to_start_without_a_password(stack: Stack) -> None:
    del stack.settings["FLOWER_PASSWORD"]
    said = stack.complaint("up", "--detach", "--wait")
    stack.settings["FLOWER_PASSWORD"] = PASSWORD
    assert "write FLOWER_PASSWORD=… into .env" in said, said
    assert not stack.compose("ps", "--all", "--quiet")


def one_command_starts_all_and_all_are_healthy(stack: Stack) -> None:
    # An engine that was started for this has the image, and no network to build one.
    _up(stack, "--no-build" if stack.inside else "--build")
    assert [stack.health(service) for service in SERVICES] == ["healthy"] * 3


def none_is_root_or_writes_beside_its_volume(stack: Stack) -> None:
    for service in SERVICES:
        assert stack.compose("exec", "-T", service, "id", "-u").strip() != b"0", service
        facts = stack.container(service)["HostConfig"]
        assert facts["ReadonlyRootfs"], service
        assert "no-new-privileges:true" in facts["SecurityOpt"], service
        assert facts["CapDrop"] == ["ALL"], service


def the_image_has_the_version_of_this_checkout(stack: Stack) -> None:
    assert stack.agentq("--version").decode().strip() == f"agentq {__version__}"


def doctor_finds_nothing_to_mend(stack: Stack) -> None:
    checks = json.loads(stack.agentq("doctor", "--json"))
    assert [check for check in checks if not check["ok"]] == []


def a_batch_is_submitted_and_its_results_are_read(stack: Stack) -> None:
    stack.agentq("submit", "rows.jsonl", "--agent", "orders-no-detection", "--wait")
    rows = (ROOT / "agentq/demo/rows.jsonl").read_text().splitlines()
    results = stack.results("rows")
    assert {result["custom_id"] for result in results} == {json.loads(row)["custom_id"] for row in rows}
    assert len(results) == len(rows) == 20
    assert {result["agentq"]["stop_reason"] for result in results} == {"finished"}


def a_results_file_outside_is_continued(stack: Stack) -> None:
    with TemporaryDirectory() as folder:
        write = ("run", "--rm", "-T", "--no-deps", "--user", str(os.getuid()), "--volume", f"{folder}:/data")
        for _ in range(2):
            stack.compose(*write, "worker", "agentq", "results", "rows", "-o", "/data/results.jsonl")
        assert len((Path(folder) / "results.jsonl").read_text().splitlines()) == 20


def flower_answers_who_has_the_password(stack: Stack) -> None:
    assert stack.http_status("/") == 401
    assert stack.http_status("/", f"{USER}:wrong") == 401
    assert stack.http_status("/", f"{USER}:{PASSWORD}") == 200
    assert stack.compose("port", "flower", "5555").startswith(b"127.0.0.1:")


def all_is_there_after_down_and_up(stack: Stack) -> None:
    before = stack.results("rows")
    stack.compose("down")
    _up(stack, "--no-build")
    assert stack.results("rows") == before


def a_backup_taken_while_it_works_is_restored(stack: Stack) -> None:
    before = stack.results("rows")
    config = ("exec", "-T", "redis", "redis-cli", "CONFIG", "SET", "auto-aof-rewrite-percentage")
    stack.compose(*config, "0")
    saved = stack.compose("exec", "-T", "redis", "tar", "-C", "/data", "-cf", "-", ".")
    stack.compose(*config, "100")
    stack.compose("down", "--volumes")
    stack.compose("run", "--rm", "-T", "--no-deps", "redis", "tar", "-C", "/data", "-xf", "-", stdin=saved)
    _up(stack, "--no-build")
    assert stack.results("rows") == before
    stack.agentq("doctor", "--runs")


def agents_of_ones_own_are_mounted(stack: Stack) -> None:
    stack.settings["AGENTS"] = str(HERE / "agents")
    _up(stack, "--no-build")
    stack.agentq("submit", "-", "--batch", "naps", stdin=_naps())
    wait_for(lambda: b"napping" in stack.compose("logs", "worker"), "a step to be at work")


def a_worker_that_is_killed_comes_back_and_nothing_is_lost(stack: Stack) -> None:
    # What its init has started, from within: what `docker kill` stops is not started again.
    kill = "kill -9 $(cat /proc/1/task/1/children)"
    stack.compose("exec", "-T", "worker", "sh", "-c", kill, code=None)
    wait_for(lambda: stack.container("worker")["RestartCount"] > 0, "the worker to be started again")
    wait_for(lambda: stack.health("worker") == "healthy", "the worker to be healthy again")
    stack.agentq("wait", "naps")
    results = stack.results("naps")
    assert [result["agentq"]["stop_reason"] for result in results] == ["finished"] * NAPS
    assert any(result["agentq"]["attempts"] > 1 for result in results), "nothing was at work when it died"
    stack.agentq("doctor", "--runs")


def a_worker_that_is_frozen_is_unhealthy(stack: Stack) -> None:
    # All its processes and not init: the file grows old.
    signal = "for p in /proc/[0-9]*; do n=${p#/proc/}; [ $n = 1 ] || [ $n = $$ ] || kill -%s $n; done"
    stack.compose("exec", "-T", "worker", "sh", "-c", signal % "STOP", code=None)
    wait_for(lambda: stack.health("worker") == "unhealthy", "the frozen worker to be unhealthy")
    stack.compose("exec", "-T", "worker", "sh", "-c", signal % "CONT", code=None)
    wait_for(lambda: stack.health("worker") == "healthy", "the worker to be healthy again")


def a_worker_that_is_stopped_drains_and_leaves_with_0(stack: Stack) -> None:
    stack.compose("stop", "worker")
    assert stack.container("worker")["State"]["ExitCode"] == 0


def down_leaves_nothing(stack: Stack) -> None:
    stack.compose("down", "--volumes")
    assert not stack.compose("ps", "--all", "--quiet")
    listed = subprocess.run(["docker", "volume", "ls", "--quiet"], capture_output=True, text=True, check=True)
    assert "agentq-test-compose_redis" not in listed.stdout.split()


CHECKS: tuple[Callable[[Stack], None], ...] = (
    refuses_to_start_without_a_password,
    one_command_starts_all_and_all_are_healthy,
    none_is_root_or_writes_beside_its_volume,
    the_image_has_the_version_of_this_checkout,
    doctor_finds_nothing_to_mend,
    a_batch_is_submitted_and_its_results_are_read,
    a_results_file_outside_is_continued,
    flower_answers_who_has_the_password,
    all_is_there_after_down_and_up,
    a_backup_taken_while_it_works_is_restored,
    agents_of_ones_own_are_mounted,
    a_worker_that_is_killed_comes_back_and_nothing_is_lost,
    a_worker_that_is_frozen_is_unhealthy,
    a_worker_that_is_stopped_drains_and_leaves_with_0,
    down_leaves_nothing,
)
"""In this order: each goes on where the one before has stopped."""


def _up(stack: Stack, build: str) -> None:
    stack.compose("up", "--detach", "--wait", build)


def _naps() -> str:
    call = ["nap", json.dumps({"seconds": NAP_SECONDS})]
    return "".join(
        json.dumps({"input": f"Nap {number}.", "metadata": {"script": [[call], "Rested."]}}) + "\n"
        for number in range(NAPS)
    )


def has_engine() -> bool:
    """Whether there is an engine to talk to, and compose v2 to talk to it."""
    try:
        return not any(
            subprocess.run(["docker", *command], capture_output=True, check=False).returncode
            for command in (("info",), ("compose", "version"))
        )
    except FileNotFoundError:
        return False


def can_start_one() -> bool:
    """Whether `engine.sh` works here."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return False
    return os.geteuid() == 0 and (release["ID"], release.get("VERSION_ID")) == ("debian", "12")


def verdict(said: str) -> None:
    """The last line."""
    sys.stdout.write(f"test-compose: {said}\n")


def check() -> int:
    """All checks, up to the first that does not hold."""
    began = time.monotonic()
    with new_stack() as stack:
        stack.settings = {
            "IMAGE": IMAGE,
            "FLOWER_USER": USER,
            "FLOWER_PASSWORD": PASSWORD,
            "FLOWER_PORT": str(free_port()),
        }
        for holds in CHECKS:
            name = holds.__name__.replace("_", " ")
            try:
                holds(stack)
            except (AssertionError, CommandFailedError, MissedError, subprocess.TimeoutExpired) as error:
                stack.settings["FLOWER_PASSWORD"] = PASSWORD
                for look in (("ps", "--all"), ("logs", "--no-color", "--tail", "40")):
                    sys.stdout.write(stack.compose(*look, code=None).decode(errors="replace"))
                sys.stdout.write(f"fail {name}\n{type(error).__name__}: {error}\n")
                verdict(f"FAILED: {name}")
                return 1
            sys.stdout.write(f"ok   {name}\n")
            sys.stdout.flush()
    verdict(f"all {len(CHECKS)} checks hold, {time.monotonic() - began:.0f} s")
    return 0


def main() -> int:
    """Check, on an engine that is there or on one that is started for it."""
    if has_engine():
        return check()
    if not can_start_one():
        verdict(
            "FAILED: there is no Docker engine with compose v2 (docker info, docker compose version), "
            "and only root on Debian 12 can start one for the test"
        )
        return NO_ENGINE
    code = subprocess.run(
        [HERE / "engine.sh", IMAGE, sys.executable, "-m", "tests.compose"], cwd=ROOT, check=False
    ).returncode
    if code not in {0, 1}:
        verdict("FAILED: the throw-away engine could not be used")
    return code


if __name__ == "__main__":
    sys.exit(main())
