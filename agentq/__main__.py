"""`python -m agentq` is `agentq`."""

from __future__ import annotations

from agentq.cli import main

main()
