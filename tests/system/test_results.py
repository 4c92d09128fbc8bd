"""`agentq results` beside real workers: killed and repeated, followed, what failed in files of its own."""

from __future__ import annotations

import csv
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.wait import wait_until

pytest_plugins = ["tests.support.fleet"]
pytestmark = pytest.mark.system

if TYPE_CHECKING:  # pytest imports the plugin itself
    from tests.support.fleet import Fleet
    from tests.support.processes import ProcessGroup, StartProcess

    MakeFleet = Callable[..., Fleet]
    Start = Callable[..., ProcessGroup]

ROOT = Path(__file__).parents[2]
MOODY = dedent(
    '''
    """An agent that fails while there is a file `down`, at rows that are marked."""
    import os
    from agentq import AgentQ
    from agentq.provider.errors import InvalidRequest
    from agentq.provider.types import ChatResult, Usage

    HERE = os.path.dirname(os.path.abspath(__file__))

    class Moody:
        """Answers, fails for now, or refuses for ever, as the row says."""
        provider, model = "test", "moody-1"

        def complete(self, req):
            mood = req.metadata.get("mood", "")
            if mood == "wrong":
                raise InvalidRequest("this row cannot be")
            if mood == "down" and os.path.exists(os.path.join(HERE, "down")):
                raise RuntimeError("the house is on fire")
            return ChatResult(f"answer to {req.messages[-1].content}", Usage(10, 5), "test", "moody-1")

    app = AgentQ("fleet", on_unpriced="allow")
    celery = app.celery
    app.agent("moody", model=Moody())
    '''
)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def custom_ids(path: Path) -> list[str]:
    return [line["custom_id"] for line in lines(path)]


@pytest.fixture
def start(start_process: StartProcess) -> Callable[..., ProcessGroup]:
    """`start(fleet, "results", …)`: `agentq results …`, going on by itself."""

    def typed(fleet: Fleet, *args: str) -> ProcessGroup:
        argv = [sys.executable, "-m", "agentq", "-A", "fleet_app:app", *args]
        return start_process(argv, cwd=fleet.home, env={**fleet.env, "PYTHONPATH": str(ROOT)})

    return typed


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def test_killed_again_and_again_no_line_is_there_twice_and_none_is_missing(
    make_fleet: MakeFleet, start: Start
):
    """While the batch runs, at any moment: each call goes on behind what the one before has left."""
    fleet = make_fleet()
    fleet.start_worker()
    rows = 300
    batch = fleet.submit(rows, 1, seconds=0.05)
    out = fleet.home / "out.jsonl"
    kills = 0
    while kills < 5 or not batch.done():
        grown = size(out)
        typed = start(fleet, "results", "b", "-o", "out.jsonl", "--follow")
        wait_until(lambda: size(out) > grown or typed.returncode is not None, "the file to grow", 60)  # noqa: B023
        typed.signal_group(signal.SIGKILL)
        typed.wait()
        kills += 1
        if kills == 3:  # and one in the middle of a line
            os.truncate(out, size(out) - 7)
    done = fleet.type("results", "b", "-o", "out.jsonl", "--strict-join")
    assert f"strict join: {rows} rows = {rows} results; each custom_id once" in done.stderr
    found = custom_ids(out)
    assert (len(found), set(found)) == (rows, {str(row) for row in range(rows)})
    again = fleet.type("results", "b", "-o", "out.jsonl", "--strict-join")
    assert f"0 results written, {rows} were there" in again.stderr
    # A line that somebody has taken out is missed, and written again.
    text = out.read_text().splitlines(keepends=True)
    out.write_text("".join(text[1:]))
    assert "1 result written" in fleet.type("results", "b", "-o", "out.jsonl", "--strict-join").stderr
    # One that somebody has put in is found.
    out.write_text(out.read_text() + text[5])
    twice = fleet.type("results", "b", "-o", "out.jsonl", "--strict-join", code=3)
    assert "1 result there twice" in twice.stderr


