"""A result that is too long for the conversation is kept, and read in parts."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from agentq.agent import Agent, Thread
from agentq.agent.shelf import ThreadShelf
from agentq.provider.scripted import ScriptedClient
from agentq.tools import CallContext, ToolExecutor, ToolRegistry, tool
from agentq.tools import shelf as bounds
from agentq.tools.readresult import READ_RESULT
from agentq.tools.shelf import reference_of

BOOK = "".join(f"line {n:05}\n" for n in range(1000))


@tool(spill=True, max_result_chars=100)
def book(title: str = "") -> str:
    """Give a long text."""
    return BOOK + title


@tool(max_result_chars=100)
def short() -> str:
    """Give a text that is cut."""
    return BOOK


def executor(*tools: Any) -> ToolExecutor:
    return ToolExecutor(ToolRegistry(tools or (book, short)))


class Desk:
    """Calls of one run in one process."""

    def __init__(self, *tools: Any) -> None:
        self.thread = Thread()
        self.ctx = CallContext(shelf=ThreadShelf(self.thread))
        self.executor = executor(*tools)

    def call(self, name: str, /, **arguments: Any) -> str:
        result = self.executor.call(name, json.dumps(arguments), self.ctx)
        assert result.ok, result
        return result.content

    def kept(self, title: str = "") -> str:
        """The reference of a result that was kept."""
        found = re.match(
            r"\[kept: [\d,]+ characters as (result:r[0-9a-f]{10})\.", self.call("book", title=title)
        )
        assert found
        return found[1]


def test_a_long_result_begins_with_its_reference_and_the_whole_is_kept() -> None:
    desk = Desk()
    content = desk.call("book")
    assert content.startswith("[kept: 11,000 characters as result:r")
    assert content.endswith(f"\n{BOOK[:100]}")
    assert list(desk.thread.kept.values()) == [BOOK]
    assert "[cut: 10900 more characters omitted]" in desk.call("short")


def test_a_result_that_fits_is_not_kept() -> None:
    @tool(spill=True, max_result_chars=len(BOOK))
    def fits() -> str:
        """Fit."""
        return BOOK

    desk = Desk(fits)
    assert desk.call("fits") == BOOK
    assert desk.thread.kept == {}


def test_it_is_read_in_parts() -> None:
    desk = Desk()
    ref = desk.kept()
    assert desk.call("read_result", ref=ref, offset=11, limit=22) == (
        "[characters 11 to 33 of 11,000]\nline 00001\nline 00002\n"
    )
    bare = desk.call("read_result", ref=ref.removeprefix("result:"), offset=10_990, limit=8000)
    assert bare == "[characters 10,990 to 11,000 of 11,000]\nine 00999\n"
    assert desk.call("read_result", ref=ref, offset=11_000) == "[nothing: the result has 11,000 characters]"


def test_a_text_is_found_in_it() -> None:
    desk = Desk()
    ref = desk.kept("Straße")
    found = desk.call("read_result", ref=ref, find="00500")
    assert found.startswith("[at 5,505] ")
    assert "line 00500" in found
    many = desk.call("read_result", ref=ref, find="LINE 0000")
    assert many.count("[at ") == 0, "in a text whose letters fold to others, case counts"
    many = desk.call("read_result", ref=ref, find="line")
    assert many.count("[at ") == 10
    assert many.endswith("[more of them: find again from offset=110]")
    assert desk.call("read_result", ref=ref, find="line", offset=10_985).count("[at ") == 1
    assert "is nowhere in the" in desk.call("read_result", ref=ref, find="dragon")
    assert desk.call("read_result", ref=desk.kept("x"), find="LINE 00999").startswith("[at 10,989]")


def test_what_is_not_there_is_an_answer_and_no_error() -> None:
    desk = Desk()
    assert "There is no kept result 'result:rx' in this run" in desk.call("read_result", ref="result:rx")
    ref = desk.kept()
    assert "There is no kept result" in Desk().call("read_result", ref=ref), "of another run"
    assert "There is no kept result" in executor().call("read_result", json.dumps({"ref": ref})).content


def test_an_agent_gets_the_reader_when_one_of_its_tools_needs_it() -> None:
    assert executor(short).registry.names() == ["short"]
    registry = executor().registry
    assert registry.names() == ["book", "read_result", "short"]
    assert [spec.name for spec in registry.visible(["short"])] == ["short"]
    assert [spec.name for spec in registry.visible(["book"])] == ["book", "read_result"]
    denied = executor().call("read_result", '{"ref": "r"}', allowlist=["short"])
    assert denied.error_code == "not_allowed"
    assert executor().call("read_result", '{"ref": "r"}', allowlist=["book"]).ok
    assert READ_RESULT.is_read_only


def test_a_tool_of_the_agent_s_own_may_have_its_name() -> None:
    @tool
    def read_result() -> str:
        """Be another one."""
        return "mine"

    registry = executor(book, read_result).registry
    assert registry.get("read_result") is read_result.tool_spec  # type: ignore[attr-defined]
    assert [spec.name for spec in registry.visible(["book"])] == ["book"]


@pytest.mark.parametrize(
    "name, bound", [("MAX_KEPT_RESULTS", 2), ("MAX_KEPT_TOTAL_BYTES", 2 * len(BOOK) + 2)]
)
def test_when_there_is_no_room_a_result_is_cut(
    monkeypatch: pytest.MonkeyPatch, name: str, bound: int
) -> None:
    monkeypatch.setattr(f"agentq.agent.shelf.{name}", bound)
    desk = Desk()
    for title in ("a", "b", "a"):
        desk.kept(title)
    assert desk.call("book", title="c").endswith("[cut: 10901 more characters omitted]")
    assert len(desk.thread.kept) == 2


def test_a_result_beyond_all_bounds_keeps_its_beginning() -> None:
    @tool(spill=True)
    def huge() -> str:
        """Be huge."""
        return "é" * 3_000_000

    desk = Desk(huge)
    assert desk.call("huge").startswith("[kept: the first 500,000 of 3,000,000 characters as result:r")
    assert len(next(iter(desk.thread.kept.values())).encode()) == bounds.MAX_KEPT_BYTES


def test_a_shelf_that_fails_cuts_the_result_of_a_tool_that_has_acted() -> None:
    class Broken:
        def keep(self, reference: str, text: str) -> bool:
            raise OSError("no server")

        def read(self, reference: str) -> str | None:
            return None

    result = executor().call("book", "", CallContext(shelf=Broken()))
    assert result.ok
    assert result.content.endswith("more characters omitted]")


def test_the_same_call_has_the_same_reference_whoever_makes_it() -> None:
    assert reference_of("call_1") == reference_of("call_1") != reference_of("call_2")


def test_an_agent_in_one_process_reads_what_it_has_kept_also_after_its_thread_was_saved() -> None:
    client = ScriptedClient([[("book", "{}")], [("read_result", '{"ref": "?"}')], "done"])
    agent = Agent(client, executor(book))
    thread = Thread()
    agent.run(thread, "read")
    (reference,) = thread.kept
    again = Thread.from_json(thread.to_json())
    assert again.kept == {reference: BOOK}
    assert ThreadShelf(again).read(reference) == BOOK
    assert "kept" not in json.loads(Thread().to_json())
