"""Python that is not meant so is answered with what is: nothing of it reaches a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentq import AgentQ
from agentq.app.options import batch_options
from agentq.core.errors import UsageError


@pytest.fixture
def app() -> AgentQ:
    """An app whose server is nowhere."""
    return AgentQ("wrong", redis_url="unix:///nowhere.sock")


async def later() -> AsyncIterator[dict[str, Any]]:
    yield {"input": "x"}


@pytest.mark.parametrize("rows", ["hello", b"hello", {"input": "x"}, None, 5])
def test_rows_that_are_none(app: AgentQ, rows: Any):
    with pytest.raises(
        UsageError, match=rf"rows are a list of rows.* not {type(rows).__name__}\n"
    ) as refused:
        app.submit_many("a", rows, batch="b")
    assert '[{"input"' in str(refused.value.hint)


def test_rows_that_come_asynchronously(app: AgentQ):
    rows: Any = later()
    with pytest.raises(UsageError, match="are for submit_async") as refused:
        app.submit_many("a", rows, batch="b")
    assert refused.value.hint == "await app.submit_async(…)"


def test_a_time_that_is_a_text():
    at: Any = "08:00"
    with pytest.raises(UsageError, match="at='08:00' is no datetime"):
        batch_options(None, None, None, at)
