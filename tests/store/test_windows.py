"""Days and months: by the server's clock, in UTC; a call belongs to the window in which it was reserved."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from importlib.resources import files

import pytest

from agentq.core.lifecycle import StopReason
from agentq.core.records import Delta, Denied, Granted, Lease, Parked, Settlement
from agentq.store import Store
from tests.support.harness import (
    LEASE_MS,
    age,
    by,
    check_invariants,
    claim_run,
    due,
    money,
    open_batch,
    reserve,
    reserve_args,
    state_of,
    steady,
    submit_run,
    turn,
    twice,
    untouched,
    window,
)

TENANT = "tenant:acme"
DAY, MONTH = f"{TENANT}@day", f"{TENANT}@month"
MS = timedelta(milliseconds=1)


def limits(store: Store, *, day: int | None = None, month: int | None = None) -> None:
    store.ledger.set_limit(DAY, usd=day, actor=by())
    store.ledger.set_limit(MONTH, usd=month, actor=by())


def run(store: Store, run_id: str = "r1") -> Lease:
    submit_run(store, run_id)
    return claim_run(store, run_id).lease


@pytest.fixture
def lease(store: Store) -> Lease:
    """A claimed run of a tenant that may spend 100 nano-USD a day and 1000 a month."""
    limits(store, day=100, month=1000)
    return run(store)


def settled(store: Store, lease: Lease, usd: int, *, n: int = 1, how: str = "settle") -> None:
    store.runs.commit_tools(lease, Delta("{}"), Settlement(f"{lease.fence}:{n}", how, usd, 0))


# ── the calendar ─────────────────────────────────────────────────────────────────────────────────────


def moments() -> list[datetime]:
    """Random ones of 140 years, and the edges of all months of them."""
    chance = random.Random(7)
    first = datetime(1970, 1, 1, tzinfo=UTC)
    found = [first + timedelta(milliseconds=chance.randrange(140 * 365 * 86_400_000)) for _ in range(1500)]
    for year in range(1970, 2110):
        for month in range(1, 13):
            edge = datetime(year, month, 1, tzinfo=UTC)
            found += [edge, edge - MS] if edge > first else [edge]
    return [*found, datetime(2096, 2, 29, 12, tzinfo=UTC), datetime(2100, 2, 28, 23, 59, 59, tzinfo=UTC)]


def test_windows_are_named_and_end_by_the_calendar_whatever_the_date(store: Store):
    folder = files("agentq.store") / "lua"
    parts = [(folder / f"_{part}.lua").read_text(encoding="utf-8") for part in ("base", "ledger")]
    ask = """
    local answers = {}
    for i, ms in ipairs(ARGV) do
      clock = tonumber(ms)
      answers[i] = table.concat({window_of('s', 'day'), window_of('s', 'month'),
        int(window_end('day')), int(window_end('month'))}, ' ')
    end
    return answers
    """
    wanted = moments()
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    answers = store.client.eval("\n".join([*parts, ask]), 1, store.keys.prefix, *[
        (moment - epoch) // MS for moment in wanted])  # fmt: skip
    for moment, answer in zip(wanted, answers, strict=True):
        tomorrow = moment.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
        first = (moment.replace(day=1) + timedelta(days=32)).replace(day=1)
        following = first.replace(hour=0, minute=0, second=0, microsecond=0)
        assert answer == (
            f"s@day:{moment:%Y-%m-%d} s@month:{moment:%Y-%m} "
            f"{(tomorrow - epoch) // MS} {(following - epoch) // MS}"
        )


# ── reserve, settle ──────────────────────────────────────────────────────────────────────────────────


def test_a_reservation_stands_in_the_scope_and_in_both_of_its_windows(store: Store, lease: Lease):
    assert twice(store, "budget_reserve", *reserve_args(lease, 1, (64, 70, 7, 30, 3)))[0] == "OK"
    today, this_month = window(store, TENANT, "day"), window(store, TENANT, "month")
    for account in ("global", TENANT, today, this_month, "run:r1"):
        assert money(store, account) == {"ur": 70, "tr": 7, "ue": 30, "te": 3}
    settled(store, lease, 60)
    for account in ("global", TENANT, today, this_month, "run:r1"):
        assert money(store, account) == {"us": 60, "ue": 30, "te": 3}
    assert money(store, DAY) == money(store, MONTH) == {}
    check_invariants(store, ["r1"])


def test_a_window_s_account_expires_62_days_after_its_end(store: Store, lease: Lease):
    reserve(store, lease, 1, usd=1, tokens=1)
    now, day = store.watch.server_ms(), 86_400_000
    end = (now // day + 1) * day
    assert store.client.pexpiretime(store.keys.scope(window(store, TENANT, "day"))) == end + 62 * day
    settled(store, lease, 1)
    reserve(store, lease, 2, usd=1, tokens=1)
    assert store.client.pexpiretime(store.keys.scope(window(store, TENANT, "day"))) == end + 62 * day
    month = store.client.pexpiretime(store.keys.scope(window(store, TENANT, "month")))
    assert end + 62 * day <= month <= end + 93 * day
    assert store.client.pexpiretime(store.keys.scope(DAY)) == -1


@pytest.mark.parametrize(
    "need, answer",
    [((60, 40), None), ((60, 41), Denied(DAY, "usd", "never")), ((101, 0), Denied(DAY, "usd", "never"))],
)
def test_what_is_left_of_a_day_may_be_taken_whole_and_not_one_more(store: Store, lease: Lease, need, answer):
    got = reserve(store, lease, 1, usd=need[0], tokens=1, escrow_usd=need[1])
    assert got == (answer or Granted(f"{lease.fence}:1", need[0], 1))
    check_invariants(store, ["r1"])


def test_tokens_of_a_month_are_a_limit_of_their_own(store: Store, lease: Lease):
    store.ledger.set_limit(MONTH, tokens=10, actor=by())
    with untouched(store):
        assert reserve(store, lease, 1, usd=1, tokens=7, escrow_tokens=4) == Denied(MONTH, "tokens", "never")
    assert isinstance(reserve(store, lease, 1, usd=1, tokens=7, escrow_tokens=3), Granted)


def test_the_scope_itself_is_asked_before_its_windows(store: Store, lease: Lease):
    store.ledger.set_limit(TENANT, usd=50, actor=by())
    assert reserve(store, lease, 1, usd=101, tokens=1) == Denied(TENANT, "usd", "never")
    store.ledger.set_limit(MONTH, usd=60, actor=by())
    store.ledger.set_limit(TENANT, usd=None, actor=by())
    assert reserve(store, lease, 1, usd=101, tokens=1) == Denied(DAY, "usd", "never")


def test_a_window_without_a_limit_counts_nothing(store: Store):
    lease = run(store)
    reserve(store, lease, 1, usd=1, tokens=1)
    assert not store.client.exists(store.keys.scope(window(store, TENANT, "day")))


@pytest.mark.parametrize("ending", ["settle", "release", "forfeit", "late", "late release"])
@pytest.mark.parametrize("kind", ["day", "month"])
def test_a_call_belongs_for_ever_to_the_window_in_which_it_was_reserved(
    store: Store, lease: Lease, kind: str, ending: str
):
    before = window(store, TENANT, kind)
    reserve(store, lease, 1, usd=70, tokens=7, escrow_usd=30)
    turn(store, kind)
    (old,) = [a for a in scopes(store) if a.startswith(f"{TENANT}@{kind}:")]
    assert old < before
    if "late" in ending:
        steady(store)
        age(store, "r1")
        store.watch.rescue("r1", LEASE_MS)
        assert money(store, old) == {"us": 70, "ts": 7, "uf": 70, "ue": 30}
    settled(store, lease, 60, how={"late": "settle", "late release": "release"}.get(ending, ending))
    assert (
        money(store, old)
        == {
            "settle": {"us": 60, "ue": 30},
            "release": {"ue": 30},
            "forfeit": {"us": 70, "ts": 7, "uf": 70, "ue": 30},
            "late": {"us": 60, "ue": 30},
            "late release": {"ue": 30},
        }[ending]
    )
    assert not store.client.exists(store.keys.scope(before))
    check_invariants(store, ["r1"])


def scopes(store: Store) -> list[str]:
    marker = store.keys.scope("")
    return [key.removeprefix(marker) for key in store.client.scan_iter(match=f"{marker}*", count=1000)]


def test_a_new_day_has_all_of_its_limit_again(store: Store, lease: Lease):
    reserve(store, lease, 1, usd=100, tokens=1)
    settled(store, lease, 100)
    assert reserve(store, lease, 2, usd=1, tokens=1) == Denied(DAY, "usd", "exhausted", admitted=True)
    turn(store)
    assert isinstance(reserve(store, lease, 2, usd=100, tokens=1), Granted)
    assert money(store, TENANT) == {"us": 100, "ur": 100, "tr": 1}
    check_invariants(store, ["r1"])


# ── the escrow ───────────────────────────────────────────────────────────────────────────────────────


def yesterday(store: Store, escrow: int = 30) -> Lease:
    """A run whose escrow lies in yesterday's account."""
    limits(store, day=100, month=1000)
    lease = run(store)
    reserve(store, lease, 1, usd=10, tokens=1, escrow_usd=escrow, escrow_tokens=3)
    store.runs.commit_continue(lease, Delta("{}"), Settlement(f"{lease.fence}:1", "settle", 10, 1))
    turn(store)
    return claim_run(store).lease


