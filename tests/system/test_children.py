"""Trees of runs on real workers: no worker is held by who waits, and a root's limit holds whoever dies."""

from __future__ import annotations

import threading
from signal import SIGKILL
from textwrap import dedent

import pytest

from agentq.core.errors import ConflictError, UsageError
from agentq.core.lifecycle import RunState
from agentq.core.money import NANO
from tests.support.harness import check_invariants
from tests.support.wait import wait_until

pytestmark = pytest.mark.system

pytest_plugins = ["tests.support.fleet"]

APP = dedent(
    '''
    """A root that has each topic answered by a child, a middle that does the same, and the children."""
    import json, os, time
    from agentq import AgentQ, Budgets, CallContext, tool
    from agentq.provider.pricing import ModelPricing
    from agentq.provider.types import ChatResult, Role, ToolCall, Usage

    PRICE = ModelPricing("billed-1", "1", "10", 128_000)
    HERE = os.path.dirname(os.path.abspath(__file__))

    class BilledClient:
        """Appends what a call costs to the bill, then takes its time, then answers."""
        provider, model = "test", "billed-1"

        def __init__(self, *turns, seconds=0.0):
            self.turns, self.seconds = turns, seconds

        def bound(self, req):
            return Usage(600, 150)

        def turns_for(self, req):
            return self.turns

        def complete(self, req):
            turn = sum(m.role is Role.ASSISTANT for m in req.messages)
            usage = Usage(400 + turn, 90)
            fd = os.open(os.path.join(HERE, "bill"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(fd, f"0 {turn} {PRICE.cost_nano(usage)}\\n".encode())
            os.close(fd)
            time.sleep(self.seconds)
            turns = self.turns_for(req)
            wanted = turns[min(turn, len(turns) - 1)]
            if req.tool_choice != "none" and not isinstance(wanted, str):
                calls = (ToolCall("", wanted[0], json.dumps(wanted[1])),)
                return ChatResult("", usage, "test", "billed-1", tool_calls=calls)
            return ChatResult(wanted if isinstance(wanted, str) else "no more", usage, "test", "billed-1")

    class Uneven(BilledClient):
        """Answers topics with an even number at once."""
        def turns_for(self, req):
            return ["done"] if int(req.messages[0].content.split()[-1]) % 2 == 0 else self.turns

    @tool
    def ask(agent: str, count: int, ctx: CallContext) -> str:
        """Have so many children of this agent answer."""
        kids = [ctx.spawn(agent, f"topic {n}", custom_id=f"k{n}") for n in range(count)]
        return ", ".join(f"{r.custom_id}={r.stop_reason.value}" for r in ctx.gather(kids))

    @tool
    def look(id: str) -> str:
        """Look something up."""
        return "x" * 100

    app = AgentQ("fleet", pricing={"billed-1": PRICE})
    celery = app.celery
    FREE = Budgets(max_steps=50, max_tokens=None, max_seconds=None)
    app.agent("root", model=BilledClient(("ask", {"agent": "kid", "count": 20}), "all done"), tools=[ask],
              budgets=Budgets(max_steps=50, max_tokens=None, max_seconds=None, max_usd="0.06"))
    app.agent("top", model=BilledClient(("ask", {"agent": "middle", "count": 3}), "all done"), tools=[ask],
              budgets=FREE)
    app.agent("middle", model=BilledClient(("ask", {"agent": "kid", "count": 2}), "done"), tools=[ask],
              budgets=FREE)
    app.agent("kid", model=Uneven(*(("look", {"id": str(n)}) for n in range(4)), "done", seconds=0.2),
              tools=[look], budgets=FREE)
    app.agent("sleeper", model=BilledClient("done", seconds=60), budgets=FREE)
    '''
)


def check(fleet, runs):
    """The invariants, beside a broker whose keys are Celery's."""
    store = fleet.app.store
    for key in store.client.scan_iter(match=f"{store.keys.broker_prefix}*", count=1000):
        store.client.expire(key, 600)
    check_invariants(store, [run.id for run in runs])


def tree(run):
    """A run and all below it."""
    return [run, *(member for child in run.children() for member in tree(child))]


