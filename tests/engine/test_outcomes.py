"""Results of a batch: in input order, in the order of the ends, after retries, and of rows never started."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from agentq import AgentQ
from agentq.agent import Budgets
from agentq.app import Batch
from agentq.cli.resultfile.feed import AsEnded, InInputOrder
from agentq.cli.resultfile.join import JoinError, check_join, count_rows
from agentq.cli.resultfile.stdout import OnStdout
from agentq.core.errors import UsageError
from agentq.core.lifecycle import StopReason
from agentq.engine.cancel import cancel_batch, cancel_run
from agentq.engine.fork import calls_after
from agentq.engine.retry import retry_run, retry_runs
from agentq.provider.errors import InvalidRequest
from agentq.provider.scripted import ScriptedClient
from agentq.tools import tool
from agentq.worker.embedded import EmbeddedServer
from tests.support.harness import PRICING, Moody, Rig, open_batch


@tool
def look(id: str) -> str:
    """Look something up."""
    return f"thing {id}"


LOOK = [("look", '{"id": "1"}')]


def submit(rig: Rig, names: str, **row: Any) -> list[str]:
    """Runs of the batch b1 that are called a, b, c, …"""
    open_batch(rig.store)
    return [rig.submit(f"do {name}", batch="b1", custom_id=name, **row) for name in names]


def finish(rig: Rig, *run_ids: str) -> None:
    """Work on these runs until they have ended, one after the other."""
    for run_id in run_ids:
        while hints := [hint for hint in rig.queue if hint[0] == run_id]:
            rig.queue.remove(hints[0])
            rig.queue.insert(0, hints[0])
            rig.step()


def named(results: Any) -> str:
    return "".join(result.custom_id or "?" for result in results)


def test_results_come_in_input_order_or_as_they_ended(rig: Rig):
    rig.agent(ScriptedClient(["done"]))
    a, b, c, _ = submit(rig, "abcd")
    finish(rig, c, a, b)
    batch = Batch(rig.store, "b1")
    assert named(batch.results()) == "abc"
    assert named(batch.results("completed")) == "cab"
    with pytest.raises(UsageError, match="in the order input or completed, not 'random'"):
        batch.results("random")  # type: ignore[arg-type]


def test_endings_go_on_where_they_were_and_a_retried_run_ends_again(rig: Rig):
    client = Moody(["done"], moods=[InvalidRequest("no"), None, InvalidRequest("no"), None])
    rig.agent(client)
    a, b, c = submit(rig, "abc")
    endings = Batch(rig.store, "b1").endings()
    assert named(endings.new()) == ""
    finish(rig, a)
    assert named(endings.new()) == "a"
    finish(rig, b)
    retry_runs(rig.store, [a], by="me")
    assert named(endings.new()) == "b"
    rig.rescue()
    finish(rig, c)
    assert named(endings.new()) == "c"
    assert list(endings.new()) == []
    retry_runs(rig.store, [a], by="me")
    rig.rescue()
    rig.drain()
    (again,) = endings.new()
    assert (again.custom_id, again.generation, again.stop_reason) == ("a", 1, StopReason.FINISHED)
    # Who comes later gets it once, although it has ended twice.
    assert named(Batch(rig.store, "b1").results("completed")) == "abc"


def test_a_gap_holds_up_input_order_unless_the_run_has_a_line_already(rig: Rig):
    rig.agent(ScriptedClient(["done"]))
    a, b, c = submit(rig, "abc")
    finish(rig, a, c)
    feed = InInputOrder(Batch(rig.store, "b1"), lambda run_id: False)
    assert (named(feed.new()), feed.held_up_by) == ("a", b)
    assert (named(feed.new()), feed.held_up_by) == ("", b)
    finish(rig, b)
    assert (named(feed.new()), feed.held_up_by, named(feed.rest())) == ("bc", None, "abc")
    passes = InInputOrder(Batch(rig.store, "b1"), lambda run_id: run_id == b)
    rig.agent(Moody(["done"]), name="a")
    assert named(passes.new()) == "abc"


@pytest.fixture
def app(rig: Rig, server: EmbeddedServer, namespace: str) -> AgentQ:
    """An app on the rig's store. No worker has signed on: its rows are not started."""
    made = AgentQ(namespace, namespace=namespace, redis_url=server.url, pricing=PRICING)
    made.agent("a", model="scripted", budgets=Budgets(max_usd="1"))
    return made


def test_rows_that_were_never_started_are_results_too(rig: Rig, app: AgentQ):
    rows = [{"custom_id": name, "input": f"do {name}", "metadata": {"n": name}} for name in "abc"]
    batch = app.submit_many("a", rows, batch="b1")
    assert named(batch.results()) == ""
    cancel_batch(rig.store, "b1", by="me")
    assert named(batch.results()) == named(batch.results("completed")) == "abc"
    *_, last = batch.results()
    assert last.error is not None
    assert (last.error["code"], last.error["retryable"]) == ("cancelled", True)
    assert (last.state, last.started_ms, last.ended_ms, last.metadata) == ("ended", None, None, {"n": "c"})
    # A tenant that has nothing in flight has one row admitted: that one was a run.
    feed = AsEnded(batch)
    assert (named(feed.new()), named(feed.rest())) == ("a", "bc")
    # It has no step to go on behind, and goes on with its batch only.
    for refuse in (
        lambda: retry_run(rig.store, last.run_id, by="me"),
        lambda: calls_after(rig.store, last.run_id, 0),
    ):
        with pytest.raises(UsageError, match="was never started") as refused:
            refuse()
        assert refused.value.hint.startswith("agentq retry b1 ")


