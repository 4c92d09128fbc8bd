"""`agentq submit --every` and `agentq schedules`: what is refused, and what is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentq.engine.plan import Plan
from agentq.store import Store
from tests.unit.cli.fakes import invoke

DEMO = "agentq.demo.agents:app"


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "orders.jsonl"
    path.write_text('{"input":"one"}\n{"input":"two"}\n')
    return str(path)


def every(rows: str, *more: str, cron: str = "0 8 * * 1-5") -> tuple[str, ...]:
    return ("submit", rows, "-A", DEMO, "--agent", "orders", "--every", cron, "--tz", "Europe/Berlin", *more)


def put(store: Store, name: str = "orders", *, next_ms: int = 4_000_000_000_000) -> None:
    plan = Plan(cron="0 8 * * 1-5", zone="Europe/Berlin", agent="a", max_usd="1", options={"priority": 3})
    store.schedules.set(name, plan.to_json(), digest="d", rows=2, chunks=["x"], next_ms=next_ms)


@pytest.mark.parametrize(
    "more, said",
    [
        (["--wait"], "makes batches later, by itself"),
        (["--at", "08:00"], "makes batches later, by itself"),
        (["--notify", "https://x.org"], "there is no secret to sign it with"),
        (["--batch", "a" * 90], "the name of a schedule is up to 82 characters"),
    ],
)
def test_what_does_not_go_with_a_schedule_is_refused_and_nothing_is_kept(
    store: Store, rows: str, more: list[str], said: str
) -> None:
    refused = invoke(*every(rows, *more))
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert said in refused.stderr
    assert store.schedules.names() == []


@pytest.mark.parametrize("more", [["--tz", "UTC"], ["--overlap", "allow"]])
def test_what_goes_with_a_schedule_only_is_refused_without_one(
    store: Store, rows: str, more: list[str]
) -> None:
    refused = invoke("submit", rows, "-A", DEMO, "--agent", "orders", *more)
    assert refused.exit_code == 2
    assert "--tz goes with --at or --every, --overlap with --every" in refused.stderr
    assert store.batches.names() == []


def test_a_wrong_row_or_expression_keeps_nothing(store: Store, rows: str) -> None:
    refused = invoke(*every(rows, cron="every day"))
    assert refused.exit_code == 2
    assert "'every day' is no cron expression\n  minute hour day month weekday" in refused.stderr
    with Path(rows).open("a") as file:
        file.write('{"inptu":"x"}\n')
    refused = invoke(*every(rows))
    assert refused.exit_code == 2
    assert "orders.jsonl:3: unknown key 'inptu' (did you mean 'input'?)" in refused.stderr
    assert store.schedules.names() == []


def test_a_dry_run_says_what_a_batch_may_cost_and_keeps_nothing(store: Store, rows: str) -> None:
    looked = invoke(*every(rows, "--dry-run"))
    assert looked.exit_code == 0, looked.stderr
    assert looked.stdout.startswith("batch orders: 2 rows checked, nothing submitted")
    assert store.schedules.names() == []


def test_without_a_schedule_it_is_said_how_to_make_one(store: Store) -> None:
    looked = invoke("schedules")
    assert (looked.exit_code, looked.stdout) == (0, "")
    assert looked.stderr == "no schedules yet; agentq submit FILE --every '0 8 * * 1-5' makes one\n"
    assert invoke("schedules", "list", "--json").stdout == "[]\n"


def test_they_are_listed_with_their_next_time_and_how_the_last_went(store: Store) -> None:
    put(store)
    put(store, "hourly", next_ms=5)
    claim = store.schedules.claim(60_000)
    assert claim is not None
    listed = invoke("schedules").stdout
    assert "is made now" in listed
    store.schedules.settle(
        claim, time_ms=5, batch=None, outcome="skipped", detail="hourly.1 is not over yet", next_ms=None
    )
    looked = invoke("schedules")
    first, second = sorted(looked.stdout.splitlines()[1:])
    assert first.split("  ")[0] == "hourly"
    assert "never again" in first
    assert first.endswith("none yet    skipped: hourly.1 is not over yet")
    assert "0 8 * * 1-5 (Europe/Berlin)  Tue 2096-10-02 09:06:40 CEST, in " in second
    assert "no worker is alive" in looked.stderr


def test_one_is_shown_with_its_terms(store: Store) -> None:
    put(store)
    shown = invoke("schedules", "show", "orders").stdout
    assert shown.startswith("orders: 2 rows, 0 8 * * 1-5 (Europe/Berlin)\n  next          Tue 2096-10-02")
    for line in ("last          none yet", "made          0 batches", "agent         a", "max usd       1",
                 "overlap       skip", "priority      3"):  # fmt: skip
        assert f"  {line}\n" in shown


def test_pause_resume_run_and_remove_say_what_they_did(store: Store) -> None:
    put(store)
    assert invoke("schedules", "pause", "orders").stdout == "orders is paused\n"
    assert "paused by " in invoke("schedules", "show", "orders").stdout
    asked = invoke("schedules", "run", "orders")
    assert asked.stdout.startswith("orders: a worker makes the batch orders.20")
    assert "now, as asked for" in invoke("schedules", "list").stdout
    resumed = json.loads(invoke("schedules", "resume", "orders", "--json").stdout)
    assert resumed["paused_by"] is None
    assert resumed["next_at"] < 4_000_000_000
    refused = invoke("schedules", "remove", "orders")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "there is nobody to ask here whether to remove the schedule 'orders'" in refused.stderr
    assert invoke("schedules", "remove", "orders", "-y").stdout == "orders is gone; its batches stay\n"
    assert store.schedules.names() == []


@pytest.mark.parametrize("verb", ["show", "pause", "resume", "run", "remove -y"])
def test_one_that_there_is_not_gets_the_nearest(store: Store, verb: str) -> None:
    put(store)
    word, *more = verb.split()
    refused = invoke("schedules", word, "odrers", *more)
    assert refused.exit_code == 2
    assert (
        "there is no schedule 'odrers' (did you mean 'orders'?)\n  agentq schedules lists" in refused.stderr
    )


def test_an_unknown_verb_gets_the_nearest(store: Store) -> None:
    refused = invoke("schedules", "puase", "x")
    assert "there is no verb 'schedules puase' (did you mean 'pause'?)" in refused.stderr


@pytest.mark.parametrize(
    "fields, said",
    [
        ({}, "https://x.org is told when it is over"),
        ({"notify_error": "HTTP 500"}, "https://x.org was not told yet: HTTP 500"),
        ({"notify_error": "given up: HTTP 410"}, "https://x.org was not told: given up: HTTP 410"),
        ({"notified": "1700000000000"}, "https://x.org was told at 2023-11-14 22:13:20 UTC"),
    ],
)
def test_status_says_what_became_of_a_notice(store: Store, fields: dict[str, str], said: str) -> None:
    options = {"notify": "https://x.org"}
    store.batches.open(
        "b", agent="a", tenant="acme", usd=None, tokens=None, retention_ms=1_000_000, options=options
    )
    for field, value in fields.items():
        store.client.hset(store.keys.batch("b"), field, value)
    assert f"  notice  {said}\n" in invoke("status", "b").stdout
