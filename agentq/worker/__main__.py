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

from agentq.worker.lifeline import watch_lifeline

GOODBYE_SECONDS = 30
"""How long a process whose parent is gone may take to stop in good order."""


def _leave() -> None:
    """Stop as on SIGTERM; and if that does not come to an end, as when the broker is gone too, stop."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GOODBYE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def main(argv: list[str]) -> None:
    """Run a Celery command for the app that the first argument names. The current directory is importable."""
    watch_lifeline(_leave)
    sys.path.insert(0, str(Path.cwd()))
    module, _, attribute = argv[0].partition(":")
    app = getattr(import_module(module), attribute or "app")
    getattr(app, "celery", app).start(argv=argv[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
