"""`agentq up`: everything on this machine, in one foreground process."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentq.cli.childlog import child_log, worker_env
from agentq.cli.console import plural
from agentq.cli.globals import verb
from agentq.core.errors import UsageError
from agentq.core.failpoints import check_failpoints
from agentq.worker.upfile import UpFile, UpState

if TYPE_CHECKING:
    from agentq.app import AgentQ
    from agentq.cli.session import Session
    from agentq.worker.embedded import EmbeddedServer
    from agentq.worker.supervisor import Child


@verb("up")
@click.option(
    "--workers", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Processes."
)
@click.option(
    "-c",
    "--concurrency",
    type=click.IntRange(min=1),
    metavar="N",
    help="Steps at once in each.  [default: 16]",
)
@click.option("--flower", is_flag=True, help="Celery's monitor in the browser.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=5555,
    show_default=True,
    metavar="N",
    help="Flower's port.",
)
def command(session: Session, workers: int, concurrency: int | None, flower: bool, port: int) -> int:
    """Start the server (where none is configured), the workers and, if you like, Flower.

    The server keeps its data in .agentq, so runs that are under way survive stopping and starting. Ctrl-C
    lets the workers finish the steps at hand, a second Ctrl-C has them given back; the server stops last.
    """
    from agentq.worker.drain import LEAVE_SECONDS
    from agentq.worker.supervisor import supervise

    check_failpoints()
    app = session.user_app("up")
    home = Path(app.settings.home)
    if flower:
        _need_flower(port)
    with ExitStack() as stack:
        hold = stack.enter_context(UpFile(home).hold())
        server = _server(session, app, home, stack)
        hold.write(_state(session, app))
        children = _children(session, _viewer(app), workers, concurrency, events=flower)
        if flower:
            children.append(_flower(session, port))
        session.console.say(f"server    {server}")
        return supervise(
            children,
            drain_seconds=app.settings.drain_seconds + LEAVE_SECONDS,
            say=child_log(session.console),
            on_ready=lambda: _introduce(session, app, workers, port if flower else None),
        )


def _server(session: Session, app: AgentQ, home: Path, stack: ExitStack) -> str:
    """Make sure that there is a server, and that the workers will find it. Says which."""
    if app.settings.redis_url is not None:
        app.ping()
        return "the configured one"
    from agentq.worker.embedded import EmbeddedServer

    server = EmbeddedServer.start(home)
    stack.callback(_stop_server, session, server, home)
    os.environ["AGENTQ_REDIS_URL"] = server.url
    os.environ["AGENTQ_BROKER_URL"] = app.settings.broker_url or server.broker_url
    return f"embedded, {server.state.server} {server.state.version}, data in {home}"


def _stop_server(session: Session, server: EmbeddedServer, home: Path) -> None:
    from agentq.worker.embedded import stop_running

    if server.owned:
        server.stop()
    else:
        # Left by an `agentq up` that was killed: this home is held, so nobody else can own it.
        stop_running(home)
    session.console.say(f"stopped; the data is kept in {home}, and agentq up goes on with it")


def _state(session: Session, app: AgentQ) -> UpState:
    return UpState(
        pid=os.getpid(),
        redis_url=app.settings.redis_url or os.environ["AGENTQ_REDIS_URL"],
        broker_url=app.settings.broker_url or os.environ.get("AGENTQ_BROKER_URL"),
        namespace=app.settings.namespace,
        app=session.app_path,
    )


def _viewer(app: AgentQ) -> AgentQ:
    """The app as its workers see it: the user's own was made before there was a server."""
    from agentq.app import AgentQ

    return app if app.settings.redis_url else AgentQ(app.name, namespace=app.settings.namespace)


def _children(
    session: Session, viewer: AgentQ, workers: int, concurrency: int | None, *, events: bool
) -> list[Child]:
    from agentq.worker.command import worker_argv
    from agentq.worker.supervisor import Child

    before = set(viewer.workers())

    def at_least(number: int) -> Callable[[], bool]:
        return lambda: len(set(viewer.workers()) - before) >= number

    return [
        Child(
            f"worker-{number}",
            worker_argv(session.app_path, concurrency=concurrency, name=f"worker-{number}", events=events),
            env=worker_env(),
            ready=at_least(number),
        )
        for number in range(1, workers + 1)
    ]


def _flower(session: Session, port: int) -> Child:
    from agentq.worker.command import flower_argv
    from agentq.worker.supervisor import Child

    return Child("flower", flower_argv(session.app_path, port=port), ready=lambda: _answers(port))


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _introduce(session: Session, app: AgentQ, workers: int, flower_port: int | None) -> None:
    say = session.console.say
    say(f"ready     {plural(workers, 'worker')}, agents: {', '.join(sorted(app.agents)) or 'none'}")
    if flower_port is not None:
        say(f"flower    http://127.0.0.1:{flower_port}")
    say("next      in another terminal, in this folder: agentq submit FILE --wait, agentq status")
    say("stop      Ctrl-C, which drains first")


def _need_flower(port: int) -> None:
    if find_spec("flower") is None:
        raise UsageError("Flower is not installed", hint="pip install 'agentq[flower]'")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            raise UsageError(f"port {port} is taken", hint="--port chooses another for Flower") from None
