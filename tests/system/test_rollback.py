"""The server is killed and comes back without its last writes, under workers that live, or do not."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from signal import SIGKILL
from typing import TYPE_CHECKING, Any

import pytest

from agentq.core.lifecycle import RunState
from agentq.worker.embedded import EmbeddedServer
from tests.support.aof import AppendOnlyFile, Transaction
from tests.support.processes import ProcessGroup
from tests.support.wait import wait_until

if TYPE_CHECKING:  # it is a plugin, and must not be imported before pytest does
    from tests.support.fleet import Fleet

pytestmark = pytest.mark.system

pytest_plugins = ["tests.support.fleet"]

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"
LEASE_MS = 2_000
RECOVER_MS = LEASE_MS * 4 // 3


@pytest.fixture
def fleet(make_fleet) -> Fleet:
    """Short leases, so that a heartbeat comes each two thirds of a second."""
    return make_fleet(lease_seconds=LEASE_MS / 1000, tick_seconds=0.2)


def roll_back(
    fleet: Fleet,
    first_lost: Callable[[Sequence[Transaction]], Transaction],
    *,
    meanwhile: Callable[[], object] = lambda: None,
) -> list[Transaction]:
    """Kill the server and start it again without a transaction and all after it; answers what it has lost."""
    os.kill(fleet.server.pid, SIGKILL)
    fleet.server.stop()
    file = AppendOnlyFile(fleet.home)
    written = file.transactions()
    first = first_lost(written)
    file.cut(first)
    meanwhile()
    fleet.server = EmbeddedServer.start(fleet.home)
    return [transaction for transaction in written if transaction.start >= first.start]


def entries(transactions: Sequence[Transaction], *operations: str) -> list[dict[str, str]]:
    """What these transactions wrote into the ledger's log."""
    return [entry for t in transactions for entry in t.posted() if entry["o"] in operations]


def last_with(operation: str) -> Callable[[Sequence[Transaction]], Transaction]:
    """The last transaction with such an entry of the log."""
    return lambda written: [t for t in written if entries([t], operation)][-1]


def delta(entry: dict[str, str], field: str) -> int:
    pairs = entry["d"].split()
    return int(dict(zip(pairs[::2], pairs[1::2], strict=True)).get(field, 0))


def log(fleet: Fleet, *operations: str) -> list[dict[str, str]]:
    """What stands in the ledger's log now."""
    found: Any = fleet.app.store.client.xrange(fleet.app.store.keys.log)
    return [entry for _, entry in found if entry["o"] in operations]


def incidents(fleet: Fleet) -> list[dict[str, str]]:
    """The rollbacks that workers have reported."""
    store = fleet.app.store
    return [json.loads(text) for text in store.client.lrange(store.keys.incidents, 0, -1)]


def spent(fleet: Fleet) -> int:
    return fleet.app.store.ledger.account("global").spent_nano


def audited(fleet: Fleet) -> None:
    """The books agree with the log and with what runs hold, and list the incidents."""
    verdict = fleet.app.store.audit.verify()
    assert verdict.agrees, verdict.differences
    assert [i.process for i in verdict.incidents] == [i["process"] for i in incidents(fleet)]
    typed = fleet.type("ledger", "verify")
    assert all(incident["process"] in typed.stdout + typed.stderr for incident in incidents(fleet))


@pytest.mark.timeout(240)
def test_reserves_that_are_lost_under_load_are_noticed_by_all_who_made_them_and_booked_again(fleet: Fleet):
    """Two workers lose what they had under way and what they had finished; nothing is missing in the end."""
    workers = [fleet.start_worker(concurrency=4), fleet.start_worker(concurrency=4)]
    batch = fleet.submit(16, 9, seconds=0.15)
    wait_until(lambda: len(fleet.lines("bill")) > 60, "the load to be under way", 60)

    def hundred_kilobytes_ago(written: Sequence[Transaction]) -> Transaction:
        return next(t for t in written if t.start > written[-1].start - 100_000)

    lost = roll_back(fleet, hundred_kilobytes_ago)
    gone = entries(lost, "reserve")
    assert len(gone) > 8, "more than what was in flight"
    wait_until(lambda: len({i["process"] for i in incidents(fleet)}) == 2, "both to report", 30)
    batch.wait(120)

    told = incidents(fleet)
    assert len(told) == 2
    # What was not acknowledged when the server died, eight at most, and what was given back is no loss.
    assert len(gone) - 8 <= sum(int(i["reservations"]) for i in told) <= len(gone)
    assert 0 < sum(int(i["nano_usd"]) for i in told) <= sum(delta(e, "ur") for e in gone)
    for incident in told:
        times = [int(e["m"]) for e in gone]
        # By the process' own clock, laid over the server's: some milliseconds off.
        assert min(times) - 500 <= int(incident["since"]) <= max(times) + 500
        assert max(times) <= int(incident["till"])
    # While it recovered nothing was reserved, and afterwards the runs went on by themselves.
    noticed = min(int(e["m"]) for e in log(fleet, "incident"))
    after = [int(e["m"]) for e in log(fleet, "reserve") if int(e["m"]) >= noticed]
    assert after
    assert min(after) >= noticed + RECOVER_MS

    fleet.check("b", steps=9)
    assert spent(fleet) >= fleet.billed_nano()
    audited(fleet)
    assert all(worker.returncode is None for worker in workers)
    assert all("ledger_rolled_back" in worker.output for worker in workers)


