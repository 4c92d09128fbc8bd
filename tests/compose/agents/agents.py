"""Agents of one's own for the compose file: a worker that naps can be killed in the middle of a step."""

from __future__ import annotations

import sys
import time

from agentq import AgentQ, tool

app = AgentQ("compose")


@tool
def nap(seconds: int) -> str:
    """Wait. Read-only."""
    sys.stderr.write("napping\n")
    sys.stderr.flush()
    time.sleep(seconds)
    return "rested"


app.agent("sleeper", model="scripted", tools=[nap])
