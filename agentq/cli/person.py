"""Who sits at the keyboard."""

from __future__ import annotations

import getpass
import os
import socket


def me() -> str:
    """user@host, for logs and decisions."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
