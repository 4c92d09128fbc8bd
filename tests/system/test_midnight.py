"""Midnight UTC, the end of a month and clocks that jump: in whose window a call is, and that it is paid once.

The server's clock is moved from outside, under the same scripts and workers as always.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from signal import SIGTERM
from typing import TYPE_CHECKING

import pytest

from agentq.agent import Budgets
from agentq.core.lifecycle import RunState, StopReason
from agentq.core.records import Actor, Delta, Granted, Parked, Settlement
from agentq.provider.scripted import Turn
from agentq.store import Store, connect
from agentq.tools import tool
from agentq.worker.embedded import EmbeddedServer
from tests.support.harness import (
    CALL_NANO,
    Moody,
    Rig,
    check_invariants,
    claim_run,
    due,
    money,
    reserve,
    state_of,
    steady,
    submit_run,
)
from tests.support.wait import wait_until

if TYPE_CHECKING:  # it is a plugin, and must not be imported before pytest does
    from tests.support.faketime import FakeClock
    from tests.support.fleet import Fleet

pytestmark = pytest.mark.system

pytest_plugins = ["tests.support.faketime", "tests.support.fleet"]

TENANT = "tenant:acme"
DAY, MONTH = f"{TENANT}@day", f"{TENANT}@month"
PLENTY = 1_000_000_000
LOOK = [("look", '{"at": "x"}')]
BORDERS = [
    ("2026-12-31 23:59:58", "2027-01-01 00:00:05"),
    ("2026-11-30 23:59:58", "2026-12-01 00:00:05"),
    ("2028-02-28 23:59:58", "2028-02-29 00:00:05"),
    ("2028-02-29 23:59:58", "2028-03-01 00:00:05"),
]


@pytest.fixture
def store(
    faked_server: tuple[EmbeddedServer, FakeClock], clock: FakeClock, namespace: str
) -> Iterator[Store]:
    """The store of this test's namespace, on the server whose clock is moved."""
    opened = connect(faked_server[0].url, namespace, retries=0)
    yield opened
    opened.client.flushall()
    opened.client.close()


@tool
def look(at: str) -> str:
    """Look."""
    return f"seen {at}"


def windows(text: str) -> tuple[str, str]:
    """The accounts of the day and of the month of this time."""
    return f"{DAY}:{text[:10]}", f"{MONTH}:{text[:7]}"


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def spent(store: Store, *accounts: str) -> list[int]:
    return [store.ledger.account(account).spent_nano for account in accounts]


def limit(store: Store, usd: int, *windows: str) -> None:
    for window in windows:
        store.ledger.set_limit(window, usd=usd, actor=Actor(f"limit {window} {usd}", "ann"))


@pytest.mark.parametrize("evening, morning", BORDERS)
def test_a_call_stays_in_the_windows_in_which_it_was_reserved(
    store: Store, clock: FakeClock, evening: str, morning: str
):
    """Midnight passes while it is under way; the next one, and the escrow, are in the new windows."""
    limit(store, PLENTY, DAY, MONTH)
    seen: list[dict[str, dict[str, int]]] = []

    def midnight(_: object) -> None:
        clock.set(morning)

    def note(_: object) -> None:
        seen.append({account: money(store, account) for account in {*windows(evening), *windows(morning)}})

    rig = Rig(store)
    rig.agent(Moody([LOOK, "done"], moods=[midnight, note]), look)
    clock.set(evening)
    run_id = rig.submit()
    rig.drain()
    assert rig.record(run_id).stop_reason is StopReason.FINISHED

    old, new = set(windows(evening)), set(windows(morning))
    [while_second] = seen
    for account in old - new:
        assert while_second[account] == {"ts": 600, "us": CALL_NANO}, "its escrow has gone with the run"
        assert spent(store, account) == [CALL_NANO]
    for account in new - old:
        held = while_second[account]
        assert (held["ur"], held.get("us", 0)) == (CALL_NANO, 0)
        assert held["ue"] == CALL_NANO
        assert spent(store, account) == [CALL_NANO]
    for account in new & old:  # a month that goes on
        assert spent(store, account) == [2 * CALL_NANO]
    assert spent(store, "global", TENANT) == [2 * CALL_NANO] * 2
    rig.check()
    assert store.audit.verify().agrees


