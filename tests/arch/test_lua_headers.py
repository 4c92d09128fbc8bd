"""A script begins with its contract, so that nobody has to read the body to call it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "agentq/store/lua"
SCRIPTS = sorted(path for path in FOLDER.glob("*.lua") if not path.name.startswith("_"))
PARTS = (
    *(
        "base",
        "ledger",
        "reservations",
        "fit",
        "slots",
        "parking",
        "runs",
        "cancelling",
        "operator",
        "governor",
    ),
    *("feeder", "counters", "pilots", "schedules"),
)
"""In the order in which they stand in front of a script."""
SECTIONS = ("KEYS", "ARGV", "REPLY")


def header(path: Path) -> list[str]:
    """The comment at the top, without the dashes."""
    lines = []
    for line in path.read_text().splitlines():
        if not line.startswith("--"):
            break
        lines.append(line.removeprefix("--").removeprefix(" "))
    return lines


def test_there_are_scripts():
    assert SCRIPTS


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_says_first_what_it_does_in_a_sentence(path):
    prose = re.split(r" (?:USES|KEYS) ", " ".join(header(path)))[0].strip()
    assert re.match(r"[A-Z].*[.]$", prose), f"{path.name} begins with: {prose!r}"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_lists_its_keys_its_arguments_and_its_replies_in_this_order(path):
    found = [line.split()[0] for line in header(path) if line.split()[:1] and line.split()[0] in SECTIONS]
    assert found == list(SECTIONS)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_uses_no_argument_that_its_header_does_not_list(path):
    text = "\n".join(header(path))
    listed = re.search(r"^ARGV(.*?)^REPLY", text, re.DOTALL | re.MULTILINE)
    assert listed
    numbers = {int(number) for number in re.findall(r"(?:^|\s)(\d+) ", listed[1])}
    used = {int(number) for number in re.findall(r"\bARGV\[(\d+)\]", path.read_text())}
    assert used <= numbers, f"not in the header: {sorted(used - numbers)}"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_answers_only_with_words_of_its_header(path):
    text = path.read_text()
    replies = "\n".join(header(path)).partition("REPLY")[2]
    promised = set(re.findall(r'\{"([A-Z_]+)"', replies))
    given = set(re.findall(r"return \{'([A-Z_]+)'", text))
    assert given <= promised, f"not in the header: {sorted(given - promised)}"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_uses_parts_that_exist_each_behind_what_it_needs(path):
    lines = [line.removeprefix("USES").split() for line in header(path) if line.startswith("USES ")]
    used = ["base", *(lines[0] if lines else [])]
    assert used == [part for part in PARTS if part in used]


@pytest.mark.parametrize("part", [path.name for path in FOLDER.glob("_*.lua")])
def test_a_part_says_what_it_needs_and_stands_behind_it(part):
    name = part.removeprefix("_").removesuffix(".lua")
    first = " ".join(header(FOLDER / part))
    needed = re.findall(r"_(\w+)", first[first.find("Need") :] if "Need" in first else "")
    assert name in PARTS
    assert all(PARTS.index(need) < PARTS.index(name) for need in needed), (name, needed)
