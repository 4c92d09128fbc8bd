"""People decide while workers come and go: each approved call is made once, each decision counts once."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from signal import SIGKILL, SIGTERM
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from agentq.app import Approval
from agentq.core.errors import ConflictError
from agentq.core.lifecycle import StopReason
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from tests.support.fleet import Fleet

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

pytest_plugins = ["tests.support.fleet"]

APP = dedent(
    '''
    """An agent that refunds, which a person must approve; a model that asks for it once."""
    import json, os
    from agentq import AgentQ, Budgets, tool
    from agentq.provider.pricing import ModelPricing
    from agentq.provider.types import ChatResult, Role, ToolCall, Usage

    PRICE = ModelPricing("billed-1", "1", "10", 128_000)
    HERE = os.path.dirname(os.path.abspath(__file__))

    class Client:
        """Asks for a refund of its row, then answers."""
        provider, model = "test", "billed-1"

        def bound(self, req):
            return Usage(600, 150)

        def complete(self, req):
            usage = Usage(400, 90)
            if req.tool_choice != "none" and not any(m.role is Role.ASSISTANT for m in req.messages):
                calls = (ToolCall("", "refund", json.dumps({"row": req.metadata["row"]})),)
                return ChatResult("", usage, "test", "billed-1", tool_calls=calls)
            return ChatResult("done", usage, "test", "billed-1")

    @tool(side_effect=True, requires_approval=True)
    def refund(row: int) -> str:
        """Give money back. Changes data."""
        fd = os.open(os.path.join(HERE, "marks"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, f"{row}\\n".encode())
        os.close(fd)
        return f"refunded {row}"

    app = AgentQ("fleet", pricing={"billed-1": PRICE})
    celery = app.celery
    for name, options in {"stops": {}, "tells": {"on_expired": "tell"}}.items():
        app.agent(name, model=Client(), tools=[refund], budgets=Budgets(max_seconds=None), **options)
    '''
)
PATIENCE = 240.0
"""Seconds: a bound for a machine that does much else."""


def submit(fleet: Fleet, rows: int, *, agent: str = "stops", batch: str = "b") -> None:
    """Runs that will each wait for a person."""
    fleet.app.submit_many(
        agent,
        [{"input": f"row {n}", "custom_id": str(n), "metadata": {"row": n}} for n in range(rows)],
        batch=batch,
    )


def all_wait(fleet: Fleet, rows: int) -> list[Approval]:
    """The calls that wait, once all do."""
    wait_until(lambda: len(fleet.app.approvals()) == rows, f"{rows} calls to wait", PATIENCE)
    return fleet.app.approvals()


def refunded(fleet: Fleet) -> Counter[str]:
    """How often each row was refunded."""
    return Counter(line[0] for line in fleet.lines("marks"))


def nothing_is_left(fleet: Fleet) -> None:
    store = fleet.app.store
    assert store.watch.live() == {}
    assert list(store.approvals.runs()) == []
    account = store.ledger.account("global")
    assert (account.reserved_nano, account.escrowed_nano, account.idle_nano) == (0, 0, 0)


def test_500_runs_are_approved_in_one_command_and_each_call_is_made_exactly_once(
    make_fleet: Callable[..., Fleet],
) -> None:
    fleet = make_fleet(app=APP)
    fleet.start_worker()
    fleet.start_worker()
    submit(fleet, 500)
    all_wait(fleet, 500)
    said = fleet.type("wait", "b", code=5)
    assert "agentq approvals list batch=b" in said.stderr
    done = fleet.type("approvals", "approve", "--where", "batch=b", "-y", "--by", "ann")
    assert done.stdout == "500 calls approved\n"
    batch = fleet.app.batch("b").wait(PATIENCE)
    assert batch.stop_reasons() == {"finished": 500}
    assert refunded(fleet) == Counter({str(n): 1 for n in range(500)})
    nothing_is_left(fleet)


def test_of_two_people_who_decide_the_same_calls_at_once_one_is_first_and_the_other_hears_who(
    make_fleet: Callable[..., Fleet],
) -> None:
    rows = 100
    fleet = make_fleet(app=APP)
    fleet.start_worker()
    submit(fleet, rows)
    calls = all_wait(fleet, rows)
    won: dict[str, set[str]] = {"ann": set(), "bob": set()}
    told: dict[str, dict[str, str]] = {"ann": {}, "bob": {}}
    barrier = threading.Barrier(2)

    def decides(name: str) -> None:
        for call in calls:
            barrier.wait(60)  # so that they meet at each call
            try:
                _ = call.approve(by="ann") if name == "ann" else call.deny(by="bob")
                won[name].add(call.run_id)
            except ConflictError as error:
                told[name][call.run_id] = str(error)

    people = [threading.Thread(target=decides, args=(name,)) for name in won]
    for person in people:
        person.start()
    for person in people:
        person.join(PATIENCE)
        assert not person.is_alive()
    everything = {call.run_id for call in calls}
    assert won["ann"] | won["bob"] == everything
    assert not won["ann"] & won["bob"]
    assert set(told["ann"]) == won["bob"]
    assert set(told["bob"]) == won["ann"]
    assert all("was denied by bob at" in said for said in told["ann"].values())
    assert all("was approved by ann at" in said for said in told["bob"].values())
    fleet.app.batch("b").wait(PATIENCE)
    paid = {record.spec.custom_id for record in fleet.records() if record.id in won["ann"]}
    assert refunded(fleet) == Counter(dict.fromkeys(paid, 1))
    nothing_is_left(fleet)


def test_two_commands_over_the_same_calls_decide_each_once_and_say_what_the_other_did(
    make_fleet: Callable[..., Fleet],
) -> None:
    rows = 300
    fleet = make_fleet(app=APP)
    fleet.start_worker()
    submit(fleet, rows)
    all_wait(fleet, rows)
    ids = [call.id for call in fleet.app.approvals()]
    # Both want the hundred in the middle.
    theirs = {"approve": ("ann", ids[:200]), "deny": ("bob", ids[100:])}
    said: dict[str, str] = {}

    def types(verb: str) -> None:
        by, mine = theirs[verb]
        said[verb] = fleet.type("approvals", verb, *mine, "--by", by, "--json").stdout

    people = [threading.Thread(target=types, args=(verb,)) for verb in theirs]
    for person in people:
        person.start()
    for person in people:
        person.join(PATIENCE)
    approved, denied = json.loads(said["approve"]), json.loads(said["deny"])
    assert approved["decided"] + denied["decided"] == rows
    assert [one["decided"] + len(one["taken"]) for one in (approved, denied)] == [200, 200]
    assert {(taken["by"], taken["verdict"]) for taken in approved["taken"]} <= {("bob", "deny")}
    assert {(taken["by"], taken["verdict"]) for taken in denied["taken"]} <= {("ann", "approve")}
    fleet.app.batch("b").wait(PATIENCE)
    assert sum(refunded(fleet).values()) == len(refunded(fleet)) == approved["decided"]
    nothing_is_left(fleet)


def test_a_rolling_restart_between_request_and_decision_changes_nothing(
    make_fleet: Callable[..., Fleet],
) -> None:
    rows = 40
    fleet = make_fleet(app=APP, lease_seconds=3)
    old = [fleet.start_worker(), fleet.start_worker()]
    submit(fleet, rows)
    before = all_wait(fleet, rows)
    for worker in old:
        fleet.start_worker()
        worker.signal(SIGTERM)
        assert worker.wait(60) == 0
    assert fleet.app.approvals() == before
    half = rows // 2
    for call in before[:half]:
        call.approve(by="ann")
    for call in before[half:]:
        call.deny(by="ann", reason="no")
    fleet.app.batch("b").wait(PATIENCE)
    records = fleet.records()
    assert {record.stop_reason for record in records} == {StopReason.FINISHED}
    assert {record.attempts for record in records} == {1}
    paid = {call.custom_id: 1 for call in before[:half]}
    assert refunded(fleet) == Counter(paid)
    nothing_is_left(fleet)


def test_workers_that_are_killed_between_decision_and_result_make_no_call_twice_and_ask_nobody_again(
    make_fleet: Callable[..., Fleet],
) -> None:
    rows = 12
    fleet = make_fleet(app=APP, lease_seconds=3)
    first = fleet.start_worker()
    submit(fleet, rows)
    all_wait(fleet, rows)
    first.signal_group(SIGKILL)
    first.wait()
    fleet.type("approvals", "approve", "--all", "-y", "--by", "ann")
    # One dies with its first claim, the next with its first result, each at one run only: another one might
    # be at its tool just then, and of that nobody would know whether it has acted.
    for point in ("step.after_claim", "effect.after_done"):
        doomed = fleet.start_worker(concurrency=1, AGENTQ_FAILPOINTS=f"{point}=kill")
        doomed.wait(PATIENCE)
    fleet.start_worker()
    fleet.app.batch("b").wait(PATIENCE)
    assert {record.stop_reason for record in fleet.records()} == {StopReason.FINISHED}
    assert refunded(fleet) == Counter({str(n): 1 for n in range(rows)})
    nothing_is_left(fleet)


def test_at_the_deadline_a_run_ends_or_the_model_is_told_as_its_agent_says(
    make_fleet: Callable[..., Fleet],
) -> None:
    fleet = make_fleet(app=APP, approval_seconds=3)
    fleet.start_worker()
    for agent in ("stops", "tells"):
        submit(fleet, 5, agent=agent, batch=agent)
    for agent, reason in (("stops", "approval_expired"), ("tells", "finished")):
        assert fleet.app.batch(agent).wait(PATIENCE).stop_reasons() == {reason: 5}
    assert refunded(fleet) == Counter()
    for record in fleet.records("tells"):
        codes = [event.detail for event in fleet.app.run(record.id).trace() if event.kind == "tool_result"]
        assert codes == ["refund:approval_expired"]
    nothing_is_left(fleet)
