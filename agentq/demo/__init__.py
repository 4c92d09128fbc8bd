"""The orders desk: a small agent over a small database, and twenty tasks whose outcome is known.

It ships with the package, so that `agentq demo` shows real Celery workers at work on a machine that has
neither a key nor a network.
"""

from __future__ import annotations

from pathlib import Path

APP = "agentq.demo.agents:app"
ROWS = Path(__file__).with_name("rows.jsonl")
