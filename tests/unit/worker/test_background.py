"""What every worker starts with: only on a pool that it can serve."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery.concurrency import get_implementation

from agentq import AgentQ
from agentq.core.errors import UsageError


@pytest.fixture
def step() -> Any:
    """The boot step of an app's workers, as Celery finds it."""
    (found,) = AgentQ("t").celery.steps["worker"]
    return found


@pytest.mark.parametrize("pool", ["solo", "processes"])
def test_a_pool_without_threads_is_refused_before_a_message_is_taken(step: Any, pool: str):
    """A forked pool would lose every step that is longer than a lease; solo died of its first message."""
    with pytest.raises(UsageError, match="runs on the threads pool"):
        step(SimpleNamespace(pool_cls=get_implementation(pool)))


def test_the_threads_pool_is_served(step: Any):
    assert step(SimpleNamespace(pool_cls=get_implementation("threads")))
