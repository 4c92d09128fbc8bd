"""What `agentq submit` is told about its input, and what it says before it submits: the real command."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.bulk import APP, rows, typed, write_rows

pytest_plugins = ["tests.support.fleet"]
pytestmark = pytest.mark.system

if TYPE_CHECKING:  # pytest imports the plugin itself
    from tests.support.fleet import Fleet

    MakeFleet = Callable[..., Fleet]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from tests.support.fleet import Fleet

    fleet = Fleet(tmp_path_factory.mktemp("f"), app=APP)
    yield fleet
    fleet.end()


def inputs(fleet: Fleet, batch: str) -> list[str]:
    """What the rows of a batch say to their model."""
    return [run.thread().messages[0].content for run in fleet.app.batch(batch).runs()]


def is_there(fleet: Fleet, batch: str) -> bool:
    return fleet.app.store.batches.read(batch) is not None


def test_a_dry_run_says_what_it_may_cost_and_leaves_nothing(fleet: Fleet):
    write_rows(fleet, "dry.jsonl", rows(7))
    before = set(fleet.app.store.client.keys("*"))
    told = json.loads(typed(fleet, "submit", "dry.jsonl", "--dry-run", "--json").stdout)
    assert (told["batch"], told["dry_run"], told["rows"], told["unbounded_rows"]) == ("dry", True, 7, 0)
    assert told["agents"] == {"one": "gauge-1"}
    assert told["worst_usd"] == "7.000000"
    said = typed(fleet, "submit", "dry.jsonl", "--dry-run", "--max-usd", "0.5").stdout.decode()
    assert said.startswith("batch dry: 7 rows checked, nothing submitted\n")
    assert "0.500000 USD (the limit of the batch)" in said
    assert (
        "2 rows checked" in typed(fleet, "submit", "dry.jsonl", "--dry-run", "--limit", "2").stdout.decode()
    )
    assert set(fleet.app.store.client.keys("*")) == before


def test_a_dry_run_needs_no_server_and_finds_what_is_wrong(fleet: Fleet):
    write_rows(fleet, "wrong.jsonl", [*rows(2), {"input": "a", "agent": "on"}])
    nowhere: dict[str, Any] = {"AGENTQ_REDIS_URL": "redis://127.0.0.1:1/0"}
    refused = typed(fleet, "submit", "wrong.jsonl", "--dry-run", code=2, **nowhere).stderr.decode()
    assert "wrong.jsonl:3: there is no agent 'on' (did you mean 'one'?)" in refused
    typed(fleet, "submit", "wrong.jsonl", "--dry-run", "--limit", "2", **nowhere)
    typed(fleet, "submit", "wrong.jsonl", "--limit", "2", code=7, **nowhere)


def test_above_an_amount_it_is_not_submitted_unless_somebody_says_yes(fleet: Fleet):
    write_rows(fleet, "dear.jsonl", rows(7))
    command = ("submit", "dear.jsonl", "--confirm-above", "6.99")
    refused = typed(fleet, *command, code=2).stderr.decode()
    assert "there is nobody to ask here whether to submit 7 rows that may cost 7.000000 USD" in refused
    assert "-y says yes" in refused
    assert not is_there(fleet, "dear")
    typed(fleet, *command, "--limit", "6")
    typed(fleet, *command, "-y")
    assert fleet.app.batch("dear").record().total == 7
    typed(fleet, "submit", "dear.jsonl", "--batch", "fits", "--confirm-above", "7")
    assert fleet.app.batch("fits").record().total == 7


def test_where_a_pilot_begins_it_is_not_asked_about_the_rows_and_where_none_does_it_is(fleet: Fleet):
    write_rows(fleet, "few.jsonl", rows(7))
    few = ("submit", "few.jsonl", "--confirm-above", "6.99", "--pilot")
    assert "nobody to ask here" in typed(fleet, *few, "7", code=2).stderr.decode(), "it would be all of them"
    assert not is_there(fleet, "few")
    typed(fleet, *few, "5")
    assert fleet.app.batch("few").record().pilot == 5
    typed(fleet, *few, "5")
    fleet.app.store.client.hdel(fleet.app.store.keys.batch("few"), "pilot")  # as when it is decided
    assert "nobody to ask here" in typed(fleet, *few, "5", code=2).stderr.decode()
    typed(fleet, *few, "5", "-y")


def test_the_first_rows_only_and_later_the_others(fleet: Fleet):
    write_rows(fleet, "some.jsonl", rows(9))
    assert typed(fleet, "submit", "some.jsonl", "--limit", "4").stdout == b"batch some: 4 runs\n"
    assert typed(fleet, "submit", "some.jsonl").stdout == b"batch some: 9 runs\n"
    assert inputs(fleet, "some") == [f"row {row}" for row in range(9)]


def test_standard_input_needs_a_name_for_its_batch(fleet: Fleet):
    lines = b'{"input": "a"}\n{"input": "b"}\n'
    refused = typed(fleet, "submit", "-", code=2, stdin=lines).stderr.decode()
    assert "rows from standard input need a name for their batch" in refused
    assert typed(fleet, "submit", "-", "--batch", "piped", stdin=lines).stdout == b"batch piped: 2 runs\n"
    assert inputs(fleet, "piped") == ["a", "b"]
    refused = typed(fleet, "submit", "-", "--batch", "piped", code=2, stdin=b'{"input": 7}\n').stderr.decode()
    assert "1: " in refused
    typed(fleet, "submit", "-", "--batch", "zipped", stdin=gzip.compress(lines))
    assert inputs(fleet, "zipped") == ["a", "b"]


def test_a_file_that_is_gzipped_gives_its_name_without_endings(fleet: Fleet):
    (fleet.home / "july.jsonl.gz").write_bytes(gzip.compress(b'{"input": "a", "custom_id": "x"}\n' * 1))
    typed(fleet, "submit", "july.jsonl.gz")
    assert inputs(fleet, "july") == ["a"]
    whole = gzip.compress(b'{"input": "b"}\n' * 1_000)
    (fleet.home / "cut.jsonl.gz").write_bytes(whole[:-20])
    assert "cut.jsonl.gz" in typed(fleet, "submit", "cut.jsonl.gz", code=2).stderr.decode()
    assert not is_there(fleet, "cut")


def test_only_the_ending_of_a_file_is_none_of_its_batch_s_name(fleet: Fleet):
    write_rows(fleet, "july.2026.jsonl", rows(1))
    write_rows(fleet, "july.2027.jsonl", rows(2))
    typed(fleet, "submit", "july.2026.jsonl")
    typed(fleet, "submit", "july.2027.jsonl")
    assert [fleet.app.batch(name).record().total for name in ("july.2026", "july.2027")] == [1, 2]


def test_columns_make_fields_as_the_map_says(fleet: Fleet):
    (fleet.home / "table.csv").write_text('id,question,lang\n1,"Where, please?",en\n2,Wo?,de\n')
    maps = ("--map", "input={question} ({lang})", "--map", "custom_id=q-{id}")
    typed(fleet, "submit", "table.csv", *maps)
    assert inputs(fleet, "table") == ["Where, please? (en)", "Wo? (de)"]
    known = fleet.app.store.batches.known("table", ["q-1", "q-2"])
    assert known.keys() == {"q-1", "q-2"}
    refused = typed(fleet, "submit", "table.csv", "--map", "input={qestion}", code=2).stderr.decode()
    assert "'question'" in refused


def test_what_a_file_is_may_be_said(fleet: Fleet):
    (fleet.home / "odd.dat").write_text('{"input": "a"}\n')
    typed(fleet, "submit", "odd.dat", "--form", "text")
    assert inputs(fleet, "odd") == ['{"input": "a"}']
    refused = typed(fleet, "submit", "odd.dat", "--form", "openai", "--batch", "o", code=2).stderr.decode()
    assert "odd.dat:1: " in refused
    assert (
        "'jsonn' is not one of"
        in typed(fleet, "submit", "odd.dat", "--form", "jsonn", code=2).stderr.decode()
    )


def test_a_knob_of_the_feeder_is_the_batchs_and_may_be_given_again(fleet: Fleet):
    write_rows(fleet, "knobs.jsonl", rows(3))
    typed(fleet, "submit", "knobs.jsonl", "--max-in-flight", "2", "--max-open", "5", "--priority", "4")
    found = fleet.app.batch("knobs").record()
    assert (found.max_in_flight, found.max_open, found.priority) == (2, 5, 4)
    typed(fleet, "submit", "knobs.jsonl", "--priority", "6")
    found = fleet.app.batch("knobs").record()
    assert (found.max_in_flight, found.max_open, found.priority) == (2, 5, 6)
    typed(fleet, "submit", "knobs.jsonl", "--max-in-flight", "0", code=2)
