"""What is played: rows with scripts, made of the agents' tools where nobody has written one."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest
from pydantic import Field

from agentq import AgentQ, tool
from agentq.core.errors import UsageError
from agentq.testing import make_plan


@tool
def look(order_id: int) -> str:
    """Look."""
    return "seen"


@tool(side_effect=True)
def note(order_id: int, text: str) -> str:
    """Note."""
    return "noted"


@tool
def track(number: Annotated[str, Field(pattern="^T-[0-9]+$")]) -> str:
    """Track."""
    return "tracked"


@pytest.fixture
def app():
    app = AgentQ("plans")
    app.agent("desk", model="scripted", tools=[note, look, track])
    app.agent("clerk", model="scripted", tools=[look], max_calls_per_step=1)
    return app


def test_each_tool_is_called_once_the_reading_ones_first(app):
    plan = make_plan(app, agent="desk")
    (row,) = plan.rows
    turns = row["metadata"]["script"]
    assert [[name for name, _ in turn] for turn in turns[:-1]] == [["look"], ["note"]]
    assert json.loads(turns[1][0][1]) == {"order_id": 1, "text": "text"}
    assert turns[-1] == "Done."
    assert "examples=" in plan.left_out["track"]
    assert plan.calls() == {"look": 1, "note": 1}


def test_without_rows_and_without_a_name_every_agent_has_a_run(app):
    assert [row["agent"] for row in make_plan(app).rows] == ["desk", "clerk"]


def test_a_row_s_own_script_goes_before_the_given_one_and_that_before_the_tools(app):
    rows: list[Any] = [{"input": "a", "metadata": {"script": ["Mine."], "label": 7}}, {"input": "b"}]
    first, second = make_plan(app, agent="clerk", rows=rows, script=["Given."]).rows
    assert first["metadata"] == {"script": ["Mine."], "label": 7}
    assert second["metadata"] == {"script": ["Given."]}


@pytest.mark.parametrize(
    "rows, agent, sentence",
    [
        ([], "desc", "there is no agent 'desc' (did you mean 'desk'?)"),
        ([{"input": "a"}], None, "a row names no agent"),
    ],
)
def test_a_row_without_an_agent_that_exists_is_refused(app, rows, agent, sentence):
    with pytest.raises(UsageError) as refused:
        make_plan(app, agent=agent, rows=rows)
    assert sentence in str(refused.value)


def test_an_app_without_agents_is_refused():
    with pytest.raises(UsageError, match="has no agents"):
        make_plan(AgentQ("empty"))
