"""CSV and TSV: a record is a row, named by the line on which it begins."""

from __future__ import annotations

import csv
from decimal import Decimal

import pytest

from agentq.core.errors import UsageError
from agentq.engine.input import lines, parse_map, read_rows, table


def test_columns_named_as_fields_are_those(source):
    source.write(
        "custom_id,input,agent,max_usd,priority,metadata.lang,context.user_id\n"
        "t-1,Where is it?,orders,0.10,7,de,mira\n"
        ",Why?,,,,,\n",
        "in.csv",
    )
    full, bare = source.rows(agent="triage", max_usd=Decimal(1))
    assert (full.custom_id, full.input, full.agent) == ("t-1", "Where is it?", "orders")
    assert (full.max_usd, full.priority) == (Decimal("0.10"), 7)
    assert (full.metadata, full.context) == ({"lang": "de"}, {"user_id": "mira"})
    assert (bare.custom_id, bare.agent, bare.max_usd, bare.priority) == ("", "triage", Decimal(1), None)
    assert (bare.metadata, bare.context) == ({}, {})


def test_without_an_input_the_other_columns_are_an_object(source):
    source.write("custom_id,name,mail\n1,Mira,\n", "in.csv")
    (row,) = source.rows()
    assert (row.custom_id, row.input) == ("1", '{"name":"Mira","mail":""}')


def test_a_column_that_is_no_field_beside_an_input_is_refused(source):
    source.write("custom_ids,input\n1,x\n", "in.csv")
    with pytest.raises(UsageError, match="did you mean 'custom_id'") as caught:
        source.rows()
    assert "metadata.custom_ids" in caught.value.hint
    assert source.inputs(mapping=parse_map(["input={input}"])) == ["x"]


def test_a_map_makes_rows(source):
    source.write("id,question,lang\n7,Why?,de\n", "in.csv")
    mapping = parse_map(["input={lang}: {question} {{}}", "custom_id=q-{id}", "metadata.lang={lang}"])
    (row,) = source.rows(mapping=mapping)
    assert (row.input, row.custom_id, row.metadata) == ("de: Why? {}", "q-7", {"lang": "de"})


def test_a_map_without_an_input_leaves_it_to_the_columns(source):
    source.write("id,input\n7,x\n", "in.csv")
    assert source.inputs(mapping=parse_map(["custom_id={id}"])) == ["x"]
    source.write("id,text\n7,x\n", "in.csv")
    assert source.inputs(mapping=parse_map(["custom_id={id}"])) == ['{"id":"7","text":"x"}']


def test_an_unknown_column_names_the_nearest_before_a_row_is_read(source):
    source.write("id,question\nbad row\n", "in.csv")
    with pytest.raises(UsageError, match=r"--map input: .*'qestion' \(did you mean 'question'\?\)") as caught:
        next(iter(read_rows(source.name, mapping=parse_map(["input={qestion}"]))))
    assert caught.value.hint == "the columns are id, question"


def test_a_record_over_many_lines_is_named_by_its_first(source):
    source.write('input\n"one\n\ntwo, ""three"""\nfour\n""\n', "in.csv")
    assert [(number, getattr(found, "input", found)) for number, found in source.found()] == [
        (2, 'one\n\ntwo, "three"'),
        (5, "four"),
    ]


def test_records_with_nothing_in_them_are_skipped(source):
    source.write("\n\ncustom_id,input\n\n,\nt,x\n", "in.csv")
    ((number, row),) = source.found()
    assert (number, row.input) == (6, "x")


@pytest.mark.parametrize(
    "record, problem",
    [
        ("a", "it has 1 cell, and the header 2"),
        ("a,b,c", "it has 3 cells, and the header 2"),
        ('"a"b,c', "not CSV: "),
        ("t,", "'input' is empty"),
    ],
)
def test_a_wrong_record_is_a_problem_and_the_next_is_read(source, record, problem):
    source.write(f"custom_id,input\n{record}\nu,x\n", "in.csv")
    (number, said), (_, row) = source.found()
    assert number == 2
    assert said.startswith(problem)
    assert row.input == "x"


def test_a_priority_that_is_no_number_is_a_problem(source):
    source.write("input,priority\nx,high\nx,-1\nx, 10\n", "in.csv")
    assert [said for _, said in source.found()] == [
        "'priority' is a whole number, not 'high'",
        "'priority' is a whole number, not '-1'",
        "'priority' is 0 to 9, the most urgent, not 10",
    ]


@pytest.mark.parametrize(
    "header, problem",
    [
        ("a,,b", ":2: column 2 of the header has no name"),
        ("a, b ,b", ":2: the columns 2 and 3 of the header are both 'b'"),
        ('"a"b', ":2: the header: not CSV: "),
        ("a,b\r1,2\r", ":2: the header: a line ends in a carriage return alone"),
    ],
)
def test_a_wrong_header_is_named_with_its_line(source, header, problem):
    source.write(f"\n{header}\n1,2,3\n", "in.csv")
    assert source.refusal().startswith(problem)


def test_a_header_alone_has_no_row(source):
    source.write("input\n", "in.csv")
    assert source.refusal() == ": there is no row in it"


def test_a_quote_that_is_never_closed_names_the_line_of_its_row(source, monkeypatch):
    source.write('input\nx\n"y\nz\n', "in.csv")
    assert source.refusal() == ":3: a quote that opens in this row is never closed"
    monkeypatch.setattr(table, "LINE_BYTES_MAX", 1_000_000)
    source.write('input\nx\n"' + "y\n" * 600_000 + '"\nz\n', "in.csv")
    assert source.refusal() == ":3: this row is longer than 1 MB: is a quote in it never closed?"


def test_a_long_cell_is_none_of_the_module_s_business(source):
    before = csv.field_size_limit(131_072)
    try:
        source.write("input\n" + "x" * 200_000 + "\n", "in.csv")
        assert len(source.inputs()[0]) == 200_000
    finally:
        csv.field_size_limit(before)


def test_a_line_that_is_too_long_or_no_utf8_is_a_problem_and_the_next_is_read(source, monkeypatch):
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 1_000_000)
    source.write(b"input\n" + b"x" * 1_000_001 + b"\n\xff\ny\n", "in.csv")
    (first, too_long), (second, no_text), (_, row) = source.found()
    assert (first, too_long) == (2, "the line is longer than 1 MB")
    assert (second, no_text) == (3, "not UTF-8 at byte 1")
    assert row.input == "y"


def test_tabs_and_semicolons_separate_too(source):
    source.write("custom_id\tinput\nt\ta, b\n", "in.tsv")
    assert source.inputs() == ["a, b"]
    source.write("custom_id;input\nt;a, b\n", "in.csv")
    assert source.inputs() == ["a, b"]


def test_objects_in_lines_have_their_keys_for_columns(source):
    source.write_lines(
        {"q": "Why?", "n": 7, "tags": ["a", "ä"], "none": None, "yes": True},
        {"q": "Where?"},
        {"input": [{"role": "user", "content": "x"}]},
    )
    mapping = parse_map(["input={q} {n} {tags} {none} {yes}"])
    (_, row), (_, problem), _ = source.found(mapping=mapping)
    assert row.input == 'Why? 7 ["a","ä"]  true'
    assert problem == "there is no 'n' in it, which --map asks for"
    first, second = source.rows(mapping=parse_map(["metadata.kind=bulk"]))[1:]
    assert (first.input, first.metadata) == ('{"q":"Where?"}', {"kind": "bulk"})
    assert second.messages() == [{"role": "user", "content": "x"}]
