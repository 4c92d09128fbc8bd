"""What a schedule says: its times, its batches' names, and its rows."""

from __future__ import annotations

import random
from datetime import datetime
from decimal import Decimal

import pytest

from agentq.core.errors import UsageError
from agentq.engine import plan as module
from agentq.engine.plan import (
    Plan,
    RowPack,
    batch_at,
    check_plan,
    check_schedule,
    last_time,
    next_time,
    unpack_rows,
)
from agentq.engine.rows import Row, parse_row


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def plan(cron: str, zone: str = "UTC") -> Plan:
    return Plan(cron=cron, zone=zone)


NOW = ms("2026-11-30T08:00:30+00:00")  # a Monday


@pytest.mark.parametrize(
    "cron, zone, first",
    [
        ("0 8 * * 1-5", "UTC", "2026-12-01T08:00+00:00"),
        ("0 8 * * 1-5", "America/New_York", "2026-11-30T13:00+00:00"),
        ("*/15 * * * *", "UTC", "2026-11-30T08:15+00:00"),
        ("0 0 1 * *", "Asia/Tokyo", "2026-11-30T15:00+00:00"),
        ("30 9 * JAN MON#1", "Europe/Berlin", "2027-01-04T08:30+00:00"),
        ("0 12 29 2 *", "UTC", "2028-02-29T12:00+00:00"),
    ],
)
def test_the_first_time_is_the_next_in_the_plans_zone(cron: str, zone: str, first: str) -> None:
    assert check_plan(plan(cron, zone), NOW) == ms(first)


@pytest.mark.parametrize(
    "cron",
    ["", "* * * *", "0 0 8 * * *", "61 * * * *", "0 8 * * mon-", "@daily", "0 8 * * 1 " * 99, "a b c d e"],
)
def test_what_is_no_expression_is_met_with_one(cron: str) -> None:
    with pytest.raises(UsageError, match="is no cron expression") as refused:
        check_plan(plan(cron), NOW)
    assert "'0 8 * * 1-5'" in refused.value.hint


def test_an_expression_without_a_time_is_refused() -> None:
    with pytest.raises(UsageError):
        check_plan(plan("0 0 31 2 *"), NOW)
    with pytest.raises(UsageError, match="at no time"):
        check_plan(plan("0 0 LW * */7"), NOW)  # the last working day, if it is a Sunday


def test_a_zone_or_an_overlap_that_there_is_not_is_refused() -> None:
    with pytest.raises(UsageError, match="no time zone 'Mars'"):
        check_plan(plan("0 8 * * *", "Mars"), NOW)
    with pytest.raises(UsageError, match="must be 'skip' or 'allow'"):
        check_plan(Plan(cron="0 8 * * *", zone="UTC", overlap="wait"), NOW)


def test_of_the_times_that_were_missed_the_last_is_made() -> None:
    hourly = plan("0 * * * *")
    assert last_time(hourly, ms("2026-11-28T05:00+00:00"), NOW) == ms("2026-11-30T08:00+00:00")
    assert last_time(hourly, ms("2026-11-30T08:00+00:00"), NOW) == ms("2026-11-30T08:00+00:00")
    exact = ms("2026-11-30T08:00+00:00")
    assert last_time(hourly, exact, exact) == exact
    assert next_time(hourly, exact) == ms("2026-11-30T09:00+00:00")


def test_a_time_that_clocks_leave_out_is_made_when_they_have_moved() -> None:
    nightly = plan("30 2 * * *", "Europe/Berlin")
    moved = next_time(nightly, ms("2027-03-27T12:00+00:00"))
    assert moved == ms("2027-03-28T01:00+00:00")
    assert last_time(nightly, moved, moved + 60_000) == moved
    assert next_time(nightly, moved) == ms("2027-03-29T00:30+00:00")


def test_a_time_that_comes_twice_is_made_once_and_one_of_every_hour_twice_under_two_names() -> None:
    nightly = plan("30 2 * * *", "Europe/Berlin")
    once = next_time(nightly, ms("2027-10-30T12:00+00:00"))
    assert once == ms("2027-10-31T00:30+00:00")
    assert next_time(nightly, once) == ms("2027-11-01T01:30+00:00")
    # Within the second of the two hours it is not the first again, which is over.
    assert next_time(nightly, ms("2027-10-31T01:05+00:00")) == ms("2027-11-01T01:30+00:00")
    hourly = plan("30 * * * *", "Europe/Berlin")
    names, at = [], ms("2027-10-31T00:00+00:00")
    for _ in range(3):
        at = next_time(hourly, at) or 0
        names.append(batch_at("x", hourly, at))
    assert names == ["x.20271031-0230", "x.20271031-0230-2", "x.20271031-0330"]


