"""Loads that are killed, frozen, stopped or refused, and typed again: through the real command."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from signal import SIGCONT, SIGINT, SIGKILL
from typing import TYPE_CHECKING, Any

import pytest

from agentq.worker.embedded import EmbeddedServer
from tests.support.bulk import (
    APP,
    begun,
    calls,
    check_whole,
    dump,
    let_ticks_pass,
    rows,
    submit,
    typed,
    write_rows,
)
from tests.support.wait import wait_until

pytest_plugins = ["tests.support.fleet"]
pytestmark = pytest.mark.system

if TYPE_CHECKING:  # pytest imports the plugin itself
    from agentq.core.records import BatchRecord
    from tests.support.fleet import Fleet
    from tests.support.processes import ProcessGroup

    MakeFleet = Callable[..., Fleet]

SUBMIT = ("submit", "rows.jsonl", "--batch", "b")
KILLED = -SIGKILL


@pytest.fixture
def fleet(make_fleet: MakeFleet) -> Fleet:
    return make_fleet(app=APP)


def record(fleet: Fleet) -> BatchRecord:
    found = fleet.app.store.batches.read("b")
    assert found is not None
    return found


def total(fleet: Fleet) -> int:
    """How many rows the batch has, 0 when there is none."""
    found = fleet.app.store.batches.read("b")
    return found.total if found else 0


def without_loader(dumped: dict[str, Any]) -> dict[str, Any]:
    return {
        key: {name: part for name, part in value.items() if name != "loader"}
        if isinstance(value, dict)
        else value
        for key, value in dumped.items()
    }


def test_a_load_that_was_killed_runs_nothing_and_is_completed_by_the_same_command(fleet: Fleet):
    fleet.start_worker()
    write_rows(fleet, "rows.jsonl", rows(1_600))
    typed(fleet, *SUBMIT, code=KILLED, AGENTQ_FAILPOINTS="submit.after_chunk=kill#3")
    assert (record(fleet).total, record(fleet).sealed, record(fleet).rows) == (1_500, False, 1_500)
    let_ticks_pass(fleet)
    assert calls(fleet) == []
    assert record(fleet).rows == 1_500
    assert typed(fleet, *SUBMIT).stdout == b"batch b: 1600 runs\n"
    fleet.app.batch("b").wait(100)
    check_whole(fleet, "b", 1_600)
    assert sorted(int(row) for sign, _, row in calls(fleet) if sign == "+") == list(range(1_600))


@pytest.mark.parametrize("point", ["submit.after_open", "submit.after_chunk", "submit.after_write"])
def test_wherever_it_is_killed_the_same_command_brings_each_row_once(fleet: Fleet, point: str):
    write_rows(fleet, "rows.jsonl", rows(1_100))
    typed(fleet, *SUBMIT, code=KILLED, AGENTQ_FAILPOINTS=f"{point}=kill#1")
    assert record(fleet).sealed is (point == "submit.after_write")
    typed(fleet, *SUBMIT)
    assert_each_row_once(fleet, 1_100)


def kill_amid(fleet: Fleet, process: ProcessGroup, until: int) -> None:
    """Kill it as soon as the batch has more rows than that."""
    wait_until(lambda: total(fleet) > until or process.returncode is not None, "some rows", 60)
    process.signal(SIGKILL)
    process.wait()


def test_killed_at_random_moments_it_brings_each_row_once(fleet: Fleet):
    count, chance = 20_000, random.Random(6)
    write_rows(fleet, "rows.jsonl", rows(count))
    broken = 0
    for _ in range(4):
        if total(fleet) > count - 2_000:
            break  # the last kill came late
        process, until = begun(fleet, *SUBMIT), chance.randint(total(fleet), count - 2_000)
        try:
            kill_amid(fleet, process, until)
        finally:
            process.end()
        broken += not record(fleet).sealed
    assert broken, "it was never killed in the middle"
    typed(fleet, *SUBMIT)
    assert_each_row_once(fleet, count)


def assert_each_row_once(fleet: Fleet, count: int) -> None:
    """All rows are there and wait, but for the one that a tenant without runs has admitted at once."""
    store, found = fleet.app.store, record(fleet)
    assert (found.total, found.rows + found.open, found.sealed, found.loader) == (count, count, True, None)
    runs = [run for chunk in store.batches.runs("b") for run in chunk]
    assert len(runs) == len(set(runs)) == count
    known = store.batches.known("b", [str(row) for row in range(count)])
    assert {run for _, run in known.values()} == set(runs)


def test_beside_a_loader_that_lives_a_second_one_is_refused_in_words(fleet: Fleet):
    write_rows(fleet, "rows.jsonl", rows(1_200))
    first = begun(fleet, *SUBMIT, AGENTQ_FAILPOINTS="submit.after_chunk=freeze#1")
    try:
        wait_until(lambda: total(fleet) == 500, "the first chunk", 60)
        refused = typed(fleet, *SUBMIT, code=2).stderr.decode()
        assert f"batch 'b' is being loaded by {first.pid} on " in refused
        assert "wait until that is done" in refused
        assert total(fleet) == 500
        wait_until(lambda: is_stopped(first.pid), "the loader to stand still")
        first.signal(SIGCONT)
        assert first.wait(60) == 0, first.output
    finally:
        first.end()
    assert_each_row_once(fleet, 1_200)


def test_who_was_away_for_too_long_finds_that_somebody_else_has_loaded_it(fleet: Fleet):
    write_rows(fleet, "rows.jsonl", rows(1_200))
    first = begun(fleet, *SUBMIT, AGENTQ_FAILPOINTS="submit.after_chunk=freeze#1")
    store = fleet.app.store
    try:
        wait_until(lambda: total(fleet) == 500, "the first chunk", 60)
        wait_until(lambda: is_stopped(first.pid), "the loader to stand still")
        # As if his time were over.
        who, _, was = str(store.client.hget(store.keys.batch("b"), "loader")).split(" ")
        store.client.hset(store.keys.batch("b"), "loader", f"{who} 1 {was}")
        typed(fleet, *SUBMIT)
        before = dump(fleet, "b")
        first.signal(SIGCONT)
        assert first.wait(60) == 2
        assert "was cancelled, or taken over by another submit, while it was loaded" in first.output
    finally:
        first.end()
    assert dump(fleet, "b") == before
    assert_each_row_once(fleet, 1_200)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_changed_row_is_a_conflict_that_names_its_line_and_changes_nothing(fleet: Fleet):
    write_rows(fleet, "rows.jsonl", rows(700))
    typed(fleet, *SUBMIT, "--priority", "2")
    before = dump(fleet, "b")
    changed = rows(1_400)
    changed[649]["input"] = changed[660]["input"] = "another"
    write_rows(fleet, "rows.jsonl", changed)
    refused = typed(fleet, *SUBMIT, "--priority", "7", "--max-in-flight", "3", code=2).stderr.decode()
    assert "rows.jsonl:650: batch 'b' has '649' with other content, and 1 more" in refused
    assert "nothing was submitted" in refused
    assert dump(fleet, "b") == before


def test_a_conflict_with_a_load_that_was_killed_leaves_that_to_be_resumed(fleet: Fleet):
    write_rows(fleet, "rows.jsonl", rows(1_200))
    typed(fleet, *SUBMIT, code=KILLED, AGENTQ_FAILPOINTS="submit.after_chunk=kill#1")
    before = dump(fleet, "b")
    changed = rows(1_200)
    changed[3]["input"] = "another"
    write_rows(fleet, "rows.jsonl", changed)
    assert (
        "rows.jsonl:4: batch 'b' has '3' with other content" in typed(fleet, *SUBMIT, code=2).stderr.decode()
    )
    assert without_loader(dump(fleet, "b")) == without_loader(before)
    assert not record(fleet).sealed
    write_rows(fleet, "rows.jsonl", rows(1_200))
    typed(fleet, *SUBMIT)
    assert_each_row_once(fleet, 1_200)


def test_one_bad_line_and_nothing_of_the_batch_is_there(fleet: Fleet):
    bad = rows(30)
    for row in range(4, 29):
        bad[row]["inputt"] = bad[row].pop("input")
    write_rows(fleet, "rows.jsonl", bad)
    before = set(fleet.app.store.client.keys("*"))
    refused = typed(fleet, *SUBMIT, code=2).stderr.decode()
    assert "rows.jsonl:5: " in refused
    assert "rows.jsonl:24: " in refused
    assert "rows.jsonl:25: " not in refused
    assert "5 more" in refused
    assert set(fleet.app.store.client.keys("*")) == before


def test_a_load_for_which_the_server_has_no_memory_leaves_no_key(fleet: Fleet):
    items = rows(2_000)
    for item in items:
        item["input"] = "x" * 4_000
    write_rows(fleet, "rows.jsonl", items)
    client = fleet.app.store.client
    used = int(client.info("memory")["used_memory"])
    client.config_set("maxmemory", used + 4_000_000)
    assert "memory" in typed(fleet, *SUBMIT, code=7).stderr.decode()
    wait_until(lambda: dump(fleet, "b") == {}, "the batch's account to expire")
    client.config_set("maxmemory", 0)
    typed(fleet, *SUBMIT)
    assert_each_row_once(fleet, 2_000)


def test_ctrl_c_while_it_writes_says_what_is_and_the_same_command_goes_on(fleet: Fleet):
    write_rows(fleet, "rows.jsonl", rows(1_200))
    process = begun(fleet, *SUBMIT, AGENTQ_FAILPOINTS="submit.after_chunk=freeze#1")
    try:
        wait_until(lambda: total(fleet) == 500, "the first chunk", 60)
        wait_until(lambda: is_stopped(process.pid), "it to stand still")
        process.signal(SIGINT)
        process.signal(SIGCONT)
        assert process.wait(60) == 130, process.output
        assert "nothing of this load has begun; the same command again goes on with it" in process.output
    finally:
        process.end()
    assert (total(fleet), record(fleet).sealed) == (500, False)
    typed(fleet, *SUBMIT)
    assert_each_row_once(fleet, 1_200)


def test_a_server_that_goes_away_while_it_writes_is_said_and_the_same_command_goes_on(fleet: Fleet):
    write_rows(fleet, "rows.jsonl", rows(1_200))
    process = begun(fleet, *SUBMIT, AGENTQ_FAILPOINTS="submit.after_chunk=freeze#1")
    try:
        wait_until(lambda: total(fleet) == 500, "the first chunk", 60)
        wait_until(lambda: is_stopped(process.pid), "it to stand still")
        os.kill(fleet.server.pid, SIGKILL)
        fleet.server.stop()
        process.signal(SIGCONT)
        assert process.wait(60) == 7, process.output
        assert "nothing of this load has begun; the same command again goes on with it" in process.output
    finally:
        process.end()
    fleet.server = EmbeddedServer.start(fleet.home)
    typed(fleet, *SUBMIT)
    assert_each_row_once(fleet, 1_200)


def test_more_rows_for_a_batch_that_is_over_run_and_the_others_do_not_again(fleet: Fleet):
    fleet.start_worker()
    submit(fleet, "b", 40).wait(60)
    write_rows(fleet, "rows.jsonl", rows(60))
    typed(fleet, *SUBMIT, "--wait")
    check_whole(fleet, "b", 60)
    assert sorted(int(row) for sign, _, row in calls(fleet) if sign == "+") == list(range(60))