@pytest.mark.parametrize("window, kind", [(DAY, 0), (MONTH, 1)])
def test_a_run_that_waits_for_tomorrows_money_goes_on_by_itself(
    store: Store, clock: FakeClock, window: str, kind: int
):
    clock.set("2026-12-31 23:59:50")
    old, new = windows("2026-12-31")[kind], windows("2027-01-01")[kind]
    limit(store, 100, window)
    submit_run(store, "r1")
    submit_run(store, "r2")
    first = claim_run(store, "r1").lease
    assert isinstance(reserve(store, first, usd=70, tokens=7), Granted)
    store.runs.commit_end(
        first, Delta("{}"), Settlement(f"{first.fence}:1", "settle", 70, 7), StopReason.FINISHED
    )
    second = claim_run(store, "r2").lease
    assert reserve(store, second, usd=60, tokens=6, policy="park") == Parked(window, "usd", "exhausted")
    # Somebody looks at it when the window ends, and not before.
    assert store.watch.live() == {"r2": ms("2027-01-01 00:00:00")}
    clock.set("2026-12-31 23:59:59")
    assert due(store).runs == []
    assert (state_of(store, "r2"), store.ledger.parked(window)) == ("parked", ["r2"])

    clock.set("2027-01-01 00:00:01")
    assert due(store).runs == ["r2"]
    assert store.watch.rescue("r2", 15_000).verdict == "WOKEN"
    third = claim_run(store, "r2").lease
    assert isinstance(reserve(store, third, usd=60, tokens=6), Granted)
    store.runs.commit_end(
        third, Delta("{}"), Settlement(f"{third.fence}:1", "settle", 50, 5), StopReason.FINISHED
    )
    assert spent(store, old, new, TENANT) == [70, 50, 120]
    check_invariants(store, ["r1", "r2"])


@pytest.mark.parametrize("evening, morning", BORDERS)
def test_a_closing_turn_that_is_converted_after_midnight_is_booked_where_its_escrow_lay(
    store: Store, clock: FakeClock, evening: str, morning: str
):
    """It was paid for yesterday: it needs nothing of today, not even where today has nothing."""
    limit(store, PLENTY, DAY, MONTH)

    def midnight(_: object) -> None:
        clock.set(morning)
        limit(store, 0, DAY)

    rig = Rig(store)
    rig.agent(Moody([LOOK, "all I have"], moods=[midnight]), look)
    clock.set(evening)
    run_id = rig.submit(budgets=Budgets(max_steps=1))
    rig.drain()
    record = rig.record(run_id)
    assert (record.stop_reason, record.answer) == (StopReason.STEP_BUDGET, "all I have")
    old, new = windows(evening), set(windows(morning)) - set(windows(evening))
    assert spent(store, *old) == [2 * CALL_NANO] * 2
    assert spent(store, *new) == [0] * len(new)
    # The limits of the day are above what it has spent by what was set aside before they were lowered.
    rig.check(capped=False)
    assert store.audit.verify().agrees


@pytest.mark.parametrize("hours", [2, -2, 26, -26])
def test_a_clock_that_jumps_neither_loses_money_nor_counts_it_twice(
    store: Store, clock: FakeClock, hours: int
):
    """A call is under way when the server's clock jumps: nobody takes it for dead, and it is booked once."""
    limit(store, PLENTY, DAY, MONTH)
    clock.set("2026-12-31 23:30:00")
    verdicts: list[str] = []
    rig = Rig(store)

    def jump(_: object) -> None:
        steady(store)
        clock.move(hours=hours)
        verdicts.extend(rescue.verdict for rescue in rig.rescue())
        rig.clock.seconds += 5
        verdicts.extend(rescue.verdict for rescue in rig.rescue())

    script: list[Turn] = [LOOK, [("look", '{"at": "y"}')], "done"]
    rig.agent(Moody(script, moods=[None, jump]), look)
    # The time that it takes is the server's too, and would be used up.
    run_id = rig.submit(budgets=Budgets(max_seconds=None))
    rig.drain()
    record = rig.record(run_id)
    assert (record.stop_reason, record.attempts) == (StopReason.FINISHED, 1)
    assert set(verdicts) <= {"PATIENT", "NOT_DUE"}
    assert spent(store, "global", TENANT) == [3 * CALL_NANO] * 2
    days = {f"{DAY}:{day}" for day in ("2026-12-30", "2026-12-31", "2027-01-01", "2027-01-02")}
    assert sum(spent(store, *days)) == 3 * CALL_NANO
    assert store.ledger.account("global").forfeited_nano == 0
    rig.check()
    assert store.audit.verify().agrees


