"""All that people, loaders and workers do to batches with rows, in any order: nothing starves, and all ends.

`FEEDER_EXAMPLES` says how many examples there are in each of the shards.
"""

from __future__ import annotations

import os
import secrets

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from agentq.core.lifecycle import StopReason
from agentq.core.records import Delta, Lease, Opened, Retrial, Settlement
from agentq.engine.cancel import cancel_batch
from agentq.store import connect
from agentq.store.batches import SOMEBODY, LoadingError, RowConflictError
from agentq.worker.embedded import EmbeddedServer
from tests.support import feeding
from tests.support.harness import (
    LEASE_MS,
    age,
    by,
    check_runs,
    due,
    dump,
    ready,
    reserve,
    steady,
    submit_run,
    unswept,
)
from tests.support.rows import add_rows, open_for

EXAMPLES = int(os.environ.get("FEEDER_EXAMPLES", "10"))
SHARDS = 4
STEPS = 40
TENANTS = ("ann", "bob")
BATCHES = {"b1": "ann", "b2": "ann", "b3": "bob"}
LOADERS = (SOMEBODY, "other")
PLENTY = 10**9
EMPTY = Delta("{}")
batch_names = st.sampled_from(sorted(BATCHES))
tenant_names = st.sampled_from(TENANTS)
PICK = st.integers(0, 10**6)


