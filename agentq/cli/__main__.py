"""`python -m agentq.cli`."""

from __future__ import annotations

from agentq.cli import main

main()
