"""The demo's stage: a folder, a server and a worker that exist for as long as the demo does."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from agentq.cli.childlog import worker_env
from agentq.cli.follow import follow
from agentq.cli.submit import submit_file
from agentq.core.errors import AgentQError
from agentq.core.money import to_nano
from agentq.demo import APP, ROWS
from agentq.demo.orders import DATABASE_ENV, build
from agentq.demo.outcome import Outcome

if TYPE_CHECKING:
    from agentq.app import AgentQ, Batch
    from agentq.cli.session import Session

RUNS = {"on": "orders", "off": "orders-no-detection"}
THREADS = 8
BATCH_SECONDS = 120.0
_KEPT = ("AGENTQ_REDIS_SERVER",)


def play(session: Session) -> list[Outcome]:
    """Set up, run both batches, and clear away. Answers what they came to.

    Raises:
        UnavailableError: when the server or the worker does not start.
        AgentQError: when a batch does not end.
    """
    from agentq.worker.command import worker_argv
    from agentq.worker.embedded import EmbeddedServer
    from agentq.worker.supervisor import Child, supervised

    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentq-demo-")))
        # No setting of the caller's, neither of the environment nor of a file, may reach the demo.
        stack.enter_context(chdir(home))
        stack.enter_context(_environment())
        session.console.say("starting a server and a worker of the demo's own …")
        server = EmbeddedServer.start(home)
        stack.callback(server.stop)
        database = home / "orders.db"
        build(database)
        os.environ.update(
            AGENTQ_REDIS_URL=server.url,
            AGENTQ_BROKER_URL=server.broker_url,
            AGENTQ_HOME=str(home),
            **{DATABASE_ENV: str(database)},
        )
        app = _app()
        log: list[str] = []
        worker = Child(
            "worker",
            worker_argv(APP, concurrency=THREADS, name="demo"),
            env=worker_env(),
            cwd=home,
            ready=lambda: bool(app.workers()),
        )
        with _log_on_failure(session, log), supervised([worker], drain_seconds=10, say=log.append):
            return [_run(session, app, key, agent) for key, agent in RUNS.items()]


def _run(session: Session, app: AgentQ, key: str, agent: str) -> Outcome:
    name = f"demo-{key}"
    batch = submit_file(app, str(ROWS), agent=agent, batch=name, session=session)
    tally = follow(session, batch, timeout=BATCH_SECONDS, events=False)
    if not tally.is_settled:
        raise AgentQError(f"{name} has not ended after {BATCH_SECONDS:.0f} s: {tally}")
    return _outcome(key, batch)


def _outcome(key: str, batch: Batch) -> Outcome:
    threads = list(batch.threads())
    closing_turns = sum(event.kind == "final_turn" for thread in threads for event in thread.trace)
    return Outcome(
        key=key,
        batch=batch.name,
        metrics=batch.metrics().as_dict(),
        account=batch.account(),
        threads_nano=sum(to_nano(thread.spend.usd) for thread in threads),
        calls=sum(thread.spend.steps for thread in threads) + closing_turns,
    )


def _app() -> AgentQ:
    from agentq.cli.appref import load_app

    return load_app(APP)


@contextmanager
def _environment() -> Iterator[None]:
    before = dict(os.environ)
    for name in before:
        if name.startswith("AGENTQ_") and name not in _KEPT:
            del os.environ[name]
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _log_on_failure(session: Session, log: list[str]) -> Iterator[None]:
    try:
        yield
    except Exception:
        for line in log[-20:]:
            session.console.say(line)
        raise