def test_times_go_on_one_by_one_whatever_clocks_do() -> None:
    """Each time is after the one before it, has a name of its own, and is the last one when it has come."""
    chance = random.Random(6)
    for zone in ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"):
        for cron in ("*/20 * * * *", "15 */3 * * *", "30 2 * * *", "0 1-3 * * *", "59 23 L * *"):
            at = ms("2027-03-10T00:00+00:00") + chance.randrange(10**8)
            seen = set()
            for _ in range(60):
                following = next_time(plan(cron, zone), at)
                assert following is not None
                assert following > at
                assert last_time(plan(cron, zone), following, following) == following
                assert last_time(plan(cron, zone), at, following + 1) >= at
                name = batch_at("x", plan(cron, zone), following)
                assert name not in seen
                seen.add(name)
                at = following


def test_the_last_time_is_found_where_clocks_are_set_back_by_half_an_hour() -> None:
    two_hourly = plan("30 */2 * * *", "Australia/Lord_Howe")
    now = ms("2026-04-05T02:29:59+10:30")
    assert last_time(two_hourly, ms("2026-04-01T00:30+11:00"), now) == ms("2026-04-05T00:30+11:00")


def test_a_name_leaves_room_for_the_time_behind_it() -> None:
    assert check_schedule("a" * 82)
    with pytest.raises(UsageError, match="up to 82 characters"):
        check_schedule("a" * 83)
    with pytest.raises(UsageError, match="cannot be the name of a schedule"):
        check_schedule("a b")


def test_a_plan_is_the_same_text_each_time_and_comes_back_whole() -> None:
    full = Plan(
        cron="0 8 * * *",
        zone="UTC",
        agent="a",
        budgets={"max_steps": 3},
        max_usd="0.10",
        options={"priority": 3, "notify": "https://x"},
    )
    assert Plan.from_json(full.to_json()) == full
    assert Plan.from_json(full.to_json()).to_json() == full.to_json()
    assert plan("0 8 * * *").to_json() == '{"cron":"0 8 * * *","overlap":"skip","zone":"UTC"}'


ROWS = [
    Row("hällo\nworld\u2028", custom_id="a", agent="x", where="rows.jsonl:1"),
    Row(
        [{"role": "user", "content": "hi"}],
        metadata={"k": [1]},
        context={"user_id": "u"},
        max_usd=Decimal("0.10"),
    ),
    Row("call", agent="openai:gpt", priority=3, call={"dialect": "openai", "model": "gpt", "options": {}}),
]


def test_rows_come_back_as_they_were_with_the_ids_that_they_get(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_CHARS", 200)
    named = parse_row({"input": "x"}, agent="late")
    assert named.line_hash
    pack = RowPack()
    for row in [*ROWS, named]:
        pack.add(row)
    chunks = pack.chunks()
    assert len(chunks) > 1
    assert pack.bytes == sum(map(len, chunks))
    found = list(unpack_rows(chunks))
    assert found == [*ROWS, named]
    assert [row.where for row in found] == [row.where for row in [*ROWS, named]]
    assert [row.derived_id for row in found] == [row.derived_id for row in [*ROWS, named]]


def test_the_digest_is_of_the_rows_and_the_plan_not_of_where_they_were_read() -> None:
    def digest(*rows: Row, cron: str = "0 8 * * *") -> str:
        pack = RowPack()
        for row in rows:
            pack.add(row)
        return pack.digest(plan(cron))

    assert digest(Row("x", where="a:1")) == digest(Row("x", where="b:2"))
    others = [
        digest(Row("x")),
        digest(Row("y")),
        digest(Row("x"), cron="0 9 * * *"),
        digest(Row("x"), Row("x")),
    ]
    others += [digest(Row("x", custom_id="c")), digest(Row("x", priority=3))]
    assert len(set(others)) == len(others)


def test_more_rows_than_a_schedule_keeps_are_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BYTES_MAX", 1_000)
    monkeypatch.setattr(module, "CHUNK_CHARS", 100)
    pack = RowPack()

    def add_many() -> None:
        for number in range(1_000):
            pack.add(Row(f"{number:x}" * 20))

    with pytest.raises(UsageError, match="a schedule keeps no more") as refused:
        add_many()
    assert "agentq submit FILE" in refused.value.hint
    assert pack.rows < 100
