"""The command line. Each verb is a file of this package and is imported when it is called."""

from __future__ import annotations

import sys

_INTERRUPTED = 130
"""As `agentq.cli.failure` has it, which is not imported yet when this is needed."""


def main() -> None:
    """The program `agentq`. A Ctrl-C while it is still being imported is no traceback either."""
    try:
        from agentq.cli.group import main as agentq

        agentq()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(_INTERRUPTED)


__all__ = ["main"]
