"""Python that is not meant so is answered with what is: nothing of it reaches a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentq import AgentQ, Budgets
from agentq.agent import ScriptedClient, Thread
from agentq.app.options import batch_options
from agentq.app.submission import entry
from agentq.core.errors import InputError, UsageError
from agentq.engine.rows import Row, parse_row


@pytest.fixture
def app() -> AgentQ:
    """An app whose server is nowhere."""
    return AgentQ("wrong", redis_url="unix:///nowhere.sock")


@pytest.fixture
def scripted(app: AgentQ) -> AgentQ:
    """The same with an agent."""
    app.agent("a", model=ScriptedClient(["done"]), budgets=Budgets(max_usd=None))
    return app


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


def test_rows_that_do_not_come_asynchronously(app: AgentQ):
    rows: Any = [{"input": "x"}]
    with pytest.raises(UsageError, match="come asynchronously, not list"):
        asyncio.run(app.submit_async("a", rows, batch="b"))


@pytest.mark.parametrize(
    "row, problem",
    [
        (Row(input="x", custom_id="a\tb"), "row 1: 'custom_id' is 1 to 256 printable characters"),
        (Row(input="x", custom_id="a\nb"), "row 1: 'custom_id' is 1 to 256 printable characters"),
        (Row(input="x", priority=99), "row 1: 'priority' is 0 to 9"),
        (Row(input=""), "row 1: 'input' is empty"),
        (Row(input="\ud800", where="here"), "here: the row holds half of a surrogate pair"),
        (Row(input="x", metadata={"of": object()}), "row 1: the row cannot be written as JSON"),
        ({"input": "x", "y" * 1_000: 1}, "…"),
    ],
)
def test_rows_that_were_made_by_hand_are_checked_like_others(scripted: AgentQ, row: Any, problem: str):
    with pytest.raises(InputError) as refused:
        scripted.submit_many("a", [row], batch="b")
    assert problem in str(refused.value)
    assert len(str(refused.value)) < 400


def test_a_row_that_was_read_keeps_its_id_whatever_agent_it_gets():
    read = parse_row({"input": "x"}, agent="a")
    assert entry(Row(input="x"), 1, "a") == ("row 1", read)
    for row in (Row(input="x"), read):
        _, found = entry(row, 1, "a")
        assert isinstance(found, Row)
        assert (found.derived_id, found.content_hash) == (read.derived_id, read.content_hash)
    call = {"dialect": "openai-chat", "model": "m", "options": {}}
    line = parse_row({"input": "x", "custom_id": "t", "agent": "openai-chat:m"}, call=call)
    assert entry(line, 1, None)[1] == line


def test_a_conversation_that_goes_on_is_no_row(scripted: AgentQ):
    with pytest.raises(UsageError, match="is no row of a batch") as refused:
        scripted.submit("a", "and now?", thread=Thread(), batch="b")
    assert "leave batch= out" in str(refused.value.hint)


def test_budgets_that_are_none(scripted: AgentQ):
    budgets: Any = {"max_steps": 3}
    with pytest.raises(UsageError, match="are none") as refused:
        scripted.submit_many("a", [{"input": "x"}], batch="b", budgets=budgets)
    assert "Budgets(" in str(refused.value.hint)


def test_a_priority_that_is_none(scripted: AgentQ):
    with pytest.raises(InputError, match="'priority' is 0 to 9, the most urgent, not 10"):
        scripted.submit("a", "x", batch="b", priority=10)


def test_a_time_that_is_a_text():
    at: Any = "08:00"
    with pytest.raises(UsageError, match="at='08:00' is no datetime"):
        batch_options(None, None, None, at)
