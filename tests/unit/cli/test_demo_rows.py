"""The demo's twenty tasks come to the promised figures in one process too: no queue is needed for that."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agentq.agent import Agent, LoopDetector, ScriptedClient, Thread, run_metrics
from agentq.agent.metrics import RunMetrics
from agentq.demo import ROWS
from agentq.demo.orders import DATABASE_ENV, TOOLS, build
from agentq.demo.outcome import EXPECTED
from agentq.engine.input import read_rows
from agentq.engine.rows import Row
from agentq.provider.pricing import ModelPricing
from agentq.provider.scripted import ScriptedModel
from agentq.tools import CallContext, ToolExecutor, ToolRegistry

PRICING = {"scripted-v1": ModelPricing("scripted-v1", "1", "10", 128_000)}


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "orders.db"
    build(path)
    monkeypatch.setenv(DATABASE_ENV, str(path))
    return path


def play(detector: LoopDetector | None) -> RunMetrics:
    threads = []
    for _, row in read_rows(str(ROWS), agent="orders"):
        assert isinstance(row, Row)
        agent = Agent(
            ScriptedModel(row.metadata["script"]),
            ToolExecutor(ToolRegistry(TOOLS)),
            pricing=PRICING,
        )
        thread = Thread()
        thread.detector = detector.fresh() if detector else None
        assert isinstance(row.input, str)
        threads.append(agent.run(thread, row.input).thread)
    return run_metrics(threads)


@pytest.mark.parametrize("key", ["on", "off"])
def test_the_figures_are_the_promised_ones(key: str) -> None:
    metrics = play(LoopDetector() if key == "on" else None).as_dict()
    assert {name: metrics[name] for name in EXPECTED[key]} == EXPECTED[key]


def test_not_found_is_an_answer() -> None:
    executor = ToolExecutor(ToolRegistry(TOOLS))
    result = executor.call("get_order", '{"order_id": 4711}', CallContext())
    assert result.ok
    assert "false" in str(result.content).lower()


def test_a_bad_period_is_an_error_that_says_what_is_right() -> None:
    executor = ToolExecutor(ToolRegistry(TOOLS))
    result = executor.call("build_report", '{"period": "January"}', CallContext())
    assert not result.ok
    assert "YYYY-MM" in str(result.content)


def test_cancelling_an_order_asks_a_person_first_and_then_changes_the_data(database: Path) -> None:
    executor = ToolExecutor(ToolRegistry(TOOLS))
    arguments = '{"order_id": 1002, "reason": "changed her mind"}'
    asked = executor.call("cancel_order", arguments, CallContext())
    assert asked.error_code == "needs_approval"
    with closing(sqlite3.connect(database)) as db:
        (status,) = db.execute("SELECT status FROM orders WHERE order_id = 1002").fetchone()
    assert status == "processing"


def test_the_agent_of_the_demo_needs_nothing_but_a_script() -> None:
    agent = Agent(ScriptedClient(["Hello."]), ToolExecutor(ToolRegistry(TOOLS)))
    assert agent.run(Thread(), "hi").answer == "Hello."
