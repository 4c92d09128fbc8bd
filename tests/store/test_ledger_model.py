"""Claims, calls, commits, rescues, cancels and zombies in any order, against a ledger in plain Python."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from agentq.core.lifecycle import StopReason
from agentq.core.records import Delta, Denied, Granted, Lease, Settlement
from agentq.store import connect
from agentq.worker.embedded import EmbeddedServer
from tests.support.harness import (
    LEASE_MS,
    age,
    check_invariants,
    claim_run,
    money,
    open_batch,
    ready,
    reserve,
    steady,
    submit_run,
)

EXAMPLES = 30
STEPS = 40
RUNS = {"r1": "b1", "r2": "b1", "r3": None}
LIMITS = {"global": (200, None), "batch:b1": (120, 130), "run:r1": (90, None), "run:r3": (None, 80)}
AMOUNTS = st.sampled_from(range(0, 60, 10))
"""All limits are sums of these: so needs fit exactly, or miss by a little."""
EMPTY = Delta("{}")
Pair = tuple[int, int]


def plus(*pairs: Pair) -> Pair:
    return sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)


@dataclass
class Run:
    """What is expected of one run."""

    scopes: tuple[str, ...]
    state: str = "queued"
    holder: Lease | None = None
    requests: int = 0
    deaths: int = 0
    escrow: Pair = (0, 0)
    admitted: bool = False
    """It holds an escrow, perhaps of nothing."""
    open: dict[str, Pair] = field(default_factory=dict)
    forfeits: dict[str, Pair] = field(default_factory=dict)
    spent: Pair = (0, 0)
    overage: int = 0

    def close(self, reservation: str, how: str, cost: Pair) -> None:
        """One reservation is closed: a fact, whoever says so, once."""
        if reservation in self.open:
            held = self.open.pop(reservation)
            if how == "settle":
                self.spent = plus(self.spent, cost)
                self.overage += max(0, cost[0] - held[0])
            elif how == "forfeit":
                self.forfeits[reservation] = held
                self.spent = plus(self.spent, held)
            elif how == "restore" and not self.admitted:
                self.escrow, self.admitted = held, True
        elif reservation in self.forfeits and how != "forfeit":
            full = self.forfeits.pop(reservation)
            cost = cost if how == "settle" else (0, 0)
            self.spent = plus(self.spent, cost, (-full[0], -full[1]))
            self.overage += max(0, cost[0] - full[0])

    def leave(self, state: str) -> None:
        """It leaves `running`, or ends: nothing stays open."""
        for reservation in list(self.open):
            self.close(reservation, "forfeit", (0, 0))
        if state == "ended":
            self.escrow, self.admitted = (0, 0), False
        self.state, self.holder = state, None


class Machine(RuleBasedStateMachine):
    """Three runs under small limits, so that the boundaries are reached; two share a batch."""

    server: EmbeddedServer

    def __init__(self) -> None:
        super().__init__()
        self.ops: dict[str, str] = {}
        self.store = connect(self.server.url, f"t{secrets.token_hex(4)}", retries=0)
        open_batch(self.store)
        self.runs = {}
        for run_id, batch in RUNS.items():
            submit_run(self.store, run_id, batch=batch)
            scopes = ("global", "tenant:acme", *([f"batch:{batch}"] if batch else []), f"run:{run_id}")
            self.runs[run_id] = Run(scopes)
        self.store.batches.seal("b1")
        self.limits: dict[str, tuple[int | None, int | None]] = {}
        for scope, limit in LIMITS.items():
            self.limit(scope, limit)
        self.leases: list[Lease] = []
        self.cancelled: dict[str, Lease] = {}

    def teardown(self) -> None:
        left = list(self.store.client.scan_iter(match=f"{self.store.keys.prefix}*", count=1000))
        self.store.client.unlink(*left)
        self.store.client.close()

    def limit(self, scope: str, limit: tuple[int | None, int | None]) -> None:
        self.store.ledger.set_limit(scope, usd=limit[0], tokens=limit[1])
        self.limits[scope] = limit

    def total(self, scope: str) -> dict[str, int]:
        mine = [run for run in self.runs.values() if scope in run.scopes]
        spent, held = (
            plus(*(run.spent for run in mine)),
            plus(*(p for run in mine for p in run.open.values())),
        )
        escrow = plus(*(run.escrow for run in mine))
        forfeited = plus(*(p for run in mine for p in run.forfeits.values()))[0]
        return {
            "us": spent[0], "ts": spent[1], "ur": held[0], "tr": held[1], "ue": escrow[0], "te": escrow[1],
            "uf": forfeited, "uo": sum(run.overage for run in mine),
        }  # fmt: skip

    def denied(self, run: Run, need: Pair) -> Denied | None:
        for scope in run.scopes:
            books, limits = self.total(scope), self.limits.get(scope, (None, None))
            for i, unit in ((1, "tokens"), (0, "usd")):
                limit, letter = limits[i], "ut"[i]
                spent, held = books[f"{letter}s"], books[f"{letter}r"]
                escrow = books[f"{letter}e"] - run.escrow[i]
                if limit is None or spent + held + escrow + need[i] <= limit:
                    continue
                if need[i] > limit:
                    return Denied(scope, unit, "never", run.admitted)
                if spent + need[i] > limit:
                    return Denied(scope, unit, "exhausted", run.admitted)
                return Denied(scope, unit, "wait" if held else "winddown", run.admitted)
        return None

    @rule(run_id=st.sampled_from(list(RUNS)))
    def claim(self, run_id: str) -> None:
        run = self.runs[run_id]
        if run.state == "queued":
            ready(self.store, run_id)
            lease = claim_run(self.store, run_id).lease
            self.leases.append(lease)
            run.state, run.holder, run.requests = "running", lease, 0
        else:
            assert self.store.runs.claim(run_id, None, LEASE_MS) is None

    def worker(self, data: Any) -> Lease:
        """Mostly one that holds its run; sometimes any that ever did."""
        holders = [run.holder for run in self.runs.values() if run.holder]
        zombie = data.draw(st.integers(0, 3)) == 0
        return data.draw(st.sampled_from(self.leases if zombie or not holders else holders))

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), usd=AMOUNTS, tokens=AMOUNTS, again=st.booleans(),
          escrow=AMOUNTS)  # fmt: skip
    def reserve(self, data: Any, usd: int, tokens: int, *, again: bool, escrow: int) -> None:
        lease = self.worker(data)
        run = self.runs[lease.run_id]
        n = max(1, run.requests + (0 if again else 1))
        reservation = f"{lease.fence}:{n}"
        held = run.open.get(reservation, (usd, tokens))
        answer = reserve(
            self.store, lease, n, usd=held[0], tokens=held[1], escrow_usd=escrow, escrow_tokens=escrow
        )
        if run.holder != lease:
            assert answer == "STALE"
        elif n <= run.requests:
            assert answer == (Granted(reservation, *held) if reservation in run.open else "CLOSED")
        elif denial := self.denied(run, plus(held, (escrow, escrow))):
            assert answer == denial
        else:
            assert answer == Granted(reservation, *held)
            run.open[reservation], run.requests = held, n
            run.escrow, run.admitted = (escrow, escrow), True
            self.within_limits(run)

    def within_limits(self, run: Run) -> None:
        """An admission never goes above a limit."""
        for scope in run.scopes:
            books = self.total(scope)
            for limit, letter in zip(self.limits.get(scope, (None, None)), "ut", strict=True):
                taken = books[f"{letter}s"] + books[f"{letter}r"] + books[f"{letter}e"]
                assert limit is None or taken <= limit

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def convert(self, data: Any) -> None:
        lease = self.worker(data)
        run = self.runs[lease.run_id]
        answer = self.store.ledger.convert(lease, run.requests + 1)
        if run.holder != lease:
            assert answer == "STALE"
        elif not run.admitted:
            assert answer is None
        else:
            reservation = f"{lease.fence}:{run.requests + 1}"
            assert answer == Granted(reservation, *run.escrow)
            run.open[reservation], run.requests = run.escrow, run.requests + 1
            run.escrow, run.admitted = (0, 0), False

    @precondition(lambda self: self.leases)
    @rule(
        data=st.data(),
        way=st.sampled_from(["tools", "tools", "continue", "wait", "end", "release", "release later"]),
        how=st.sampled_from(["settle", "settle", "release", "restore", "forfeit"]),
        cost=st.tuples(AMOUNTS, AMOUNTS),
        n=st.integers(1, 3),
    )
    def close(self, data: Any, way: str, how: str, cost: Pair, *, n: int) -> None:
        """A worker, the present one or a zombie, says what became of a request of its own."""
        lease = self.worker(data)
        run, runs = self.runs[lease.run_id], self.store.runs
        closing = Settlement(f"{lease.fence}:{n}", how, *cost)
        match way:
            case "tools":
                answer = runs.commit_tools(lease, EMPTY, closing)
            case "continue":
                answer = runs.commit_continue(lease, EMPTY, closing)
            case "wait":
                answer = runs.commit_wait(lease, EMPTY, closing, [], 60_000)
            case "end":
                answer = runs.commit_end(lease, EMPTY, closing, StopReason.FINISHED)
            case _:
                answer = runs.release(lease, delay_ms=60_000 if "later" in way else 0, settlement=closing)
        if self.replayed(lease, way, answer):
            return
        run.close(closing.reservation, how, cost)
        if run.holder == lease:
            assert answer == "OK"
            if way == "tools":
                run.deaths = 0
            else:
                run.deaths = 0 if way in {"continue", "wait", "end"} else run.deaths
                run.leave({"wait": "waiting", "end": "ended"}.get(way, "queued"))
        elif self.cancelled.get(lease.run_id) == lease and run.state == "cancelling":
            assert answer == "CANCELLED"
            run.leave("ended")
        else:
            assert answer == "STALE"

    def replayed(self, lease: Lease, way: str, answer: str) -> bool:
        """The operation id is that of the run's last commit: it answers as before and does nothing."""
        op = lease.fence + {"tools": "m", "continue": "t", "wait": "w", "end": "e"}.get(way, "r")
        mine = self.ops.get(lease.run_id) == op
        if answer in {"OK", "CANCELLED"}:
            self.ops[lease.run_id] = op
        return mine

    @rule(run_id=st.sampled_from(list(RUNS)))
    def cancel(self, run_id: str) -> None:
        run = self.runs[run_id]
        word = self.store.runs.cancel(run_id, "test")
        match run.state:
            case "running":
                assert run.holder is not None
                self.cancelled[run_id] = run.holder
                run.state, run.holder = "cancelling", None
                assert word == "CANCELLING"
            case "cancelling":
                assert word == "CANCELLING"
            case "ended":
                assert word in {"ENDED", "CANCELLED"}
            case _:
                assert word == "CANCELLED"
                run.leave("ended")

    @rule(run_id=st.sampled_from(list(RUNS)))
    def die(self, run_id: str) -> None:
        """Whoever holds the run is taken for dead; a person who should decide has not."""
        run = self.runs[run_id]
        steady(self.store)
        age(self.store, run_id)
        verdict = self.store.watch.rescue(run_id, LEASE_MS).verdict
        match run.state:
            case "running":
                run.deaths += 1
                assert verdict == ("ENDED" if run.deaths == 5 else "RESCUED")
                run.leave("ended" if run.deaths == 5 else "queued")
            case "cancelling" | "waiting":
                assert verdict == "ENDED"
                run.leave("ended")
            case "ended":
                assert verdict == "GONE"
            case _:
                assert verdict == "NOT_DUE"

    @rule(scope=st.sampled_from(["global", "batch:b1"]), more=st.sampled_from([0, 10, 20]))
    def top_up(self, scope: str, more: int) -> None:
        usd, tokens = self.limits[scope]
        self.limit(scope, ((usd or 0) + more, tokens))

    @invariant()
    def the_books_are_those_of_the_model(self) -> None:
        for scope in ("global", "tenant:acme", "batch:b1", *(f"run:{run_id}" for run_id in RUNS)):
            expected = {name: amount for name, amount in self.total(scope).items() if amount}
            assert money(self.store, scope) == dict(sorted(expected.items())), scope
        for run_id, run in self.runs.items():
            assert self.store.client.hget(self.store.keys.run(run_id), "state") == run.state
        check_invariants(self.store, list(RUNS), capped=False)


def test_the_ledger_is_that_of_the_model_in_any_order_of_events(server: EmbeddedServer):
    Machine.server = server
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            phases=[Phase.generate],  # to make a failure small takes longer than a test may, and hides it
            suppress_health_check=list(HealthCheck),
        ),
    )
