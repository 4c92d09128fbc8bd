"""Tools of a real MCP server, over stdio and HTTP: what they are, what they give, what its death does."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentq.agent import Agent
from agentq.core.errors import UnavailableError, UsageError
from agentq.provider.scripted import ScriptedClient
from agentq.tools import ToolExecutor, ToolRegistry, ToolResult, tool
from agentq.tools.mcp import MCPServer, _checker, _parameters, _valid_name
from tests.support.processes import StartProcess, is_alive
from tests.support.wait import wait_until

ROOT = Path(__file__).parents[3]
SHOP = str(ROOT / "tests" / "support" / "mcp_shop.py")
MakeServer = Callable[..., MCPServer]


@pytest.fixture
def pids(tmp_path: Path) -> Path:
    return tmp_path / "pids"


@pytest.fixture
def make(pids: Path) -> Iterator[MakeServer]:
    """`make(…)` is the shop over stdio; it is ended with the test, and must leave no process."""
    made: list[MCPServer] = []

    def start(name: str = "shop", **options: Any) -> MCPServer:
        env = {"MCP_SHOP_PIDS": str(pids), "PYTHONWARNINGS": "ignore"}
        made.append(MCPServer(name, **{"command": [sys.executable, SHOP, "stdio"], "env": env} | options))
        return made[-1]

    yield start
    for server in made:
        server.close()
    assert [pid for pid in started(pids) if is_alive(pid)] == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("agentq-mcp")]


def started(pids: Path) -> list[int]:
    return [int(line) for line in pids.read_text().splitlines()] if pids.exists() else []


def call(server: MCPServer, name: str, /, **arguments: Any) -> ToolResult:
    return ToolExecutor(ToolRegistry([server])).call(name, json.dumps(arguments))


def words(server: MCPServer) -> dict[str, str]:
    """What each tool is taken for."""
    short = {"side_effect": "acts", "requires_approval": "asks", "idempotent": "repeats"}
    return {
        spec.name: " ".join(word for field, word in short.items() if getattr(spec, field)) or "reads"
        for spec in server.specs()
    }


def test_nothing_is_started_before_a_tool_is_needed(make: MakeServer, pids: Path) -> None:
    server = make()
    registry = ToolRegistry([server])
    agent = Agent(ScriptedClient(["x"]), ToolExecutor(registry))
    assert not registry.is_known
    assert agent.known_definition == ""
    assert registry.known("shop_price") is None
    assert registry.may_have("shop_price")
    assert not registry.may_have("price")
    assert started(pids) == []
    assert agent.definition
    assert agent.known_definition == agent.definition
    assert len(started(pids)) == 1


def test_what_the_server_says_is_the_least_that_a_tool_is_taken_for(make: MakeServer) -> None:
    """What it says nothing about changes something; what it calls destructive asks a person."""
    found = words(make(allow=["price", "order", "close*", "unknown"]))
    assert found == {
        "shop_price": "reads",
        "shop_order": "acts repeats",
        "shop_close_account": "acts asks",
        "shop_unknown": "acts",
    }


def test_patterns_go_before_what_the_server_says(make: MakeServer) -> None:
    found = words(
        make(
            "",
            allow=["price", "order", "close*", "unknown"],
            side_effect=["pri*"],
            read_only=["unknown", "price"],
            requires_approval=["order"],
            idempotent=["price"],
        )
    )
    assert found == {
        "price": "acts repeats",
        "order": "acts asks",
        "close_account": "acts",
        "unknown": "reads",
    }


def test_the_model_is_told_the_server_s_own_schema_and_the_gate_checks_it(make: MakeServer) -> None:
    server = make(allow=["price"])
    (spec,) = server.specs()
    assert spec.description == "What an item costs."
    assert spec.parameters["properties"]["item"]["type"] == "string"
    assert spec.parameters["required"] == ["item"]
    missing = call(server, "shop_price", count="many")
    assert missing.error_code == "bad_args"
    assert "'item': Field required" in missing.content
    assert "'count': 'many' is not of type 'integer'" in missing.content
    assert missing.content.endswith("Correct them and call again.")
    assert call(server, "shop_order").error_code == "no_such_tool"


def test_results_become_text(make: MakeServer) -> None:
    server = make()
    assert json.loads(call(server, "shop_price", item="pen", count=2).content) == {
        "item": "pen",
        "cents": 500,
    }
    assert call(server, "shop_picture").content == "a square\n[image: image/png, 5 bytes, not shown]"
    failed = call(server, "shop_break_down")
    assert failed.error_code == "tool_error"
    assert "no such shelf" in failed.content
    assert "Traceback" not in failed.content


def test_a_long_result_is_cut(make: MakeServer) -> None:
    assert call(make(max_result_chars=5), "shop_order", item="pen").content.startswith("order\n[cut: ")


def test_one_session_serves_many_threads(make: MakeServer, pids: Path) -> None:
    server = make(timeout_s=30)
    executor = ToolExecutor(ToolRegistry([server]))
    calls = [("shop_price", json.dumps({"item": str(n)})) for n in range(32)]
    found = executor.call_many([("shop_wait", '{"seconds": 0.3}'), *calls])
    assert [json.loads(result.content)["item"] for result in found[1:]] == [str(n) for n in range(32)]
    assert len(started(pids)) == 1


def test_a_call_that_takes_too_long_is_over_in_time_and_the_session_goes_on(make: MakeServer) -> None:
    server = make(timeout_s=0.3, side_effect=["wait"])
    server.specs()
    begun = time.monotonic()
    assert call(server, "shop_wait", seconds=60).error_code == "outcome_unknown"
    assert time.monotonic() - begun < 2
    assert call(make(timeout_s=0.3), "shop_wait", seconds=60).error_code == "timeout"
    wait_until(lambda: call(server, "shop_price", item="pen").ok, "the session to answer")


def test_a_server_that_dies_is_started_again(make: MakeServer, pids: Path) -> None:
    """Under a call, that call has failed; between calls, nobody notices."""
    server = make()
    dead = call(server, "shop_die")
    assert dead.error_code == "tool_error"
    assert "its server has ended" in dead.content
    assert call(server, "shop_price", item="pen").ok
    assert len(started(pids)) == 2


def test_a_server_that_is_killed_between_calls_is_not_noticed(make: MakeServer, pids: Path) -> None:
    server = make()
    assert call(server, "shop_price", item="pen").ok
    os.kill(started(pids)[0], signal.SIGKILL)
    connection = server._session._connection
    assert connection is not None
    wait_until(connection.over.is_set, "the session to end")
    assert call(server, "shop_price", item="pen").ok
    assert len(started(pids)) == 2


def test_a_server_that_ends_again_and_again_is_left_alone_for_a_while(
    make: MakeServer, pids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentq.tools.mcpsession._PAUSE_SECONDS", 300.0)
    server = make()
    for _ in range(2):
        assert "its server has ended" in call(server, "shop_die").content
    refused = call(server, "shop_price", item="pen")
    assert (refused.error_code, refused.retryable) == ("tool_error", True)
    assert (
        "was not started: the MCP server shop cannot be reached: it ends again and again" in refused.content
    )
    assert len(started(pids)) == 2


@pytest.mark.parametrize(
    "command, says",
    [
        (["/nowhere/to-be-found"], "FileNotFoundError"),
        ([sys.executable, "-c", "pass"], "Connection closed"),
        ([sys.executable, "-c", "import time; time.sleep(60)"], "no answer within 0.5 s"),
    ],
)
def test_a_server_that_does_not_start_is_said_in_one_sentence(
    make: MakeServer, command: list[str], says: str
) -> None:
    server = make(command=command, connect_s=0.5 if "sleep" in command[-1] else 30)
    registry = ToolRegistry([server])
    for _ in range(2):  # the second time without trying
        with pytest.raises(UnavailableError, match="the MCP server shop cannot be reached") as refused:
            registry.visible()
        assert says in str(refused.value)
        assert refused.value.hint


def test_tools_that_come_later_are_seen_and_make_another_definition(make: MakeServer) -> None:
    server = make()
    agent = Agent(ScriptedClient(["x"]), ToolExecutor(ToolRegistry([server])))
    before, specs = agent.definition, server.specs()
    assert server.specs() is specs
    assert call(server, "shop_stock_up").ok
    wait_until(lambda: "shop_fresh_goods" in words(server), "the new tool")
    assert call(server, "shop_fresh_goods").content == "new"
    assert agent.definition != before


def test_a_name_fits_every_provider() -> None:
    assert _valid_name("", "a.b/c d", set()) == "a_b_c_d"
    long = _valid_name("shop", "x" * 100, set())
    assert len(long) == 64
    assert long != _valid_name("shop", "x" * 101, set())
    taken = _valid_name("", "a b", {"a_b"})
    assert taken.startswith("a_b_")
    assert taken != "a_b"


CLOSED = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "additionalProperties": False}
TUPLE = {"type": "object", "properties": {"a": {"type": "array", "items": [{"type": "integer"}]}}}
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


@pytest.mark.parametrize(
    "schema, arguments, problems",
    [
        (CLOSED, {"a": 1}, []),
        (
            CLOSED,
            {"a": "x", "c": 1},
            ["'a': 'x' is not of type 'integer'", "'c' is not an argument (they are: a, b)"],
        ),
        ({"required": ["a", "b"]}, {}, ["'a': Field required", "'b': Field required"]),
        ({"properties": {"a": CLOSED}}, {"a": {"a": 1.5}}, ["'a.a': 1.5 is not of type 'integer'"]),
        (TUPLE | {"$schema": DRAFT_7}, {"a": ["x"]}, ["'a.0': 'x' is not of type 'integer'"]),
    ],
)
def test_a_schema_s_problems_are_told_field_by_field(
    schema: dict[str, Any], arguments: dict[str, Any], problems: list[str]
) -> None:
    check = _checker(_parameters(schema), schema.get("$schema"))
    assert check is not None
    assert sorted(check(arguments)) == sorted(problems)


@pytest.mark.parametrize(
    "schema", [{"type": "string"}, {"properties": 3}, {"properties": {"a": {"type": "no"}}}, TUPLE]
)
def test_what_is_no_schema_of_an_object_makes_no_tool(schema: dict[str, Any]) -> None:
    assert _checker(_parameters(schema), None) is None


def test_a_schema_that_refers_to_the_network_fetches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("it asks the network"))
    schema = {"properties": {"a": {"$ref": "http://127.0.0.1:1/schema.json"}}}
    check = _checker(_parameters(schema), None)
    assert check is not None
    with pytest.raises(Exception, match="Unresolvable"):
        check({"a": 1})


def test_a_password_in_an_address_stands_nowhere() -> None:
    server = MCPServer(url="http://me:secret@127.0.0.1:1/mcp?key=secret", connect_s=5)
    try:
        with pytest.raises(UnavailableError) as refused:
            server.specs()
        assert "secret" not in f"{refused.value} {server!r}"
    finally:
        server.close()


def test_a_tool_of_the_agent_goes_before_one_of_a_server(make: MakeServer) -> None:
    @tool(name="shop_price")
    def own() -> str:
        """Be the agent's own."""
        return "mine"

    registry = ToolRegistry([make(), own])
    assert registry.get("shop_price") is own.tool_spec  # type: ignore[attr-defined]
    assert ToolExecutor(registry).call("shop_price", "").content == "mine"


