"""What `agentq chaos` says of a report."""

from __future__ import annotations

from pathlib import Path

from agentq.cli.chaos_report import ChaosProgress, as_document, print_report
from agentq.cli.console import Console
from agentq.testing import Outcome, Report, Violation
from agentq.testing.case import Case


def outcome(nth, violations=(), **repeated):
    case = Case("effect.after_tool", nth=nth)
    return Outcome(case, 1.0, list(violations), Path("logs") / str(nth), repeated)


def test_idempotent_tools_that_were_called_again_are_a_note_and_no_violation(capsys):
    report = Report([outcome(1, put=2), outcome(2, put=3, pay=2), outcome(3)])
    print_report(Console(), report, again="agentq chaos")
    *_, first, second, _, last = capsys.readouterr().out.splitlines()
    assert first == "note: pay was called 2 times with one key in 1 case: see that it acted once"
    assert second == "note: put was called up to 3 times with one key in 2 cases: see that it acted once"
    assert last == "violations = 0"
    assert as_document(report)["notes"] == [first.removeprefix("note: "), second.removeprefix("note: ")]


def test_a_violation_comes_with_what_to_type_and_with_the_logs_of_the_play_that_is_told(capsys):
    name = outcome(2).case.name
    report = Report([outcome(2, [Violation(name, "", "end", "nothing was tested")])])
    print_report(Console(), report, again="agentq chaos -A my:app")
    *_, again, logs, _, last = capsys.readouterr().out.splitlines()
    assert again == "  agentq chaos -A my:app --only 'effect.after_tool#2/none'"
    assert (logs, last) == ("  its logs: logs/2", "violations = 1")


def test_one_case_is_announced_in_the_singular(capsys):
    ChaosProgress(Console()).begin(1)
    assert capsys.readouterr().err.startswith("1 case to play; ")
