"""`python -m agentq.worker module:app worker …`: Celery's own command line for an `AgentQ` object.

The same as `celery -A module:celery …` where the module has `celery = app.celery`, without that line.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from importlib import import_module
from pathlib import Path

from agentq.core.settings import Settings
from agentq.worker.drain import LEAVE_SECONDS
from agentq.worker.lifeline import watch_lifeline


def main(argv: list[str]) -> None:
    """Run a Celery command for the app that the first argument names. The current directory is importable."""
    drain_seconds = 0.0  # while there are no agents yet, no step is at hand

    def leave() -> None:
        """The parent is gone: stop as on SIGTERM, and in any case."""
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(drain_seconds + LEAVE_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    watch_lifeline(leave)
    sys.path.insert(0, str(Path.cwd()))
    module, _, attribute = argv[0].partition(":")
    app = getattr(import_module(module), attribute or "app")
    settings = getattr(app, "settings", None)  # a Celery object has none
    drain_seconds = settings.drain_seconds if isinstance(settings, Settings) else Settings().drain_seconds
    getattr(app, "celery", app).start(argv=argv[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
