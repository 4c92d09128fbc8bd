"""Tools of an MCP server, for runs on real Celery workers."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from agentq.core.lifecycle import StopReason
from tests.support.processes import is_alive
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from tests.support.fleet import Fleet

pytestmark = pytest.mark.system

pytest_plugins = ["tests.support.fleet"]

SHOP = Path(__file__).parents[1] / "support" / "mcp_shop.py"
APP = dedent(
    f"""
    import os, sys
    from agentq import AgentQ
    from agentq.tools.mcp import MCPServer

    HERE = os.path.dirname(os.path.abspath(__file__))
    shop = MCPServer(
        "shop",
        command=[sys.executable, {str(SHOP)!r}, "stdio"],
        env={{"MCP_SHOP_PIDS": os.path.join(HERE, "pids")}},
        allow=["price", "order"],
    )
    app = AgentQ("fleet")
    celery = app.celery
    app.agent("buyer", model="scripted", tools=[shop], allowlist=["shop_price", "shop_order"])
    """
)
SCRIPT = [
    [["shop_price", '{"item": "pen"}'], ["shop_price", '{"item": 3}']],
    [["shop_order", '{"item": "pen"}']],
    "Ordered.",
]


def started(fleet: Fleet) -> list[int]:
    path = fleet.home / "pids"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_run_on_real_workers_uses_two_tools_of_a_server(make_fleet: type[Fleet]):
    """Who submits starts no server; each worker starts one for all its runs, and none outlives it."""
    fleet = make_fleet(app=APP)  # type: ignore[call-arg]
    rows = [{"input": f"buy {n}", "metadata": {"script": SCRIPT}} for n in range(6)]
    batch = fleet.app.submit_many("buyer", rows, batch="b")
    assert started(fleet) == []
    workers = [fleet.start_worker(), fleet.start_worker()]
    batch.wait(timeout=60)
    for run in batch.runs():
        assert run.record().stop_reason is StopReason.FINISHED, run.record()
        results = [json.loads(m.content) for m in run.thread().messages if m.tool_call_id]
        assert [(r["tool"], r["ok"], r["error_code"]) for r in results] == [
            ("shop_price", True, None),
            ("shop_price", False, "bad_args"),
            ("shop_order", True, None),
        ]
        assert json.loads(results[0]["content"]) == {"item": "pen", "cents": 250}
        assert run.record().definition
    orders = (fleet.home / "pids.orders").read_text().splitlines()
    assert orders == ["pen"] * 6
    assert 1 <= len(started(fleet)) <= 2
    fleet.check_closed("b")
    workers[0].signal(signal.SIGTERM)
    assert workers[0].wait() == 0
    os.kill(workers[1].pid, signal.SIGKILL)
    wait_until(lambda: not any(is_alive(pid) for pid in started(fleet)), "the servers to end")


def test_a_run_waits_for_a_server_that_is_not_there_and_says_so(make_fleet: type[Fleet]):
    fleet = make_fleet(app=APP.replace(repr(str(SHOP)), '"/nowhere.py"'))  # type: ignore[call-arg]
    fleet.start_worker()
    run = fleet.app.submit("buyer", "buy", metadata={"script": SCRIPT})
    said = wait_until(lambda: run.record().last_error or "", "the run to say what it waits for", 30)
    assert "waits for its tools: the MCP server shop cannot be reached" in said
    assert run.state == "queued"
    assert run.record().failures == 0
