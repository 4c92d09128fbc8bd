"""docs/input.md: its examples are read as they are printed, and its limits are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentq.engine.input.batchline import MODEL_CHARS_MAX
from agentq.engine.input.form import FORMS
from agentq.engine.input.lines import LINE_BYTES_MAX
from agentq.engine.problem import PROBLEM_CHARS_MAX
from agentq.engine.rows import CONTEXT_BYTES_MAX, CUSTOM_ID_CHARS_MAX, NESTING_MAX

PAGE = (Path(__file__).parents[4] / "docs" / "input.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("example", blocks("json"))
def test_json_examples(source, example):
    source.write(example)
    assert len(source.rows()) == example.count("\n")


def test_text_examples(source):
    table, text = blocks("text")
    source.write(table, "in.csv")
    (row,) = source.rows()
    assert (row.custom_id, row.input) == ("t-1", "Where is\norder 1002?")
    assert (row.metadata, row.priority) == ({"lang": "en"}, 5)
    source.write(text, "in.txt")
    assert source.inputs() == ["Where is order 1002?", "Where is order 1003?"]


def test_forms_and_limits():
    for form in FORMS:
        assert f"`{form}`" in PAGE
    for limit in (
        f"{LINE_BYTES_MAX // 1_000_000} MB",
        f"{CUSTOM_ID_CHARS_MAX} characters",
        f"{CONTEXT_BYTES_MAX:,} bytes of JSON",
        f"{MODEL_CHARS_MAX} characters",
        f"{NESTING_MAX} levels",
        f"{PROBLEM_CHARS_MAX} characters",
    ):
        assert f"| {limit} |" in PAGE
