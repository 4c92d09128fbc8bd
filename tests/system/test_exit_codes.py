"""Every exit code of the table in docs/cli.md, each through the real command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from signal import SIGINT

import pytest

from tests.support.desk import ROOT, Desk, nap, naps, open_desk, refund
from tests.support.wait import wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(180), pytest.mark.xdist_group("exit_codes")]

FULL = Path("/dev/full")
CASES = {
    "all well": ("wait good", 0),
    "cancelled on request": ("wait cancelled", 0),
    "a name that there is not": ("status goood", 2),
    "a run failed": ("wait failed", 3),
    "a budget stopped a run": ("wait stopped", 4),
    "a run waits for a person": ("wait asking", 5),
    "the time is up": ("wait long --timeout 0.2", 6),
    "no server": ("--redis-url redis://127.0.0.1:1/0 status", 7),
    "the provider refuses the key": ("wait refused", 8),
    "refused goes before failed": ("wait mixed", 8),
}
BY_THEMSELVES = {1, 130}
"""Codes with a test of their own below."""


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    with open_desk() as desk:
        desk.submit("good", "helper", ["done"])
        desk.submit("failed", "helper", ["done"], [], codes=(3,))
        desk.submit("stopped", "hasty", [nap(0.01), "done"], codes=(4,))
        desk.submit("asking", "helper", [refund(7), "done"], codes=(5,))
        desk.submit("refused", "locked", ["done"], codes=(8,))
        (desk.folder / "mixed.jsonl").write_text(
            '{"input": "a", "agent": "locked"}\n{"input": "b", "agent": "helper"}\n'
        )
        desk.type("submit", "mixed.jsonl", "--wait", codes=(8,))
        desk.type("submit", desk.rows("long", naps()), "--agent", "helper")
        desk.submit("cancelled", "helper", [refund(8), "done"], codes=(5,))
        desk.type("cancel", "cancelled", "-y")
        yield desk
        desk.type("cancel", "long", "-y")


@pytest.mark.parametrize("case", CASES)
def test_an_exit_code_says_how_it_ended(desk: Desk, case: str) -> None:
    typed, code = CASES[case]
    desk.type(*typed.split(), codes=(code,))


@pytest.mark.skipif(not FULL.exists(), reason="there is no full device here")
def test_1_when_the_output_cannot_be_written(desk: Desk) -> None:
    with FULL.open("w") as full:
        failed = desk.type("batches", stdout=full, codes=(1,))
    assert "the output cannot be written" in failed.stderr


def test_130_when_somebody_presses_ctrl_c(desk: Desk) -> None:
    watch = desk.start("watch", "long")
    try:
        wait_until(lambda: "0/1 done" in watch.output, "the watch to say something", 30)
        watch.signal(SIGINT)
        assert watch.wait() == 130
        assert "detached: nothing was cancelled" in watch.output
    finally:
        watch.end()


def test_the_table_of_the_documentation_has_these_codes_and_no_others() -> None:
    section = (ROOT / "docs/cli.md").read_text().partition("\n## Exit codes\n")[2].partition("\n## ")[0]
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)}
    assert listed == {code for _, code in CASES.values()} | BY_THEMSELVES