def test_a_row_gives_its_line_back_whatever_became_of_it(rig: Rig, app: AgentQ):
    """The line has the same content: submitted again under the same name it is the same row."""
    rows: list[dict[str, Any]] = [
        {"custom_id": "a", "input": "plain"},
        {"custom_id": "b", "input": "more", "max_usd": "0.5", "priority": 4, "metadata": {"k": [1]}},
        {"custom_id": "c", "input": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]},
    ]
    batch = app.submit_many("a", rows, batch="b1")
    run_ids = [run.id for run in batch.runs()]
    expected = [{**row, "agent": "a"} for row in rows]
    assert [by_name(line) for line in batch.input_lines(run_ids)] == [by_name(row) for row in expected]
    cancel_batch(rig.store, "b1", by="me")
    assert [by_name(line) for line in batch.input_lines(run_ids)] == [by_name(row) for row in expected]
    again = app.submit_many(None, list(batch.input_lines(run_ids)), batch="b1")
    assert again.counts()["total"] == 3


def by_name(line: Any) -> dict[str, Any]:
    return dict(sorted(line.items()))


@pytest.mark.parametrize("moods", [[InvalidRequest("no")], [None, InvalidRequest("no")]])
def test_what_a_run_has_said_is_no_part_of_its_line(rig: Rig, moods: list[Any]):
    """Also where the row was a conversation, in which an assistant has spoken."""
    talk = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    rig.agent(Moody([LOOK, LOOK, "x"], moods=list(moods)), look)
    open_batch(rig.store)
    run_id = rig.submit(talk, batch="b1", custom_id="t", metadata={"k": 1})  # type: ignore[arg-type]
    rig.drain()
    assert rig.record(run_id).stop_reason is StopReason.MODEL_ERROR
    (line,) = Batch(rig.store, "b1").input_lines([run_id])
    assert line == {"custom_id": "t", "input": talk, "agent": "a", "metadata": {"k": 1}}


def test_a_run_that_a_budget_has_closed_gives_back_its_first_message_only(rig: Rig):
    rig.agent(Moody([LOOK, LOOK, "cut short"]), look, budgets=Budgets(max_steps=2, max_tokens=None))
    open_batch(rig.store)
    run_id = rig.submit("go", batch="b1", custom_id="t")
    rig.drain()
    assert rig.record(run_id).stop_reason is StopReason.STEP_BUDGET
    batch = Batch(rig.store, "b1")
    (line,) = batch.input_lines(["run_000000000000", run_id])
    assert line["input"] == "go"


# ── the proof ────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_written_joins_with_what_is_in_the_batch(rig: Rig):
    rig.agent(ScriptedClient(["done"]))
    a, b, c = submit(rig, "abc")
    finish(rig, a, c)
    batch = Batch(rig.store, "b1")
    with OnStdout("jsonl") as sink:
        join = count_rows(batch, sink.add, lambda run_id: False, in_order=False)
        assert str(join) == "3 rows = 2 results + 1 not ended; each custom_id once"
        check_join(batch, join, sink.index)
        join = count_rows(batch, sink.add, lambda run_id: False, in_order=True)
        assert join.as_dict() == {"rows": 3, "results": 1, "not_ended": 1, "behind": 1}
        assert join.held_up_by == b


def test_rows_that_are_added_while_it_is_proved_are_not_missing(rig: Rig):
    rig.agent(ScriptedClient(["done"]))
    submit(rig, "ab")
    rig.drain()
    batch = Batch(rig.store, "b1")
    with OnStdout("jsonl") as sink:
        join = count_rows(batch, sink.add, lambda run_id: False, in_order=False)
        submit(rig, "c")
        check_join(batch, join, sink.index)


@pytest.mark.parametrize(
    "spoil, words",
    [
        ("missing", r"1 result missing \(b\)"),
        ("old", r"1 result missing \(a\)"),
        ("twice", r"1 result there twice \(a\)"),
        ("foreign", r"1 result under another custom_id \(c\)"),
        ("row", "1 row of which nothing is kept any more"),
    ],
)
def test_what_does_not_join_is_named(rig: Rig, spoil: str, words: str):
    rig.agent(Moody(["done"], moods=[InvalidRequest("no")]))
    runs = dict(zip("abc", submit(rig, "abc"), strict=True))
    rig.drain()
    if spoil == "old":
        retry_runs(rig.store, [runs["a"]], by="me")
        cancel_run(rig.store, runs["a"], by="me")
    if spoil == "row":
        rig.store.client.delete(rig.store.keys.run(runs["b"]))
    batch = Batch(rig.store, "b1")
    with OnStdout("jsonl") as sink, closing(sink.index) as written:
        for name, run_id in runs.items():
            if (spoil, name) != ("missing", "b"):
                written.note(run_id, 0, "a" if (spoil, name) == ("foreign", "c") else name)
        if spoil == "twice":
            written.note(runs["a"], 0, "a")
        join = count_rows(batch, lambda result: None, lambda run_id: True, in_order=False)
        with pytest.raises(JoinError, match=words) as refused:
            check_join(batch, join, written)
    assert refused.value.exit_code == 3
