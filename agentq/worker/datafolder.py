"""The folder of an embedded server: its data, its lock, and the record of what runs there.

`<home>/redis/` holds the data, the log and the socket; `<home>/redis.json` says which server runs. The
lock on `<home>/redis/lock` is held by the server process itself: two servers on one folder would both
start and write the same file, and a lock held by the launcher would be released by a `kill -9` of the
launcher while the server lives on.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from agentq.core.errors import UsageError
from agentq.worker.binary import ServerBinary

# A socket's path must fit into 104 bytes on macOS and 108 on Linux.
_SOCKET_BYTES = 100
_SHORT = "agentq-redis-"


@dataclass(frozen=True, slots=True)
class ServerState:
    """What `<home>/redis.json` says of the running server."""

    pid: int
    socket: str
    server: str
    """`valkey` or `redis`."""
    version: str
    port: int = 0
    """0: the socket only."""
    password: str = field(default="", repr=False)
    """Set only together with a port."""


class DataFolder:
    """The paths under one home, and the few files in them that are not the server's."""

    def __init__(self, home: Path) -> None:
        self.home = home.absolute()
        self.data = self.home / "redis"
        self.config = self.data / "redis.conf"
        self.log = self.data / "redis.log"
        self.stderr = self.data / "stderr.log"
        self._lock = self.data / "lock"
        self._writer = self.data / "server.json"
        self._state = self.home / "redis.json"

    def make(self) -> None:
        """Create what is missing, for this user only.

        Raises:
            UsageError: when it cannot be.
        """
        try:
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.data.mkdir(mode=0o700, exist_ok=True)
            self.data.chmod(0o700)
        except OSError as error:
            raise UsageError(
                f"{self.data} cannot be used for data: {error.strerror}",
                hint="choose another folder with AGENTQ_HOME",
            ) from error

    # -------------------------------------------------------------------------------------------- the lock

    def lock(self) -> int | None:
        """An open file that holds the lock, to be handed to a server and closed; None when it is taken."""
        lock = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        return lock

    @property
    def locked(self) -> bool:
        """Whether a server runs on the data, or somebody is about to start one."""
        if not self._lock.exists():
            return False
        lock = self.lock()
        if lock is not None:
            os.close(lock)
        return lock is None

    # ----------------------------------------------------------------------------------- what runs there

    @property
    def state(self) -> ServerState | None:
        """The record of the running server; None when there is none that can be read."""
        try:
            return ServerState(**json.loads(self._state.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def record(self, state: ServerState) -> None:
        """Write down which server runs, and that it now is the one that wrote the data."""
        replace_file(self._writer, json.dumps({"name": state.server, "version": state.version}) + "\n")
        replace_file(self._state, json.dumps(asdict(state), indent=1) + "\n")

    def forget(self, state: ServerState) -> None:
        """Remove the record and the socket of a server that is gone. The caller holds the lock."""
        if self.state == state:
            self._state.unlink(missing_ok=True)
        drop_socket(Path(state.socket))

    def tidy(self, state: ServerState) -> None:
        """`forget`, unless somebody already starts the next server there: that does it, too."""
        lock = self.lock()
        if lock is None:
            return
        try:
            self.forget(state)
        finally:
            os.close(lock)

    def refuse_other_writer(self, binary: ServerBinary) -> None:
        """Check that `binary` may read what is there: same kind, and no older than the one that wrote it.

        Raises:
            UsageError: when it may not.
        """
        try:
            said = json.loads(self._writer.read_text())
            wrote = ServerBinary(self._writer, str(said["name"]), str(said["version"]))
            fits = wrote.name == binary.name and binary.release[:2] >= wrote.release[:2]
        except (OSError, ValueError, KeyError, TypeError):
            return
        if not fits:
            raise UsageError(
                f"the data in {self.data} was written by {wrote}; {binary} may not be able to read it",
                hint=f"point AGENTQ_REDIS_SERVER at {wrote} or newer, or move that folder to start empty",
            )

    def new_socket(self) -> Path:
        """Where the next server is to listen: in the folder, or under /tmp when that is too deep."""
        path = self.data / "r.sock"
        if len(os.fsencode(path)) <= _SOCKET_BYTES:
            return path
        # Not tempfile's default folder, which may be just as deep. mkdtemp makes it for this user only.
        return Path(tempfile.mkdtemp(prefix=_SHORT, dir="/tmp")) / "r.sock"


def drop_socket(socket: Path) -> None:
    """Remove a socket that nobody listens on, with the folder that was made for it."""
    socket.unlink(missing_ok=True)
    if socket.parent.name.startswith(_SHORT):
        with suppress(OSError):
            socket.parent.rmdir()


def replace_file(path: Path, content: str) -> None:
    """Write a file whole or not at all, readable by this user only."""
    beside = path.with_name(path.name + ".new")
    beside.unlink(missing_ok=True)
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(content)
    beside.replace(path)
