"""Whether a file can be written: asked before there is anything to write, and said when it fails."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import IO, Any

from agentq.core.errors import AgentQError, UsageError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a disk that takes no more."""
_ANOTHER = "choose another file"


def check_writable(path: Path) -> None:
    """Return when a file can be made or continued there, as far as that can be known.

    Raises:
        UsageError: when it is a folder, its folder does not exist, or it may not be written.
    """
    if path.is_dir():
        raise UsageError(f"{path} cannot be written: it is a folder", hint="name a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {path.parent}", hint=_ANOTHER)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{path} cannot be written: {os.strerror(errno.EACCES)}", hint=_ANOTHER)


def lock(file: IO[Any], path: Path) -> None:
    """Keep other calls from writing an open file until it is closed; nothing on a disk without locks.

    Raises:
        UsageError: when another one writes it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(
            f"{path} is being written by another agentq", hint=f"wait for it, or {_ANOTHER}"
        ) from None
    except OSError:
        pass


def unwritable(path: Path, error: OSError) -> AgentQError:
    """What to raise when a write fails: with the exit code 1 where the disk takes no more, else 2."""
    sentence = f"{path} cannot be written: {error.strerror}"
    if error.errno in FULL:
        return AgentQError(
            sentence, hint="make room and type the same again: it goes on behind what is there"
        )
    return UsageError(sentence, hint=_ANOTHER)
