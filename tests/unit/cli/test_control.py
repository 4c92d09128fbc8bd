"""`agentq cancel`, `pause`, `resume` and `retry` as they are typed, on a real server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import Result

from agentq.cli import follow
from agentq.core.lifecycle import StopReason
from agentq.core.records import Delta, RunSpec
from agentq.store import Store
from tests.support.harness import HELLO, RETENTION_MS, claim_run, open_batch, state_of, submit_run
from tests.support.rows import load_rows
from tests.unit.cli.fakes import invoke

CALLS = (
    '{"role":"assistant","content":"",'
    '"tool_calls":[{"id":"c1","name":"refund","arguments":"{\\"order\\": 7}"}]}',
    '{"role":"tool","content":"done","tool_call_id":"c1"}',
)
STEP = '["step","step 1",1,1,5]'


def typed(*args: str, code: int = 0) -> Result:
    done = invoke(*args)
    assert done.exit_code == code, (args, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


def one(store: Store, **budgets: Any) -> None:
    """A run `run_1` that has made one step, in which it has acted, and is at the next."""
    spec = RunSpec(agent="a", tenant="acme", budgets=budgets)
    store.runs.submit([("run_1", spec, [HELLO])], heads=["{}"], retention_ms=RETENTION_MS)
    step = Delta('{"step":1}', messages=CALLS, trace=(STEP,))
    store.runs.commit_continue(claim_run(store, "run_1").lease, step, None)


def ended(store: Store, reason: StopReason, *, scope: str = "") -> None:
    store.runs.commit_end(claim_run(store, "run_1").lease, Delta('{"step":1}'), None, reason, scope=scope)


def test_a_run_is_paused_and_resumed_without_a_question(store: Store):
    one(store)
    assert typed("pause", "run_1", "--by", "ann").stdout == "run_1 is paused\n"
    assert "paused by ann: agentq resume run_1 lets it go on" in typed("show", "run_1").stdout
    assert json.loads(typed("show", "run_1", "--json").stdout)["paused_by"] == "ann"
    assert typed("pause", "run_1", "--by", "bob").stdout == "run_1 had already been paused by ann\n"
    assert typed("resume", "run_1").stdout == "run_1 goes on\n"
    assert typed("resume", "run_1").stdout == "run_1 was not paused\n"
    claim_run(store, "run_1")
    told = json.loads(typed("pause", "run_1", "--json").stdout)
    assert told == {"target": "run_1", "held": 0, "pausing": 1}
    typed("resume", "run_1")
    assert typed("pause", "run_1").stdout == "run_1 is paused when its step is over\n"


def test_what_has_ended_is_not_paused_and_says_what_to_type_when_it_is_resumed(store: Store):
    one(store)
    ended(store, StopReason.MODEL_ERROR)
    assert "run run_1 is ended" in typed("pause", "run_1", code=2).stderr
    assert "agentq retry run_1 reopens it" in typed("resume", "run_1", code=2).stderr
    assert typed("cancel", "run_1").stdout == "run_1 had already ended\n"


def test_what_is_being_cancelled_is_neither_paused_nor_resumed(store: Store):
    one(store)
    claim_run(store, "run_1")
    typed("cancel", "run_1")
    assert "run run_1 is cancelling" in typed("pause", "run_1", code=2).stderr
    assert "run run_1 is being cancelled" in typed("resume", "run_1", code=2).stderr


def test_a_batch_says_who_paused_it_and_its_runs_that_they_are_held_by_it(store: Store):
    open_batch(store)
    submit_run(store, "run_1", batch="b1")
    assert "1 run of b1" in typed("pause", "b1", code=2).stderr
    assert typed("pause", "b1", "-y", "--by", "ann").stdout == "b1 is paused: 1 run not ended\n"
    assert typed("pause", "b1", "-y").stdout == "b1 had already been paused by ann: 1 run not ended\n"
    assert store.runs.claim("run_1", None, 1000) is None
    status = typed("status", "b1").stdout
    assert "1 paused" in status
    assert "paused by ann: agentq resume b1 lets it go on" in status
    refused = typed("resume", "run_1", code=2).stderr
    assert refused == "error: run run_1 is held by the pause of its batch\n  agentq resume b1\n"
    assert typed("resume", "b1", "-y").stdout == "b1 goes on: 1 run let go\n"
    assert typed("resume", "b1", "-y").stdout == "b1 was not paused\n"
    assert state_of(store, "run_1") == "queued"


def test_a_run_that_needs_more_is_refused_with_the_figures_and_goes_on_with_more(store: Store):
    one(store, max_steps=1)
    ended(store, StopReason.STEP_BUDGET)
    refused = typed("retry", "run_1", code=2).stderr
    assert "run run_1 has used 1 steps of 1 steps: a retry would stop there again" in refused
    assert "agentq retry run_1 --max-steps N gives it a larger budget" in refused
    assert typed("retry", "run_1", "--max-steps", "2").stdout == "run_1 goes on from step 2\n"
    assert "retried 1 time" in typed("show", "run_1").stdout
    assert "is queued: only a run that has ended is retried" in typed("retry", "run_1", code=2).stderr


def test_what_a_scope_around_a_run_has_stopped_is_retried_as_it_is(store: Store):
    one(store, max_usd="0.1")
    ended(store, StopReason.COST_BUDGET, scope="tenant:acme")
    assert typed("retry", "run_1").stdout == "run_1 goes on from step 2\n"


def test_a_fork_lists_what_it_may_do_again_and_needs_a_yes(store: Store):
    one(store)
    refused = typed("retry", "run_1", "--from-step", "0", code=2).stderr
    assert "1 call behind step 0 may be made again by the new run; which of them only read" in refused
    assert '  step 1  refund({"order": 7}) → done' in refused
    assert "-y says yes" in refused
    told = json.loads(typed("retry", "run_1", "--from-step", "0", "-y", "--json").stdout)
    assert (told["forked_from"], told["step"], len(told["calls"])) == ("run_1", 0, 1)
    assert typed("retry", "run_1", "--from-step", "1").stdout.endswith(" goes on behind step 1 of run_1\n")
    assert (
        "run run_1 has 1 whole step: a new run keeps 0 to 1 of them, not 2"
        in typed("retry", "run_1", "--from-step", "2", code=2).stderr
    )
    assert len(store.watch.live()) == 3


def test_a_batch_s_retry_says_how_many_were_not_and_why(store: Store):
    open_batch(store)
    for name, reason in (("r1", StopReason.FINISHED), ("r2", StopReason.MODEL_ERROR), ("r3", None)):
        submit_run(store, name, batch="b1")
        if reason is not None:
            store.runs.commit_end(claim_run(store, name).lease, Delta("{}"), None, reason)
    assert "1 run of b1" in typed("retry", "b1", code=2).stderr
    lines = typed("retry", "b1", "-y").stdout.splitlines()
    assert lines == ["b1: 1 run retried", "  1 not: they have finished", "  1 not: they have not ended"]
    told = json.loads(typed("retry", "b1", "-y", "--json").stdout)["refused"]
    assert told == {"have_finished": 1, "have_not_ended": 2}
    assert (
        "max_seconds=-1.0 leaves no room" in typed("retry", "b1", "-y", "--max-seconds", "-1", code=2).stderr
    )


def test_cancelling_by_a_filter_takes_what_it_means_and_no_more(store: Store):
    submit_run(store, "run_1", tenant="acme")
    submit_run(store, "run_2", tenant="other")
    claim_run(store, "run_2")
    told = json.loads(typed("cancel", "-y", "--json", "--where", "tenant=other", "state=running").stdout)
    assert told == {
        "target": "tenant=other state=running",
        "cancelled": 1,
        "children": 0,
        "stopped_at": {"run_2": "step 1, in its model call"},
    }
    assert [state_of(store, name) for name in ("run_1", "run_2")] == ["queued", "cancelling"]


def test_a_run_of_a_batch_that_is_paused_by_itself_is_named_with_what_lets_it_go(store: Store):
    open_batch(store)
    submit_run(store, "run_1", batch="b1")
    typed("pause", "run_1")
    way = "agentq resume --where batch=b1 state=held, or agentq resume RUN for one"
    assert f"paused: 1 run\n  {way}\n" in typed("wait", "b1", code=5).stderr
    assert f"  1 run paused: {way}\n" in typed("status", "b1").stdout
    for sentence, batch_is_paused in (("was not paused", False), ("goes on: 0 runs let go", True)):
        if batch_is_paused:
            typed("pause", "b1", "-y")
        resumed = typed("resume", "b1", "-y")
        assert resumed.stdout == f"b1 {sentence}, 1 run paused by itself stays so\n"
        assert resumed.stderr == f"  {way}\n"
    typed("resume", "-y", "--where", "batch=b1", "state=held")
    assert state_of(store, "run_1") == "queued"


def test_a_batch_says_what_its_runs_wait_for_that_look_as_if_they_were_under_way(store: Store):
    why = "waits for a worker that knows agent 'a'"
    open_batch(store)
    for name in ("run_1", "run_2", "run_3"):
        submit_run(store, name, batch="b1")
    for name in ("run_1", "run_2"):
        store.runs.release(claim_run(store, name).lease, delay_ms=60_000, note=why)
    pending = {"id": "c1", "tool": "refund", "arguments": "{}", "signature": "refund:1", "asked_at_ms": 0}
    asked = [pending | {"default": "stop", "kind": "approval"}]
    store.runs.commit_wait(claim_run(store, "run_3").lease, Delta("{}"), None, asked, 10**12)
    typed("pause", "run_3")
    lines = (
        "2 runs wait for a worker that knows agent 'a'",
        "1 run waits for a person, paused: once decided it goes on by agentq resume only",
    )
    for said in (typed("status", "b1").stdout, typed("wait", "b1", "--timeout", "0", code=6).stderr):
        assert all(said.count(line) == 1 for line in lines), said
    held_up = json.loads(typed("status", "b1", "--json").stdout)["held_up"]
    assert (held_up[why], sum(held_up.values())) == (2, 3)


def test_a_wait_says_meanwhile_what_no_worker_can_do_and_says_it_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(follow, "_LOOK_SECONDS", 0.0)
    open_batch(store)
    submit_run(store, "run_1", batch="b1")
    store.runs.release(claim_run(store, "run_1").lease, delay_ms=60_000, note="waits for a worker that x")
    said = typed("wait", "b1", "--timeout", "1", code=6).stderr.partition("time is up")[0]
    assert said.count("1 run waits for a worker that x\n") == 1


def test_what_a_resume_that_was_cut_short_has_left_is_let_go_by_the_next_one(store: Store):
    open_batch(store)
    submit_run(store, "run_1", batch="b1")
    typed("pause", "b1", "-y")
    store.runs.claim("run_1", None, 1000)
    store.batches.resume("b1")
    assert typed("resume", "b1").stdout == "b1 goes on: 1 run let go\n"


def test_nobody_is_asked_about_nothing(store: Store):
    open_batch(store)
    submit_run(store, "run_1", batch="b1")
    store.runs.commit_end(claim_run(store, "run_1").lease, Delta("{}"), None, StopReason.FINISHED)
    paused = typed("pause", "b1", "--by", "ann").stdout
    assert paused == "b1 is paused: no run is live, and rows that come later are held\n"
    assert "paused by ann: agentq resume b1 lets rows begin that come later" in typed("status", "b1").stdout
    assert typed("resume", "b1").stdout == "b1 goes on: 0 runs let go\n"


def test_who_follows_results_is_told_what_keeps_the_rest_back(store: Store):
    load_rows(store, 3, at=4_000_000_000_000)
    typed("pause", "b1", "-y", "--by", "ann")
    assert typed("results", "b1", "--follow", code=5).stderr.endswith(
        "paused by ann: 3 runs\n  agentq resume b1\n"
    )


def test_rows_that_may_begin_again_are_counted_by_themselves(store: Store):
    load_rows(store, 3)  # the first is admitted at once
    typed("pause", "b1", "-y")
    assert typed("resume", "b1", "-y").stdout == "b1 goes on: 0 runs let go, 2 rows may begin\n"


def test_a_row_that_was_never_started_is_retried_with_its_batch(store: Store):
    """By itself it cannot be: each way of asking for it says what can."""
    run, *_, row = load_rows(store, 3)  # the first is admitted at once
    store.batches.cancel("b1", "ann")
    hint = "  agentq retry b1 lets all such rows of its batch wait for their turn again\n"
    alone = typed("retry", row, code=2).stderr
    assert alone == f"error: run {row} was never started\n{hint}"
    forked = typed("retry", row, "--from-step", "0", code=2).stderr
    assert forked == f"error: run {row} was never started: there is no step of it to go on behind\n{hint}"
    filtered = typed("retry", "--where", "batch=b1", "-y")
    assert filtered.stdout.endswith("  2 not: they were never started\n")
    assert filtered.stderr == hint
    early = typed("retry", "b1", "-y")
    assert early.stdout == "b1: 0 runs retried\n  1 not: they have not ended\n"
    assert "rows that had never begun stay ended while runs cancelled with them" in early.stderr
    typed("cancel", run, "-y")
    late = typed("retry", "b1", "-y")
    assert late.stdout == "b1: 1 run retried, and 2 rows that had never begun\n"
    assert late.stderr == ""
    waits = typed("retry", row, "--from-step", "0", code=2).stderr
    assert waits.endswith("  agentq status b1 says what it waits for\n")


@pytest.mark.parametrize(
    "verb, kind", [("cancel", "live"), ("pause", "live"), ("resume", "live"), ("retry", "ended")]
)
def test_a_filter_that_means_nothing_is_told_in_the_same_words_by_each_verb(
    store: Store, verb: str, kind: str
):
    open_batch(store)
    said = typed(verb, "--where", "batch=b1", "tenant=x").stdout
    assert said == f"no {kind} run is meant by batch=b1 tenant=x\n"
    both = typed(verb, "b1", "--where", "batch=b1", code=2).stderr
    assert both == "error: give a target or --where, not both\n"
