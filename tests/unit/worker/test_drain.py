"""How a process stops: steps of a real server, threads that do not return, an exit that only takes notes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from celery import Celery

from agentq.core.records import Claim, Delta, Granted, Settlement
from agentq.engine.leases import Hold, LeaseLostError, Leases
from agentq.engine.workbench import Workbench
from agentq.store import Store, connect
from agentq.worker import drain as module
from agentq.worker.celery_app import TASK
from agentq.worker.drain import Drain
from agentq.worker.embedded import EmbeddedServer
from agentq.worker.tasks import register_step
from tests.support.harness import LEASE_MS, claim_run, money, reserve, state_of, submit_run
from tests.support.wait import wait_until

LONG = 600.0


class Process:
    """A worker process as its drain sees it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.hints: list[tuple[str, int]] = []
        self.left_with: list[int] = []
        self.signed_off = threading.Event()
        self.woken = threading.Event()
        self.let_go = threading.Event()
        """Set: the steps that hang return."""
        self.bench = Workbench(
            store=store,
            agents={},
            leases=Leases(store.watch, lease_ms=LEASE_MS, longest_seconds=1200),
            dispatch=lambda run_id, step: self.hints.append((run_id, step)),
            lease_ms=LEASE_MS,
            approval_ms=60_000,
        )
        self.threads: list[threading.Thread] = []

    def drain(self, *, seconds: float) -> Drain:
        """A drain that listens."""
        drain = Drain(
            self.bench,
            seconds=seconds,
            sign_off=self.signed_off.set,
            wake=self.woken.set,
            leave=self.left_with.append,
        )
        drain.start()
        return drain

    def begin(self, work: Callable[[Hold, Claim], None], run_id: str = "r1") -> None:
        """A thread that takes a step on and does this with it. Returns when it is at `hang`."""
        submit_run(self.store, run_id)
        reached = threading.Event()
        self.reached = reached

        def step() -> None:
            with self.bench.leases.admit() as admitted:
                assert admitted
                claim = claim_run(self.store, run_id)
                with self.bench.leases.keep(claim.lease, sent_at=self.bench.leases.now()) as hold:
                    work(hold, claim)

        self.threads.append(threading.Thread(target=step, daemon=True))
        self.threads[-1].start()
        assert reached.wait(10)

    def hang(self) -> None:
        """What a client without an answer does, until it is let go."""
        self.reached.set()
        assert self.let_go.wait(30)

    def calling(self, hold: Hold, claim: Claim) -> None:
        """A step in the middle of its model call."""
        granted = reserve(self.store, claim.lease, usd=7_000_000, tokens=10)
        assert isinstance(granted, Granted)
        hold.begin("model call", Settlement(granted.reservation, "forfeit", granted.usd, granted.tokens))
        self.hang()


@pytest.fixture
def store(server: EmbeddedServer, namespace: str, redis_client: redis.Redis) -> Iterator[Store]:
    opened = connect(server.url, namespace, retries=0)
    yield opened
    opened.client.close()


@pytest.fixture
def process(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    monkeypatch.setattr(module, "CELERY_SECONDS", 0.1)
    made = Process(store)
    yield made
    made.let_go.set()
    for thread in made.threads:
        thread.join(10)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    caplog.set_level(logging.INFO, "agentq.worker")
    return lambda: caplog.text


@pytest.fixture(autouse=True)
def _loggers_stay_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "shutdown", lambda: None)


def attempts(store: Store, run_id: str = "r1") -> int:
    record = store.runs.read(run_id)
    assert record is not None
    return record.attempts


def test_nobody_who_is_not_asked_leaves(process: Process):
    drain = process.drain(seconds=0)
    assert not drain.done.wait(0.2)
    with process.bench.leases.admit() as admitted:
        assert admitted
    assert not process.signed_off.is_set()


def test_where_nothing_is_at_work_it_signs_off_and_leaves(process: Process, said: Any):
    drain = process.drain(seconds=LONG)
    drain.signalled(0)
    wait_until(lambda: process.left_with == [0], "the process to leave")
    assert process.signed_off.is_set()
    assert process.woken.is_set()
    assert "drained: 0 steps done, 0 handed back" in said()


