"""docs/results.md: its columns and options are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import click

from agentq.cli.resultfile.sink import FLUSH_AT
from agentq.cli.resultfile.table import COLUMNS, FIELDS_MAX
from agentq.cli.results import command

PAGE = (Path(__file__).parents[3] / "docs/results.md").read_text()


def section(title: str) -> str:
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def flowing(title: str) -> str:
    return " ".join(section(title).split())


def first_cells(text: str) -> list[str]:
    return [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `")]


def test_the_columns_are_those_that_are_written() -> None:
    named = [name for cell in first_cells(section("CSV")) for name in re.findall(r"`([^`]+)`", cell)]
    assert named == [*COLUMNS, "output.NAME"]
    assert f"at most {FIELDS_MAX}" in flowing("CSV")


def test_the_options_are_those_of_the_verb() -> None:
    named = {re.findall(r"-+[a-z-]+", cell)[0] for cell in first_cells(PAGE.partition("\n## ")[0])}
    own = {param.opts[0] for param in command.params if isinstance(param, click.Option)}
    assert named == own
    assert f"every {FLUSH_AT}" in flowing("A file that is continued")
