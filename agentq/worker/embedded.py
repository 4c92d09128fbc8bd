"""The embedded server: a Redis of one's own, in a folder, whose data outlives every process.

It is `agentq up`'s when no Redis is configured, the demo's and the tests'. Writes are on disk within a
second (append-only file), also after a `kill -9` of everything.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from agentq.core.errors import UnavailableError
from agentq.core.urls import broker_url_for
from agentq.worker.binary import find_server
from agentq.worker.datafolder import DataFolder, ServerState, drop_socket, replace_file

_START_SECONDS = 30.0
# While it reads its file a server answers LOADING; a big one takes its time.
_LOAD_SECONDS = 600.0
# How long a running one may take to answer a PING.
_ANSWER_SECONDS = 2.0


class EmbeddedServer:
    """A running server. Made by `start`; `owned` says whether this object started it or found it running."""

    def __init__(
        self, folder: DataFolder, state: ServerState, process: subprocess.Popen[bytes] | None
    ) -> None:
        self._folder = folder
        self._process = process
        self.state = state

    @classmethod
    def start(cls, home: Path, *, port: int | None = None) -> Self:
        """Start a server on the data in `home`, or adopt the one that runs there.

        It listens on a Unix socket that only this user can open; with a `port` also on 127.0.0.1, behind
        a password made for this start. It answers when this returns. An adopted one keeps its port.

        Raises:
            UnavailableError: when there is no server to run, or it does not start or answer.
            UsageError: when a server of another kind, or a newer one, wrote the data.
        """
        folder = DataFolder(home)
        folder.make()
        deadline = time.monotonic() + _START_SECONDS
        while True:
            lock = folder.lock()
            if lock is not None:
                try:
                    return cls(folder, *_launch(folder, lock, port or 0))
                finally:
                    os.close(lock)
            # Somebody else's: it answers, or is about to, or is on its way out and frees the lock.
            state = folder.state
            if state is not None and _answers(state):
                return cls(folder, state, None)
            if time.monotonic() > deadline:
                raise _silent(folder)
            time.sleep(0.02)

    @property
    def home(self) -> Path:
        """The folder it was started with, absolute."""
        return self._folder.home

    @property
    def owned(self) -> bool:
        """Whether `stop` stops it: true for the one who started it."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """The server's process."""
        return self.state.pid

    @property
    def url(self) -> str:
        """For redis-py: `unix:///…?db=0`."""
        who = f":{self.state.password}@" if self.state.password else ""
        return f"unix://{who}{quote(self.state.socket)}?db=0"

    @property
    def broker_url(self) -> str:
        """For Celery: `redis+socket:///…?virtual_host=0`."""
        return broker_url_for(self.url)

    @property
    def tcp_url(self) -> str | None:
        """`redis://:password@127.0.0.1:port/0` when a port was asked for."""
        return f"redis://:{self.state.password}@127.0.0.1:{self.state.port}/0" if self.state.port else None

    @property
    def alive(self) -> bool:
        """Whether the server process still runs."""
        return self._folder.locked if self._process is None else self._process.poll() is None

    def stop(self, timeout: float = 10.0) -> None:
        """Stop it and wait until it is gone, its data on disk. An adopted one is left to its owner.

        After `timeout` seconds it is killed, which loses at most the last second of writes.
        """
        if self._process is None:
            return
        _end(self._process, timeout)
        self._folder.tidy(self.state)


def running(home: Path) -> ServerState | None:
    """The server that runs on `home` and answers, if there is one."""
    folder = DataFolder(home)
    state = folder.state
    return state if state is not None and folder.locked and _answers(state) else None


def stop_running(home: Path, timeout: float = 10.0) -> bool:
    """Stop the server that runs on `home`, whoever started it; false when there is none.

    Its process is signalled only when the folder's lock is held and the process that answers on the
    socket is the one on record: a process id may have been given to somebody else since.

    Raises:
        UnavailableError: when a server holds the data but does not answer.
    """
    folder = DataFolder(home)
    state = folder.state
    if not folder.locked:
        if state is not None:
            folder.tidy(state)
        return False
    if state is None or not _answers(state):
        raise _silent(folder)
    os.kill(state.pid, signal.SIGTERM)
    if not _wait(lambda: not folder.locked, timeout):
        with suppress(ProcessLookupError):
            os.kill(state.pid, signal.SIGKILL)
        _wait(lambda: not folder.locked, timeout)
    folder.tidy(state)
    return True