def test_it_sees_nothing_of_the_worker_s_environment(
    make: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    seen = call(make(), "shop_environment").content.split()
    assert "OPENAI_API_KEY" not in seen
    assert "MCP_SHOP_PIDS" in seen


@pytest.mark.parametrize(
    "options, says",
    [
        ({}, "either a command"),
        ({"command": ["x"], "url": "http://x"}, "either a command"),
        ({"command": "npx server"}, "is a list of words: .'npx', 'server'"),
        ({"url": "localhost:80"}, "is no address"),
        ({"command": ["x"], "allow": "read_*"}, "allow of an MCP server is a list of patterns"),
        ({"command": ["x"], "timeout_s": 0}, "must be more than 0"),
        ({"command": ["x"], "name": "a b"}, "cannot be the name of an MCP server"),
    ],
)
def test_what_cannot_be_a_server_is_refused_where_it_is_written(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        MCPServer(**options)


def test_without_the_extra_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="need an extra") as refused:
        MCPServer(command=["x"])
    assert refused.value.hint == "pip install 'agentq[mcp]'"


def test_importing_the_tools_loads_no_mcp() -> None:
    code = (
        "import agentq.tools, agentq.tools.mcp, sys; print('mcp' in sys.modules, 'jsonschema' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_server_is_reached_over_http_also_after_it_was_restarted(
    pids: Path, start_process: StartProcess
) -> None:
    port = free_port()
    argv = [sys.executable, SHOP, str(port)]
    env = {"MCP_SHOP_PIDS": str(pids)}
    first = start_process(argv, env=env)
    wait_until(lambda: answers(port), "the server to listen", 30)
    server = MCPServer("shop", url=f"http://127.0.0.1:{port}/mcp", headers={"X-Key": "k"}, timeout_s=5)
    try:
        assert json.loads(call(server, "shop_price", item="pen").content)["cents"] == 250
        first.end()
        assert call(server, "shop_price", item="pen").error_code in {"tool_error", "timeout"}
        start_process(argv, env=env)
        wait_until(lambda: call(server, "shop_price", item="pen").ok, "the server to be reached again", 30)
    finally:
        server.close()


def test_a_program_that_ends_leaves_no_server_and_no_warning(tmp_path: Path, pids: Path) -> None:
    program = f"""
import sys
from agentq.tools import ToolExecutor, ToolRegistry
from agentq.tools.mcp import MCPServer
shop = MCPServer("shop", command=[sys.executable, {SHOP!r}, "stdio"], env={{"MCP_SHOP_PIDS": {str(pids)!r}}})
print(ToolExecutor(ToolRegistry([shop])).call("shop_order", '{{"item": "pen"}}').content)
"""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "ordered pen\n"), done.stderr
    assert "Warning" not in done.stderr, done.stderr
    assert [is_alive(pid) for pid in started(pids)] == [False]
