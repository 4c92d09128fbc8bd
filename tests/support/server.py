"""A real server for the tests: one per test process, a namespace per test."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from agentq.worker.embedded import EmbeddedServer


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    """An embedded server of this test process (under xdist: of this worker)."""
    # Short: pytest's own folders are often too deep for a socket.
    home = Path(tempfile.mkdtemp(prefix="aqt-", dir="/tmp"))
    try:
        started = EmbeddedServer.start(home)
        yield started
        started.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def namespace() -> str:
    """A namespace that no other test uses."""
    return f"t{secrets.token_hex(4)}"


@pytest.fixture
def redis_client(server: EmbeddedServer, namespace: str) -> Iterator[redis.Redis]:
    """A client that decodes replies. What the test leaves under `{aq:<namespace>}:` is removed."""
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        yield client
        left = list(client.scan_iter(match=f"{{aq:{namespace}}}:*", count=1000))
        if left:
            client.unlink(*left)