@pytest.mark.parametrize("escrow", [30, 0, 45, 20])
def test_the_escrow_goes_with_the_next_call_into_the_windows_of_today(store: Store, escrow: int):
    lease = yesterday(store)
    assert isinstance(reserve(store, lease, 1, usd=5, tokens=1, escrow_usd=escrow, escrow_tokens=3), Granted)
    (old,) = [a for a in scopes(store) if a.startswith(f"{DAY}:") and a != window(store, TENANT, "day")]
    assert money(store, old) == {"us": 10, "ts": 1}
    today = {"ur": 5, "tr": 1, "te": 3} | ({"ue": escrow} if escrow else {})
    assert money(store, window(store, TENANT, "day")) == today
    assert money(store, window(store, TENANT, "month")) == {"us": 10, "ts": 1} | today
    assert money(store, TENANT) == {"us": 10, "ts": 1} | today
    check_invariants(store, ["r1"])


def test_an_escrow_of_yesterday_is_new_money_today(store: Store):
    """In the month it is counted already, in the day it is not: so it must fit there beside the call."""
    lease = yesterday(store, escrow=90)
    with untouched(store):
        assert reserve(store, lease, 1, usd=11, tokens=1, escrow_usd=90, escrow_tokens=3) == Denied(
            DAY, "usd", "never", admitted=True
        )
    assert isinstance(reserve(store, lease, 1, usd=10, tokens=1, escrow_usd=90, escrow_tokens=3), Granted)
    check_invariants(store, ["r1"])


