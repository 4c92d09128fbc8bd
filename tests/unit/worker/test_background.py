"""What every worker starts with: only on a pool that it can serve."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from celery.concurrency import get_implementation

from agentq import AgentQ
from agentq.core.errors import SchemaError, UsageError
from agentq.worker.background import Background
from agentq.worker.embedded import EmbeddedServer
from tests.support.harness import age, claim_run, steady, submit_run


@pytest.fixture
def step() -> Any:
    """The boot step of an app's workers, as Celery finds it."""
    (found,) = AgentQ("t").celery.steps["worker"]
    return found


@pytest.mark.parametrize("pool", ["solo", "processes"])
def test_a_pool_without_threads_is_refused_before_a_message_is_taken(step: Any, pool: str):
    """A forked pool would lose every step that is longer than a lease; solo died of its first message."""
    with pytest.raises(UsageError, match="runs on the threads pool"):
        step(SimpleNamespace(pool_cls=get_implementation(pool)))


def test_the_threads_pool_is_served(step: Any):
    assert step(SimpleNamespace(pool_cls=get_implementation("threads")))


def test_a_process_that_has_stopped_is_not_alive_although_a_heartbeat_was_on_its_way(
    server: EmbeddedServer, namespace: str, monkeypatch: pytest.MonkeyPatch
):
    app = AgentQ("t", redis_url=server.url, namespace=namespace)
    background = Background(app.bench, tick_seconds=60, slots=1)
    beating = Event()

    def renew() -> None:
        beating.set()
        assert background._stop.wait(5)

    monkeypatch.setattr(background.bench.leases, "renew", renew)
    background.start()
    assert beating.wait(5)
    background.stop()
    background._threads[0].join(5)
    assert app.workers() == []


@pytest.fixture
def with_file(server: EmbeddedServer, namespace: str, tmp_path: Path) -> Background:
    """A worker's background that has a heartbeat file and has not begun."""
    app = AgentQ("t", redis_url=server.url, namespace=namespace)
    return Background(app.bench, tick_seconds=60, slots=1, heartbeat_file=tmp_path / "heartbeat")


def test_the_heartbeat_file_is_there_from_the_first_sign_on_until_the_end(with_file: Background):
    file = with_file.heartbeat_file
    assert file is not None
    assert not file.exists()
    with_file.heartbeat()
    assert file.exists()
    os.utime(file, (0, 0))
    with_file.heartbeat()
    assert file.stat().st_mtime > 0, "each sign-on makes it new"
    with_file._threads[0].start()
    with_file.stop()
    assert not file.exists()


def test_the_heartbeat_file_says_nothing_of_a_worker_that_could_not_sign_on(
    with_file: Background, monkeypatch: pytest.MonkeyPatch
):
    def away(*_: Any, **__: Any) -> None:
        raise ConnectionError

    monkeypatch.setattr(with_file.bench.store.watch, "sign_on", away)
    with pytest.raises(ConnectionError):
        with_file.heartbeat()
    assert with_file.heartbeat_file is not None
    assert not with_file.heartbeat_file.exists()


def test_a_worker_that_is_older_than_the_state_stops_as_if_it_were_told_to_and_says_why(
    server: EmbeddedServer, namespace: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Once: a second signal would cut the steps at hand."""
    app = AgentQ("t", redis_url=server.url, namespace=namespace)
    background = Background(app.bench, tick_seconds=60, slots=1)
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *args: sent.append(args))

    def newer(*_: Any, **__: Any) -> None:
        raise SchemaError(9)

    monkeypatch.setattr(background.bench.store.watch, "sign_on", newer)
    with caplog.at_level(logging.INFO, "agentq.worker"):
        background.heartbeat()
        background.heartbeat()
    assert sent == [(os.getpid(), signal.SIGTERM)]
    assert caplog.messages == [f"this worker stops by itself: {SchemaError(9)}; {SchemaError(9).hint}"]


@pytest.mark.parametrize("deaths, verdict", [(0, "RESCUED"), (1, "SUSPECT"), (4, "ENDED")])
def test_each_step_that_is_taken_from_a_dead_worker_is_in_the_log(
    server: EmbeddedServer, namespace: str, caplog: pytest.LogCaptureFixture, deaths: int, verdict: str
):
    app = AgentQ("t", redis_url=server.url, namespace=namespace)
    store = app.store
    submit_run(store)
    store.client.hset(store.keys.run("r1"), "deaths", deaths)
    claim_run(store)
    steady(store)
    age(store, "r1")
    with caplog.at_level(logging.WARNING, "agentq.worker"):
        Background(app.bench, tick_seconds=60, slots=1).tick()
    (said,) = caplog.messages
    assert said.startswith(f"tick verdict={verdict} run=r1 ")