# ── real workers ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def midnight_fleet(make_fleet) -> Iterator[tuple[Fleet, FakeClock]]:
    """A fleet on a server whose clock is moved; its workers have the right time."""
    from tests.support.faketime import FakeClock

    home = Path(tempfile.mkdtemp(prefix="aqc-", dir="/tmp"))
    clock = FakeClock(home)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in clock.environment.items():
            patch.setenv(name, value)
        fleet = make_fleet(lease_seconds=2, tick_seconds=0.2)
    clock.attach(fleet.server)
    yield fleet, clock
    clock.detach()
    shutil.rmtree(home, ignore_errors=True)


def test_workers_go_through_new_years_eve(midnight_fleet: tuple[Fleet, FakeClock]):
    """A call in flight at midnight is yesterday's; who waits for a new day goes on without anybody's help."""
    fleet, clock = midnight_fleet
    ledger = fleet.app.store.ledger
    old, new = "tenant:default@day:2026-12-31", "tenant:default@day:2027-01-01"
    clock.set("2026-12-31 23:59:00")
    ledger.set_limit("tenant:default@day", usd=PLENTY, actor=Actor("1", "ann"))
    worker = fleet.start_worker(concurrency=2)
    clock.set("2026-12-31 23:59:57")
    fleet.submit(1, 3, seconds=4).wait(60)
    fleet.check("b", steps=3)
    bills = [int(line[2]) for line in fleet.lines("bill")]
    assert len(bills) == 3
    accounts = [account.spent_nano for account in ledger.accounts([old, new, "tenant:default"])]
    assert accounts == [bills[0], bills[1] + bills[2], sum(bills)]

    # The new day is dry: a run waits for the next one, and is looked at when that comes.
    ledger.book("tenant:default", "charge", usd=PLENTY - accounts[1], actor=Actor("2", "ann"))
    waiting = fleet.submit(1, 1, batch="c")
    wait_until(lambda: fleet.records("c")[0].state is RunState.PARKED, "the run to be parked")
    clock.set("2027-01-01 23:59:59")
    waiting.wait(30)
    fleet.check("c", steps=1)
    [bill] = [int(line[2]) for line in fleet.lines("bill")[3:]]
    assert ledger.account("tenant:default@day:2027-01-02").spent_nano == bill
    worker.signal(SIGTERM)
    assert worker.wait(30) == 0
    assert "ledger_rolled_back" not in worker.output
    assert fleet.app.store.audit.verify().agrees


def test_workers_whose_servers_clock_jumps_by_hours_pay_each_call_once(
    midnight_fleet: tuple[Fleet, FakeClock],
):
    fleet, clock = midnight_fleet
    clock.set("2026-12-31 12:00:00")
    fleet.app.store.ledger.set_limit("tenant:default@day", usd=PLENTY, actor=Actor("1", "ann"))
    worker = fleet.start_worker(concurrency=2)
    batch = fleet.submit(2, 4, seconds=3)

    def billed(calls: int) -> bool:
        return len(fleet.lines("bill")) >= calls

    for calls, hours in ((2, 2), (4, -4), (6, 26)):
        wait_until(partial(billed, calls), "the calls to be under way", 30)
        clock.move(hours=hours)
    batch.wait(90)
    fleet.check("b", steps=4)
    assert len(fleet.lines("bill")) == 8
    account = fleet.app.store.ledger.account("global")
    assert (account.spent_nano, account.forfeited_nano) == (fleet.billed_nano(), 0)
    assert "ledger_rolled_back" not in worker.output
    assert fleet.app.store.audit.verify().agrees
