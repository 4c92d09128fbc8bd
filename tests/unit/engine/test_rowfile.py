"""The input reader that reads twice: every mistake is named with its line."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agentq.core.errors import InputError
from agentq.engine.rowfile import load_rows
from agentq.engine.rows import parse_row

AGENTS = ("orders", "triage")


def write(path: Path, *rows: Any) -> str:
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")
    return str(path)


def problems(source: str, **options: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        load_rows(source, agents=AGENTS, agent="orders", **options)
    return caught.value.problems


def test_rows_come_in_order_with_ids_and_agents(tmp_path: Path) -> None:
    same = {"input": "x"}
    source = write(
        tmp_path / "in.jsonl", same, "", {"input": "y", "custom_id": "t-1", "agent": "triage"}, same, same
    )
    with load_rows(source, agents=AGENTS, agent="orders") as rows:
        assert len(rows) == 4
        read = list(rows)
        assert list(rows) == read
    plain = parse_row({"input": "x"}).content_hash
    assert [row.custom_id for row in read] == [plain, "t-1", f"{plain}-2", f"{plain}-3"]
    assert [row.agent for row in read] == ["orders", "triage", "orders", "orders"]


def test_a_cap_for_all_rows_changes_no_id_and_yields_to_a_row(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", {"input": "x"}, {"input": "y", "max_usd": "0.5"})
    with (
        load_rows(source, agent="orders") as plain,
        load_rows(source, agent="orders", max_usd=Decimal(1)) as capped,
    ):
        assert [row.custom_id for row in plain] == [row.custom_id for row in capped]
        assert [row.max_usd for row in capped] == [Decimal(1), Decimal("0.5")]


def test_a_broken_line_is_named_with_its_position(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", {"input": "a"}, {"input": "b"}, '{"input": "c"')
    (problem,) = problems(source)
    assert problem.startswith(f"{source}:3: not JSON: ")
    assert "column 14" in problem


def test_a_duplicate_names_both_lines(tmp_path: Path) -> None:
    rows = [{"input": "a", "custom_id": "t"}, {"input": "b"}, {"input": "c", "custom_id": "t"}]
    source = write(tmp_path / "in.jsonl", *rows)
    assert problems(source) == [f"{source}:3: custom_id 't' is already on line 1"]


def test_an_unknown_agent_names_the_nearest(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", {"input": "a", "agent": "order"})
    (problem,) = problems(source)
    assert problem.startswith(f"{source}:1: unknown agent 'order' (did you mean 'orders'?)")


def test_a_row_without_an_agent_says_where_to_name_one(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", {"input": "a"})
    with pytest.raises(InputError, match="--agent"):
        load_rows(source, agents=AGENTS)


def test_all_problems_are_told_and_twenty_are_shown(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", *[{"input": "x", "max_usd": "-1"}] * 25)
    with pytest.raises(InputError) as caught:
        load_rows(source, agents=AGENTS, agent="orders")
    assert len(caught.value.problems) == 25
    assert str(caught.value).count("\n") == 20
    assert str(caught.value).endswith("and 5 more")


@pytest.mark.parametrize(
    "content, sentence",
    [
        (b"", "no row"),
        (b"\n  \n", "no row"),
        (b"[1]\n", "not a list"),
        (b'{"input": "\xff"}\n', "not UTF-8 at byte 12"),
        (b'{"input": NaN}\n', "NaN is not a number"),
        (b"[" * 100_000 + b"\n", "nested too deeply"),
    ],
)
def test_what_is_no_jsonl_is_refused(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(content)
    assert sentence in problems(str(path))[0]


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"input": "x"}\n')
    with load_rows(str(path), agent="orders") as rows:
        assert [row.input for row in rows] == ["x"]


def test_a_missing_file_and_a_folder_are_sentences(tmp_path: Path) -> None:
    assert problems(str(tmp_path / "none.jsonl"))[0].endswith("none.jsonl: no such file or directory")
    assert problems(str(tmp_path))[0].endswith(": is a directory")


def test_standard_input_is_read_once_and_can_be_walked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    piped = io.TextIOWrapper(io.BytesIO(b'{"input": "a"}\n{"input": "b"}\n'))
    monkeypatch.setattr("sys.stdin", piped)
    with load_rows("-", agents=AGENTS, agent="orders") as rows:
        assert [row.input for row in rows] == ["a", "b"]
        assert [row.input for row in rows] == ["a", "b"]


def test_a_problem_of_standard_input_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"{}\n")))
    assert problems("-")[0].startswith("stdin:1: ")


def test_a_file_that_changes_between_the_passes_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    write(path, {"input": "a"})
    with load_rows(str(path), agent="orders") as rows:
        write(path, {"inpt": "a"})
        with pytest.raises(InputError, match="changed while it was read"):
            list(rows)
