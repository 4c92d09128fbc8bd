"""`python -m agentq.worker module:app worker …`: Celery's own command line for an `AgentQ` object.

The same as `celery -A module:celery …` where the module has `celery = app.celery`, without that line.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from pathlib import Path

from agentq.worker.lifeline import watch_lifeline


def main(argv: list[str]) -> None:
    """Run a Celery command for the app that the first argument names. The current directory is importable."""
    watch_lifeline(lambda: os.kill(os.getpid(), signal.SIGTERM))
    sys.path.insert(0, str(Path.cwd()))
    module, _, attribute = argv[0].partition(":")
    app = getattr(import_module(module), attribute or "app")
    getattr(app, "celery", app).start(argv=argv[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