@pytest.mark.timeout(240)
def test_a_fan_out_survives_killed_workers_inside_its_roots_limit(make_fleet):
    """Twenty children at once, which the root cannot pay in full; two workers die in the middle.

    Ten of them need one call, ten five: 78 million nano-USD, of 60. Sixteen calls that die at their worst
    price take 34 of these: enough is left for some to finish.
    """
    fleet = make_fleet(app=APP, lease_seconds=3)
    store, limit = fleet.app.store, 6 * NANO // 100
    workers = [fleet.start_worker(concurrency=8), fleet.start_worker(concurrency=8)]
    root = fleet.app.submit("root", "go")
    scope, over, samples, done = f"run:{root.id}", [], [], threading.Event()

    def watch():
        while not done.wait(0.005):
            account = store.ledger.account(scope)
            samples.append(account.spent_nano)
            if account.spent_nano + account.reserved_nano + account.escrowed_nano > limit:
                over.append(account)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for kill in range(2):
            wait_until(
                lambda: sum(child.state == "running" for child in root.children()) >= 4 or root.done(),
                "children to be at work",
                60,
            )
            assert kill or not root.done()
            victim = workers.pop(0)
            victim.signal_group(SIGKILL)
            victim.wait()
            workers.append(fleet.start_worker(concurrency=8))
        result = root.result(120)
    finally:
        done.set()
        watcher.join()
    # It answers, also where its children have left it no more than its closing turn.
    assert result.answer == "all done"
    assert result.stop_reason.value in {"finished", "cost_budget"}
    assert not over
    assert len(samples) > 100
    children = root.children()
    assert {child.custom_id for child in children} == {f"k{n}" for n in range(20)}
    wait_until(lambda: not store.watch.live(), "everything to have ended", 60)
    records = [child.record() for child in children]
    reasons = {record.stop_reason.value for record in records}
    assert reasons == {"finished", "cost_budget"}
    assert all(r.stop_scope == scope for r in records if r.stop_reason == "cost_budget")
    account = store.ledger.account(scope)
    assert account.spent_nano <= limit
    assert account.spent_nano >= sum(record.usd_nano for record in records) + 2 * 10**6
    assert store.ledger.account("global").spent_nano >= fleet.billed_nano()
    check(fleet, tree(root))


@pytest.mark.timeout(120)
def test_a_tree_of_ten_runs_ends_on_a_worker_that_does_one_step_at_a_time(make_fleet):
    fleet = make_fleet(app=APP)
    fleet.start_worker(concurrency=1)
    top = fleet.app.submit("top", "go", tenant="acme")
    result = top.result(60)
    assert (result.stop_reason, result.answer, result.attempts) == ("finished", "all done", 1)
    members = tree(top)
    assert len(members) == 1 + 3 + 3 * 2
    assert {member.record().spec.tenant for member in members} == {"acme"}
    assert top.record().usd_nano == fleet.billed_nano()
    check(fleet, members)


def test_a_child_that_is_submitted_from_outside_belongs_to_its_parent(make_fleet):
    fleet = make_fleet(app=APP)
    app = fleet.app
    parent = app.submit("sleeper", "wait", tenant="acme", context={"user_id": "u1"})
    child = app.submit("kid", "x", parent=parent, custom_id="one")
    assert app.submit("kid", "x", parent=parent.id, custom_id="one").id == child.id
    record = child.record()
    assert (record.spec.tenant, record.spec.parent, record.spec.context) == (
        "acme",
        parent.id,
        {"user_id": "u1"},
    )
    assert child.parent is not None
    assert child.parent.id == parent.id
    assert [run.id for run in parent.children()] == [child.id]
    assert "has started 1 run; 1 live below it" in fleet.type("show", parent.id).stdout
    assert f"child of run {parent.id}, depth 1" in fleet.type("show", child.id).stdout
    with pytest.raises(ConflictError, match="exists in run"):
        app.submit("kid", "y", parent=parent, custom_id="one")
    with pytest.raises(UsageError, match="is of tenant 'acme'"):
        app.submit("kid", "x", parent=parent, tenant="other")
    with pytest.raises(UsageError, match="no row of a batch"):
        app.submit("kid", "x", parent=parent, batch="b")
    with pytest.raises(UsageError, match="there is no run"):
        app.submit("kid", "x", parent="run_nobody")
    assert parent.cancel()
    assert child.record().state is RunState.ENDED
    with pytest.raises(UsageError, match="is ended: only a live run has children"):
        app.submit("kid", "x", parent=parent)
    check(fleet, [parent, child])


def test_a_batch_is_over_with_its_rows_and_kept_until_what_they_started_has_ended(make_fleet):
    fleet = make_fleet(app=APP)
    app = fleet.app
    batch = app.submit_many("sleeper", [{"input": "row", "custom_id": "r"}], batch="b")
    (row,) = batch.runs()
    child = app.submit("kid", "x", parent=row)
    assert child.record().spec.batch == "b"
    assert batch.counts()["total"] == 1
    app.store.runs.cancel(row.id, "test")
    assert batch.done()
    assert batch.record().descendants == 1
    assert app.store.client.ttl(app.store.keys.batch("b")) == -1
    assert batch.cancel().live == 0
    assert child.done()
    assert app.store.client.ttl(app.store.keys.batch("b")) > 0
    check(fleet, [row, child])