class Machine(RuleBasedStateMachine):
    """Three batches of two tenants, and few slots, so that the bounds are reached."""

    server: EmbeddedServer

    def __init__(self) -> None:
        super().__init__()
        self.store = connect(self.server.url, f"t{secrets.token_hex(4)}", retries=0)
        self.loads: dict[str, tuple[Opened, str]] = {}
        self.numbers: dict[str, int] = dict.fromkeys(BATCHES, 0)
        self.leases: dict[str, Lease] = {}
        self.singles = 0
        for tenant in TENANTS:
            self.store.ledger.set_limit(f"tenant:{tenant}", usd=PLENTY, actor=by())
        self.store.watch.sign_on("w1", 3600, slots=1)
        for name in BATCHES:
            self.load(name, 4, 0)

    def teardown(self) -> None:
        try:
            self.drain()
        finally:
            self.store.client.close()

    # ── who is there ─────────────────────────────────────────────────────────────────────────────

    def ids(self, *states: str) -> list[str]:
        """The runs in these states, by id."""
        prefix = self.store.keys.run("")
        found = []
        for key in sorted(self.store.client.scan_iter(match=f"{prefix}*", count=1000)):
            run_id = str(key).removeprefix(prefix)
            if ":" not in run_id and self.store.client.hget(str(key), "state") in states:
                found.append(run_id)
        return found

    def rows(self) -> list[str]:
        """The rows that are not runs yet, loaded or not."""
        return [
            str(row)
            for name in sorted(BATCHES)
            for part in ("feed", "loading")
            for row in self.store.client.zrange(self.store.keys.batch(name, part), 0, -1)
        ]

    @invariant()
    def nothing_starves(self) -> None:
        feeding.check(dump(self.store, without=()), self.store.watch.server_ms())

    # ── loaders ──────────────────────────────────────────────────────────────────────────────────

    @rule(
        name=batch_names,
        who=st.sampled_from(LOADERS),
        max_in_flight=st.sampled_from([None, 1, 2]),
        max_open=st.sampled_from([None, 1, 3]),
    )
    def open(self, name: str, who: str, max_in_flight: int | None, max_open: int | None) -> None:
        options = {"max_in_flight": max_in_flight, "max_open": max_open}
        given = {field: value for field, value in options.items() if value is not None}
        try:
            opened = open_for(
                self.store, name, tenant=BATCHES[name], loader=who, dead="other", usd=None, **given
            )
        except LoadingError:
            return
        self.loads[name] = (opened, who)

    @rule(name=batch_names, count=st.integers(1, 4), priority=st.sampled_from([0, 0, 3, 9]))
    def add(self, name: str, count: int, priority: int) -> None:
        if name not in self.loads:
            return
        opened, who = self.loads[name]
        first = self.numbers[name]
        try:
            add_rows(
                self.store,
                opened,
                range(first, first + count),
                name,
                tenant=BATCHES[name],
                loader=who,
                priority=priority,
            )
        except LoadingError:
            del self.loads[name]
            return
        self.numbers[name] += count

    def load(self, name: str, count: int, priority: int) -> None:
        """All of a load at once, unless somebody else is at it."""
        self.open(name, SOMEBODY, None, None)
        self.add(name, count, priority)
        self.seal(name)

    @rule(name=batch_names, count=st.integers(1, 4), priority=st.sampled_from([0, 0, 3, 9]))
    def load_rows(self, name: str, count: int, priority: int) -> None:
        self.load(name, count, priority)

    @rule(name=batch_names)
    def add_conflict(self, name: str) -> None:
        """A row with other content beside new ones: none of them is added."""
        if name not in self.loads or not self.numbers[name]:
            return
        opened, who = self.loads[name]
        first = self.numbers[name]
        rows = [first, first + 1, *range(first)]
        try:
            add_rows(self.store, opened, rows, name, tenant=BATCHES[name], loader=who, text="other")
        except (LoadingError, RowConflictError):
            return
        self.numbers[name] += 2  # those before it were taken back, so none was a conflict

    @rule(name=batch_names)
    def seal(self, name: str) -> None:
        if name in self.loads:
            _, who = self.loads.pop(name)
            try:
                self.store.batches.seal(name, loader=who)
            except LoadingError:
                return

    @rule(name=batch_names)
    def abort(self, name: str) -> None:
        if name in self.loads:
            opened, who = self.loads.pop(name)
            self.store.batches.abort(name, opened.total, loader=who)

    @rule(name=batch_names)
    def killed_loader(self, name: str) -> None:
        """Its batch stays as it is until somebody opens it again."""
        self.loads.pop(name, None)

    # ── people ───────────────────────────────────────────────────────────────────────────────────

    @rule(name=batch_names, paused=st.booleans())
    def pause(self, name: str, paused: bool) -> None:
        if paused:
            self.store.batches.pause(name, "ann")
        else:
            self.store.batches.resume(name)
            self.store.control.resume_many(self.store.batches.live(name), own=False)

    @rule(name=batch_names, whole=st.booleans())
    def cancel(self, name: str, whole: bool) -> None:
        if whole:
            cancel_batch(self.store, name, by="ann")
        else:
            self.store.batches.cancel(name, "ann")  # and whoever did that died here

    @rule(name=batch_names, reason=st.sampled_from([StopReason.COST_BUDGET, StopReason.TOKEN_BUDGET]))
    def drop(self, name: str, reason: StopReason) -> None:
        self.store.batches.drop(name, reason)

    @rule(name=batch_names)
    def revive(self, name: str) -> None:
        self.store.batches.revive(name)

    @rule(
        name=batch_names,
        field=st.sampled_from(["max_in_flight", "max_open", "priority"]),
        value=st.sampled_from([None, 1, 2, 9]),
    )
    def tune(self, name: str, field: str, value: int | None) -> None:
        self.store.batches.tune(name, {field: value})

    @rule(name=batch_names, later=st.booleans())
    def start_at(self, name: str, later: bool) -> None:
        self.store.batches.tune(name, {"at": self.store.watch.server_ms() + (PLENTY if later else -1)})

    @rule(tenant=tenant_names, most=st.sampled_from([None, 1, 2]), weight=st.sampled_from([None, 1, 5]))
    def tune_tenant(self, tenant: str, most: int | None, weight: int | None) -> None:
        self.store.feeder.tune(tenant, {"max": most, "weight": weight})

    @rule(most=st.sampled_from([None, 1, 3]))
    def tune_all(self, most: int | None) -> None:
        self.store.feeder.tune("", {"max": most})

    @precondition(lambda self: self.rows())
    @rule(pick=PICK, what=st.sampled_from(["cancel", "pause", "resume"]))
    def act_on_row(self, pick: int, what: str) -> None:
        rows = self.rows()
        self.act(rows[pick % len(rows)], what)

    @rule(pick=PICK, what=st.sampled_from(["cancel", "pause", "resume", "retry"]))
    def act_on_run(self, pick: int, what: str) -> None:
        runs = self.ids("queued", "running", "parked", "waiting", "held", "ended")
        if runs:
            self.act(runs[pick % len(runs)], what)

    def act(self, run_id: str, what: str) -> None:
        match what:
            case "cancel":
                self.store.runs.cancel_many([run_id], "ann")
            case "pause":
                self.store.control.pause_many([run_id], "ann")
            case "resume":
                self.store.control.resume_many([run_id], own=True)
            case "retry":
                generation = int(self.store.client.hget(self.store.keys.run(run_id), "generation") or 0)
                self.store.control.retry_many([Retrial(run_id, generation, "{}", 1, "[]", "ann")])

    # ── workers ──────────────────────────────────────────────────────────────────────────────────

    @rule(slots=st.integers(1, 4))
    def sign_on(self, slots: int) -> None:
        self.store.watch.sign_on("w1", 3600, slots=slots)

    @rule()
    def tick(self) -> None:
        due(self.store)

    @rule(tenant=tenant_names)
    def submit_single(self, tenant: str) -> None:
        self.singles += 1
        submit_run(self.store, f"single{self.singles}", tenant=tenant)

    @rule(picks=st.lists(PICK, min_size=1, max_size=4))
    def claim(self, picks: list[int]) -> None:
        for pick in picks:
            self.claim_one(pick)

    def claim_one(self, pick: int) -> None:
        queued = self.ids("queued")
        if queued:
            run_id = queued[pick % len(queued)]
            claim = self.store.runs.claim(run_id, None, LEASE_MS)
            if claim is not None:
                self.leases[run_id] = claim.lease

    @rule(pick=PICK, how=st.sampled_from(["end", "end", "continue", "wait", "release", "delay"]))
    def commit(self, pick: int, how: str) -> None:
        self.claim_one(pick)
        lease = self.held(pick)
        if lease is not None:
            self.leave(lease, how)

    def held(self, pick: int) -> Lease | None:
        """A run at work."""
        running = [run_id for run_id in self.ids("running", "cancelling") if run_id in self.leases]
        return self.leases[running[pick % len(running)]] if running else None

    def leave(self, lease: Lease, how: str) -> None:
        match how:
            case "end":
                reserve(self.store, lease, 1, usd=0, tokens=50)
                settled = Settlement(f"{lease.fence}:1", "settle", 0, 50)
                self.store.runs.commit_end(lease, EMPTY, settled, StopReason.FINISHED)
            case "continue":
                self.store.runs.commit_continue(lease, EMPTY, None)
            case "wait":
                self.store.runs.commit_wait(lease, EMPTY, None, [{"id": "c1"}], 60_000)
            case "release" | "delay":
                self.store.runs.release(lease, delay_ms=60_000 if how == "delay" else 0)

    @rule(pick=PICK, escrow=st.booleans())
    def park(self, pick: int, escrow: bool) -> None:
        """A run at work finds no money: its tenant has used it up."""
        self.claim_one(pick)
        lease = self.held(pick)
        if lease is None:
            return
        if escrow:
            reserve(self.store, lease, 1, usd=1, tokens=1, escrow_usd=1, escrow_tokens=1)
        tenant = str(self.store.client.hget(self.store.keys.run(lease.run_id), "tenant"))
        self.store.ledger.set_limit(f"tenant:{tenant}", usd=1_000, actor=by())
        left = self.store.ledger.account(f"tenant:{tenant}").left_nano or 0
        self.store.ledger.book(f"tenant:{tenant}", "charge", usd=max(0, left - 5), actor=by())
        reserve(self.store, lease, 2, usd=100, tokens=1, policy="park")

    @rule(tenant=tenant_names)
    def top_up(self, tenant: str) -> None:
        self.store.ledger.set_limit(f"tenant:{tenant}", usd=PLENTY, actor=by())

    @rule(pick=PICK)
    def delay_is_over(self, pick: int) -> None:
        queued = [
            run_id
            for run_id in self.ids("queued")
            if self.store.client.hexists(self.store.keys.run(run_id), "not_before")
        ]
        if queued:
            ready(self.store, queued[pick % len(queued)])

    @rule(pick=PICK)
    def die(self, pick: int) -> None:
        """The worker of a run is gone, and its lease is over."""
        running = self.ids("running", "cancelling")
        if running:
            run_id = running[pick % len(running)]
            steady(self.store)
            age(self.store, run_id)
            self.store.watch.rescue(run_id, LEASE_MS)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    def drain(self) -> None:
        """Nobody disturbs any more, and there is money and room: everything ends."""
        for tenant in TENANTS:
            self.store.feeder.tune(tenant, {"max": None})
            self.top_up(tenant)
        self.store.feeder.tune("", {"max": None})
        self.store.watch.sign_on("w1", 3600, slots=2)
        for name, tenant in BATCHES.items():
            batch = self.store.batches.read(name)
            if batch is None:
                continue
            opened = open_for(self.store, name, tenant=tenant, dead=batch.loader or "", loader="last")
            assert opened.total == self.store.client.llen(self.store.keys.batch(name, "runs"))
            self.store.batches.seal(name, loader="last")
            self.store.batches.tune(name, {"at": None})
            self.pause(name, False)
            self.store.batches.revive(name)
        for _ in range(400):
            if not self.work():
                break
        left = {name: record for name in BATCHES if (record := self.store.batches.read(name))}
        assert all(record.ended == record.total for record in left.values()), left
        assert not self.ids("queued", "running", "cancelling", "parked", "waiting", "held")
        assert not [name for name in dump(self.store) if name.startswith(("slots", "turns", "flying"))]
        self.nothing_starves()
        check_runs(self.store)

    def work(self) -> bool:
        """One step of each run there is; whether there was any."""
        live = self.ids("queued", "running", "cancelling", "parked", "waiting", "held")
        if not live and not self.rows():
            return False
        for run_id in live:
            self.store.control.resume_many([run_id], own=True)
            age(self.store, run_id)
        unswept(self.store)
        due(self.store)
        for tenant in TENANTS:
            self.store.ledger.sweep(f"tenant:{tenant}")
        for run_id in self.ids("waiting"):
            self.store.runs.cancel_many([run_id], "ann")
        for run_id in self.ids("running", "cancelling"):
            if run_id in self.leases:
                self.leave(self.leases[run_id], "end")
        for run_id in self.ids("queued"):
            ready(self.store, run_id)
            claim = self.store.runs.claim(run_id, None, LEASE_MS)
            if claim is not None:
                self.leases[run_id] = claim.lease
                self.leave(claim.lease, "end")
        return True


@pytest.mark.parametrize("shard", range(SHARDS))
def test_whatever_happens_nothing_starves_and_all_of_it_ends(server: EmbeddedServer, shard: int):
    class Sharded(Machine):
        pass

    Sharded.server = server
    run_state_machine_as_test(
        seed(secrets.randbits(64))(Sharded),
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            phases=[Phase.generate],  # to make a failure small takes longer than a test may
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