def test_in_input_order_the_file_is_whole_up_to_the_first_that_has_not_ended(
    make_fleet: MakeFleet, start: Start
):
    fleet = make_fleet()
    fleet.start_worker(concurrency=2)
    batch = fleet.submit(12, 1, seconds=0.05)
    ordered = [str(row) for row in range(12)]
    typed = start(fleet, "results", "b", "-o", "out.csv", "--order", "input", "--follow", "--strict-join")
    out = fleet.home / "out.csv"
    seen: list[str] = []
    while typed.returncode is None:
        text = out.read_text() if out.exists() else ""
        seen = [row["custom_id"] for row in csv.DictReader(text.splitlines())]
        assert seen == ordered[: len(seen)]
    assert typed.wait() == 0, typed.output
    assert [row["custom_id"] for row in csv.DictReader(out.read_text().splitlines())] == ordered
    assert "strict join: 12 rows = 12 results" in typed.output
    again = fleet.type("results", "b", "-o", "again.jsonl", "--order", "input", "--strict-join", "--json")
    assert custom_ids(fleet.home / "again.jsonl") == ordered
    assert json.loads(again.stdout)["join"] == {"rows": 12, "results": 12, "not_ended": 0, "behind": 0}
    completed = fleet.type("results", "b", "--order", "completed").stdout.splitlines()
    ended = [json.loads(line)["agentq"]["ended_at"] for line in completed]
    assert ended == sorted(ended)
    assert batch.done()


def test_what_failed_is_in_files_of_its_own_and_its_lines_run_as_a_batch_of_their_own(
    make_fleet: MakeFleet, start: Start
):
    fleet = make_fleet(app=MOODY, patience_seconds=0.1)
    fleet.start_worker()
    moods = {"a": "", "b": "down", "c": "wrong", "d": "down", "e": ""}
    rows: list[dict[str, Any]] = [
        {"custom_id": name, "input": f"row {name}", "metadata": {"mood": mood}, "priority": 3}
        for name, mood in moods.items()
    ]
    (fleet.home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (fleet.home / "down").touch()
    files = ["-o", "out.jsonl", "--errors", "errors.jsonl", "--retry-file", "retry.jsonl", "--strict-join"]
    fleet.type("submit", "rows.jsonl", "--agent", "moody")
    typed = start(fleet, "results", "rows", *files, "--follow")
    assert typed.wait(120) == 3, typed.output
    assert sorted(custom_ids(fleet.home / "out.jsonl")) == list("abcde")
    assert sorted(custom_ids(fleet.home / "errors.jsonl")) == ["b", "c", "d"]
    assert all(line["error"]["code"] == "model_error" for line in lines(fleet.home / "errors.jsonl"))
    retried = sorted(lines(fleet.home / "retry.jsonl"), key=lambda line: line["custom_id"])
    assert retried == [{**row, "agent": "moody"} for row in rows if row["custom_id"] in "bd"]
    assert "agentq submit retry.jsonl --batch rows-again" in typed.output
    # The provider is back: the lines run as a batch of their own, and the batch itself can be retried.
    (fleet.home / "down").unlink()
    fleet.type("submit", "retry.jsonl", "--batch", "rows-again", "--wait", "-o", "again.jsonl")
    answers = {line["custom_id"]: line["agentq"]["answer"] for line in lines(fleet.home / "again.jsonl")}
    assert answers == {"b": "answer to row b", "d": "answer to row d"}
    fleet.type("retry", "rows", "-y")
    batch = fleet.app.batch("rows")
    wait_until(batch.done, "the retried runs to end", 60)
    done = fleet.type("results", "rows", *files)
    latest = {line["custom_id"]: line["error"] is None for line in lines(fleet.home / "out.jsonl")}
    assert latest == {"a": True, "b": True, "c": False, "d": True, "e": True}
    assert "retry.jsonl: 2 of its lines are of rows that need no retry any more" in done.stderr
    assert sorted(custom_ids(fleet.home / "retry.jsonl")) == ["b", "d"]


def test_on_standard_output_results_are_events_that_end_in_a_result(make_fleet: MakeFleet):
    fleet = make_fleet()
    fleet.start_worker()
    fleet.submit(5, 1)
    done = fleet.type("results", "b", "--follow", "--json")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(event["custom_id"] for event in events if event["type"] == "row") == list("01234")
    assert (events[-1]["type"], events[-1]["exit_code"], events[-1]["ended"]) == ("result", 0, 5)
    plain = fleet.type("results", "b", "--follow")
    assert sorted(json.loads(line)["custom_id"] for line in plain.stdout.splitlines()) == list("01234")


def test_ctrl_c_leaves_the_batch_alone(make_fleet: MakeFleet, start: Start):
    fleet = make_fleet()
    batch = fleet.submit(2, 1)
    typed = start(fleet, "results", "b", "-o", "out.jsonl", "--follow")
    wait_until(lambda: typed.output, "it to look on", 60)
    typed.signal(signal.SIGINT)
    assert typed.wait() == 130
    assert "nothing was cancelled" in typed.output
    assert batch.counts()["queued"] == 2
