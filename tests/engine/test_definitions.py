"""Definitions: a run meets another version of its agent, and its worker does what the agent wants then."""

from __future__ import annotations

from typing import Any

import pytest

from agentq.core.records import Claim
from agentq.provider.errors import RateLimited
from agentq.provider.types import Role
from agentq.tools import tool
from tests.support.harness import CALL_NANO, Moody, Rig, finish_or_fail, ready, state_of

LOOK = [("look", "{}")]


@tool
def look() -> str:
    """Look."""
    return "seen"


def met(rig: Rig, run: str) -> str:
    return rig.record(run).definition


def after_one_step(rig: Rig, *, script: list[Any] | None = None, **options: Any) -> tuple[str, str]:
    """A run that has done its first step, and whose agent says something else from now on."""
    old = rig.agent(Moody([LOOK, "done"]), look, **options).definition
    run = rig.submit()
    rig.step()
    new = rig.agent(Moody(script or [LOOK, "done"]), look, system="Be brief.", **options)
    assert new.definition != old
    return run, old


def changes(rig: Rig, run: str) -> list[str]:
    return [event.detail for event in rig.thread(run).trace if event.kind == "definition_changed"]


def test_a_run_knows_from_its_submit_on_which_definition_it_has(rig: Rig):
    agent = rig.agent(Moody(["done"]))
    run = rig.submit()
    assert met(rig, run) == agent.definition
    rig.drain()
    assert (met(rig, run), changes(rig, run)) == (agent.definition, [])


def test_a_run_goes_on_with_the_new_one_says_so_once_and_remembers_it(rig: Rig):
    run, old = after_one_step(rig, script=[LOOK, LOOK, "done"])
    new = rig.agents["a"].definition
    rig.step()
    assert met(rig, run) == new
    assert finish_or_fail(rig, run).stop_reason == "finished"
    assert changes(rig, run) == [f"{old} to {new}"]
    client: Any = rig.agents["a"].client
    assert "Be brief." in str(client.requests[0])
    rig.check()


def test_a_pinned_run_is_left_to_a_worker_that_has_the_old_one_and_costs_nothing_here(rig: Rig):
    run, old = after_one_step(rig, on_change="pin")
    client: Any = rig.agents["a"].client
    for _ in range(3):
        rig.drain()
        record = rig.record(run)
        assert (record.state, record.step, record.usd_nano) == ("queued", 1, CALL_NANO)
        assert record.last_error is not None
        assert old in record.last_error, "it says which one it waits for"
        ready(rig.store, run)
        rig.rescue()
    assert client.call_count == 0
    rig.agent(Moody([LOOK, "done"]), look, on_change="pin")
    record = finish_or_fail(rig, run)
    assert (record.stop_reason, record.last_error, changes(rig, run)) == ("finished", None, [])
    rig.check()