def test_a_step_that_ends_in_time_is_not_touched_and_its_lease_is_held_until_then(
    process: Process, store: Store, said: Any
):
    process.begin(process.calling)
    drain = process.drain(seconds=LONG)
    drain.signalled()
    assert process.woken.wait(10)
    assert not process.signed_off.is_set()
    assert state_of(store) == "running"
    process.let_go.set()
    assert drain.done.wait(10)
    assert process.signed_off.is_set()
    assert state_of(store) == "running"  # this step's thread commits nothing
    assert "drained: 1 step done, 0 handed back" in said()
    assert "step_cut" not in said()


def test_a_call_that_does_not_end_is_given_back_booked_in_full_and_told(
    process: Process, store: Store, said: Any
):
    process.begin(process.calling)
    drain = process.drain(seconds=0.1)
    drain.signalled(3)
    wait_until(lambda: process.left_with == [3], "the process to leave")
    assert state_of(store) == "queued"
    assert attempts(store) == 1
    assert money(store, "run:r1") == {"ts": 10, "uf": 7_000_000, "us": 7_000_000}
    assert store.runs.claim("r1", 0, LEASE_MS) is not None  # at once
    assert process.hints == [("r1", 0)]
    assert "step_cut run=r1 step=0 doing='model call' booked_usd=0.007000" in said()
    assert "drained: 0 steps done, 1 handed back, 0.007000 USD of cut calls booked in full" in said()


def test_what_was_not_sent_is_not_booked(process: Process, store: Store, said: Any):
    def reserving(hold: Hold, claim: Claim) -> None:
        granted = reserve(store, claim.lease, usd=7_000_000, tokens=10)
        assert isinstance(granted, Granted)
        hold.flight = Settlement(granted.reservation, "release")
        process.hang()

    process.begin(reserving)
    drain = process.drain(seconds=0)
    drain.signalled()
    assert drain.done.wait(10)
    assert money(store, "run:r1") == {}
    assert "doing='start' booked_usd=0.000000" in said()
    assert "drained: 0 steps done, 1 handed back" in said()
    assert "of cut calls" not in said()


def test_a_thread_that_comes_back_late_begins_nothing_more(process: Process):
    refused: list[str] = []

    def late(hold: Hold, claim: Claim) -> None:
        process.calling(hold, claim)
        try:
            hold.begin("tools")
        except LeaseLostError as error:
            refused.append(str(error))

    process.begin(late)
    drain = process.drain(seconds=0)
    drain.signalled()
    assert drain.done.wait(10)
    process.let_go.set()
    wait_until(lambda: refused == ["r1: the worker stops"], "the thread to be refused")


def test_a_step_that_its_own_thread_has_just_committed_is_done_and_not_given_back(
    process: Process, store: Store, said: Any
):
    """The fence decides: another worker has the run's next step, and keeps it."""

    def committed(hold: Hold, claim: Claim) -> None:
        assert store.runs.commit_continue(claim.lease, Delta(head="{}"), None) == "OK"
        claim_run(store)
        process.hang()

    process.begin(committed)
    drain = process.drain(seconds=0)
    drain.signalled()
    assert drain.done.wait(10)
    assert state_of(store) == "running"
    assert process.hints == []
    assert "drained: 1 step done, 0 handed back" in said()


def test_a_second_signal_does_not_wait_for_the_steps(process: Process, store: Store):
    process.begin(process.calling, "r1")
    process.begin(process.calling, "r2")
    drain = process.drain(seconds=LONG)
    drain.signalled()
    assert process.woken.wait(10)
    assert not drain.done.is_set()
    drain.signalled()
    wait_until(lambda: process.left_with == [0], "the process to leave")
    assert (state_of(store, "r1"), state_of(store, "r2")) == ("queued", "queued")
    assert sorted(process.hints) == [("r1", 0), ("r2", 0)]


def test_celery_s_own_end_is_no_second_signal(process: Process, store: Store):
    process.begin(process.calling)
    drain = process.drain(seconds=LONG)
    drain.signalled()
    drain.closing()
    process.woken.clear()
    assert process.woken.wait(10)
    process.woken.clear()
    assert process.woken.wait(10)  # it has looked at both, and still waits
    assert state_of(store) == "running"


