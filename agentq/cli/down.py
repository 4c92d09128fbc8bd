"""`agentq down`: stop what `agentq up` left or has running here."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from agentq.cli.globals import verb
from agentq.core.errors import AgentQError
from agentq.worker.upfile import UpFile

if TYPE_CHECKING:
    from agentq.cli.session import Session

_PATIENCE_SECONDS = 15.0


@verb("down")
def command(session: Session) -> None:
    """Stop the `agentq up` of this folder: workers drain, then the server stops. The data stays.

    Also stops a server that was left when `agentq up` was killed.
    """
    from agentq.worker.embedded import stop_running

    home = Path(session.settings.home)
    file = UpFile(home)
    state = file.read()
    if state is not None:
        os.kill(state.pid, signal.SIGTERM)
        _await_end(file, session.settings.drain_seconds + _PATIENCE_SECONDS, state.pid)
    left = stop_running(home)
    stopped = state is not None or left
    if session.console.json:
        session.console.document({"home": str(home), "stopped": stopped})
    else:
        session.console.out(f"stopped; the data stays in {home}" if stopped else f"nothing runs in {home}")


def _await_end(file: UpFile, seconds: float, pid: int) -> None:
    deadline = time.monotonic() + seconds
    while file.is_up:
        if time.monotonic() > deadline:
            raise AgentQError(
                f"process {pid} has not stopped after {seconds:.0f} s", hint=f"kill -9 {pid} ends it"
            )
        time.sleep(0.1)
