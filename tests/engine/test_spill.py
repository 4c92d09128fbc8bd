"""Long results of distributed runs: read on any worker, after a death, and in a fork; by no other run."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from agentq.agent import Budgets
from agentq.app import Run
from agentq.provider.types import Role
from agentq.tools import CallContext, tool
from tests.support.harness import Moody, Rig, finish_or_fail, ready

BOOK = "".join(f"line {n:05}\n" for n in range(1000))
READS = [("book", "{}")]
FREE = Budgets(max_steps=20, max_tokens=None, max_usd=None)


class Library:
    """A tool with a long result, which changes each time, and one that acts."""

    def __init__(self) -> None:
        self.lent = 0

        @tool(spill=True, max_result_chars=50)
        def book() -> str:
            """Give a long text."""
            self.lent += 1
            return f"{BOOK}lent {self.lent}"

        @tool(spill=True, max_result_chars=50, side_effect=True)
        def order(ctx: CallContext) -> str:
            """Order it, and give a long text."""
            self.lent += 1
            return f"{BOOK}lent {self.lent}"

        self.book, self.order = book, order


def contents(rig: Rig, run: str) -> list[str]:
    """What the model reads of its calls, in order."""
    return [json.loads(m.content)["content"] for m in rig.thread(run).messages if m.role is Role.TOOL]


def reference_in(content: str) -> str:
    found = re.match(r"\[kept: [\d,]+ characters as result:(r[0-9a-f]{10})\.", content)
    assert found, content
    return found[1]


class Reader(Moody):
    """Reads on with whatever reference its last result names."""

    def complete(self, request: Any) -> Any:
        reply = super().complete(request)
        seen = re.findall(r"result:(r[0-9a-f]{10})", " ".join(m.content for m in request.messages))
        if seen and reply.tool_calls:
            import dataclasses

            calls = tuple(
                dataclasses.replace(call, arguments=call.arguments.replace("REF", seen[-1]))
                for call in reply.tool_calls
            )
            return dataclasses.replace(reply, tool_calls=calls)
        return reply


READS_ON = [("read_result", '{"ref": "REF", "offset": 10989, "limit": 100}')]


def test_a_long_result_is_read_by_a_later_step(rig: Rig):
    library = Library()
    rig.agent(Reader([READS, READS_ON, "done"]), library.book, budgets=FREE)
    run = rig.submit()
    assert finish_or_fail(rig, run).stop_reason == "finished"
    first, second = contents(rig, run)
    assert first.endswith(BOOK[:50])
    assert second == "[characters 10,989 to 11,006 of 11,006]\nline 00999\nlent 1"


@pytest.mark.parametrize(
    "point, name, lent",
    [
        ("step.after_tools", "book", 2),  # a read is made again, and what it gives now is what is kept
        ("effect.after_tool", "order", 1),
        ("effect.after_done", "order", 1),
        ("step.after_commit", "order", 1),
    ],
)
def test_a_worker_that_dies_leaves_what_the_thread_says(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, point: str, name: str, lent: int
):
    library = Library()
    rig.agent(Reader([[(name, "{}")], READS_ON, "done"]), library.book, library.order, budgets=FREE)
    run = rig.submit()
    rig.die(monkeypatch, point)
    rig.revive(run)
    ready(rig.store, run)
    rig.rescue()
    assert finish_or_fail(rig, run).stop_reason == "finished"
    assert library.lent == lent
    first, second = contents(rig, run)
    if point == "effect.after_tool":
        assert first.startswith("The worker that made this call was lost")
        assert "There is no kept result" in second
        return
    assert rig.store.results.read(run, reference_in(first)) == f"{BOOK}lent {lent}"
    assert second.endswith(f"lent {lent}")


def test_no_other_run_reads_it(rig: Rig):
    library = Library()
    rig.agent(Moody([READS, "done"]), library.book, budgets=FREE)
    first = rig.submit()
    finish_or_fail(rig, first)
    reference = reference_in(contents(rig, first)[0])
    rig.agent(
        Moody([[("read_result", f'{{"ref": "{reference}"}}')], "done"]), library.book, name="b", budgets=FREE
    )
    other = rig.submit(agent="b")
    finish_or_fail(rig, other)
    assert contents(rig, other) == [
        f"There is no kept result '{reference}' in this run. Use the reference that a result names."
    ]


def test_a_fork_and_a_run_that_goes_on_have_copies(rig: Rig):
    library = Library()
    rig.agent(Reader([READS, "done"]), library.book, budgets=FREE)
    run = rig.submit()
    finish_or_fail(rig, run)
    reference = reference_in(contents(rig, run)[0])
    rig.agents["a"].client = Reader([READS, READS_ON, "done"])
    fork = Run(rig.store, run, rig.agents).fork(1)
    rig.submitted.append(fork.id)
    thread = Run(rig.store, run, rig.agents).thread()
    assert thread.kept == {reference: f"{BOOK}lent 1"}
    onward = rig.submit("go on", thread=thread)
    rig.store.client.delete(rig.store.keys.run(run, "kept"))
    rig.queue.append((fork.id, fork.record().step))
    rig.drain()
    assert contents(rig, fork.id)[1].endswith("lent 1")
    assert rig.store.results.read(onward, reference) == f"{BOOK}lent 1"


def test_a_retry_reads_what_was_kept_before_it(rig: Rig):
    library = Library()
    rig.agent(Reader([READS, READS_ON, "done"]), library.book, budgets=Budgets(max_steps=1, max_tokens=None))
    run = rig.submit()
    assert finish_or_fail(rig, run).stop_reason == "step_budget"
    Run(rig.store, run, rig.agents).retry(max_steps=9)
    rig.queue.append((run, rig.record(run).step))
    rig.drain()
    assert contents(rig, run)[1].endswith("lent 1")
