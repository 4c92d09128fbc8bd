"""The zygote as its owner sees it: processes that can be started, watched, thawed and ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentq.core.errors import UsageError
from agentq.testing.life import Life
from agentq.testing.stage import Ground
from agentq.worker.lifeline import LIFELINE_FD

READY_SECONDS = 60.0
LEAVE_SECONDS = 30.0
"""How long a process that is asked to stop may take."""
_LOOK_SECONDS = 0.02


@dataclass(slots=True)
class Child:
    """One process. `code` is its exit code, negative for a signal; None while it lives."""

    number: int
    arm: str
    pid: int = 0
    frozen: bool = False
    code: int | None = None

    @property
    def reached(self) -> bool:
        """Whether it was killed, or froze, where it was armed to."""
        return bool(self.arm) and (self.code == -signal.SIGKILL or self.frozen)


class Nursery:
    """Starts processes through one zygote. Safe to use from many threads."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket, log: Path) -> None:
        self._process = process
        self._channel = channel
        self._log = log
        self._children: dict[int, Child] = {}
        self._guard = threading.Lock()
        self._ready = threading.Event()
        self.threads_of_app: list[str] = []
        """Threads that the user's module starts when it is imported: they do not exist in its children."""
        threading.Thread(target=self._listen, name="agentq-nursery", daemon=True).start()

    def wait_ready(self) -> None:
        """Return when the user's app is imported.

        Raises:
            UsageError: when it cannot be.
        """
        deadline = time.monotonic() + READY_SECONDS
        while not self._ready.wait(0.05):
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = self._log.read_text(errors="replace").strip().splitlines()
                raise UsageError(
                    f"the app cannot be imported in another process: {said[-1] if said else 'no answer'}",
                    hint="\n  ".join(said[-10:-1]),
                )

    def start(self, life: Life) -> Child:
        """Fork a process for this life."""
        with self._guard:
            child = Child(len(self._children) + 1, life.arm)
            self._children[child.number] = child
        self._send(number=child.number, life=asdict(life))
        return child

    def thaw(self, child: Child) -> None:
        """Let a frozen process go on."""
        self._send(number=child.number, signal=int(signal.SIGCONT))

    def stop(self, child: Child) -> None:
        """Ask a process, also a frozen one, to stop in good order, and kill it if it takes too long."""
        self.thaw(child)
        if not self._left(child, signal.SIGTERM, LEAVE_SECONDS):
            self._left(child, signal.SIGKILL, LEAVE_SECONDS)

    def _left(self, child: Child, number: int, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        if child.code is None:
            self._send(number=child.number, signal=int(number))
        while child.code is None and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        return child.code is not None

    def _send(self, **command: Any) -> None:
        with self._guard, suppress(OSError):
            self._channel.sendall(json.dumps(command).encode() + b"\n")

    def _listen(self) -> None:
        with self._channel.makefile("r", encoding="utf-8") as lines, suppress(OSError):
            for line in lines:
                self._hear(json.loads(line))
        for child in self._children.values():  # with the zygote, all of them are gone
            child.code = -signal.SIGKILL if child.code is None else child.code

    def _hear(self, said: dict[str, Any]) -> None:
        if "ready" in said:
            self.threads_of_app = said["ready"]
            self._ready.set()
            return
        child = self._children[said["number"]]
        child.pid = said.get("pid", child.pid)
        child.frozen = child.frozen or said.get("frozen", False)
        child.code = said.get("code", child.code)


@contextmanager
def nursery(ground: Ground) -> Iterator[Nursery]:
    """A zygote for as long as the context lasts. Nothing of it is left afterwards.

    Raises:
        UsageError: when the user's app cannot be imported.
    """
    ours, its = socket.socketpair()
    read_end, write_end = os.pipe()
    log = Path(ground.folder) / "zygote.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "agentq.testing.zygote", str(its.fileno()), json.dumps(asdict(ground))],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, LIFELINE_FD: str(read_end)},
            start_new_session=True,  # Ctrl-C is for its owner
            pass_fds=(its.fileno(), read_end),
        )
    its.close()
    os.close(read_end)
    made = Nursery(process, ours, log)
    try:
        made.wait_ready()
        yield made
    finally:
        with suppress(OSError):
            ours.shutdown(socket.SHUT_RDWR)
        ours.close()
        try:
            process.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(write_end)
