"""What the processes of `agentq up` say, without the lines that say nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentq.cli.console import Console

_ROOT_WARNING = "ignore:You're running the worker with superuser privileges"


def child_log(console: Console) -> Callable[[str], None]:
    """Where the merged log goes: stderr, empty lines left out."""

    def say(line: str) -> None:
        if line.partition("|")[2].strip():
            console.say(line)

    return say


def worker_env() -> dict[str, str]:
    """Celery's page of warning about root is for daemons; containers are root and say it every time."""
    before = os.environ.get("PYTHONWARNINGS")
    return {"PYTHONWARNINGS": f"{before},{_ROOT_WARNING}" if before else _ROOT_WARNING}
