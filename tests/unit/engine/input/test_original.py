"""The line that a run came from: submitted again, it has the same content."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from agentq.agent.budgets import Budgets
from agentq.core.records import RunSpec
from agentq.engine.input import line_of
from agentq.engine.rows import Row

HI = [{"role": "user", "content": "Hi"}]
TALK = [{"role": "system", "content": "Be brief."}, *HI, {"role": "assistant", "content": "?"}, *HI]


def spec_of(row: Row, budgets: Budgets | None = None) -> RunSpec:
    """What the submission makes of a row."""
    budgets = budgets or Budgets(max_usd=row.max_usd)
    return RunSpec(
        agent=row.agent,
        batch="b",
        custom_id=row.custom_id or row.derived_id,
        budgets=budgets.as_dict(),
        metadata=row.metadata,
        context=row.context,
        content_hash=row.content_hash,
        call=row.call or {},
        priority=row.priority or 0,
    )


def openai(body: dict[str, Any], url: str) -> dict[str, Any]:
    return {"custom_id": "t", "method": "POST", "url": url, "body": {"model": "m", **body}}


@pytest.mark.parametrize(
    "line",
    [
        {"input": "Hi"},
        {"input": HI, "custom_id": "t"},
        {"input": TALK, "custom_id": "t", "agent": "triage"},
        {"input": {"id": 7}, "custom_id": "t", "max_usd": "0.10"},
        {"input": "Hi", "metadata": {"a": [1]}, "context": {"user_id": "mira"}, "priority": 9},
        openai({"messages": TALK, "temperature": 0.1, "tools": None}, "/v1/chat/completions"),
        openai({"messages": HI, "stream": True}, "/v1/chat/completions"),
        openai({"input": "Hi"}, "/v1/responses"),
        openai({"input": HI, "instructions": "Be brief.", "store": False}, "/v1/responses"),
        {"custom_id": "t", "params": {"model": "m", "max_tokens": 5, "messages": HI}},
        {
            "custom_id": "t",
            "params": {"model": "m", "system": [{"type": "text", "text": "Be brief."}], "messages": TALK[1:]},
            "metadata": {"a": 1},
            "max_usd": "1",
        },
    ],
)
@pytest.mark.parametrize("agent", ["", "orders"])
@pytest.mark.parametrize("max_usd", [None, Decimal("0.5")])
def test_it_comes_back_as_the_same_content(source, line, agent, max_usd):
    source.write_lines(line)
    (row,) = source.rows(agent=agent, max_usd=max_usd)
    again = line_of(spec_of(row), row.messages())
    source.write_lines(again)
    (same,) = source.rows()
    assert same.content_hash == row.content_hash
    assert (same.input, same.agent, same.call) == (row.input, row.agent, row.call)
    assert (same.priority or 0) == (row.priority or 0)
    assert same.custom_id == (row.custom_id or row.derived_id)


def test_the_agent_s_own_cap_is_not_written_into_the_line(source):
    source.write_lines({"input": "Hi", "agent": "orders"})
    (row,) = source.rows()
    assert "max_usd" not in line_of(spec_of(row, Budgets(max_usd="0.25")), row.messages())


def test_a_provider_s_line_keeps_its_form(source):
    line = openai({"messages": TALK, "temperature": 0.1}, "/v1/chat/completions")
    source.write_lines(line)
    (row,) = source.rows()
    assert line_of(spec_of(row), row.messages()) == line


def test_a_run_with_a_hash_of_nothing_here_gives_the_plainest_line():
    spec = RunSpec(agent="orders", budgets=Budgets(max_usd="0.25").as_dict(), content_hash="of more")
    assert line_of(spec, HI) == {"input": "Hi", "agent": "orders", "max_usd": "0.25"}
