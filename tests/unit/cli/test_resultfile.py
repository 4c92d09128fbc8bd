"""Files of results: what they have, what is put behind it, and what is left alone."""

from __future__ import annotations

import csv
import fcntl
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentq.app.result import Result
from agentq.cli.resultfile.form import check_form
from agentq.cli.resultfile.linefile import LineFile
from agentq.cli.resultfile.lineindex import LineIndex
from agentq.cli.resultfile.retryfile import RetryFile
from agentq.cli.resultfile.sink import FLUSH_CHARS, Sink
from agentq.cli.resultfile.version import is_newer, version_of
from agentq.core.errors import UsageError
from agentq.core.lifecycle import StopReason
from tests.unit.cli.fakes import FakeApp, invoke, result


def write(sink: Sink, *results: Result) -> Sink:
    with sink:
        for one in results:
            sink.add(one)
        sink.flush()
    return sink


def dropped(custom_id: str, reason: StopReason = StopReason.CANCELLED) -> Result:
    """A row that ended without being started."""
    error = {"code": reason.value, "message": "it was never started", "retryable": True}
    return result(custom_id, reason, answer="", started_ms=None, ended_ms=None, error=error)


def failed(custom_id: str, *, retryable: bool = True, **changes: Any) -> Result:
    error = {"code": "model_error", "message": "503", "retryable": retryable}
    return result(custom_id, StopReason.MODEL_ERROR, answer="", error=error, **changes)


def ids(path: Path) -> list[str]:
    return [json.loads(line)["custom_id"] for line in path.read_text().splitlines()]


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# ── what counts as new ───────────────────────────────────────────────────────────────────────────────


def test_a_retried_run_is_newer_and_what_was_never_started_is_older_than_what_was() -> None:
    cancelled, dry = version_of(dropped("a")), version_of(dropped("a", StopReason.COST_BUDGET))
    first, retried = version_of(result("a")), version_of(result("a", generation=1))
    assert all(is_newer(number, None) for number in (cancelled, dry, first, retried))
    assert is_newer(dry, cancelled)
    assert is_newer(cancelled, dry), "it was revived, and has ended for another reason"
    assert is_newer(first, dry)
    assert is_newer(retried, first)
    for old, new in ((cancelled, cancelled), (first, first), (first, dry), (retried, first)):
        assert not is_newer(new, old)


def test_the_index_counts_runs_once_and_copies_apart() -> None:
    index = LineIndex()
    for number in (0, 0, 1):
        index.note("run_a", number, "a")
    index.note("run_b", 0, "a")
    found = index.find("run_a")
    assert found is not None
    assert (len(index), found.version, found.copies, index.custom_ids()) == (2, 1, 1, 1)
    assert ("run_b" in index, "run_c" in index) == (True, False)
    index.close()


# ── JSON lines and CSV ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_a_file_is_continued_with_what_is_new(tmp_path: Path, form: str) -> None:
    out = tmp_path / "out"
    write(LineFile(out, form), dropped("a"), result("b"), result("b"))
    before = out.read_bytes()
    again = LineFile(out, form)
    write(again, dropped("a"), result("b"), result("c"), result("a"), result("b", generation=1))
    assert (again.were_there, again.written) == (2, 3)
    assert out.read_bytes().startswith(before)
    found = ids(out) if form == "jsonl" else [row["custom_id"] for row in table(out)]
    assert found == ["a", "b", "c", "a", "b"]


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_cut_off_at_any_byte_it_becomes_whole_again(tmp_path: Path, form: str) -> None:
    """As after a kill or a power failure in the middle of a write, also within a letter or a quoted cell."""
    results = [
        result("a", answer='She said "no",\nthen ü'),
        dropped("b"),
        result("=c", answer="\r\n= 1"),
        result("d", output={"n": 1}),
    ]
    whole = tmp_path / "whole"
    write(LineFile(whole, form), *results)
    content = whole.read_bytes()
    for size in range(len(content)):
        out = tmp_path / "out"
        out.write_bytes(content[:size])
        write(LineFile(out, form), *results)
        assert out.read_bytes() == content, size


@pytest.mark.parametrize(
    "content",
    [
        "my notes",
        '{"precious": 1}',
        '{"input": "a"}\n{"input": "b"}',
        '{"id": "run_a"}\n{"precious": 1}',
        "{}\n",
        "id,custom_id\nrun_a,a\n",
        "id,name\nrun_a,a",
    ],
)
@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, content: str, form: str) -> None:
    """Also when its last line has no end: half a line of ours looks different."""
    out = tmp_path / "notes.txt"
    out.write_text(content)
    with pytest.raises(UsageError, match="not a file of results"):
        LineFile(out, form).check()
    with pytest.raises(UsageError, match="not a file of results"):
        write(LineFile(out, form), result("a"))
    assert out.read_text() == content