def test_a_denied_reserve_leaves_the_escrow_where_it_lies(store: Store):
    lease = yesterday(store)
    with untouched(store):
        assert isinstance(reserve(store, lease, 1, usd=200, tokens=1, escrow_usd=30), Denied)


@pytest.mark.parametrize("end", ["settle", "restore"])
def test_a_closing_turn_is_booked_where_its_escrow_lies(store: Store, end: str):
    lease = yesterday(store)
    (old,) = [a for a in scopes(store) if a.startswith(f"{DAY}:")]
    assert isinstance(store.ledger.convert(lease, 1), Granted)
    assert money(store, old) == {"us": 10, "ts": 1, "ur": 30, "tr": 3}
    settled(store, lease, 20, how=end)
    assert money(store, old) == (
        {"us": 30, "ts": 1} if end == "settle" else {"us": 10, "ts": 1, "ue": 30, "te": 3}
    )
    assert not store.client.exists(store.keys.scope(window(store, TENANT, "day")))
    check_invariants(store, ["r1"])


def test_the_end_gives_an_escrow_back_where_it_lies(store: Store):
    yesterday(store)
    (old,) = [a for a in scopes(store) if a.startswith(f"{DAY}:")]
    store.runs.release(Lease("r1", str(store.client.hget(store.keys.run("r1"), "fence")), 1), delay_ms=0)
    store.runs.cancel("r1", "test")
    assert money(store, old) == {"us": 10, "ts": 1}
    check_invariants(store, ["r1"])


