"""Looking at a batch costs no more for its rows that have not begun, nor for those that have ended."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from agentq.store import Store
from tests.support.rows import finish, in_flight, load_rows, window
from tests.unit.cli.fakes import invoke

LATER = 10**14
"""None of its rows begins before (ms)."""


def commands(store: Store, work: Callable[[], object]) -> int:
    """How many commands of the server this takes, those of its scripts too."""

    def made() -> int:
        stats = store.client.info("commandstats")
        return sum(
            stat["calls"] for name, stat in stats.items() if name not in {"cmdstat_info", "cmdstat_ping"}
        )

    before = made()
    work()
    return made() - before


def looked_at(store: Store, verb: str, batch: str) -> int:
    return commands(store, lambda: invoke(*verb.split(), batch, "--json"))


@pytest.mark.parametrize("verb", ["status", "metrics", "watch", "wait --timeout 0"])
def test_rows_that_have_not_begun_are_not_looked_at(store: Store, verb: str):
    load_rows(store, 10, "small", at=LATER)
    load_rows(store, 2_000, "large", at=LATER)
    for name in ("small", "large"):
        store.batches.pause(name, "ann")
    assert looked_at(store, verb, "large") == looked_at(store, verb, "small")


@pytest.mark.parametrize("verb", ["status", "metrics"])
def test_rows_that_have_ended_are_not_looked_at(store: Store, verb: str):
    window(store, 1_000)
    load_rows(store, 16, "small")
    load_rows(store, 120, "large")
    for name in ("small", "large"):
        while runs := in_flight(store, "b", name):
            for run_id in runs:
                finish(store, run_id)
            store.watch.due(15_000, room=0, rescues=0)
        assert json.loads(invoke("status", name, "--json").stdout)["queued"] == 0
    # The forecast looks at the last end, the 2nd, the 4th, and so on: two more here, each with its run.
    assert looked_at(store, verb, "large") - looked_at(store, verb, "small") == (4 if verb == "status" else 0)


def test_status_says_of_a_large_batch_what_has_not_begun_and_who_paused_it(store: Store):
    load_rows(store, 700, "large", at=LATER)
    store.batches.pause("large", "ann")
    shown = invoke("status", "large").stdout
    assert "0 of 700 ended, 700 not begun" in shown
    assert "  paused by ann: agentq resume large lets it go on\n" in shown
    told = json.loads(invoke("status", "large", "--json").stdout)
    assert (told["rows"], told["queued"], told["paused_by"], told["forecast"]) == (700, 700, "ann", None)
    waited = invoke("wait", "large")
    assert waited.exit_code == 5
    assert "paused by ann: 700 runs\n  agentq resume large" in waited.stderr


def test_status_has_a_forecast_once_five_runs_have_ended(store: Store):
    window(store, 6)
    load_rows(store, 20, "b1", usd=10**9)
    for run_id in sorted(in_flight(store))[:4]:
        finish(store, run_id, tokens=5)
    assert json.loads(invoke("status", "b1", "--json").stdout)["forecast"] is None
    for run_id in sorted(in_flight(store))[:2]:
        finish(store, run_id, tokens=5)
    found = json.loads(invoke("status", "b1", "--json").stdout)["forecast"]
    assert (found["based_on"], found["usd"]) == (6, "0.000000")
    assert found["rate_per_min"] > 0
    assert "  all     0.000000 USD in all (0.000000 to 0.000000); ends in " in invoke("status", "b1").stdout
