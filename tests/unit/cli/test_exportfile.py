"""A file of the ledger's log: what a line says, and where the next ones go."""

from __future__ import annotations

import csv
import fcntl
import json
from pathlib import Path

import pytest

from agentq.cli.exportfile import COLUMNS, ExportFile, as_jsonl, entry_fields
from agentq.core.errors import UsageError
from agentq.store.journal import Entry

SETTLE = Entry(
    7,
    1_795_983_610_861,
    "settle",
    "run_a:3-ab12:1",
    ("global", "run:run_a"),
    {"us": 1, "ur": -2_000_000_000, "ts": 5, "tr": -9},
    catalogue="c0ffee",
    estimated=True,
)
TOPUP = Entry(
    8,
    1_795_983_610_999,
    "topup",
    "tenant:acme",
    ("tenant:acme",),
    actor="mira@desk",
    reason='phone, "x"\nnew line',
    words="ul 5000 -, tl - 70",
)


def write(path: Path, kind: str, *entries: Entry) -> ExportFile:
    file = ExportFile(path, kind)
    with file.appending() as out:
        for entry in entries:
            out.write(file.line(entry))
    return ExportFile(path, kind)


def test_a_line_says_all_of_an_entry_and_its_money_exactly() -> None:
    assert json.loads(as_jsonl(SETTLE)) == {
        "seq": 7,
        "time": "2026-11-29T20:20:10.861Z",
        "operation": "settle",
        "run": "run_a",
        "reservation": "3-ab12:1",
        "subject": None,
        "scopes": ["global", "run:run_a"],
        "usd": {"spent": "0.000000001", "reserved": "-2"},
        "tokens": {"spent": 5, "reserved": -9},
        "catalogue": "c0ffee",
        "estimated": True,
        "actor": None,
        "reason": None,
        "words": None,
    }


def test_what_people_did_has_who_why_and_from_what_to_what() -> None:
    fields = entry_fields(TOPUP)
    assert (fields["run"], fields["subject"], fields["actor"]) == (None, "tenant:acme", "mira@desk")
    assert fields["words"] == "usd limit 0.000005 to none, tokens limit none to 70"


def test_csv_has_the_same_in_columns(tmp_path: Path) -> None:
    write(tmp_path / "x.csv", "csv", SETTLE, TOPUP)
    with (tmp_path / "x.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert (rows[0]["spent_usd"], rows[0]["reserved_tokens"], rows[0]["estimated"]) == (
        "0.000000001",
        "-9",
        "1",
    )
    assert rows[0]["scopes"] == "global run:run_a"
    assert rows[1]["reason"] == 'phone, "x" new line'
    assert rows[1]["spent_usd"] == ""


def test_a_file_knows_its_last_entry_and_grows(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    assert ExportFile(path, "jsonl").last is None
    file = write(path, "jsonl", SETTLE)
    assert (file.last, file.last_line) == (7, as_jsonl(SETTLE))
    assert write(path, "jsonl", TOPUP).last == 8
    assert path.read_text() == as_jsonl(SETTLE) + as_jsonl(TOPUP)


def test_half_a_line_that_a_crash_has_left_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(as_jsonl(SETTLE) + as_jsonl(TOPUP)[:20])
    assert ExportFile(path, "jsonl").last == 7
    assert write(path, "jsonl", TOPUP).last == 8
    assert path.read_text() == as_jsonl(SETTLE) + as_jsonl(TOPUP)


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
@pytest.mark.parametrize("cut", [1, 10])
def test_a_file_that_was_cut_in_its_first_line_begins_anew(tmp_path: Path, kind: str, cut: int) -> None:
    whole, path = tmp_path / "whole", tmp_path / "x"
    write(whole, kind, SETTLE)
    path.write_bytes(whole.read_bytes()[:cut])
    assert write(path, kind, SETTLE).last == 7
    assert path.read_bytes() == whole.read_bytes()


def test_a_long_line_is_found_from_behind(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    long = Entry(9, 0, "adjust", "global", ("global",), {"us": 1}, reason="r" * 50_000)
    assert write(path, "jsonl", SETTLE, long).last == 9


@pytest.mark.parametrize(
    "kind, text", [("csv", as_jsonl(SETTLE)), ("jsonl", ",".join(COLUMNS)), ("jsonl", "hello\n")]
)
def test_a_file_of_something_else_is_refused_and_not_touched(tmp_path: Path, kind: str, text: str) -> None:
    path = tmp_path / "x"
    path.write_text(text)
    with pytest.raises(UsageError, match="not an export of the ledger in this format"):
        ExportFile(path, kind)
    assert path.read_text() == text


def test_what_somebody_else_has_written_meanwhile_is_not_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    late = ExportFile(path, "jsonl")
    write(path, "jsonl", SETTLE, TOPUP)
    with pytest.raises(UsageError, match="was written by another agentq meanwhile"), late.appending() as out:
        out.write(late.line(SETTLE))
    assert path.read_text() == as_jsonl(SETTLE) + as_jsonl(TOPUP)
    with path.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="is being written by another agentq"):
            write(path, "jsonl", SETTLE)
    assert path.read_text() == as_jsonl(SETTLE) + as_jsonl(TOPUP)


def test_a_reason_of_two_lines_is_one_line_of_csv(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    assert write(path, "csv", SETTLE, TOPUP).last == 8
    assert path.read_text().count("\n") == 3
