"""Where lines come from: files, pipes and gzip; each of them is bounded, and what cannot be read is said."""

from __future__ import annotations

import gzip
import sys
import tracemalloc
from typing import Any

import pytest

from agentq.core.errors import InputError
from agentq.engine.input import lines, read_rows

ROWS = b'{"input": "a"}\n{"input": "b"}\n'


def test_standard_input_is_read_as_it_comes_and_called_so(pipe):
    pipe(b'\n{"input": "a"}\n{}\n')
    (first, row), (second, problem) = list[Any](read_rows("-"))
    assert (first, second) == ("stdin:2", "stdin:3")
    assert row.input == "a"
    assert problem == "the row has no 'input'"
    assert not sys.stdin.buffer.closed


def test_standard_input_that_is_closed_is_said(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InputError, match="stdin: it is closed"):
        next(iter(read_rows("-")))


def test_gzip_is_known_by_its_content_on_standard_input_and_under_any_name(source, pipe):
    source.write(gzip.compress(ROWS[:15]) + gzip.compress(ROWS[15:]), "in.jsonl")
    assert source.inputs() == ["a", "b"]
    source.write(gzip.compress(b"a\nb\n"), "in.txt.GZ")
    assert source.inputs() == ["a", "b"]
    pipe(gzip.compress(ROWS))
    source.name = "-"
    assert source.inputs() == ["a", "b"]


def test_a_gzip_file_that_is_cut_off_names_the_line_that_was_reached(source):
    whole = b"".join(b'{"input": "%d"}\n' % number for number in range(100_000))
    source.write(gzip.compress(whole)[:-2_000])
    read: list[Any] = []
    with pytest.raises(InputError) as caught:
        read.extend(row for _, row in read_rows(source.name))
    reached = len(read)
    assert [row.input for row in read] == [str(number) for number in range(reached)]
    assert reached > 0
    (problem,) = caught.value.problems
    assert (
        problem == f"{source.name}:{reached + 1}: the gzip data ends in the middle: the file is not complete"
    )


def test_damaged_gzip_data_is_said(source):
    data = bytearray(gzip.compress(ROWS))
    data[-8] ^= 0xFF  # of the checksum
    source.write(bytes(data))
    assert "the gzip data is damaged: " in source.refusal()


def test_what_is_called_gz_and_is_not_is_refused(source):
    source.write(ROWS, "in.jsonl.gz")
    assert source.refusal() == ": its name ends in .gz, but it is not gzip"
    source.write(b"", "in.jsonl.gz")
    assert source.refusal() == ": there is no row in it"


@pytest.mark.parametrize(
    "data, what",
    [
        ("a\n".encode("utf-16"), "UTF-16"),
        (b"PK\x03\x04\x14\n", "workbook"),
        (b"PAR1\x15\n", "Parquet"),
        (b"\x28\xb5\x2f\xfd\n", "zstd"),
        (b"BZh91AY", "bzip2"),
        (b"\xfd7zXZ\x00", "xz"),
    ],
)
@pytest.mark.parametrize("name", ["in.jsonl", "in.csv", "in"])
def test_what_has_no_lines_of_text_is_named(source, data, what, name):
    source.write(data, name)
    assert what in source.refusal()


def test_a_missing_file_names_its_neighbour_and_a_folder_is_a_sentence(source, tmp_path):
    source.write(ROWS, "rows.jsonl")
    source.name = str(tmp_path / "row.jsonl")
    assert source.refusal() == ": no such file or directory (did you mean 'rows.jsonl'?)"
    source.name = str(tmp_path / "none" / "row.jsonl")
    assert source.refusal() == ": no such file or directory"
    source.name = str(tmp_path)
    assert source.refusal() == ": is a directory"
    source.name = "a\0b"
    assert source.refusal() == ": embedded null byte"


@pytest.mark.parametrize("form", ["jsonl", "text"])
def test_a_line_that_is_too_long_is_a_problem_and_the_next_is_read(source, monkeypatch, form):
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 2_000_000)
    monkeypatch.setattr(lines, "_SKIPPED_AT_ONCE", 1_000)
    source.write(b"x" * 2_500_000 + b"\n" + ROWS)
    (first, problem), (second, row), _ = source.found(form=form)
    assert (first, second) == (1, 2)
    assert problem == "the line is longer than 2 MB"
    assert "a" in row.input


def test_a_line_without_an_end_is_not_read_into_memory(source, monkeypatch):
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 100_000)
    source.write(gzip.compress(b"{" * 20_000_000))
    tracemalloc.start()
    try:
        problem = source.problem()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "longer than" in problem
    assert peak < 10_000_000


def test_a_file_that_was_begun_is_closed(source):
    source.write(ROWS)
    rows = read_rows(source.name)
    next(rows)
    rows.close()  # pytest fails on the warning of a file that is left open