def test_where_celery_stops_by_itself_all_is_given_back_and_the_process_is_left_to_it(
    process: Process, store: Store
):
    process.begin(process.calling)
    before = set(threading.enumerate())
    drain = process.drain(seconds=0.1)
    (listening,) = set(threading.enumerate()) - before
    drain.closing()
    assert drain.done.wait(10)
    assert state_of(store) == "queued"
    assert process.signed_off.is_set()
    listening.join(10)
    assert not listening.is_alive()
    assert process.left_with == []


@pytest.mark.parametrize("signals", [1, 2])
def test_a_server_that_does_not_answer_is_not_waited_for(
    process: Process, store: Store, said: Any, monkeypatch: pytest.MonkeyPatch, signals: int
):
    monkeypatch.setattr(module, "HAND_BACK_SECONDS", 0.2 if signals == 1 else LONG)
    monkeypatch.setattr(module, "HURRIED_SECONDS", 0.2 if signals == 2 else LONG)
    monkeypatch.setattr(type(store.runs), "release", lambda *_, **__: process.let_go.wait(30) and "STALE")
    process.begin(process.calling)
    drain = process.drain(seconds=0 if signals == 1 else LONG)
    for _ in range(signals):
        drain.signalled()
    wait_until(lambda: process.left_with == [0], "the process to leave")
    assert not process.signed_off.is_set()
    assert (
        "drained: 0 steps done, 0 handed back, 1 left to the end of their leases, since Redis did not answer"
        in said()
    )


def test_one_step_that_cannot_be_given_back_does_not_keep_the_others(
    process: Process, store: Store, said: Any, monkeypatch: pytest.MonkeyPatch
):
    release = type(store.runs).release

    def broken(runs: Any, lease: Any, **options: Any) -> Any:
        if lease.run_id == "r1":
            raise redis.exceptions.ResponseError("no")
        return release(runs, lease, **options)

    monkeypatch.setattr(type(store.runs), "release", broken)
    process.begin(process.calling, "r1")
    process.begin(process.calling, "r2")
    drain = process.drain(seconds=0)
    drain.signalled()
    assert drain.done.wait(10)
    assert (state_of(store, "r1"), state_of(store, "r2")) == ("running", "queued")
    assert "hand_back_failed run=r1 step=0" in said()
    assert "1 handed back, 1 left to the end of their leases" in said()


def test_a_step_that_was_at_its_claim_is_given_back_too(process: Process, store: Store):
    """It was admitted before the drain began, and has its lease only after all others were given back."""
    claimed = threading.Event()

    @contextmanager
    def slow_claim() -> Iterator[None]:
        with process.bench.leases.admit():
            claimed.set()
            assert process.woken.wait(10)
            yield

    def step() -> None:
        with slow_claim():
            claim = claim_run(store)
            with process.bench.leases.keep(claim.lease, sent_at=process.bench.leases.now()):
                assert process.let_go.wait(30)

    submit_run(store)
    process.threads.append(threading.Thread(target=step, daemon=True))
    process.threads[-1].start()
    assert claimed.wait(10)
    drain = process.drain(seconds=LONG)
    drain.signalled()
    drain.signalled()
    assert drain.done.wait(10)
    assert state_of(store) == "queued"
    assert process.hints == [("r1", 0)]


def test_a_message_that_was_taken_already_is_passed_on(process: Process, store: Store):
    submit_run(store)
    celery = Celery("t", set_as_current=False)
    register_step(celery, lambda: process.bench)
    process.bench.leases.close()
    celery.tasks[TASK](run_id="r1", step=0)
    assert process.hints == [("r1", 0)]
    assert state_of(store) == "queued"


def test_a_step_of_a_state_that_is_newer_is_left_in_one_line(process: Process, store: Store, said: Any):
    submit_run(store)
    celery = Celery("t", set_as_current=False)
    register_step(celery, lambda: process.bench)
    store.client.hset(store.keys.ledger, "schema", 99)
    celery.tasks[TASK](run_id="r1", step=0)
    assert state_of(store) == "queued"
    assert "step_left run=r1 step=0 why=the state has the form 99" in said()
    assert "Traceback" not in said()
