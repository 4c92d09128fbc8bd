"""The command lines of the processes that agentq starts."""

from __future__ import annotations

import sys

from agentq.worker.celery_app import CONCURRENCY


def worker_argv(
    app_path: str,
    *,
    concurrency: int | None = None,
    name: str = "worker",
    pool: str = "threads",
    events: bool = False,
    loglevel: str = "WARNING",
) -> list[str]:
    """A Celery worker for the `AgentQ` (or Celery) object at `module:name`.

    Gossip and mingle are off: workers have nothing to tell each other, and both slow the start.
    """
    return [
        *(sys.executable, "-m", "agentq.worker", app_path, "--quiet", "worker"),
        *("--pool", pool, "--concurrency", str(concurrency or CONCURRENCY)),
        *("--hostname", f"{name}@%h", "--loglevel", loglevel, "--without-gossip", "--without-mingle"),
        *(["--task-events"] if events else []),
    ]


def flower_argv(app_path: str, *, port: int = 5555) -> list[str]:
    """Flower on the loopback interface."""
    return [
        sys.executable,
        "-m",
        "agentq.worker",
        app_path,
        "flower",
        "--address=127.0.0.1",
        f"--port={port}",
    ]
