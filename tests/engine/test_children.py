"""Tools that start runs and wait for them: the same children however often the tool is called."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import redis

from agentq.agent import Budgets, Thread
from agentq.core.records import Actor, Parked, RunRecord
from agentq.engine.cancel import cancel_run
from agentq.engine.step import execute_step
from agentq.provider.types import Role
from agentq.tools import CallContext, ChildResult, tool
from tests.support.harness import (
    CALL_NANO,
    Moody,
    Rig,
    age,
    make_agent,
    money,
    nano,
    open_batch,
    ready,
    state_of,
)

FREE = Budgets(max_steps=20, max_tokens=None, max_usd=None)
ASK = [("ask", '{"topics": ["a", "b", "c"]}')]

Seen = list[list[ChildResult]]


def asking(seen: Seen, **options: Any) -> Callable[..., Any]:
    """A tool that has one child answer each topic, and keeps what it gathers."""

    @tool
    def ask(topics: list[str], ctx: CallContext) -> str:
        """Have each topic answered by a run of its own."""
        ids = [ctx.spawn("kid", topic, **options) for topic in topics]
        results = ctx.gather(ids)
        seen.append(results)
        return ", ".join(result.answer for result in results)

    return ask


def everyone(rig: Rig, run_id: str) -> list[str]:
    """The children of a run and theirs."""
    below = rig.store.runs.children(run_id)
    return below + [member for child in below for member in everyone(rig, child)]


def finish(rig: Rig, run_id: str) -> RunRecord:
    """Work and tick until the run has ended, checking the books on the way."""
    for _ in range(60):
        rig.drain()
        for member in everyone(rig, run_id):
            if member not in rig.submitted:
                rig.submitted.append(member)
        rig.check()
        record = rig.record(run_id)
        if record.state == "ended":
            return record
        for live in rig.store.watch.live():
            if state_of(rig.store, live) == "queued":
                ready(rig.store, live)
        rig.rescue()
    pytest.fail(f"{run_id} does not end: {rig.record(run_id)}")


def results_in(thread: Thread) -> list[dict[str, Any]]:
    return [json.loads(message.content) for message in thread.messages if message.role is Role.TOOL]


# ── starting and waiting ─────────────────────────────────────────────────────────────────────────────


def test_a_tool_starts_children_waits_without_a_worker_and_goes_on_with_what_they_say(rig: Rig):
    seen: Seen = []
    parent = Moody([ASK, "all done"])
    rig.agent(parent, asking(seen), budgets=FREE)
    rig.agent(Moody(["an answer"]), name="kid", budgets=FREE)
    run = rig.submit()
    rig.step()
    assert state_of(rig.store, run) == "waiting"
    record = rig.record(run)
    assert (record.gathering, record.children, record.descendants) == (3, 3, 3)
    assert money(rig.store, f"run:{run}")["ui"] > 0
    assert (parent.call_count, seen) == (1, [])
    record = finish(rig, run)
    assert (record.stop_reason, record.answer, record.steps) == ("finished", "all done", 2)
    assert parent.call_count == 2
    assert len(rig.store.runs.children(run)) == 3
    (results,) = seen
    assert {result.run_id for result in results} == set(rig.store.runs.children(run))
    assert [(r.state, r.stop_reason, r.answer, r.steps, r.ok) for r in results] == [
        ("ended", "finished", "an answer", 1, True)
    ] * 3
    assert [f"{result.usd:f}" for result in results] == [nano(CALL_NANO)] * 3
    assert results_in(rig.thread(run))[0]["content"] == "an answer, an answer, an answer"
    # Its scope has paid for all, its own thread knows what it has used itself.
    assert record.usd_nano == 5 * CALL_NANO
    assert rig.thread(run).spend.usd * 10**9 == 2 * CALL_NANO


def test_children_know_for_whom_they_act(rig: Rig):
    who: list[tuple[str, str, dict[str, Any]]] = []

    @tool
    def look(ctx: CallContext) -> str:
        """Look who asks."""
        who.append((ctx.user_id, ctx.tenant_id, dict(ctx.extra)))
        return "ok"

    @tool
    def ask(ctx: CallContext) -> str:
        """Ask two."""
        kids = [ctx.spawn("kid", "a"), ctx.spawn("kid", "b", context={"user_id": "u2"}, metadata={"m": 1})]
        return str([result.custom_id for result in ctx.gather(kids)])

    rig.agent(Moody([[("ask", "{}")], "done"]), ask, budgets=FREE)
    rig.agent(Moody([[("look", "{}")], "done"]), look, name="kid", budgets=FREE)
    run = rig.submit(context={"user_id": "u1", "plan": "gold"})
    finish(rig, run)
    assert sorted(who) == [("u1", "acme", {"plan": "gold"}), ("u2", "acme", {})]
    specs = [rig.record(child).spec for child in rig.store.runs.children(run)]
    assert sorted(len(spec.metadata) for spec in specs) == [0, 1]
    assert {(spec.tenant, spec.parent) for spec in specs} == {("acme", run)}


def test_a_tree_of_three_levels_ends_from_below(rig: Rig):
    seen: Seen = []

    @tool
    def delegate(ctx: CallContext) -> str:
        """Have it done by somebody who asks others."""
        (result,) = ctx.gather([ctx.spawn("a", "ask")])
        return result.answer

    rig.agent(Moody([[("delegate", "{}")], "root"]), delegate, name="root", budgets=FREE)
    rig.agent(Moody([ASK, "middle"]), asking(seen), budgets=FREE)
    rig.agent(Moody(["leaf"]), name="kid", budgets=FREE)
    run = rig.submit(agent="root")
    record = finish(rig, run)
    assert results_in(rig.thread(run))[0]["content"] == "middle"
    assert record.usd_nano == (2 + 2 + 3) * CALL_NANO
    (middle,) = rig.store.runs.children(run)
    assert rig.record(middle).usd_nano == (2 + 3) * CALL_NANO
    assert all(
        list(rig.record(leaf).spec.ancestors) == [run, middle] for leaf in rig.store.runs.children(middle)
    )


def test_a_gather_of_children_that_have_all_ended_does_not_wait(rig: Rig):
    ids: list[str] = []
    states: list[list[str]] = []

    @tool
    def begin(ctx: CallContext) -> str:
        """Start one."""
        ids.append(ctx.spawn("kid", "x", custom_id="one"))
        return "started"

    @tool
    def collect(ctx: CallContext) -> str:
        """Get it."""
        states.append([result.state for result in ctx.gather(ids)])
        return "got it"

    rig.agent(Moody([[("begin", "{}")], [("collect", "{}")], "done"]), begin, collect, budgets=FREE)
    rig.agent(Moody(["done"]), name="kid", budgets=FREE)
    run = rig.submit()
    rig.step()
    rig.queue.sort(key=lambda hint: hint[0] == run)  # the child first
    assert finish(rig, run).steps == 3
    assert states == [["ended"]]
    assert "gather" not in [event.kind for event in rig.thread(run).trace]


def test_results_of_other_calls_of_the_step_are_kept_and_writes_stay_in_order(rig: Rig):
    made: list[str] = []
    seen: Seen = []

    @tool
    def look(id: str) -> str:
        """Look something up."""
        made.append(f"look {id}")
        return id * 3000

    @tool(side_effect=True)
    def write(id: str) -> str:
        """Write it down."""
        made.append(f"write {id}")
        return "written"

    calls = [
        ("write", '{"id": "1"}'),
        *ASK,
        ("look", '{"id": "2"}'),
        ("write", '{"id": "3"}'),
        ("look", '{"id": "4"}'),
    ]
    rig.agent(Moody([calls, "done"]), asking(seen), look, write, budgets=FREE)
    rig.agent(Moody(["kid " * 1000]), name="kid", budgets=FREE)
    run = rig.submit()
    rig.step()
    assert state_of(rig.store, run) == "waiting"
    assert made == ["write 1", "look 2"]
    assert [body["tool"] for body in results_in(rig.thread(run))] == ["write", "look"]
    finish(rig, run)
    # What had a result is not made again; a write waits for what is before it.
    assert made == ["write 1", "look 2", "write 3", "look 4"]
    bodies = results_in(rig.thread(run))
    assert [body["tool"] for body in bodies] == ["write", "look", "ask", "write", "look"]
    assert all(body["ok"] for body in bodies)
    assert [event.kind for event in rig.thread(run).trace].count("tool_result") == 5
    # Who came later has had its share of the room for results.
    assert len(bodies[2]["content"]) > 2500


def test_two_calls_wait_side_by_side(rig: Rig):
    seen: Seen = []
    both = [("ask", '{"topics": ["a"]}'), ("ask", '{"topics": ["b", "c"]}')]
    rig.agent(Moody([both, "done"]), asking(seen), budgets=FREE)
    rig.agent(Moody(["answer"]), name="kid", budgets=FREE)
    run = rig.submit()
    rig.step()
    assert rig.record(run).gathering == 3
    finish(rig, run)
    assert sorted(map(len, seen)) == [1, 2]
    assert len(rig.store.runs.children(run)) == 3


@pytest.mark.parametrize("catches", ["Exception", "everything", "finally"])
def test_a_tool_cannot_swallow_that_it_waits(rig: Rig, catches: str):
    @tool
    def ask(ctx: CallContext) -> str:
        """Ask, and think that nothing can go wrong."""
        kid = ctx.spawn("kid", "x")
        if catches == "Exception":
            try:
                return str(ctx.gather([kid])[0].answer)
            except Exception as error:  # noqa: BLE001 - what is tested
                return f"went wrong: {error}"
        try:
            return str(ctx.gather([kid])[0].answer)
        except:
            if catches == "everything":
                return "went wrong"
            raise
        finally:
            if catches == "finally":
                str(kid)

    rig.agent(Moody([[("ask", "{}")], "done"]), ask, budgets=FREE)
    rig.agent(Moody(["answer"]), name="kid", budgets=FREE)
    run = rig.submit()
    rig.step()
    assert state_of(rig.store, run) == "waiting"
    finish(rig, run)
    assert results_in(rig.thread(run))[0]["content"] == "answer"


def test_an_async_tool_may_wait_too(rig: Rig):
    @tool
    async def ask(ctx: CallContext) -> str:
        """Ask."""
        return ctx.gather([ctx.spawn("kid", "x")])[0].answer

    rig.agent(Moody([[("ask", "{}")], "done"]), ask, budgets=FREE)
    rig.agent(Moody(["answer"]), name="kid", budgets=FREE)
    run = rig.submit()
    finish(rig, run)
    assert results_in(rig.thread(run))[0]["content"] == "answer"


# ── time ─────────────────────────────────────────────────────────────────────────────────────────────


def at_the_deadline(rig: Rig, run: str) -> None:
    """Let the time of all gathers of a run be over."""
    key = rig.store.keys.run(run, "gathers")
    for name in rig.store.client.hkeys(key):
        rig.store.client.hset(key, name, 1)
    age(rig.store, run)
    rig.rescue()


def test_after_its_time_a_gather_answers_with_what_there_is(rig: Rig):
    answers: list[list[tuple[str, Any, str]]] = []

    @tool
    def ask(ctx: CallContext) -> str:
        """Ask, not for ever."""
        results = ctx.gather([ctx.spawn("kid", "x"), ctx.spawn("slow", "y")], timeout=30)
        answers.append([(result.state, result.stop_reason, result.answer) for result in results])
        later = ctx.gather([results[1].run_id], timeout=5)
        answers.append([(result.state, result.stop_reason, result.answer) for result in later])
        return "ok"

    rig.agent(Moody([[("ask", "{}")], "done"]), ask, budgets=FREE)
    rig.agent(Moody(["answer"]), name="kid", budgets=FREE)
    rig.agent(Moody(["answer"]), name="slow", budgets=FREE)
    run = rig.submit()
    rig.step()
    rig.queue = [hint for hint in rig.queue if rig.record(hint[0]).spec.agent == "kid"]
    rig.drain()
    assert state_of(rig.store, run) == "waiting"
    at_the_deadline(rig, run)
    rig.drain()
    # The first has waited, and answers at once from now on; the second waits for its own time.
    first = [("ended", "finished", "answer"), ("queued", None, "")]
    assert answers == [first]
    assert state_of(rig.store, run) == "waiting"
    at_the_deadline(rig, run)
    rig.drain()
    assert answers == [first, first, first[1:]]
    assert finish(rig, run).stop_reason == "finished"
    # The one that was late goes on by itself.
    (late,) = [child for child in rig.store.runs.children(run) if rig.record(child).spec.agent == "slow"]
    assert finish(rig, late).answer == "answer"
    rig.check()


def test_a_gather_that_may_not_wait_looks_only(rig: Rig):
    @tool
    def peek(ctx: CallContext) -> str:
        """Look how it stands."""
        return ctx.gather([ctx.spawn("kid", "x")], timeout=0)[0].state

    rig.agent(Moody([[("peek", "{}")], "done"]), peek, budgets=FREE)
    rig.agent(Moody(["answer"]), name="kid", budgets=FREE)
    run = rig.submit()
    finish(rig, run)
    assert results_in(rig.thread(run))[0]["content"] == "queued"


def test_a_child_that_is_kept_no_longer_is_gone(rig: Rig):
    seen: Seen = []
    rig.agent(Moody([[("ask", '{"topics": ["a"]}')], "done"]), asking(seen), budgets=FREE)
    rig.agent(Moody(["answer"]), name="kid", budgets=FREE)
    run = rig.submit()
    rig.step()
    rig.drain()
    (child,) = rig.store.runs.children(run)
    rig.store.client.delete(rig.store.keys.run(child))
    rig.rescue()
    rig.drain()
    assert [(result.run_id, result.state, result.ok) for result in seen[0]] == [(child, "gone", False)]
    assert rig.store.runs.children(run) == [child]


# ── crashes ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("point", ["step.after_model_commit", "step.after_tools", "step.after_gather"])
def test_a_worker_that_dies_around_a_gather_starts_no_child_twice(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, point: str
):
    seen: Seen = []
    client, kid = Moody([ASK, "done"]), Moody(["answer"])
    rig.agent(client, asking(seen), budgets=FREE)
    rig.agent(kid, name="kid", budgets=FREE)
    run = rig.submit()
    rig.die(monkeypatch, point)
    if rig.cache is not None:
        rig.cache = type(rig.cache)()
    if point != "step.after_gather":
        assert state_of(rig.store, run) == "running"
        rig.revive(run)
    record = finish(rig, run)
    assert (record.answer, record.steps, client.call_count) == ("done", 2, 2)
    assert len(rig.store.runs.children(run)) == kid.call_count == 3
    assert client.bill_nano + kid.bill_nano == record.usd_nano


def test_a_worker_that_dies_in_the_middle_of_starting_children_starts_the_others_later(rig: Rig):
    seen: Seen = []
    ask = asking(seen)
    rig.agent(Moody([ASK, "done"]), ask, budgets=FREE)
    kid = Moody(["answer"])
    rig.agent(kid, name="kid", budgets=FREE)
    run = rig.submit()
    original, begun = rig.store.runs.submit, 0

    def dies(*args: Any, **options: Any) -> Any:
        nonlocal begun
        begun += 1
        if begun == 3:
            raise redis.exceptions.ConnectionError("gone")
        return original(*args, **options)

    rig.store.runs.submit = dies  # type: ignore[method-assign]
    rig.step()
    rig.store.runs.submit = original  # type: ignore[method-assign]
    # The model does not hear that the server was away; the step is tried again.
    record = rig.record(run)
    assert (record.state, record.phase, record.failures) == ("queued", "tools", 1)
    assert record.children == 2
    assert results_in(rig.thread(run)) == []
    assert finish(rig, run).stop_reason == "finished"
    assert len(rig.store.runs.children(run)) == kid.call_count == 3


def test_a_message_that_comes_twice_calls_no_tool_of_a_run_that_waits(rig: Rig):
    calls: list[int] = []

    @tool
    def ask(ctx: CallContext) -> str:
        """Ask."""
        calls.append(1)
        return ctx.gather([ctx.spawn("kid", "x")])[0].answer

    rig.agent(Moody([[("ask", "{}")], "done"]), ask, budgets=FREE)
    rig.agent(Moody(["answer"]), name="kid", budgets=FREE)
    run = rig.submit()
    rig.step()
    for _ in range(3):
        execute_step(run, 0, bench=rig.bench)
    assert len(calls) == 1
    finish(rig, run)
    assert len(calls) == 2


def test_a_tool_that_outlives_its_step_starts_nothing_more(rig: Rig):
    kept: list[CallContext] = []

    @tool
    def remember(ctx: CallContext) -> str:
        """Keep the context for later, as a thread does that was left alone."""
        kept.append(ctx)
        return "ok"

    rig.agent(Moody([[("remember", "{}")], "done"]), remember, budgets=FREE)
    rig.agent(Moody(["answer"]), name="kid", budgets=FREE)
    run = rig.submit()
    rig.step()
    with pytest.raises(Exception, match="at another step by now"):
        kept[0].spawn("kid", "x")
    assert rig.store.runs.children(run) == []
    finish(rig, run)


# ── what a tool is told ──────────────────────────────────────────────────────────────────────────────


def told(rig: Rig, use: Callable[[CallContext], object], *, agents: Sequence[str] = ("kid",)) -> str:
    """What the model reads when a tool does this."""

    @tool
    def act(ctx: CallContext) -> str:
        """Act."""
        return str(use(ctx))

    rig.agent(Moody([[("act", "{}")], "done"]), act, budgets=FREE)
    for name in agents:
        rig.agent(Moody(["answer"]), name=name, budgets=FREE)
    run = rig.submit()
    finish(rig, run)
    body = results_in(rig.thread(run))[0]
    assert not body["ok"]
    return str(body["content"])


@pytest.mark.parametrize(
    "use, said",
    [
        (lambda ctx: ctx.spawn("kidd", "x"), "no agent 'kidd'"),
        (lambda ctx: ctx.spawn("kid", " "), "'input' is empty"),
        (lambda ctx: ctx.spawn("kid", "x", budgets=Budgets(max_tokens=5)), "could not even answer once"),
        (lambda ctx: ctx.gather(["run_other"]), "none of the runs that this run has started"),
        (lambda ctx: ctx.gather([], timeout=-1), "less than nothing"),
        (
            lambda ctx: (ctx.spawn("kid", "x", custom_id="k"), ctx.spawn("kid", "y", custom_id="k")),
            "exists in run",
        ),
    ],
)
def test_a_mistake_is_a_sentence(rig: Rig, use: Callable[[CallContext], object], said: str):
    assert said in told(rig, use)


def test_a_spawn_that_asks_for_something_else_the_second_time_is_a_mistake_of_the_tool(rig: Rig):
    topics = iter(["first", "second"])
    assert "exists in run" in told(rig, lambda ctx: ctx.gather([ctx.spawn("kid", next(topics))]))


def test_in_one_process_there_are_no_children():
    @tool
    def act(ctx: CallContext) -> str:
        """Act."""
        return ctx.spawn("kid", "x")

    thread = Thread()
    make_agent(Moody([[("act", "{}")], "done"]), act).run(thread, "go")
    assert "ctx.spawn needs a worker" in results_in(thread)[0]["content"]


# ── money ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_tree_spends_inside_its_roots_limit_whoever_asks_first(rig: Rig):
    """The root has money for six calls: it makes one, keeps one for its end, its children share the rest."""
    seen: Seen = []
    limit = Budgets(max_steps=20, max_tokens=None, max_usd=nano(6 * CALL_NANO))
    many = [("ask", json.dumps({"topics": list("abcdefghij")}))]
    rig.agent(Moody([many, "done"]), asking(seen), budgets=limit)
    rig.agent(Moody(["answer"]), name="kid", budgets=FREE)
    run = rig.submit()
    record = finish(rig, run)
    assert record.usd_nano <= 6 * CALL_NANO
    assert record.answer == "done"
    (results,) = seen
    assert 1 <= sum(result.ok for result in results) <= 4
    refused = [rig.record(result.run_id) for result in results if not result.ok]
    assert {(child.stop_reason, child.stop_scope) for child in refused} == {("cost_budget", f"run:{run}")}
    assert record.usd_nano == CALL_NANO * 2 + sum(rig.record(r.run_id).usd_nano for r in results)


def test_a_parent_whose_children_have_spent_its_money_still_answers(rig: Rig):
    seen: Seen = []
    limit = Budgets(max_steps=20, max_tokens=None, max_usd=nano(5 * CALL_NANO))
    rig.agent(Moody([ASK, "what there is"]), asking(seen), budgets=limit)
    rig.agent(Moody(["answer"]), name="kid", budgets=FREE)
    run = rig.submit()
    record = finish(rig, run)
    assert (record.stop_reason, record.stop_scope) == ("cost_budget", None)
    assert record.answer == "what there is"
    assert record.usd_nano == 5 * CALL_NANO


def test_cancelling_the_parent_ends_its_children_in_every_state(rig: Rig):
    seen: Seen = []
    rig.agent(Moody([ASK, "done"]), asking(seen), budgets=FREE)
    kid = Moody(["answer"])
    rig.agent(kid, name="kid", budgets=FREE)
    run = rig.submit()
    rig.step()
    held = rig.queue.pop(0)

    def cancels(_request: Any) -> None:
        assert cancel_run(rig.store, run, by="test")

    kid.moods.append(cancels)
    execute_step(*held, bench=rig.bench)
    rig.drain()
    members = [run, *everyone(rig, run)]
    assert {rig.record(member).stop_reason for member in members} == {"cancelled"}
    # The call that was under way is paid.
    assert rig.record(run).usd_nano == 2 * CALL_NANO
    rig.submitted += members[1:]
    rig.check()


def test_children_of_a_run_that_ends_otherwise_go_on(rig: Rig):
    @tool
    def begin(ctx: CallContext) -> str:
        """Start one and leave it."""
        return ctx.spawn("kid", "x")

    rig.agent(Moody([[("begin", "{}")], "done"]), begin, budgets=FREE)
    rig.agent(Moody(["answer"]), name="kid", budgets=FREE)
    run = rig.submit()
    rig.step()
    child = rig.queue.pop(0)
    assert finish(rig, run).stop_reason == "finished"
    assert rig.record(run).descendants == 1
    rig.queue.append(child)
    rig.drain()
    assert rig.record(child[0]).answer == "answer"
    assert rig.record(run).usd_nano == 3 * CALL_NANO
    rig.check()


def test_a_row_whose_children_are_all_parked_waits_for_their_money(rig: Rig):
    """Else `agentq wait` would take it for one at work, until the gather's deadline."""
    rig.agent(Moody([ASK, "all done"]), asking([]), budgets=FREE)
    rig.agent(Moody(["an answer"]), name="kid", budgets=FREE)
    open_batch(rig.store)
    run = rig.submit(batch="b1")
    rig.store.batches.seal("b1")
    rig.step()
    rig.store.ledger.freeze("tenant:acme", actor=Actor("op", "me"))
    rig.drain()
    rig.submitted += rig.store.runs.children(run)
    assert {state_of(rig.store, child) for child in rig.store.runs.children(run)} == {"parked"}
    assert dict(rig.store.batches.parked("b1")) == {Parked("tenant:acme", "usd", "frozen"): 1}
    rig.store.ledger.freeze("tenant:acme", actor=Actor("op2", "me"), frozen=False)
    assert dict(rig.store.batches.parked("b1")) == {}
    assert finish(rig, run).stop_reason == "finished"
