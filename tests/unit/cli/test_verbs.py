"""The verbs against an app without a server: what they print where, and their exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentq.cli.card import run_card
from agentq.cli.console import Console, columns
from agentq.cli.doctor import judge
from agentq.cli.outfile import check_output
from agentq.cli.resultline import result_line
from agentq.cli.tally import Tally
from agentq.core.errors import UsageError
from agentq.core.lifecycle import RunState, StopReason
from agentq.core.records import Parked, PendingCall
from agentq.worker.upfile import UpFile, UpState
from tests.unit.cli.fakes import FakeApp, FakeBatch, invoke, result, run_record


def write_rows(path: Path, *rows: object) -> str:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return str(path)


def test_submit_hands_over_checked_rows_and_says_what_to_type_next(app: FakeApp, tmp_path: Path) -> None:
    file = write_rows(tmp_path / "b.jsonl", {"input": "x"}, {"input": "y", "agent": "triage"})
    done = invoke("submit", file, "--agent", "orders", "--per-run-usd", "0.2")
    assert (done.exit_code, done.stdout) == (0, "batch b: 2 runs\n")
    assert "agentq watch b" in done.stderr
    assert [(row.agent, str(row.max_usd)) for row in app.submitted] == [("orders", "0.2"), ("triage", "0.2")]


@pytest.mark.parametrize(
    "rows, options, sentence",
    [
        (['{"input": "a"}', '{"input": "b"}', '{"input": '], ["--agent", "orders"], "b.jsonl:3: not JSON"),
        (
            [{"input": "a", "agent": "order"}],
            [],
            "b.jsonl:1: there is no agent 'order' (did you mean 'orders'?)",
        ),
        ([{"input": "a"}], ["--agent", "order"], "there is no agent 'order' (did you mean 'orders'?)"),
        ([{"input": "a"}], [], "b.jsonl:1: no agent"),
        ([{"input": "a", "max_usd": "-1"}], ["--agent", "orders"], "b.jsonl:1: 'max_usd': -1 USD"),
        (
            [{"input": "a", "custom_id": "t"}, {"input": "b", "custom_id": "t"}],
            ["--agent", "orders"],
            "b.jsonl:2: custom_id 't' is that of",
        ),
        ([], ["--agent", "orders"], "there is no row in it"),
        ([{"input": "a"}], ["-o", "out"], "-o needs --wait"),
    ],
)
def test_bad_input_submits_nothing(app: FakeApp, tmp_path: Path, rows, options, sentence) -> None:
    refused = invoke("submit", write_rows(tmp_path / "b.jsonl", *rows), *options)
    assert refused.exit_code == 2
    assert sentence in refused.stderr
    assert refused.stdout == ""
    assert app.submitted == []


def test_standard_input_needs_a_name(app: FakeApp) -> None:
    assert invoke("submit", "-", input='{"input": "x"}').exit_code == 2
    empty = invoke("submit", "-", "--batch", "", input='{"input": "x"}')
    assert (empty.exit_code, "'' cannot be the name of a batch" in empty.stderr) == (2, True)
    named = invoke("submit", "-", "--batch", "b", "--agent", "orders", input='{"input": "x"}')
    assert named.exit_code == 0
    assert len(app.submitted) == 1


@pytest.mark.parametrize(
    "batch, code",
    [
        (FakeBatch(), 0),
        (FakeBatch(reasons={"finished": 1, "cancelled": 1}), 0),
        (FakeBatch(reasons={"finished": 1, "step_budget": 1}), 4),
        (FakeBatch(reasons={"loop_detected": 1, "cost_budget": 1}), 3),
        (FakeBatch(reasons={"loop_detected": 1}, waiting=1), 5),
        (FakeBatch(queued=1), 6),
        (FakeBatch(held=1), 5),
        (FakeBatch(held=1, queued=1), 6),
        (FakeBatch(money={Parked("tenant:acme", "usd", "exhausted"): 2}), 4),
        (FakeBatch(money={Parked("tenant:acme", "usd", "wait"): 2}), 6),  # calls in flight will make room
        (FakeBatch(money={Parked("batch:b", "tokens", "frozen"): 1}, waiting=1), 5),
        (FakeBatch(reasons={"model_error": 1}, refused=1), 8),
        (FakeBatch(reasons={"model_error": 1}), 3),
    ],
)
def test_wait_says_by_its_exit_code_how_the_batch_ended(app: FakeApp, batch: FakeBatch, code: int) -> None:
    app.only = batch
    assert invoke("wait", "b", "--timeout", "0").exit_code == code


def test_wait_says_what_parked_runs_wait_for_and_what_to_type(app: FakeApp) -> None:
    app.only = FakeBatch(
        money={
            Parked("tenant:acme@day", "usd", "exhausted"): 2,
            Parked("batch:b", "tokens", "winddown"): 1,
            Parked("global", "usd", "frozen"): 1,
        }
    )
    said = invoke("wait", "b").stderr
    assert "2 runs parked: the USD of tenant:acme@day are used up" in said
    assert "agentq budget topup tenant:acme@day --usd N   goes on; tries by itself at 00:00 UTC" in said
    assert "1 run parked: the tokens of batch:b are held by runs that wait" in said
    assert "agentq budget topup batch:b --tokens N   goes on\n" in said
    assert "agentq budget unfreeze global" in said


def test_submit_and_wait_as_events_end_in_a_result(app: FakeApp, tmp_path: Path) -> None:
    file = write_rows(tmp_path / "b.jsonl", {"input": "x"})
    done = invoke("submit", file, "--agent", "orders", "--wait", "--json")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["type"] for event in events] == ["submitted", "progress", "result"]
    assert events[-1]["exit_code"] == 0
    assert events[-1]["spent_usd"] == "0.006000"


def test_results_are_appended_once(app: FakeApp, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert "2 results written" in invoke("results", "b", "-o", str(out)).stderr
    app.only.found.append(result("c"))
    assert "1 result written" in invoke("results", "b", "-o", str(out)).stderr
    assert [json.loads(line)["custom_id"] for line in out.read_text().splitlines()] == ["a", "b", "c"]


def test_the_result_of_a_retried_run_is_appended_behind_its_old_one(app: FakeApp, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    app.only.found = [result("a", StopReason.STEP_BUDGET, answer="cut"), result("b")]
    invoke("results", "b", "-o", str(out))
    app.only.found[0] = result("a", answer="whole", generation=1)
    assert "1 result written, 2 were there" in invoke("results", "b", "-o", str(out)).stderr
    assert "0 results written" in invoke("results", "b", "-o", str(out)).stderr
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["id"] for line in lines] == ["run_a", "run_b", "run_a"]
    latest = {line["id"]: line["agentq"]["answer"] for line in lines}
    assert latest == {"run_a": "whole", "run_b": "done"}


def test_the_output_is_looked_at_before_anything_is_submitted(app: FakeApp, tmp_path: Path) -> None:
    file = write_rows(tmp_path / "b.jsonl", {"input": "x"})
    for output, sentence in ((file, "not a file of results"), (f"{tmp_path}/no/out", "there is no folder")):
        refused = invoke("submit", file, "--agent", "orders", "--wait", "-o", output)
        assert refused.exit_code == 2
        assert sentence in refused.stderr
    assert app.submitted == []


def test_a_result_line_is_a_chat_completion_and_more() -> None:
    line = result_line(result("a"))
    assert line["error"] is None
    body = line["response"]["body"]
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "done", "refusal": None}
    assert body["usage"] == {"prompt_tokens": 1000, "completion_tokens": 200, "total_tokens": 1200}
    assert line["agentq"]["usd"] == "0.003"
    assert line["agentq"]["ended_at"] == 1_700_000_001.5


def test_a_budget_stop_is_an_answer_cut_short_and_a_failure_an_error() -> None:
    cut = result_line(result("a", StopReason.COST_BUDGET))
    assert cut["error"] is None
    assert cut["response"]["body"]["choices"][0]["finish_reason"] == "length"
    failed = result_line(result("a", StopReason.MODEL_ERROR, answer=""))
    assert failed["response"] is None
    assert failed["error"] == {"code": "model_error", "message": "why"}


def test_cancelling_a_batch_needs_a_yes(app: FakeApp) -> None:
    app.only = FakeBatch(queued=3)
    refused = invoke("cancel", "b")
    assert refused.exit_code == 2
    assert "3 runs of b" in refused.stderr
    assert not app.only.cancelled
    assert invoke("cancel", "b", "-y").stdout == "b: 3 runs cancelled\n"
    assert app.only.cancelled


def test_cancelling_says_where_each_run_at_work_stopped_and_json_says_it_of_all(app: FakeApp) -> None:
    app.only = FakeBatch(queued=30, at_work={f"run_{n}": f"step {n}, in refund" for n in range(25)})
    lines = invoke("cancel", "b", "-y").stdout.splitlines()
    assert lines[:2] == ["b: 30 runs cancelled", "  run_0 was at step 0, in refund"]
    assert lines[-1] == "  and 5 more"
    assert len(lines) == 22
    told = json.loads(invoke("cancel", "b", "-y", "--json").stdout)
    assert (told["cancelled"], len(told["stopped_at"])) == (30, 25)


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["cancel"], "nothing is named"),
        (["pause", "b", "c"], "this is for one run or one batch"),
        (["resume", "--where", "bathc=b"], "there is no filter 'bathc' (did you mean 'batch'?)"),
        (["retry", "--where", "state=ended"], "runs that have ended are found in their batch only"),
        (["cancel", "--where", "batch=bee"], "there is no batch 'bee'"),
        (["retry", "b", "--from-step", "2"], "--from-step is for one run"),
    ],
)
def test_a_target_that_is_none_is_one_sentence(app: FakeApp, words: list[str], sentence: str) -> None:
    refused = invoke(*words)
    assert (refused.exit_code, sentence in refused.stderr) == (2, True), refused.stderr
    assert "Traceback" not in refused.stderr


def test_run_without_a_worker_says_how_to_start_one(app: FakeApp) -> None:
    failed = invoke("run", "orders", "hello")
    assert failed.exit_code == 7
    assert "agentq worker" in failed.stderr


def test_doctor_names_each_fix() -> None:
    good = {
        "server": "valkey", "version": "9.1.2", "aof": True, "policy": "noeviction",
        "role": "master", "clock_ms_off": 3, "workers": ["w"],
    }  # fmt: skip
    assert all(check.ok for check in judge(good))
    changes: tuple[dict[str, object], ...] = (
        {"version": "6.2.1"}, {"aof": False}, {"policy": "allkeys-lru"},
        {"role": "slave"}, {"clock_ms_off": -9000}, {"workers": []},
    )  # fmt: skip
    for change in changes:
        (bad,) = [check for check in judge(good | change) if not check.ok]
        assert bad.fix


def test_a_run_that_waits_shows_what_for(capsys: pytest.CaptureFixture[str]) -> None:
    call = PendingCall("c1", "cancel_order", '{"order_id": 7}', "cancel_order:0", 0, 0)
    run_card(Console(), run_record(state=RunState.WAITING, stop_reason=None, pending=(call,)))
    assert 'waits for approval of cancel_order({"order_id": 7})' in capsys.readouterr().out


def test_a_tally_that_only_waits_is_settled() -> None:
    tally = Tally("b", total=3, waiting=1, ended=2, stop_reasons={"finished": 2})
    assert tally.is_settled
    assert str(tally) == "2 of 3 ended, 1 waiting for approval, 0.000000 USD"


@pytest.mark.parametrize("verb", ["batches", "status"])
def test_parked_runs_are_in_the_table_of_all_batches(app: FakeApp, verb: str) -> None:
    app.only = FakeBatch(money={Parked("tenant:acme", "usd", "exhausted"): 11})
    head, row = invoke(verb).stdout.splitlines()[-2:]
    assert dict(zip(head.split(), row.split(), strict=True))["parked"] == "11"


def test_columns_line_up() -> None:
    assert columns(("name", "n"), [("a", 1), ("longer", 20)]) == ["name     n", "a        1", "longer  20"]


def test_a_home_has_one_up_at_a_time(tmp_path: Path) -> None:
    file = UpFile(tmp_path)
    state = UpState(1, "unix:///s", None, "shop", "agents:app")
    with file.hold() as hold:
        hold.write(state)
        assert file.read() == state
        assert (tmp_path / "up.json").stat().st_mode & 0o077 == 0
        with pytest.raises(UsageError, match="already runs"):
            file.hold()
    assert file.read() is None


def test_what_a_killed_up_left_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "up.lock").touch()
    (tmp_path / "up.json").write_text('{"pid": 1}')
    assert UpFile(tmp_path).read() is None


def test_a_file_whose_name_cannot_be_a_batchs_says_which_option_helps(app: FakeApp, tmp_path: Path) -> None:
    file = write_rows(tmp_path / "my rows.jsonl", {"input": "x"})
    refused = invoke("submit", file, "--agent", "orders")
    assert refused.exit_code == 2
    assert "add --batch NAME" in refused.stderr
    assert invoke("submit", file, "--agent", "orders", "--batch", "b").exit_code == 0


def test_results_go_into_a_pipe_too(app: FakeApp, tmp_path: Path) -> None:
    check_output("/dev/null")
    assert invoke("results", "b", "-o", "/dev/null").exit_code == 0
    refused = invoke("results", "b", "-o", str(tmp_path))
    assert (refused.exit_code, "cannot be written" in refused.stderr) == (2, True)


def test_a_word_like_a_runs_id_that_nobody_knows_is_called_a_run(app: FakeApp, monkeypatch) -> None:
    monkeypatch.setattr(FakeApp, "run", _no_run, raising=False)
    refused = invoke("status", "run_nope")
    assert (refused.exit_code, "there is no run 'run_nope'" in refused.stderr) == (2, True)


def _no_run(self: FakeApp, run_id: str) -> None:
    raise UsageError("no")


def test_a_run_that_is_left_to_other_workers_says_what_it_waits_for_and_only_while_it_does(
    capsys: pytest.CaptureFixture[str],
):
    why = "waits for a worker that knows agent 'triage'"
    run_card(Console(), run_record(state=RunState.QUEUED, stop_reason=None, last_error=why))
    assert f"  {why}\n" in capsys.readouterr().out
    run_card(Console(), run_record(state=RunState.ENDED, stop_reason=StopReason.CANCELLED, last_error=why))
    assert why not in capsys.readouterr().out


def test_a_batch_that_has_ended_is_said_once(app: FakeApp) -> None:
    shown = invoke("wait", "b")
    assert (shown.stdout + shown.stderr).count("b: 2 of 2 ended") == 1
