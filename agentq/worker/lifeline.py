"""The lifeline: a pipe that a parent holds open for as long as it lives, however it dies.

A child in a session of its own does not notice that its parent was killed. It would go on without
anybody to restart or stop it, so it watches the pipe and ends in order when the other side is gone.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from contextlib import suppress

LIFELINE_FD = "AGENTQ_LIFELINE_FD"
"""The environment variable with the number of the pipe's open read end."""


def watch_lifeline(on_closed: Callable[[], None]) -> bool:
    """Call `on_closed` once, from a daemon thread, when the parent is gone; false when there is no lifeline.

    The variable is taken out of the environment, so that programs this one starts do not read a
    descriptor they never got.
    """
    text = os.environ.pop(LIFELINE_FD, "")
    try:
        pipe = int(text)
        if not stat.S_ISFIFO(os.fstat(pipe).st_mode):
            return False
    except (ValueError, OSError):
        return False
    os.set_inheritable(pipe, False)

    def watch() -> None:
        # Nothing is ever written: a read returns when the last holder of the write end is gone.
        with suppress(OSError):
            while os.read(pipe, 1):
                pass
        on_closed()

    threading.Thread(target=watch, name="agentq-lifeline", daemon=True).start()
    return True
