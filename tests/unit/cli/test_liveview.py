"""What a person sees of a batch that runs: the panel as a terminal shows it, and the line of a log."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console as Terminal

from agentq.cli.console import Console
from agentq.cli.liveview import dollars, forecast_line, panel, plain_line, standing
from agentq.cli.progress import EventProgress, LiveProgress, PlainProgress
from agentq.cli.tally import Tally
from agentq.core.records import Parked
from agentq.core.timespan import format_span
from agentq.engine.forecast import Forecast

USD = 10**9
FOUND = Forecast(
    usd_nano=16_023 * USD // 1000,
    low_nano=15 * USD,
    high_nano=17 * USD,
    per_minute=38.2,
    seconds=125,
    soonest=100,
    latest=165,
    based_on=412,
)
BUSY = Tally(
    "july",
    total=5_000,
    ended=412,
    queued=4_460,
    rows=4_450,
    running=88,
    waiting=3,
    parked=37,
    spent_nano=1_320_000_000,
    limit_nano=25 * USD,
    stop_reasons={"finished": 400, "loop_detected": 9, "step_budget": 3},
    forecast=FOUND,
)


def shown(tally: Tally, width: int = 110) -> list[str]:
    """The panel as a terminal of this width has it."""
    terminal = Terminal(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    terminal.print(panel(tally))
    return terminal.export_text().splitlines()


def test_the_panel_of_a_batch_that_runs():
    bar, *lines = shown(BUSY)
    assert bar.split() == ["july", "━━╸", "412/5000", "8%"]
    assert [line.strip() for line in lines] == [
        "38/min, eta 2m, $1.32 of $25.00 spent, $16.03 in all ($15.00 to $17.00)",
        "88 running, 10 queued, 37 parked for money, 3 waiting for approval, 4450 not begun",
        "400 finished, 9 loop_detected, 3 step_budget",
    ]


def test_a_forecast_over_the_limit_stands_out():
    assert "($15.00 to $17.00) !" in shown(replace(BUSY, limit_nano=16 * USD))[1]


def test_the_panel_of_a_batch_of_which_nothing_has_ended():
    bar, *lines = shown(Tally("july", total=3, queued=3, rows=3))
    assert bar.split() == ["july", "0/3", "0%"]
    assert [line.strip() for line in lines] == ["$0.00 spent", "3 not begun"]


def test_on_a_narrow_terminal_lines_go_on_below_themselves_and_none_is_wider():
    lines = shown(replace(BUSY, paused_by="[red]the night shift of the [b]second[/b] week"), width=40)
    assert all(len(line) <= 40 for line in lines)
    assert all(line.startswith("  ") for line in lines[1:])
    assert "[red]the night shift of the [b]second[/b]" in " ".join(line.strip() for line in lines)


def test_a_slow_batch_is_not_said_to_stand_still():
    assert "0.4/min" in plain_line(replace(BUSY, forecast=replace(FOUND, per_minute=0.4)), "12:00:05")


def test_only_the_most_frequent_reasons_are_named():
    reasons = {f"reason_{n}": 10 - n for n in range(7)}
    assert shown(replace(BUSY, stop_reasons=reasons))[3].strip() == (
        "10 reason_0, 9 reason_1, 8 reason_2, 7 reason_3, 6 reason_4, 2 more reasons"
    )


def test_the_line_of_a_log():
    line = plain_line(replace(BUSY, waiting=0, parked=0), "12:00:05")
    assert line == "12:00:05 412/5000 done 9 failed $1.32/$25.00 38/min eta 2m"
    assert plain_line(Tally("b", total=2), "12:00:05") == "12:00:05 0/2 done $0.00"
    assert plain_line(BUSY, "12:00:05").startswith(
        "12:00:05 412/5000 done 9 failed 3 waiting 37 parked $1.32"
    )
    slow = replace(BUSY, forecast=replace(FOUND, seconds=None))
    assert plain_line(slow, "12:00:05").endswith("38/min eta ?")


@pytest.mark.parametrize(
    "changes, said",
    [
        ({}, []),
        ({"loader": "17@host:abcd"}, ["being loaded by 17 on host"]),
        ({"loader": "somebody"}, ["being loaded by somebody"]),
        ({"loader": "17@host:abcd", "broken_off": True}, ["its load by 17 on host was broken off"]),
        ({"paused_by": "ann"}, ["paused by ann"]),
        ({"starts_ms": 1_700_000_000_000}, ["starts at 2023-11-14 22:13:20 UTC"]),
        ({"pilot": 50, "blocked": True}, ["a pilot of 50 rows first"]),
        ({"blocked": True, "dry": 2, "rows": 0}, []),
        (
            {"blocked": True, "dry": 2},
            ["the rows that have not begun wait for the same money as those that are parked"],
        ),
    ],
)
def test_what_keeps_rows_is_said_in_the_line_in_the_panel_and_in_status(
    changes: dict[str, Any], said: list[str]
):
    tally = replace(BUSY, **changes)
    assert standing(tally) == said
    for words in said:
        assert plain_line(tally, "12:00:05").endswith(words)
        assert shown(tally)[-1].strip() == words


def test_a_batch_that_is_over_starts_at_no_time_any_more():
    assert standing(replace(BUSY, ended=5_000, starts_ms=1_700_000_000_000)) == []


def test_a_forecast_in_words():
    assert forecast_line(FOUND, None) == (
        "16.023000 USD in all (15.000000 to 17.000000); ends in 2m (1m to 2m) at 38.2 a minute, by 412 runs"
    )
    assert ", more than its limit of 16.000000;" in forecast_line(FOUND, 16 * USD)
    assert ", perhaps more than its limit of 16.500000;" in forecast_line(FOUND, 16_500_000_000)
    assert "more than" not in forecast_line(FOUND, 17 * USD)
    still = replace(FOUND, seconds=None, soonest=None, latest=None, per_minute=0.0)
    assert "; no end in sight at 0.0 a minute" in forecast_line(still, None)
    assert "(1m to ?)" in forecast_line(replace(FOUND, latest=None), None)


@pytest.mark.parametrize(
    "nano, text",
    [(0, "$0.00"), (1, "$0.0001"), (6_000_000, "$0.0060"), (USD, "$1.00"), (1_999_999_999, "$2.00")],
)
def test_dollars_at_a_glance(nano: int, text: str):
    assert dollars(nano) == text


@pytest.mark.parametrize(
    "seconds, text",
    [(0, "0s"), (59, "59s"), (60, "1m"), (3_600, "1h"), (3_900, "1h 5m"), (273_600, "3d 4h"), (86_400, "1d")],
)
def test_a_span_for_people(seconds: int, text: str):
    assert format_span(seconds) == text


def test_a_log_has_a_line_at_once_one_at_the_end_and_none_that_says_the_same(
    capsys: pytest.CaptureFixture[str],
):
    progress = PlainProgress(Console())
    progress.show(BUSY)
    progress.show(replace(BUSY, ended=413))  # ten seconds have not passed
    ended = Tally("july", total=5_000, ended=5_000, spent_nano=USD, forecast=FOUND)
    progress.show(ended)
    progress.show(replace(ended, forecast=replace(FOUND, per_minute=1.0)))
    head, first, last = capsys.readouterr().err.splitlines()
    assert head == "july: 5000 rows"
    assert " 412/5000 done" in first
    assert last.endswith(" 5000/5000 done $1.00")


def test_events_carry_the_same_facts_and_come_when_something_has_changed(capsys: pytest.CaptureFixture[str]):
    progress = EventProgress(Console(json=True))
    settled = Tally("july", total=1, ended=1, forecast=FOUND)
    progress.show(settled)
    progress.show(replace(settled, forecast=None))
    (line,) = capsys.readouterr().out.splitlines()
    event = json.loads(line)
    assert (event["type"], event["rows"], event["failed"], event["limit_usd"]) == ("progress", 0, 0, None)
    assert (event["forecast"]["usd"], event["forecast"]["rate_per_min"]) == ("16.023000", 38.2)
    assert [event[key] for key in ("loading", "paused_by", "starts_at", "pilot")] == [None] * 4


def test_a_terminal_is_redrawn_in_place(monkeypatch: pytest.MonkeyPatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "110")
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    with LiveProgress(Console(no_color=True)) as progress:
        progress.show(BUSY)
        progress.show(replace(BUSY, ended=413))
    drawn = screen.getvalue()
    assert drawn.index("412/5000") < drawn.index("413/5000")
    assert "\x1b[1A" in drawn  # up, over what was drawn before
    assert "$16.03 in all" in drawn


@pytest.mark.parametrize(
    "tally, settled",
    [
        (Tally("b", total=9, ended=4, queued=5, rows=5), False),
        (Tally("b", total=9, ended=4, queued=5, rows=5, paused_by="ann"), True),
        (Tally("b", total=9, ended=4, queued=4, rows=4, running=1, paused_by="ann"), False),
        (Tally("b", total=9, ended=4, queued=4, rows=4, waiting=1), False),
        (Tally("b", total=9, ended=4, queued=4, rows=4, waiting=1, blocked=True), True),
        (Tally("b", total=9, ended=4, queued=3, rows=3, waiting=1, running=1, blocked=True), False),
        (Tally("b", total=9, ended=4, queued=4, rows=4, parked=1, dry=1, blocked=True), True),
        # The pilot is over: it is decided in a moment.
        (Tally("b", total=9, ended=4, queued=5, rows=5, blocked=True), False),
        (Tally("b", total=9, ended=4, queued=5, rows=5, starts_ms=1), False),
    ],
)
def test_rows_that_nobody_but_a_person_can_move_are_not_waited_for(tally: Tally, settled: bool):
    assert tally.is_settled is settled


@pytest.mark.parametrize(
    "tally, code",
    [
        (Tally("b", total=9, ended=4, queued=5, rows=5, paused_by="its pilot"), 5),
        (Tally("b", total=9, ended=9, paused_by="ann"), 0),
        (
            Tally("b", total=9, ended=4, queued=4, rows=4, dry=1, money={Parked("batch:b", "usd", "x"): 1}),
            4,
        ),
        (Tally("b", total=1, ended=1, stop_reasons={"model_error": 1}, refused=1), 8),
    ],
)
def test_the_exit_code_of_a_batch_whose_rows_have_not_all_begun(tally: Tally, code: int):
    assert tally.exit_code() == code