def test_the_time_for_which_a_run_is_left_to_others_is_not_its_own(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    run, _ = after_one_step(rig, on_change="pin")
    spent, claim = rig.record(run).seconds_ms, rig.store.runs.claim

    def long_ago(*args: Any, **options: Any) -> Claim | None:
        claimed = claim(*args, **options)
        rig.store.client.hset(rig.store.keys.run(run), "claimed", 1)
        return claimed

    monkeypatch.setattr(rig.store.runs, "claim", long_ago)
    rig.drain()
    record = rig.record(run)
    assert (record.state, record.seconds_ms) == ("queued", spent)
    assert record.last_error is not None
    rig.check()


def test_a_run_that_shall_finish_makes_its_closing_turn_and_says_why(rig: Rig):
    run, _ = after_one_step(rig, script=["x", "closing words"], on_change="finish")
    record = finish_or_fail(rig, run)
    assert (record.stop_reason, record.stop_detail) == ("cancelled", "definition_changed")
    assert (record.steps, record.answer) == (1, "closing words")
    assert len(changes(rig, run)) == 1
    rig.check()


def test_the_calls_of_a_reply_that_is_paid_are_made_before_the_closing_turn(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    rig.agent(Moody([LOOK, "done"]), look, on_change="finish")
    run = rig.submit()
    rig.die(monkeypatch, "step.after_model_commit")
    rig.revive(run)
    rig.agent(Moody(["x", "closing words"]), look, system="Be brief.", on_change="finish")
    record = finish_or_fail(rig, run)
    assert (record.stop_reason, record.stop_detail, record.answer) == (
        "cancelled",
        "definition_changed",
        "closing words",
    )
    assert [m.content for m in rig.thread(run).messages if m.role is Role.TOOL] != []
    assert len(changes(rig, run)) == 1
    rig.check()


def test_a_tool_that_is_gone_is_told_to_the_model_and_the_run_goes_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    rig.agent(Moody([LOOK, "done"]), look)
    run = rig.submit()
    rig.die(monkeypatch, "step.after_model_commit")
    rig.revive(run)
    rig.agent(Moody(["x", "done"]))
    assert finish_or_fail(rig, run).stop_reason == "finished"
    (said,) = [m.content for m in rig.thread(run).messages if m.role is Role.TOOL]
    assert "no_such_tool" in said
    rig.check()


def test_it_says_why_also_where_its_closing_turn_had_to_be_tried_again(rig: Rig):
    run, _ = after_one_step(rig, script=["x", "closing words"], on_change="finish")
    client: Any = rig.agents["a"].client
    client.moods = [RateLimited("slow")]
    record = finish_or_fail(rig, run)
    assert (record.stop_reason, record.stop_detail) == ("cancelled", "definition_changed")
    assert (client.call_count, record.answer) == (2, "closing words")
    rig.check()


def test_a_run_that_is_stopping_already_stops_for_its_own_reason(rig: Rig):
    same = [LOOK] * 3
    old = rig.agent(Moody([*same, "x"]), look, on_change="finish").definition
    run = rig.submit()
    for _ in range(3):
        rig.step()
    new = rig.agent(Moody(["x"]), look, system="Be brief.", on_change="finish").definition
    record = finish_or_fail(rig, run)
    assert (record.stop_reason, record.stop_detail) == ("loop_detected", None)
    assert changes(rig, run) == [f"{old} to {new}"]


def test_a_run_of_an_agent_that_is_not_known_here_is_left_to_others_and_says_so(rig: Rig):
    rig.agent(Moody(["done"]))
    run = rig.submit()
    gone = rig.agents.pop("a")
    rig.drain()
    record = rig.record(run)
    assert (state_of(rig.store, run), record.usd_nano, record.failures) == ("queued", 0, 0)
    assert record.last_error == "waits for a worker that knows agent 'a'"
    rig.agents["a"] = gone
    record = finish_or_fail(rig, run)
    assert (record.stop_reason, record.last_error) == ("finished", None)
    rig.check()


@pytest.mark.parametrize("word", ["continue", "pin", "finish"])
def test_a_run_from_before_there_were_definitions_goes_on(rig: Rig, word: Any):
    rig.agent(Moody(["done"]), on_change=word)
    run = rig.submit()
    rig.store.client.hdel(rig.store.keys.run(run), "definition")
    rig.drain()
    assert rig.record(run).stop_reason == "finished"
    rig.check()


@pytest.mark.parametrize("on_change", ["continue", "pin", "finish"])
def test_a_run_that_nobody_has_begun_has_met_nothing_whatever_its_submitter_knew(rig: Rig, on_change: Any):
    old = rig.agent(Moody(["done"]), look).definition
    run = rig.submit()
    new = rig.agent(Moody([LOOK, "done"]), look, system="Be brief.", on_change=on_change).definition
    assert old != new
    assert finish_or_fail(rig, run).stop_reason == "finished"
    assert (met(rig, run), changes(rig, run)) == (new, [])
    rig.check()
