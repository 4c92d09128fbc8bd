"""The ways in which other people's budgets have failed in public, provoked here.

Each test names the kind of failure and the thread in which somebody met it. What concerns the calls
themselves is in `tests/engine/test_known_failures.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any

import pytest
import redis

from agentq.core.lifecycle import StopReason
from agentq.core.records import Delta, Denied, Granted, Lease, Settlement, Size
from agentq.store import Store, connect
from agentq.worker.embedded import EmbeddedServer
from tests.support.harness import (
    LEASE_MS,
    age,
    check_invariants,
    claim_run,
    entries_of,
    money,
    open_batch,
    ready,
    reserve,
    steady,
    submit_run,
    untouched,
)

EMPTY = Delta("{}")


def closing(lease: Lease, n: int, how: str, usd: int = 0, tokens: int = 0) -> Settlement:
    return Settlement(f"{lease.fence}:{n}", how, usd, tokens)


def rescued(store: Store, run_id: str) -> None:
    """The lease of whoever holds the run is over, and a tick takes it back."""
    steady(store)
    age(store, run_id)
    assert store.watch.rescue(run_id, LEASE_MS).verdict == "RESCUED"


def at_once(tasks: Sequence[Callable[[], Any]]) -> list[Any]:
    """Each in a thread of its own, all begun at the same instant."""
    together = Barrier(len(tasks))

    def begin(task: Callable[[], Any]) -> Any:
        together.wait()
        return task()

    with ThreadPoolExecutor(len(tasks)) as pool:
        return list(pool.map(begin, tasks))


class Asker:
    """A real process that claims its runs and asks for their money when it is told to."""

    def __init__(self, server: EmbeddedServer, namespace: str, runs: Sequence[str], usd: int) -> None:
        asked = json.dumps({"url": server.url, "namespace": namespace, "runs": list(runs), "usd": usd})
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.store.burst", asked],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """With -9, as the kernel does when memory is short."""
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def start_asker(server: EmbeddedServer, namespace: str) -> Iterator[Callable[..., Asker]]:
    """`start_asker(runs, usd)`; every process is gone when the test ends."""
    started: list[Asker] = []

    def start(runs: Sequence[str], usd: int) -> Asker:
        started.append(Asker(server, namespace, runs, usd))
        return started[-1]

    yield start
    for asker in started:
        asker.kill()


# ── the cap is checked, and then passed ──────────────────────────────────────────────────────────────


def test_calls_of_many_processes_at_once_do_not_pass_the_cap_together(
    store: Store, start_asker: Callable[..., Asker]
):
    """Check, then increment: all that ask at once see the same money left.

    https://github.com/BerriAI/litellm/issues/34732
    """
    open_batch(store, usd=10 * 60 + 59)
    runs = [f"r{n}" for n in range(32)]
    for run_id in runs:
        submit_run(store, run_id, batch="b1")
    askers = [start_asker(runs[first::4], 60) for first in range(4)]
    assert [asker.line() for asker in askers] == ["ready"] * 4
    for asker in askers:
        asker.go()
    granted = [word for asker in askers for word in json.loads(asker.line())]
    assert len(granted) == 32
    assert sum(granted) == 10
    for scope in ("global", "tenant:acme", "batch:b1"):
        assert money(store, scope) == {"ur": 10 * 60}
    check_invariants(store, runs)


def test_a_cap_is_checked_against_what_calls_may_cost_and_not_against_what_was_spent(store: Store):
    """The budget is checked after the spend, so a burst passes while nothing is booked yet.

    https://github.com/BerriAI/litellm/issues/26672
    """
    store.ledger.set_limit("tenant:acme", usd=100)
    leases = [lease_of(store, f"r{n}") for n in range(20)]
    answers = at_once([partial(reserve, store, lease, usd=30, tokens=0) for lease in leases])
    assert store.ledger.account("tenant:acme").spent_nano == 0
    assert sum(isinstance(answer, Granted) for answer in answers) == 3
    refused = [answer for answer in answers if not isinstance(answer, Granted)]
    assert refused == [Denied("tenant:acme", "usd", "wait")] * 17
    # Each call costs all that it may: the cap still holds.
    for lease in leases:
        store.runs.commit_end(lease, EMPTY, closing(lease, 1, "settle", 30), StopReason.FINISHED)
    assert money(store, "tenant:acme") == {"us": 90}


def test_a_hold_is_never_shrunk_to_what_is_left(store: Store):
    """A call whose worst case does not fit is admitted with a smaller hold, and then costs what it costs.

    https://github.com/BerriAI/litellm/pull/26845
    """
    store.ledger.set_limit("tenant:acme", usd=100)
    first, second = lease_of(store, "r1"), lease_of(store, "r2")
    assert isinstance(reserve(store, first, usd=70, tokens=0), Granted)
    store.runs.commit_tools(first, EMPTY, closing(first, 1, "settle", 70))
    with untouched(store):
        assert reserve(store, second, usd=60, tokens=0) == Denied("tenant:acme", "usd", "exhausted")
        assert reserve(store, second, usd=31, tokens=0) == Denied("tenant:acme", "usd", "exhausted")
    # What may be cut is the call: a smaller hold comes with the smaller output cap that it was computed from.
    answer = store.ledger.reserve(second, 1, [Size(4096, 60, 0), Size(1024, 20, 0)], policy="deny")
    assert answer == Granted(f"{second.fence}:1", 20, 0, 1024)


def test_a_budget_may_be_used_to_its_last_nano_and_by_the_first_call(store: Store):
    """Two checks with different signs: what the reservation admits at the limit, the other one rejects.

    https://github.com/BerriAI/litellm/pull/27021
    """
    store.ledger.set_limit("tenant:acme", usd=100, tokens=100)
    lease = lease_of(store, "r1")
    assert isinstance(reserve(store, lease, usd=100, tokens=100), Granted)
    store.runs.commit_end(lease, EMPTY, closing(lease, 1, "settle", 100, 100), StopReason.FINISHED)
    assert money(store, "tenant:acme") == {"us": 100, "ts": 100}


# ── holds that stay, and budgets that are said to be used up ─────────────────────────────────────────


def finish(store: Store, lease: Lease, how: str) -> int:
    """End a run whose call was reserved, in one of the ways in which runs end; answers what was billed."""
    runs = store.runs
    match how:
        case "answered":
            runs.commit_end(lease, EMPTY, closing(lease, 1, "settle", 1), StopReason.FINISHED)
            return 1
        case "turned away":
            runs.commit_end(lease, EMPTY, closing(lease, 1, "release"), StopReason.MODEL_ERROR)
        case "tried again":
            runs.release(lease, delay_ms=0, settlement=closing(lease, 1, "release"))
            again = claim_run(store, lease.run_id).lease
            reserve(store, again, usd=60, tokens=0, escrow_usd=30)
            runs.commit_end(again, EMPTY, closing(again, 1, "settle", 1), StopReason.FINISHED)
            return 1
        case "cancelled":
            runs.cancel(lease.run_id, "ann")
            runs.commit_end(lease, EMPTY, closing(lease, 1, "settle", 1), StopReason.FINISHED)
            return 1
        case "closed":
            runs.commit_continue(lease, EMPTY, closing(lease, 1, "settle", 1))
            last = claim_run(store, lease.run_id).lease
            store.ledger.convert(last, 1)
            runs.commit_end(last, EMPTY, closing(last, 1, "settle", 1), StopReason.STEP_BUDGET)
            return 2
        case "late":
            rescued(store, lease.run_id)
            runs.commit_end(lease, EMPTY, closing(lease, 1, "settle", 1), StopReason.FINISHED)
            runs.cancel(lease.run_id, "ann")
            return 1
        case "unclear and corrected":
            runs.release(lease, delay_ms=0, settlement=closing(lease, 1, "forfeit"))
            runs.commit_end(lease, EMPTY, closing(lease, 1, "settle", 1), StopReason.FINISHED)
            runs.cancel(lease.run_id, "ann")
            return 1
    return 0


ENDS = ("answered", "turned away", "tried again", "cancelled", "closed", "late", "unclear and corrected")


@pytest.mark.parametrize("how", ENDS)
def test_no_way_of_ending_leaves_a_hold_that_blocks_who_has_spent_next_to_nothing(store: Store, how: str):
    """Reservations leak, so users are refused although they have spent nearly nothing.

    https://github.com/BerriAI/litellm/issues/27639
    """
    store.ledger.set_limit("tenant:acme", usd=100 + 2 * 20)
    billed = 0
    for n in range(20):
        lease = lease_of(store, f"r{n}")
        answer = reserve(store, lease, usd=60, tokens=0, escrow_usd=30)
        assert isinstance(answer, Granted), f"call {n}: {answer} after {billed} nano-USD were billed"
        billed += finish(store, lease, how)
        expected = {"us": billed} if billed else {}
        assert money(store, "tenant:acme") == expected
    check_invariants(store, [f"r{n}" for n in range(20)])


def test_the_death_of_a_process_does_not_pin_what_it_had_reserved(
    store: Store, start_asker: Callable[..., Asker]
):
    """A pod is killed in the middle of a request, and its reservation stays on the counter for ever.

    Here its lease ends, and what may have been billed is charged once, beside the calls that are known.
    https://github.com/BerriAI/litellm/pull/30330
    """
    store.ledger.set_limit("tenant:acme", usd=100)
    submit_run(store, "r1")
    dying = start_asker(["r1"], 60)
    assert dying.line() == "ready"
    dying.go()
    assert json.loads(dying.line()) == [True]
    dying.kill()
    other = lease_of(store, "r2")
    # As long as the call may still be under way its money is kept, and worth waiting for.
    assert reserve(store, other, usd=50, tokens=0) == Denied("tenant:acme", "usd", "wait")
    rescued(store, "r1")
    assert money(store, "tenant:acme") == {"us": 60, "uf": 60}
    assert reserve(store, other, usd=40, tokens=0) == Granted(f"{other.fence}:1", 40, 0)
    store.runs.cancel("r1", "ann")
    store.runs.commit_end(other, EMPTY, closing(other, 1, "settle", 2), StopReason.FINISHED)
    assert money(store, "tenant:acme") == {"us": 62, "uf": 60}
    check_invariants(store, ["r1", "r2"])


def test_a_reset_during_a_call_makes_no_counter_negative(store: Store):
    """The budget's period ends while a request is in flight, and its refund lands on the new period.

    https://github.com/BerriAI/litellm/pull/30330
    """
    store.ledger.set_limit("tenant:acme@day", usd=100)
    lease = lease_of(store, "r1")
    reserve(store, lease, usd=60, tokens=0)
    held = store.keys.run("r1", "open")
    text = str(store.client.hget(held, f"{lease.fence}:1"))
    today = text.rpartition(" ")[2]
    then = "tenant:acme@day:2001-01-01"
    store.client.rename(store.keys.scope(today), store.keys.scope(then))
    store.client.hset(held, f"{lease.fence}:1", text.replace(today, then))
    store.runs.commit_end(lease, EMPTY, closing(lease, 1, "settle", 10), StopReason.FINISHED)
    assert money(store, then) == {"us": 10}
    assert money(store, today) == {}
    # The new day is whole, to the nano, and not more.
    second = lease_of(store, "r2")
    with untouched(store):
        assert reserve(store, second, usd=101, tokens=0) == Denied("tenant:acme@day", "usd", "never")
    assert isinstance(reserve(store, second, usd=100, tokens=0), Granted)


def test_sustained_load_far_below_the_cap_is_never_refused(
    server: EmbeddedServer, namespace: str, store: Store
):
    """Phantom costs of the cap's own size appear under load, and calls are refused for minutes.

    https://github.com/BerriAI/litellm/issues/36926
    """
    workers, rounds = 8, 40
    # Room for the calls in flight and for all that is spent: no more, so one hold too many is seen.
    store.ledger.set_limit("tenant:acme", usd=workers * 90 + workers * rounds)
    leases = [lease_of(store, f"r{n}") for n in range(workers)]

    def work(lease: Lease) -> list[Any]:
        mine = connect(server.url, namespace, retries=0)
        refused = []
        for n in range(rounds):
            answer = reserve(mine, lease, 1, usd=60, tokens=0, escrow_usd=30)
            if not isinstance(answer, Granted):
                refused.append(answer)
            mine.runs.commit_continue(lease, EMPTY, closing(lease, 1, "settle" if n % 2 else "release", 1))
            ready(mine, lease.run_id)
            lease = claim_run(mine, lease.run_id).lease
        mine.client.close()
        return refused

    assert at_once([partial(work, lease) for lease in leases]) == [[]] * workers
    assert money(store, "tenant:acme") == {"us": workers * rounds // 2, "ue": workers * 30}
    check_invariants(store, [f"r{n}" for n in range(workers)])


# ── what is settled twice, or in part ────────────────────────────────────────────────────────────────


def by_scope(store: Store, lease: Lease) -> list[dict[str, int]]:
    return [money(store, scope) for scope in lease.scopes.split()]


@pytest.mark.parametrize("lost", ["the request", "the answer", "both"])
def test_a_settle_whose_connection_breaks_counts_once_and_in_all_scopes(store: Store, lost: str):
    """The reconciling write fails, its clean-up too, and the cost counts twice, or in some scopes only.

    https://github.com/BerriAI/litellm/issues/35569
    """
    open_batch(store)
    submit_run(store, "r1", batch="b1")
    lease = claim_run(store).lease
    reserve(store, lease, usd=60, tokens=6, escrow_usd=30, escrow_tokens=3)
    settlement = closing(lease, 1, "settle", 50, 5)
    attempts = 0

    class Broken:
        """The wire to the server: it loses commands on their way there, or answers on their way back."""

        def __init__(self, execute: Callable[..., Any]) -> None:
            self.execute = execute

        def __call__(self, *command: Any) -> Any:
            nonlocal attempts
            attempts += 1
            reached = lost == "the answer" or (lost == "both" and attempts > 1)
            answer = self.execute(*command) if reached or attempts > 2 else None
            if attempts <= 2:
                raise redis.exceptions.ConnectionError("broken")
            return answer

    connections = store.runs._scripts._connections
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "execute", Broken(connections.execute))
        for _ in range(2):
            with pytest.raises(redis.exceptions.ConnectionError):
                store.runs.commit_continue(lease, EMPTY, settlement)
        assert store.runs.commit_continue(lease, EMPTY, settlement) == "OK"
    assert by_scope(store, lease) == [{"us": 50, "ts": 5, "ue": 30, "te": 3}] * 4
    mine = [entry["o"] for entry in entries_of(store) if entry["i"] == f"r1:{lease.fence}:1"]
    assert mine == ["reserve", "settle"]
    check_invariants(store, ["r1"])


def test_a_bill_that_two_report_at_once_counts_once(store: Store):
    """The clean-up and the settle both act on one reservation.

    https://github.com/BerriAI/litellm/issues/35569
    """
    for n in range(20):
        lease = lease_of(store, f"r{n}")
        reserve(store, lease, usd=60, tokens=6)
        bill = closing(lease, 1, "settle", 50, 5)
        steady(store)
        age(store, lease.run_id)
        at_once(
            [
                partial(store.runs.commit_tools, lease, EMPTY, bill),
                partial(store.runs.release, lease, delay_ms=0, settlement=bill),
                partial(store.runs.commit_end, lease, EMPTY, bill, StopReason.FINISHED),
                partial(store.watch.rescue, lease.run_id, LEASE_MS),
            ]
        )
        assert money(store, f"run:r{n}") == {"us": 50, "ts": 5}
        assert money(store, "tenant:acme") == {"us": 50 * (n + 1), "ts": 5 * (n + 1)}
    check_invariants(store, [f"r{n}" for n in range(20)])


def test_the_bill_of_a_worker_that_was_given_up_replaces_its_forfeit_once(store: Store):
    """What was charged in full when its lease ended is added to what it cost, so it counts twice.

    https://github.com/BerriAI/litellm/issues/35569
    """
    open_batch(store)
    submit_run(store, "r1", batch="b1")
    lease = claim_run(store).lease
    reserve(store, lease, usd=60, tokens=6)
    rescued(store, "r1")
    assert by_scope(store, lease) == [{"us": 60, "ts": 6, "uf": 60}] * 4
    bill = closing(lease, 1, "settle", 50, 5)
    for _ in range(3):
        assert store.runs.commit_continue(lease, EMPTY, bill) == "STALE"
        assert store.runs.release(lease, delay_ms=0, settlement=bill) == "STALE"
        assert by_scope(store, lease) == [{"us": 50, "ts": 5}] * 4
    check_invariants(store, ["r1"])


def lease_of(store: Store, run_id: str) -> Lease:
    """A run of the tenant's, claimed."""
    submit_run(store, run_id)
    return claim_run(store, run_id).lease