def _launch(folder: DataFolder, lock: int, port: int) -> tuple[ServerState, subprocess.Popen[bytes]]:
    binary = find_server()
    folder.refuse_other_writer(binary)
    stale = folder.state
    if stale is not None:
        folder.forget(stale)
    socket = folder.new_socket()
    password = secrets.token_urlsafe(24) if port else ""
    # A file and not arguments: everybody on the machine can read a process' arguments.
    replace_file(folder.config, _config(folder, socket, port, password))
    try:
        with folder.stderr.open("wb") as complaints:
            process = subprocess.Popen(
                [binary.path, folder.config],
                stdin=subprocess.DEVNULL,
                stdout=complaints,
                stderr=complaints,
                cwd=folder.data,
                # Ctrl-C at the terminal is for the parent, which stops the server last.
                start_new_session=True,
                # The server inherits the lock and so holds it exactly as long as it lives.
                pass_fds=(lock,),
            )
    except OSError as error:
        drop_socket(socket)
        raise UnavailableError(f"{binary.path} does not run: {error.strerror}") from error
    state = ServerState(process.pid, str(socket), binary.name, binary.version, port, password)
    try:
        _await_pong(folder, state, process)
        folder.record(state)
    except BaseException:
        _end(process, 5.0)
        drop_socket(socket)
        raise
    return state, process


def _config(folder: DataFolder, socket: Path, port: int, password: str) -> str:
    settings = {
        "port": port,
        "bind": "127.0.0.1",
        "unixsocket": socket,
        "unixsocketperm": "700",
        "dir": folder.data,
        "logfile": folder.log,
        "daemonize": "no",
        "appendonly": "yes",
        "appendfsync": "everysec",
        # With the binary preamble a file can be read by the server that wrote it and by few others.
        "aof-use-rdb-preamble": "no",
        "save": "",
        # A full memory must refuse, never drop keys: they are the state of runs.
        "maxmemory-policy": "noeviction",
    }
    if password:
        settings["requirepass"] = password
    return "".join(f"{name} {_quoted(str(value))}\n" for name, value in settings.items())


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _await_pong(folder: DataFolder, state: ServerState, process: subprocess.Popen[bytes]) -> None:
    started = time.monotonic()
    limit = _START_SECONDS
    with _client(state) as client:
        while True:
            try:
                if client.ping():
                    return
            except redis.BusyLoadingError:
                limit = _LOAD_SECONDS
            except (redis.RedisError, OSError):
                pass
            name = f"the {state.server} {state.version} server"
            if process.poll() is not None:
                words = _last_words(folder)
                raise UnavailableError(f"{name} stopped at once: {words}", hint=f"its log is {folder.log}")
            if time.monotonic() - started > limit:
                raise UnavailableError(
                    f"{name} does not answer after {limit:.0f} s", hint=f"its log is {folder.log}"
                )
            time.sleep(0.01)


def _last_words(folder: DataFolder) -> str:
    for path in (folder.stderr, folder.log):
        with suppress(OSError):
            lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
            if lines:
                # "1234:M 29 Nov 2026 17:00:00.000 # Fatal …": the words begin after the mark.
                return lines[-1].partition(" # ")[2] or lines[-1]
    return "it left no message"


def _client(state: ServerState) -> redis.Redis:
    return redis.Redis(
        unix_socket_path=state.socket,
        password=state.password or None,
        socket_timeout=_ANSWER_SECONDS,
        socket_connect_timeout=_ANSWER_SECONDS,
        # The callers repeat, with a deadline of their own.
        retry=Retry(NoBackoff(), 0),
        decode_responses=True,
    )


def _answers(state: ServerState) -> bool:
    """Whether the very process on record answers on its socket."""
    with _client(state) as client:
        try:
            return bool(client.ping()) and client.info("server")["process_id"] == state.pid
        except (redis.RedisError, OSError, KeyError):
            return False


def _end(process: subprocess.Popen[bytes], timeout: float) -> None:
    process.terminate()
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait(condition: Callable[[], bool], timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _silent(folder: DataFolder) -> UnavailableError:
    state = folder.state
    who = f" (process {state.pid})" if state else ""
    return UnavailableError(
        f"a server{who} holds {folder.data} but does not answer", hint=f"its log is {folder.log}"
    )
