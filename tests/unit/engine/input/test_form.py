"""What an input is, is told from its name and its first line; a wrong guess is an error, not wrong calls."""

from __future__ import annotations

import pytest

from agentq.core.errors import UsageError
from agentq.engine.input import parse_map, read_rows
from agentq.engine.input.form import form_of


@pytest.mark.parametrize(
    "name, first, form",
    [
        ("a.jsonl", b"question\n", "jsonl"),
        ("a.NDJSON.gz", b"", "jsonl"),
        ("a.csv", b'{"input": 1}\n', "csv"),
        ("a.tsv", b"a b\n", "tsv"),
        ("a.tab", b"a b\n", "tsv"),
        ("a.txt", b"Where is it?\n", "text"),
        ("a.txt", b"input,id\n", "text"),
        ("a.text.gz", b"[1] Where is it?\n", "text"),
        ("a.txt", b' {"input": "x"}\n', "jsonl"),
        ("-", b'{"input": "x"}\n', "jsonl"),
        ("-", b'[{"input": "x"}\n', "jsonl"),
        ("-", b"[\n", "jsonl"),
        ("-", b"[1] Where is it?\n", "text"),
        ("-", b"Where is it?\n", "text"),
        ("-", b"custom_id, input\r\n", "csv"),
        ("-", b'"input"\n', "csv"),
        ("-", b"custom_id\tinput\n", "tsv"),
        ("-", b"The input, please\n", "text"),
        ("/dev/fd/63", b"Where is it?\n", "text"),
        ("-", b"", "text"),
    ],
)
def test_a_form_is_found(name: str, first: bytes, form: str) -> None:
    assert form_of(name, first, mapped=False) == form


@pytest.mark.parametrize(
    "name, first, form",
    [
        ("-", b"id,question\n", "csv"),
        ("-", b"id\tquestion, or none\n", "csv"),
        ("-", b"id\tquestion\n", "tsv"),
        ("a.txt", b"id\tquestion\n", "tsv"),
        ("-", b'{"question": 1}\n', "jsonl"),
    ],
)
def test_with_a_map_it_has_columns(name: str, first: bytes, form: str) -> None:
    assert form_of(name, first, mapped=True) == form


def test_the_first_line_is_the_first_that_is_not_blank(source):
    source.write("\n\ufeff\n".encode()[:1] + b'\n{"input": "a"}\n', "in.dat")
    assert source.inputs() == ["a"]


def test_a_form_that_is_given_stands(source):
    source.write('{"input": "a"}\n')
    assert source.inputs(form="text") == ['{"input": "a"}']


def test_lines_of_text_are_rows(source):
    source.write("Where is order 1?\r\n\r\n  indented \nWhere is order 1?", "in.txt")
    assert [(number, row.input) for number, row in source.found(agent="orders")] == [
        (1, "Where is order 1?"),
        (3, "  indented "),
        (4, "Where is order 1?"),
    ]
    assert {row.agent for row in source.rows(agent="orders")} == {"orders"}


def test_text_that_is_not_utf8_is_a_problem_of_its_line(source):
    source.write("a\nä\n".encode("latin-1"), "in.txt")
    (_, row), (number, problem) = source.found()
    assert row.input == "a"
    assert (number, problem) == (2, "not UTF-8 at byte 1")


def test_an_unknown_form_names_the_nearest_before_anything_is_opened():
    with pytest.raises(UsageError, match="did you mean 'jsonl'") as caught:
        read_rows("none", form="json")
    assert "openai" in caught.value.hint


@pytest.mark.parametrize("form", ["openai", "anthropic", "text"])
def test_a_form_without_columns_takes_no_map(form: str) -> None:
    with pytest.raises(UsageError, match="has none"):
        read_rows("none", form=form, mapping=parse_map(["input={a}"]))