def test_a_reserve_that_is_lost_under_a_lease_that_stands_is_booked_by_its_worker(fleet: Fleet):
    """In full as soon as that is noticed, at its bill in the end: the books are exact."""
    fleet.start_worker(concurrency=1)
    batch = fleet.submit(1, 2, seconds=4)
    wait_until(lambda: len(fleet.lines("bill")) == 1, "the call to be under way")
    [lost] = entries(roll_back(fleet, last_with("reserve")), "reserve")
    [incident] = wait_until(lambda: incidents(fleet), "the rollback to be noticed", 10)
    assert (int(incident["reservations"]), int(incident["nano_usd"])) == (1, delta(lost, "ur"))
    wait_until(lambda: spent(fleet) == delta(lost, "ur"), "the call to be booked in full", 5)
    assert len(fleet.lines("bill")) == 1, "its call has ended: the test was too slow to see anything"
    batch.wait(60)
    fleet.check("b", steps=2)
    assert len(fleet.lines("bill")) == 2
    assert spent(fleet) == fleet.billed_nano()
    assert batch.account().forfeited_nano == 0
    audited(fleet)


def test_a_reply_whose_commit_is_lost_under_a_lease_that_stands_leaves_no_half_turn(make_fleet):
    """Its tools are at work when the server forgets the reply: the step is done again, both bills count."""
    from tests.support.fleet import APP

    mark = 'append("marks", f"{row} {turn}")'
    fleet = make_fleet(app=APP.replace(mark, f"{mark}; time.sleep(2)"), lease_seconds=LEASE_MS / 1000)
    fleet.start_worker(concurrency=1)
    batch = fleet.submit(1, 2, seconds=0.02)
    wait_until(lambda: len(fleet.lines("marks")) == 1, "the tool to be at work")
    roll_back(fleet, last_with("settle"))
    batch.wait(60)
    fleet.check("b", steps=2)
    assert len(fleet.lines("bill")) == 3
    assert spent(fleet) == fleet.billed_nano()
    # Nobody has lost a reserve: it is no incident, the reservation was there and was charged.
    assert incidents(fleet) == []
    audited(fleet)


def test_a_run_that_is_lost_with_its_submit_is_billed_where_it_belonged_and_never_called_again(fleet: Fleet):
    fleet.start_worker(concurrency=1)
    batch = fleet.submit(1, 3, seconds=3)
    [run] = batch.runs()
    wait_until(lambda: len(fleet.lines("bill")) == 1, "the call to be under way")

    def submit(written: Sequence[Transaction]) -> Transaction:
        return next(t for t in written if t.touches("batch:b"))

    roll_back(fleet, submit)
    store = fleet.app.store
    assert store.runs.read(run.id) is None
    wait_until(lambda: incidents(fleet), "the rollback to be noticed", 10)
    bill = fleet.billed_nano()
    scopes = ["global", "tenant:default", "batch:b", f"run:{run.id}"]
    wait_until(
        lambda: {a.spent_nano for a in store.ledger.accounts(scopes)} == {bill}, "its bill to be booked"
    )
    assert store.ledger.account("global").forfeited_nano == 0
    assert store.client.pttl(store.keys.scope(f"run:{run.id}")) > 0
    assert store.client.pttl(store.keys.run(run.id, "forfeits")) != -1
    # Who submitted it does so again; it waits until the ledger has recovered, and goes on by itself.
    fleet.submit(1, 3, seconds=0.02).wait(60)
    fleet.check("b", steps=3)
    assert len(fleet.lines("bill")) == 1 + 3
    assert spent(fleet) == fleet.billed_nano()
    audited(fleet)


def test_a_worker_that_is_idle_notices_by_its_heartbeat_and_books_what_it_had_finished(fleet: Fleet):
    """All was committed and is lost again: the run goes on where it stands, both bills are in the books."""
    fleet.start_worker(concurrency=1)
    batch = fleet.submit(1, 3)
    batch.wait(30)
    roll_back(fleet, last_with("reserve"))
    assert fleet.records()[0].state is RunState.RUNNING
    [incident] = wait_until(lambda: incidents(fleet), "the heartbeat to notice", 10)
    assert int(incident["nano_usd"]) == int(fleet.lines("bill")[-1][2])
    batch.wait(60)
    fleet.check("b", steps=3)
    assert len(fleet.lines("bill")) == 4
    assert spent(fleet) == fleet.billed_nano()
    audited(fleet)


