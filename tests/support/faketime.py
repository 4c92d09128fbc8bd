"""A server whose clock a test moves while it runs, by libfaketime. Nobody else's clock changes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path

import pytest
import redis

from agentq.worker.embedded import EmbeddedServer
from tests.support.wait import wait_until

NAME = "libfaketime.so.1"


def library() -> str:
    """Where libfaketime is. Its absence fails the test: what is not tested must not look tested."""
    folders = [*Path("/usr/lib").glob("*-linux-*"), Path("/usr/lib64"), Path("/usr/lib")]
    found = [folder / "faketime" / NAME for folder in folders]
    package = find_spec("libfaketime")  # not imported: it would look after the clock of this process
    if package is not None and package.origin is not None:
        found += sorted(Path(package.origin).parent.rglob(NAME))
    for path in found:
        if path.is_file():
            return str(path)
    pytest.fail("libfaketime is not installed; type: apt-get install libfaketime", pytrace=False)


class FakeClock:
    """The clock of one server: the real one and an offset, which may be moved at any time."""

    def __init__(self, home: Path) -> None:
        self._file = home / "faketime"
        self._offset = timedelta()
        self._client: redis.Redis | None = None
        self._write()

    def attach(self, server: EmbeddedServer) -> None:
        """From now on a change returns when this server shows it."""
        self._client = redis.Redis.from_url(server.url)

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to have this clock. Its timers go on as before."""
        return {
            "LD_PRELOAD": library(),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, text: str) -> None:
        """From now on it is this time (UTC, `2026-12-31 23:59:58`), and goes on from there."""
        self._offset = datetime.fromisoformat(text).replace(tzinfo=UTC) - datetime.now(UTC)
        self._write()

    def right(self) -> None:
        """It is right again."""
        self._offset = timedelta()
        self._write()

    def move(self, **by: float) -> None:
        """It jumps by so much: `hours=2`, `seconds=-90`."""
        self._offset += timedelta(**by)
        self._write()

    def _write(self) -> None:
        seconds = self._offset.total_seconds()
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{seconds:+.6f}\n")
        fresh.replace(self._file)
        if self._client is not None:
            wait_until(self._is_shown, f"the server to show the time that is {seconds:+} s from ours")

    def _is_shown(self) -> bool:
        assert self._client is not None
        seconds, micros = self._client.time()
        shown = datetime.fromtimestamp(seconds + micros / 1e6, UTC)
        return abs(shown - datetime.now(UTC) - self._offset) < timedelta(seconds=0.2)

    def detach(self) -> None:
        """The server is gone."""
        if self._client is not None:
            self._client.close()
            self._client = None


def start(home: Path, clock: FakeClock) -> EmbeddedServer:
    """An embedded server that has this clock."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in clock.environment.items():
            patch.setenv(name, value)
        server = EmbeddedServer.start(home)
    clock.attach(server)
    return server


@pytest.fixture(scope="session")
def faked_server() -> Iterator[tuple[EmbeddedServer, FakeClock]]:
    """A server of this test process with a clock that a test may set."""
    home = Path(tempfile.mkdtemp(prefix="aqc-", dir="/tmp"))
    clock = FakeClock(home)
    server = start(home, clock)
    try:
        yield server, clock
    finally:
        clock.detach()
        server.stop()
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def clock(faked_server: tuple[EmbeddedServer, FakeClock]) -> Iterator[FakeClock]:
    """The server's clock, right again afterwards."""
    _, faked = faked_server
    yield faked
    faked.right()
