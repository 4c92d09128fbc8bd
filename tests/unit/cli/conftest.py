from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from agentq.cli.session import Session
from agentq.store import Store, connect
from agentq.worker.embedded import EmbeddedServer
from tests.unit.cli.fakes import FakeApp


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> FakeApp:
    """The app that every verb gets."""
    fake = FakeApp()
    monkeypatch.setattr(Session, "any_app", lambda self: fake)
    monkeypatch.setenv("AGENTQ_APP", "fake:app")
    return fake


@pytest.fixture
def store(
    server: EmbeddedServer,
    namespace: str,
    redis_client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[Store]:
    """The store that the command line finds too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTQ_REDIS_URL", server.url)
    monkeypatch.setenv("AGENTQ_NAMESPACE", namespace)
    opened = connect(server.url, namespace, retries=0)
    yield opened
    opened.client.close()
