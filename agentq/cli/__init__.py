"""The command line. Each verb is a file of this package and is imported when it is called."""

from __future__ import annotations

from agentq.cli.group import main

__all__ = ["main"]