def test_a_worker_that_dies_after_it_has_noticed_leaves_its_call_booked_in_full(fleet: Fleet):
    doomed = fleet.start_worker(concurrency=1)
    batch = fleet.submit(1, 2, seconds=20)
    wait_until(lambda: len(fleet.lines("bill")) == 1, "the call to be under way")
    [lost] = entries(roll_back(fleet, last_with("reserve")), "reserve")
    wait_until(lambda: spent(fleet) == delta(lost, "ur"), "the call to be booked in full", 10)
    doomed.signal_group(SIGKILL)
    batch.cancel()
    fleet.start_worker()
    wait_until(batch.done, "the run to end without its worker", 30)
    assert len(fleet.lines("bill")) == 1
    assert spent(fleet) == delta(lost, "ur") > fleet.billed_nano()
    assert int(incidents(fleet)[0]["nano_usd"]) == delta(lost, "ur")
    audited(fleet)


def test_what_nobody_lives_to_tell_is_missing_and_no_more_than_that(fleet: Fleet):
    """The limit of it all: server and worker die together, and the reserve was not on disk."""
    doomed = fleet.start_worker(concurrency=1)
    batch = fleet.submit(1, 2, seconds=0.5)
    wait_until(lambda: len(fleet.lines("bill")) == 2, "the second call to be under way")
    lost = roll_back(fleet, last_with("reserve"), meanwhile=lambda: doomed.signal_group(SIGKILL))
    [reserve] = entries(lost, "reserve")
    fleet.start_worker(concurrency=1)
    batch.wait(60)
    store = fleet.app.store
    assert incidents(fleet) == []
    missing = fleet.billed_nano() - spent(fleet)
    assert missing == int(fleet.lines("bill")[1][2]) <= delta(reserve, "ur")
    assert store.audit.verify().agrees


def test_a_flushed_server_is_noticed_sends_no_call_for_a_run_that_is_gone_and_gets_back_what_was_spent(
    fleet: Fleet,
):
    """`FLUSHALL` under workers: all runs are gone, what living processes have spent is not."""
    worker = fleet.start_worker(concurrency=2)
    batch = fleet.submit(4, 5, seconds=1)
    wait_until(lambda: len(fleet.lines("bill")) >= 5, "some calls to be done, some under way")
    fleet.app.store.client.flushall()
    sent = len(fleet.lines("bill"))
    [incident] = wait_until(lambda: incidents(fleet), "the heartbeat to notice", 10)
    assert (incident["known"], incident["missing"]) == ("0", "1")
    wait_until(lambda: spent(fleet) == fleet.billed_nano(), "what was spent to be booked again", 20)
    assert len(fleet.lines("bill")) <= sent + 2, "who had just reserved was not called back"
    assert "ledger_rolled_back" in worker.output
    for run in batch.runs():
        assert fleet.app.store.runs.read(run.id) is None
    settled = len(fleet.lines("bill"))
    # What is submitted then runs, once the ledger has recovered; of the old runs nothing is sent.
    fleet.submit(2, 2, batch="after").wait(60)
    assert len(fleet.lines("bill")) == settled + 4
    assert spent(fleet) == fleet.billed_nano()
    audited(fleet)


def test_a_ledger_without_its_mark_refuses_to_reserve_and_says_so(fleet: Fleet):
    """Somebody has deleted it, or eviction has: nothing is called, until the mark is there again."""
    store = fleet.app.store
    batch = fleet.submit(2, 2)
    store.client.delete(store.keys.ledger)
    worker = fleet.start_worker(concurrency=2)
    wait_until(lambda: "no_ledger" in worker.output, "the worker to say so", 10)
    assert fleet.lines("bill") == []
    assert {record.state for record in fleet.records()} <= {RunState.QUEUED, RunState.RUNNING}
    # The next submit opens it.
    fleet.submit(1, 2, batch="other")
    batch.wait(30)
    fleet.check("b", steps=2)


def test_troubles_that_lose_nothing_are_no_rollback(tmp_path):
    """The long soak, for twenty seconds: workers leave, die and freeze, the server restarts and crashes."""
    argv: list[str | Path] = [
        sys.executable,
        SOAK,
        "--minutes",
        "0.33",
        "--every",
        "2",
        "--freeze",
        "3",
        "--lease",
        "2",
        "--json",
    ]
    soak = ProcessGroup(argv, cwd=tmp_path)
    try:
        code = soak.wait(110)
        figures = json.loads(soak.output)
        assert code == 0, figures
        assert sum(figures["troubles"].values()) >= 4
        assert figures["spent"] >= figures["billed"] > 0
    finally:
        soak.end()