def test_a_window_that_begins_to_count_takes_the_escrow_in_and_one_that_ends_lets_it_go(store: Store):
    lease = run(store)
    for n, day in enumerate((None, 100, None, 100), start=1):
        limits(store, day=day)
        assert isinstance(reserve(store, lease, n, usd=5, tokens=1, escrow_usd=30, escrow_tokens=3), Granted)
        settled(store, lease, 5, n=n)
        held = money(store, window(store, TENANT, "day"))
        assert (held.get("ue", 0), held.get("te", 0)) == ((30, 3) if day else (0, 0))
        check_invariants(store, ["r1"])


def test_a_window_s_account_that_has_expired_stays_away(store: Store):
    lease = yesterday(store)
    (old,) = [a for a in scopes(store) if a.startswith(f"{DAY}:")]
    assert isinstance(store.ledger.convert(lease, 1), Granted)
    store.client.delete(store.keys.scope(old))
    settled(store, lease, 20)
    store.runs.commit_end(lease, Delta("{}"), None, StopReason.FINISHED)
    assert not store.client.exists(store.keys.scope(old))
    assert money(store, TENANT) == {"us": 30, "ts": 1}
    check_invariants(store, ["r1"])


def test_a_reservation_of_nothing_opens_the_window_all_the_same(store: Store, lease: Lease):
    """What it costs after all must be found there."""
    assert isinstance(reserve(store, lease, 1, usd=0, tokens=0), Granted)
    settled(store, lease, 3)
    assert money(store, window(store, TENANT, "day")) == {"us": 3, "uo": 3}
    check_invariants(store, ["r1"])


# ── parked until the window ends ─────────────────────────────────────────────────────────────────────


def parked_for(store: Store, lease: Lease, park_ms: int) -> int:
    """Park a run that the day has no money for; answers when somebody looks at it."""
    reserve(store, lease, 1, usd=90, tokens=1)
    settled(store, lease, 90)
    args = reserve_args(lease, 2, (0, 20, 1, 0, 0), policy="park", park_ms=park_ms)
    assert twice(store, "budget_reserve", *args) == ["PARKED", DAY, "usd", "exhausted"]
    check_invariants(store, ["r1"])
    return store.watch.live()["r1"]


def test_who_waits_for_a_window_is_looked_at_when_it_ends(store: Store, lease: Lease):
    day = 86_400_000
    assert parked_for(store, lease, 7 * day) == (store.watch.server_ms() // day + 1) * day


def test_who_may_not_wait_so_long_is_looked_at_before(store: Store, lease: Lease):
    now = store.watch.server_ms()
    assert now + 100 <= parked_for(store, lease, 100) <= store.watch.server_ms() + 100


def test_at_the_window_s_end_the_run_is_tried_again_and_fits(store: Store, lease: Lease):
    parked_for(store, lease, 7 * 86_400_000)
    since = store.runs.read("r1").parked_ms  # type: ignore[union-attr]
    turn(store)
    age(store, "r1")
    assert due(store).runs == ["r1"]
    rescue = store.watch.rescue("r1", LEASE_MS)
    assert (rescue.verdict, rescue.step) == ("WOKEN", 0)
    claim = claim_run(store)
    assert claim.wind is None
    assert store.runs.read("r1").parked_ms == since  # type: ignore[union-attr]
    assert isinstance(reserve(store, claim.lease, 1, usd=20, tokens=1, policy="park"), Granted)
    assert store.runs.read("r1").parked_ms is None  # type: ignore[union-attr]
    check_invariants(store, ["r1"])


def test_a_run_that_moves_to_a_list_without_an_end_is_not_looked_at_at_midnight(store: Store, lease: Lease):
    """The batch is what blocks it after the day's limit was raised: no window's end helps."""
    open_batch(store, usd=95)
    submit_run(store, "r2", batch="b1")
    other = claim_run(store, "r2").lease
    reserve(store, other, 1, usd=90, tokens=1)
    settled(store, other, 90)
    answer = reserve(store, other, 2, usd=20, tokens=1, policy="park")
    assert answer == Parked(DAY, "usd", "exhausted")
    store.ledger.set_limit(DAY, usd=1000, actor=by())
    assert state_of(store, "r2") == "parked"
    assert (store.ledger.parked(DAY), store.ledger.parked("batch:b1")) == ([], ["r2"])
    till = int(store.client.hget(store.keys.run("r2"), "park_till") or 0)
    assert store.watch.live()["r2"] == till
    check_invariants(store, ["r1", "r2"])
