"""The services of docker-compose.yml, under a project and an image of their own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[2]
PROJECT = "agentq-test-compose"
IMAGE = "agentq:test-compose"
USER, PASSWORD = "desk", "k3Rfw8Qm2Zt5"
COMMAND_SECONDS = 900
"""The first `up` builds an image."""
_KEPT = ("PATH", "HOME", "DOCKER", "XDG_")
_STATUS = """
import base64, sys, urllib.error, urllib.request
url, login = sys.argv[1:]
header = {"Authorization": "Basic " + base64.b64encode(login.encode()).decode()} if login else {}
try:
    print(urllib.request.urlopen(urllib.request.Request(url, headers=header), timeout=10).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""


class CommandFailedError(Exception):
    """A command ended with another exit code than it should have."""


class MissedError(Exception):
    """Something that was waited for has not come about."""


@dataclass
class Stack:
    """One project; `settings` are the lines of its `.env`, which later commands see when they change."""

    env_file: Path
    inside: Sequence[str]
    """Stands before a command that is to reach published ports."""
    settings: dict[str, str] = field(default_factory=dict)

    def compose(self, *args: str, code: int | None = 0, stdin: str | bytes = b"") -> bytes:
        """What `docker compose ARGS` writes to stdout.

        Args:
            args: words behind `docker compose`.
            code: the exit code that it must have; None for any.
            stdin: what it reads.

        Raises:
            CommandFailedError: for another exit code, with all that was said.
        """
        return self._compose(args, code, stdin).stdout

    def complaint(self, *args: str) -> str:
        """What a `docker compose ARGS` that fails writes to stderr."""
        ended = self._compose(args, None, b"")
        if ended.returncode == 0:
            raise CommandFailedError(f"docker compose {' '.join(args)} → 0, although it should fail")
        return ended.stderr.decode()

    def _compose(
        self, args: Sequence[str], code: int | None, stdin: str | bytes
    ) -> subprocess.CompletedProcess[bytes]:
        self.env_file.write_text("".join(f"{name}={value}\n" for name, value in self.settings.items()))
        argv = ["docker", "compose", "--env-file", str(self.env_file), "--project-name", PROJECT, *args]
        # A variable of this shell that the file reads would go before `.env`.
        kept = {name: os.environ[name] for name in os.environ if name.startswith(_KEPT)}
        ended = subprocess.run(
            argv,
            cwd=ROOT,
            env=kept,
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        if code is not None and ended.returncode != code:
            said = (ended.stdout + ended.stderr).decode(errors="replace").strip()
            raise CommandFailedError(f"docker compose {' '.join(args)} → {ended.returncode}\n{said}")
        return ended

    def agentq(self, *args: str, code: int | None = 0, stdin: str | bytes = b"") -> bytes:
        """What the command line writes in the worker's container."""
        return self.compose("exec", "-T", "worker", "agentq", *args, code=code, stdin=stdin)

    def results(self, batch: str) -> list[dict[str, Any]]:
        """The results of a batch, parsed."""
        return [json.loads(line) for line in self.agentq("results", batch).splitlines()]

    def container(self, service: str) -> dict[str, Any]:
        """What Docker knows about the container of a service, stopped or not."""
        found = self.compose("ps", "--all", "--quiet", service).decode().split()
        if len(found) != 1:
            raise MissedError(f"{service} has {len(found)} containers")
        shown = subprocess.run(["docker", "inspect", found[0]], capture_output=True, check=True)
        [facts] = json.loads(shown.stdout)
        return dict(facts)

    def health(self, service: str) -> str:
        """`healthy`, `starting` or `unhealthy`; `stopped` for a container that does not run."""
        state = self.container(service)["State"]
        return str(state["Health"]["Status"]) if state["Running"] else "stopped"

    def http_status(self, path: str, login: str = "") -> int:
        """The status that Flower answers with on its published port. `login` is `user:password`."""
        url = f"http://127.0.0.1:{self.settings['FLOWER_PORT']}{path}"
        ended = subprocess.run(
            [*self.inside, sys.executable, "-c", _STATUS, url, login],
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode:
            raise MissedError(f"{url} does not answer: {ended.stderr.strip().splitlines()[-1]}")
        return int(ended.stdout)


@contextmanager
def new_stack() -> Iterator[Stack]:
    """A project of which nothing is left afterwards, neither containers nor the volume."""
    namespace = os.environ.get("DOCKERD_PID")
    with TemporaryDirectory() as folder:
        stack = Stack(
            env_file=Path(folder) / "env",
            inside=["nsenter", "--target", namespace, "--net"] if namespace else [],
        )
        try:
            yield stack
        finally:
            stack.settings = {"IMAGE": IMAGE, "FLOWER_PASSWORD": PASSWORD}
            stack.compose("down", "--volumes", "--remove-orphans", "--timeout", "0", code=None)


def free_port() -> int:
    """A port of the loopback interface that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 180) -> None:
    """Ask until it is so.

    Raises:
        MissedError: when it is not so in all that time.
    """
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise MissedError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.5)
