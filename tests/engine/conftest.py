from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from agentq.store import Store, connect
from agentq.worker.embedded import EmbeddedServer
from tests.support.harness import Rig


@pytest.fixture
def store(server: EmbeddedServer, namespace: str, redis_client: redis.Redis) -> Iterator[Store]:
    """The store of this test's namespace."""
    opened = connect(server.url, namespace, retries=0)
    yield opened
    opened.client.close()


@pytest.fixture
def rig(store: Store) -> Rig:
    """A worker without agents yet."""
    return Rig(store)
