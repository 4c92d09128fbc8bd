from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from agentq.engine.cache import ThreadCache
from agentq.store import Store, connect
from agentq.worker.embedded import EmbeddedServer
from tests.support.harness import Rig


@pytest.fixture
def store(server: EmbeddedServer, namespace: str, redis_client: redis.Redis) -> Iterator[Store]:
    """The store of this test's namespace."""
    opened = connect(server.url, namespace, retries=0)
    yield opened
    opened.client.close()


@pytest.fixture(params=["one process", "a process a step"])
def rig(store: Store, request: pytest.FixtureRequest) -> Rig:
    """A worker without agents yet: one that keeps its threads, and one that must read them again."""
    return Rig(store, cache=ThreadCache() if request.param == "one process" else None)
