"""`agentq purge` as it is typed, on a real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentq.core.lifecycle import StopReason
from agentq.core.records import Delta
from agentq.store import Store
from tests.support.harness import RETENTION_MS, claim_run, open_batch, submit_run
from tests.unit.cli.fakes import invoke

HOUR = 3_600_000


def typed(*args: str, code: int = 0) -> Any:
    done = invoke("purge", *args)
    assert done.exit_code == code, (args, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def three(store: Store) -> Store:
    """july is over since half an hour, june since now, and may is live."""
    for name in ("june", "july", "may"):
        open_batch(store, name)
        submit_run(store, f"run_{name}", batch=name)
        store.batches.seal(name)
        if name != "may":
            lease = claim_run(store, f"run_{name}").lease
            store.runs.commit_end(lease, Delta("{}"), None, StopReason.FINISHED)
    store.client.pexpire(store.keys.batch("july"), RETENTION_MS - HOUR // 2)
    return store


def names(store: Store) -> set[str]:
    return set(store.batches.names())


def test_one_batch_goes_and_the_others_stay(three: Store) -> None:
    assert typed("july", "-y").stdout == "july is gone\n"
    assert names(three) == {"june", "may"}
    assert "there is no batch 'july'" in typed("july", "-y", code=2).stderr


def test_it_asks_first_with_a_count_and_says_what_goes_too(three: Store) -> None:
    refused = typed("july", code=2).stderr
    assert "their results go too: agentq results BATCH -o FILE keeps them\n" in refused
    assert "whether to purge 1 run of july\n  -y says yes" in refused
    assert "whether to purge 2 runs of 2 batches\n" in typed("--where", "batch=ju*", code=2).stderr
    assert names(three) == {"june", "july", "may"}


def test_threads_go_alone_and_whoever_needs_them_is_told(three: Store) -> None:
    refused = typed("july", "--threads", code=2).stderr
    assert "only their threads go: without them no run can be retried\n" in refused
    assert typed("july", "--threads", "-y").stdout == "july: its threads are gone\n"
    assert names(three) == {"june", "july", "may"}
    assert json.loads(invoke("results", "july").stdout)["agentq"]["stop_reason"] == "finished"
    shown = invoke("show", "run_july", "--messages")
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert shown.stderr == "nothing is kept of its conversation any more\n"
    forked = invoke("retry", "run_july", "--from-step", "0", "-y")
    assert forked.exit_code == 2
    assert "run run_july is kept no longer in full (its messages)" in forked.stderr
    told = json.loads(typed("june", "--threads", "-y", "--json").stdout)
    assert told == {"batches": ["june"], "runs": 1, "threads": True, "live": []}


def test_a_run_without_its_thread_is_not_retried_and_has_no_line(store: Store, tmp_path: Path) -> None:
    open_batch(store)
    submit_run(store, "run_1", batch="b1", custom_id="c")
    store.batches.seal("b1")
    lease = claim_run(store, "run_1").lease
    store.runs.commit_end(lease, Delta("{}"), None, StopReason.MODEL_ERROR)
    typed("b1", "--threads", "-y")
    assert "is kept no longer in full (its messages)" in invoke("retry", "run_1").stderr
    out, again = tmp_path / "out", tmp_path / "again"
    done = invoke("results", "b1", "-o", str(out), "--retry-file", str(again))
    assert (done.exit_code, again.read_text()) == (0, "")
    assert f"{again}: of 1 failure the input is kept no longer" in done.stderr


def test_what_is_live_stays_whatever_is_typed(three: Store) -> None:
    refused = typed("may", "-y", code=2).stderr
    assert refused == "error: may is live: only what is over is removed\n  agentq cancel may\n"
    done = typed("--where", "batch=june,may", "-y")
    assert (done.stdout, done.stderr) == ("june is gone\n", "live, and still there: may\n")
    assert names(three) == {"july", "may"}


def test_older_than_counts_from_when_a_batch_was_over(three: Store) -> None:
    told = json.loads(typed("--older-than", "15m", "-y", "--json").stdout)
    assert told == {"batches": ["july"], "runs": 1, "threads": False, "live": []}
    assert typed("--older-than", "15m").stdout == "no batch that is over is meant\n"
    assert names(three) == {"june", "may"}
    refused = typed("--older-than", "long", code=2).stderr
    assert refused == "error: 'long' is no span of time\n  for example 90s, 15m, 2h, 7d or 1w\n"


def test_a_filter_and_an_age_must_both_hold(three: Store) -> None:
    typed("--where", "tenant=acme", "batch!=july", "--older-than", "15m", "-y")
    assert names(three) == {"june", "july", "may"}
    typed("--where", "tenant=acme", "--older-than", "15m", "-y")
    assert names(three) == {"june", "may"}


@pytest.mark.parametrize(
    "args", [[], ["july", "june"], ["july", "--older-than", "1d"], ["july", "--where", "age>1d"]]
)
def test_what_is_not_clear_is_refused(three: Store, args: list[str]) -> None:
    assert "this is for one batch, or for those that a filter means" in typed(*args, "-y", code=2).stderr
    assert "there is no filter 'state'" in typed("--where", "state=ended", "-y", code=2).stderr
