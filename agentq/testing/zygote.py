"""`python -m agentq.testing.zygote`: has imported the user's app once, and forks a process for each life.

A fresh interpreter takes a second to import Celery; a fork of this one is a worker in a tenth of that. It has
one thread and no connection, so that a child finds nothing half done. It reads commands, a line of JSON each,
and says which child started, froze or ended. When the other side is gone it kills its children and ends.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from agentq.app import AgentQ
from agentq.testing.life import Life, live
from agentq.testing.stage import Ground, Scene
from agentq.worker.lifeline import watch_lifeline

LOOK_SECONDS = 0.02
_USED_BY_WORKERS = (
    "celery.apps.worker",
    "celery.concurrency.thread",
    "celery.worker.consumer",
    "celery.worker.worker",
    "celery.worker.components",
    "celery.events",
    "celery.app.log",
    "celery.loaders.app",
    "celery.utils.dispatch.signal",
    "celery.fixups.django",
    "concurrent.futures.thread",
    "kombu.transport.redis",
    "kombu.asynchronous.hub",
)


class Zygote:
    """The parent of all lives."""

    def __init__(self, channel: socket.socket, user: AgentQ, ground: Ground) -> None:
        self._channel = channel
        self._user = user
        self._ground = ground
        self._children: dict[int, int] = {}  # process → the number of its life
        self._unread = b""

    def serve(self) -> None:
        """Do what is asked until nobody asks any more."""
        self._say(ready=[thread.name for thread in threading.enumerate()][1:])
        while True:
            if select.select([self._channel], [], [], LOOK_SECONDS)[0]:
                received = self._channel.recv(65_536)
                if not received:
                    break
                *lines, self._unread = (self._unread + received).split(b"\n")
                for line in lines:
                    self._do(json.loads(line))
            self._look()
        for pid in self._children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _do(self, command: dict[str, Any]) -> None:
        number = command["number"]
        if "signal" not in command:
            self._fork(number, _life(command["life"]))
            return
        for pid, child in self._children.items():
            if child == number:  # not yet waited for, so the id is still its own
                os.kill(pid, command["signal"])

    def _fork(self, number: int, life: Life) -> None:
        pid = os.fork()
        if pid:
            self._children[pid] = number
            self._say(number=number, pid=pid)
            return
        code = 1
        try:
            self._channel.close()
            watch_lifeline(lambda: os.kill(os.getpid(), signal.SIGKILL))
            code = live(self._user, self._ground, life)
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 1
        except BaseException:  # noqa: BLE001 - the outermost place of this process
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _look(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            if not pid:
                return
            number = self._children[pid]
            if os.WIFSTOPPED(status):
                self._say(number=number, frozen=True)
                continue
            del self._children[pid]
            self._say(number=number, code=os.waitstatus_to_exitcode(status))

    def _say(self, **words: Any) -> None:
        self._channel.sendall(json.dumps(words).encode() + b"\n")


def _life(given: dict[str, Any]) -> Life:
    return Life(**{**given, "scene": Scene(**given["scene"])})


def main(argv: list[str]) -> None:
    """Serve the channel whose descriptor comes first, for the ground (JSON) that comes second."""
    channel = socket.socket(fileno=int(argv[0]))
    ground = Ground(**json.loads(argv[1]))
    sys.path.insert(0, str(Path.cwd()))
    module, _, attribute = ground.app.partition(":")
    user: AgentQ = getattr(import_module(module), attribute)
    for name in _USED_BY_WORKERS:
        import_module(name)
    gc.collect()
    gc.freeze()  # what is shared with the children stays shared
    Zygote(channel, user, ground).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
