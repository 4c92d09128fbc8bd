"""`agentq runs` as it is typed, on a real server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentq.app import AgentQ
from agentq.cli import runs as module
from agentq.core.lifecycle import StopReason
from agentq.core.records import Delta
from agentq.store import Store
from agentq.store.listing import newest
from tests.support.harness import claim_run, open_batch, submit_run
from tests.unit.cli.fakes import invoke

MINUTE = 60_000


def typed(*args: str, code: int = 0) -> Any:
    done = invoke("runs", *args)
    assert done.exit_code == code, (args, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


def ids(*args: str) -> list[str]:
    return [run["id"] for run in json.loads(typed("--json", *args).stdout)["runs"]]


def aged(store: Store, run_id: str, minutes: int) -> None:
    """Let it have been submitted so long ago."""
    created = store.watch.server_ms() - minutes * MINUTE
    store.client.hset(store.keys.run(run_id), "created", created)


@pytest.fixture
def five(store: Store) -> Store:
    """Two rows of each of two batches, and a run by itself: run_1 is the newest, run_5 the oldest."""
    for name in ("b1", "b2"):
        open_batch(store, name)
    for number, batch in ((5, "b1"), (4, "b2"), (3, None), (2, "b1"), (1, "b2")):
        submit_run(store, f"run_{number}", batch=batch, custom_id=f"c{number}")
        aged(store, f"run_{number}", 10 * number)
    store.runs.commit_end(claim_run(store, "run_5").lease, Delta("{}"), None, StopReason.LOOP_DETECTED)
    return store


def test_live_and_ended_runs_of_all_batches_and_of_none_stand_newest_first(five: Store) -> None:
    assert ids() == ["run_1", "run_2", "run_3", "run_4", "run_5"]
    lines = typed().stdout.splitlines()
    assert " ".join(lines[0].split()) == "run batch custom_id agent state stop reason steps USD age"
    assert lines[1].split()[:6] == ["run_1", "b2", "c1", "a", "queued", "-"]
    assert lines[3].split()[:3] == ["run_3", "-", "c3"]
    assert lines[5].split()[4:6] == ["ended", "loop_detected"]
    assert lines[5].endswith("  50m 0s")


def test_filters_stand_behind_where_or_alone_and_all_hold(five: Store) -> None:
    assert ids("--where", "state:ended stop_reason:loop_detected,finished") == ["run_5"]
    assert ids("state!=ended", "batch:b1") == ["run_2"]
    assert ids("--where", "-state:ended", "--batch", "b1") == ["run_2"]
    assert ids("age>25m") == ["run_3", "run_4", "run_5"]
    assert ids("custom_id:c*", "steps<1", "usd:0") == ["run_1", "run_2", "run_3", "run_4", "run_5"]


def test_since_means_submitted_or_ended(five: Store) -> None:
    assert ids("--since", "25m") == ["run_1", "run_2", "run_5"]
    refused = typed("--since", "yesterday", code=2).stderr
    assert refused == (
        "error: 'yesterday' is no moment\n  for example 2h, 1d, 2026-11-30 or 2026-11-30T08:00 (UTC)\n"
    )


def test_what_is_not_shown_is_said(five: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    done = typed("--limit", "2")
    assert len(done.stdout.splitlines()) == 3
    assert done.stderr == "2 runs shown, the newest: --limit N shows more\n"
    assert json.loads(typed("--limit", "2", "--json").stdout)["more"] is True
    assert json.loads(typed("--limit", "5", "--json").stdout)["more"] is False
    monkeypatch.setattr(module, "LOOKED_AT", 2)
    done = typed("state:ended")
    assert (done.stdout, done.stderr) == (
        "",
        "no such run\nonly the newest 2 were looked at: --batch NAME looks at that batch only\n",
    )
    done = typed("state:ended", "--batch", "b1")
    assert done.stderr == ""
    monkeypatch.setattr(module, "LOOKED_AT", 1)
    done = typed("state:ended", "--batch", "b1")
    assert done.stderr.endswith(
        "only the newest 1 were looked at: agentq results b1 has all that have ended\n"
    )
    assert json.loads(typed("state:ended", "--json").stdout) == {"runs": [], "more": True}


def test_what_is_not_there_is_said_kindly(store: Store) -> None:
    assert typed().stderr == "no runs yet; agentq submit FILE makes some\n"
    open_batch(store, "july")
    assert "there is no batch 'jluy'" in typed("--batch", "jluy", code=2).stderr
    assert "did you mean 'stop_reason'" in typed("stop_raeson:finished", code=2).stderr
    assert "'july' is no filter" in typed("july", code=2).stderr


def test_a_long_batch_is_read_from_its_end_and_no_further_than_asked(store: Store) -> None:
    open_batch(store, "b1")
    for number in range(30):
        submit_run(store, f"run_{number}", batch="b1")
    rows = newest(store, ["b1"], alone=False)
    assert [next(rows).id for _ in range(3)] == ["run_29", "run_28", "run_27"]
    for number in range(15):  # nobody has read them yet
        store.client.delete(store.keys.run(f"run_{number}"), store.keys.scope(f"run:run_{number}"))
    assert [record.id for record in rows] == [f"run_{number}" for number in range(26, 9, -1)]


def test_a_row_that_is_named_is_not_looked_for_among_all(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_batch(store, "b1")
    for number in range(3):
        submit_run(store, f"run_{number}", batch="b1", custom_id=f"c{number}")
    monkeypatch.setattr(module, "LOOKED_AT", 1)
    assert ids("custom_id:c0", "--batch", "b1") == ["run_0"]
    assert ids("custom_id:c0", "state:ended", "--batch", "b1") == []
    assert ids("custom_id:c9", "batch:b1") == []


def test_rows_that_wait_for_their_turn_are_runs_that_are_queued(store: Store) -> None:
    """Nobody works here, so no row becomes a run before somebody acts on it."""
    app = AgentQ("t")
    app.agent("a", model="scripted")
    rows = [{"input": "go", "custom_id": f"c{number}"} for number in range(4)]
    batch = app.submit_many("a", rows, batch="b1")
    assert len(ids("state:queued", "batch:b1")) == 4
    told = json.loads(invoke("cancel", "-y", "--json", "--where", "state=queued custom_id=c1,c3").stdout)
    assert told["cancelled"] == 2
    assert json.loads(invoke("pause", "-y", "--json", "--where", "custom_id=c2").stdout)["held"] == 1
    assert [run.state for run in batch.runs()] == ["queued", "ended", "held", "ended"]
    shown = json.loads(typed("--json", "stop_reason:cancelled").stdout)["runs"]
    assert {run["custom_id"] for run in shown} == {"c1", "c3"}