def test_half_of_a_character_is_written_as_an_escape(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    write(LineFile(out, "jsonl"), result("a", answer="cut \ud83d here"))
    assert json.loads(out.read_text())["agentq"]["answer"] == "cut \ud83d here"


def test_a_table_has_a_column_for_each_field_of_the_first_outputs(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    file = LineFile(out, "csv")
    with file:
        file.add(result("a", output={"title": "Fire", "priority": 1, "tags": ["x", "y"], "done": True}))
        file.add(result("b", output={"title": None, "extra": 0.5}))
        file.add(result("c", output=["no", "object"]))
        file.flush()
        file.add(result("d", output={"late": 1, "title": "x"}))
        file.flush()
    rows = table(out)
    fields = [name for name in rows[0] if name.startswith("output.")]
    assert fields == ["output.title", "output.priority", "output.tags", "output.done", "output.extra"]
    assert [rows[0][name] for name in fields] == ["Fire", "1", '["x","y"]', "true", ""]
    assert [row["output.title"] for row in rows] == ["Fire", "", "", "x"]
    assert file.left_out == {"late": 1}
    more = LineFile(out, "csv")
    write(more, result("e", output={"extra": 2, "late": 3}))
    assert (table(out)[-1]["output.extra"], more.left_out) == ("2", {"late": 1})


def test_a_table_says_what_a_line_says(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    write(LineFile(out, "csv"), result("a"), failed("b"), dropped("c"))
    first, second, third = table(out)
    assert first == {
        "id": "run_a",
        "custom_id": "a",
        "state": "ended",
        "stop_reason": "finished",
        "answer": "done",
        "error": "",
        "steps": "2",
        "input_tokens": "1000",
        "output_tokens": "200",
        "usd": "0.003",
        "started_at": "2023-11-14T22:13:20.000Z",
        "ended_at": "2023-11-14T22:13:21.500Z",
        "generation": "0",
    }
    assert (second["stop_reason"], second["error"]) == ("model_error", "model_error: 503")
    assert (third["stop_reason"], third["started_at"], third["ended_at"]) == ("cancelled", "", "")


@pytest.mark.parametrize(
    "text, cell",
    [
        ("=1+1", "'=1+1"),
        ("+49 30 1234", "'+49 30 1234"),
        ("- one\n- two", "'- one\n- two"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("-12.5", "-12.5"),
        ("+3e10", "+3e10"),
        ("a=1", "a=1"),
        ("'=1", "''=1"),
        ("'1", "'1"),
        ("a\r\nb\rc", "a\nb\nc"),
    ],
)
def test_no_cell_is_a_formula(tmp_path: Path, text: str, cell: str) -> None:
    out = tmp_path / "out.csv"
    write(
        LineFile(out, "csv"), result(text, run_id="run_a", answer=text, output={"field": text, "number": -1})
    )
    (row,) = table(out)
    assert [row[name] for name in ("custom_id", "answer", "output.field")] == [cell] * 3
    assert row["output.number"] == "-1"


def test_custom_ids_are_read_back_as_they_were(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    names = ["=1", "'=1", "''=1", "-5", "'-5", "plain", "'"]
    file = LineFile(out, "csv")
    write(file, *(result(name, run_id=f"run_{number}") for number, name in enumerate(names)))
    found = file.reread()
    assert {line.id: line.custom_id for line in found} == {
        f"run_{number}": name for number, name in enumerate(names)
    }
    found.close()


@pytest.mark.parametrize(
    "name, asked, form",
    [("x.csv", None, "csv"), ("x.CSV", None, "csv"), ("x.csv", "jsonl", "jsonl"), ("x", None, "jsonl")],
)
def test_the_ending_says_which_form_a_file_has(name: str, asked: str | None, form: str) -> None:
    assert check_form(name, asked) == form


@pytest.mark.parametrize("name", ["x.parquet", "x.xlsx", "x.jsonl.gz", "x.csv.zst"])
def test_endings_of_what_is_not_written_are_refused_in_words(app: FakeApp, tmp_path: Path, name: str) -> None:
    refused = invoke("results", "b", "-o", str(tmp_path / name))
    assert refused.exit_code == 2
    assert "not written" in refused.stderr or "not compressed" in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_written_by_one_at_a_time(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with out.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="is being written by another agentq"):
            write(LineFile(out, "jsonl"), result("a"))
    write(LineFile(out, "jsonl"), result("a"))
    assert ids(out) == ["a"]


def test_a_folder_is_refused_before_anything_is_submitted(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it is a folder"):
        LineFile(tmp_path, "jsonl").check()


def test_a_disk_that_is_full_is_no_misuse(app: FakeApp) -> None:
    refused = invoke("results", "b", "-o", "/dev/full")
    assert refused.exit_code == 1
    assert "/dev/full cannot be written: No space left on device\n  make room" in refused.stderr


def test_long_answers_are_written_before_many_of_them_are_in_memory(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with LineFile(out, "jsonl") as file:
        file.add(result("a", answer="x" * (FLUSH_CHARS - 1)))
        assert file.written == 0
        file.add(result("b", answer="x"))
        assert file.written == 2
        file.add(result("c", answer="x"))
        assert file.written == 2
        file.flush()
    assert ids(out) == ["a", "b", "c"]


# ── lines to be submitted again ──────────────────────────────────────────────────────────────────────


def lines_of(run_ids: Sequence[str]) -> list[dict[str, Any]]:
    return [{"custom_id": run_id.removeprefix("run_"), "input": f"do {run_id}"} for run_id in run_ids]


def test_lines_to_retry_are_those_of_failures_that_may_end_otherwise(tmp_path: Path) -> None:
    out = tmp_path / "retry.jsonl"
    file = RetryFile(out, lines_of)
    write(file, result("a"), failed("b"), failed("c", retryable=False), failed("b"))
    assert out.read_text() == '{"custom_id": "b", "input": "do run_b"}\n'
    again = RetryFile(out, lines_of)
    write(again, failed("b"), failed("d"))
    assert (ids(out), again.were_there, again.written, again.stale) == (["b", "d"], 1, 1, 0)


def test_long_lines_to_retry_are_written_one_by_one(tmp_path: Path) -> None:
    written: list[int] = []

    def long(run_ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        for line in lines_of(run_ids):
            written.append(file.written)
            yield line | {"input": "x" * FLUSH_CHARS}

    file = RetryFile(tmp_path / "retry.jsonl", long)
    write(file, failed("a"), failed("b"), failed("c"))
    assert written == [0, 1, 2]
    assert ids(file.path) == ["a", "b", "c"]


def test_lines_of_rows_that_have_finished_since_are_counted_once_and_stay(tmp_path: Path) -> None:
    out = tmp_path / "retry.jsonl"
    write(RetryFile(out, lines_of), failed("a"), failed("b"))
    again = RetryFile(out, lines_of)
    write(again, result("a", generation=1), result("a", generation=1), failed("b"))
    assert (ids(out), again.stale, again.written) == (["a", "b"], 1, 0)


def test_a_file_of_lines_cut_off_anywhere_becomes_whole_again(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    write(RetryFile(whole, lines_of), failed("ä"), failed("b"))
    content = whole.read_bytes()
    for size in range(len(content)):
        out = tmp_path / "out"
        out.write_bytes(content[:size])
        write(RetryFile(out, lines_of), failed("ä"), failed("b"))
        assert out.read_bytes().rstrip() == content.rstrip(), size


@pytest.mark.parametrize("content", ["notes", '{"input": "x"}\n', "[1]\n", '{"id": 1}\nhalf'])
def test_lines_are_not_put_behind_something_else(tmp_path: Path, content: str) -> None:
    out = tmp_path / "notes.txt"
    out.write_text(content)
    with pytest.raises(UsageError, match="not a file of input lines"):
        write(RetryFile(out, lines_of), failed("a"))
    assert out.read_text() == content


# ── the verb ─────────────────────────────────────────────────────────────────────────────────────────


def test_errors_are_in_both_files(app: FakeApp, tmp_path: Path) -> None:
    app.only.found = [result("a"), failed("b"), result("c", StopReason.STEP_BUDGET)]
    out, errors = tmp_path / "out.jsonl", tmp_path / "errors.csv"
    done = invoke("results", "b", "-o", str(out), "--errors", str(errors))
    assert ids(out) == ["a", "b", "c"]
    assert [row["custom_id"] for row in table(errors)] == ["b"]
    assert "errors.csv: 1 result written" in done.stderr


def test_csv_on_stdout(app: FakeApp) -> None:
    done = invoke("results", "b", "--format", "csv")
    assert [row["custom_id"] for row in csv.DictReader(done.stdout.splitlines())] == ["a", "b"]


@pytest.mark.parametrize(
    "options, sentence",
    [
        (["-o", "x", "--errors", "./x"], "different files"),
        (["--errors", "-"], "need a file"),
        (["--retry-file", "no/such/x"], "there is no folder no/such"),
        (["--format", "parquet"], "Parquet is not written"),
        (["--errors", "x", "-o", "notes.txt"], "notes.txt is not a file of results"),
        (["-o", "x", "--retry-file", "."], ". cannot be written: it is a folder"),
    ],
)
def test_what_cannot_be_is_refused_before_a_file_is_made(
    app: FakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("mine")
    refused = invoke("results", "b", *options)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert sentence in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_with_json_the_files_are_a_document(app: FakeApp, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    done = invoke("results", "b", "-o", str(out), "--json")
    files = [{"file": str(out), "written": 2, "were_there": 0}]
    assert json.loads(done.stdout) == {"batch": "b", "total": 2, "ended": 2, "files": files}
