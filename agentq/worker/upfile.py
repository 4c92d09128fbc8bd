"""`<home>/up.json`: what `agentq up` runs in this folder, for the other verbs to find."""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from agentq.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class UpState:
    """Where a running `agentq up` can be found."""

    pid: int
    redis_url: str = field(repr=False)
    broker_url: str | None = field(repr=False)
    namespace: str
    app: str


class UpFile:
    """The record in one home, and the lock that says whether it is still true."""

    def __init__(self, home: Path) -> None:
        self._path = home / "up.json"
        self._lock = home / "up.lock"

    def read(self) -> UpState | None:
        """What runs here; None when nothing does, also when the last one was killed."""
        if not self.is_up:
            return None
        with suppress(OSError, ValueError, TypeError):
            return UpState(**json.loads(self._path.read_text(encoding="utf-8")))
        return None

    @property
    def is_up(self) -> bool:
        """Whether an `agentq up` holds this home."""
        try:
            lock = os.open(self._lock, os.O_RDWR)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def hold(self) -> Hold:
        """Take this home for as long as the context lasts.

        Raises:
            UsageError: when another `agentq up` has it.
        """
        state = self.read()
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Not inherited: a worker that outlives a killed parent must not look like one.
        lock = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not _locked(lock):
            os.close(lock)
            who = f" (process {state.pid})" if state else ""
            raise UsageError(
                f"agentq up already runs in {self._path.parent}{who}",
                hint="agentq worker adds a worker to it, agentq down stops it",
            )
        return Hold(self._path, lock)


def _locked(lock: int) -> bool:
    # Other verbs take the lock for an instant to see whether it is free; that must not look like an owner.
    for _ in range(10):
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.02)
    return False


class Hold:
    """A home that is taken."""

    def __init__(self, path: Path, lock: int) -> None:
        self._path = path
        self._lock = lock

    def write(self, state: UpState) -> None:
        """Say what runs. The file is for this user alone, since a URL may carry a password."""
        draft = self._path.with_suffix(".new")
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(asdict(state), file, indent=1)
        draft.replace(self._path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._lock)
