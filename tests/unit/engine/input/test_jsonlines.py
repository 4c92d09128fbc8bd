"""JSON lines: each is a row by itself, and what is wrong is said of its line."""

from __future__ import annotations

from decimal import Decimal

import pytest


def test_rows_come_in_order_with_their_lines_and_what_is_given_for_all(source):
    source.write_lines(
        {"input": "x"}, "", "  ", {"input": "y", "custom_id": "t-1", "agent": "triage", "priority": 9}
    )
    (first, x), (second, y) = source.found(agent="orders", max_usd=Decimal(1))
    assert (first, second) == (1, 4)
    assert (x.input, x.agent, x.max_usd, x.priority) == ("x", "orders", Decimal(1), None)
    assert (y.custom_id, y.agent, y.priority) == ("t-1", "triage", 9)
    assert y.where == f"{source.name}:4"


def test_a_wrong_line_is_one_problem_and_the_next_is_read(source):
    source.write_lines({"input": "a"}, '{"input": "b"', {"inptu": "c"}, {"input": "d"})
    (_, a), (second, broken), (third, misspelt), (_, d) = source.found()
    assert (a.input, d.input) == ("a", "d")
    assert (second, third) == (2, 3)
    assert broken.startswith("not JSON: ")
    assert "column 14" in broken
    assert "did you mean 'input'" in misspelt


@pytest.mark.parametrize(
    "line, sentence",
    [
        (b"3", "a row is a JSON object, not a number"),
        (b'"text"', "not a string"),
        (b'{"input": "\xff"}', "not UTF-8 at byte 12"),
        (b'{"input": NaN}', "NaN is not a number"),
        (b'{"input": {"n": 1e999}}', "cannot be written as JSON"),
        (b'{"input": ' + b"9" * 5_000 + b"}", "thousands of digits"),
        (b'{"input":' + b"[" * 100_000, "nested too deeply"),
        (b'{"input": "\\ud800"}', "surrogate"),
        (b'{"input": "a", "input": "b"}', "the key 'input' is there twice in one object"),
        (b'{"input": "a", "metadata": {"k": 1, "l": 2, "k": 1}}', "the key 'k' is there twice"),
        (b'{"input": "a", "metadata": {"k": ' + b"[" * 100 + b"]" * 100 + b"}}", "'metadata' is nested more"),
        (
            b'{"params": {"model": "m", "messages": [{"role": "user", "content": "x"}], "extra": '
            + b"[" * 100
            + b"]" * 100
            + b"}}",
            "its request is nested more than 100 deep",
        ),
    ],
)
def test_what_is_no_row_is_said_in_words(source, line, sentence):
    source.write(b'{"input": "x"}\n' + line + b"\n")
    ((_, good), (number, problem)) = source.found()
    assert good.input == "x"
    assert number == 2
    assert sentence in problem


@pytest.mark.parametrize(
    "data, what", [("[1]\n", "a list"), ('[\n{"input": "x"}\n]', "a list"), ("{\n", "an object")]
)
def test_one_value_over_many_lines_is_one_problem_with_a_way_out(source, data, what):
    source.write("\n" + data)
    refusal = source.refusal()
    assert refusal.startswith(f":2: this is {what}")
    assert "jq -c" in refusal


@pytest.mark.parametrize("data", ["", "\n  \n", "\ufeff", "\ufeff\n"])
def test_an_input_without_a_row_is_refused(source, data):
    source.write(data)
    assert source.refusal() == ": there is no row in it"


def test_a_byte_order_mark_and_windows_line_ends_are_no_mistake(source):
    source.write(b'\xef\xbb\xbf{"input": "x"}\r\n\r\n{"input": "y"}')
    assert source.inputs() == ["x", "y"]


def test_native_and_batch_lines_may_be_mixed(source):
    chat = {"model": "gpt-5-mini", "messages": [{"role": "user", "content": "b"}]}
    source.write_lines(
        {"input": "a", "agent": "orders"},
        {"custom_id": "o", "method": "POST", "url": "/v1/chat/completions", "body": chat},
        {"custom_id": "a", "params": {**chat, "model": "claude-haiku-4-5", "max_tokens": 5}},
    )
    assert [row.agent for row in source.rows()] == [
        "orders",
        "openai-chat:gpt-5-mini",
        "anthropic:claude-haiku-4-5",
    ]


def test_a_form_of_a_provider_refuses_native_lines(source):
    source.write_lines({"input": "a"})
    assert "unknown key 'input'" in source.problem(form="openai")
    assert "unknown key 'input'" in source.problem(form="anthropic")


def test_a_problem_quotes_little_of_the_row_and_stays_on_its_line(source):
    source.write_lines({"x" * 1_000: 1}, {"input": "x", "max_usd": "1\u2028\u001b"})
    (_, long), (_, odd) = source.found()
    assert len(long) == 301
    assert long.endswith("x…")
    assert "\u2028" not in odd
    assert "\u001b" not in odd
