"""`agentq up`: everything on this machine, in one foreground process."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentq.cli.globals import verb
from agentq.cli.upfile import UpFile, UpState
from agentq.core.errors import UsageError

if TYPE_CHECKING:
    from agentq.app import AgentQ
    from agentq.cli.session import Session
    from agentq.worker.supervisor import Child


@verb("up")
@click.option(
    "--workers", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Processes."
)
@click.option("-c", "--concurrency", type=click.IntRange(min=1), metavar="N", help="Steps at once in each.")
@click.option("--flower", is_flag=True, help="Celery's monitor in the browser.")
@click.option("--port", type=click.IntRange(1, 65535), default=5555, show_default=True, help="Flower's port.")
def command(session: Session, workers: int, concurrency: int | None, flower: bool, port: int) -> int:
    """Start the server (where none is configured), the workers and, if you like, Flower.

    The server keeps its data in .agentq, so runs that are under way survive stopping and starting. Ctrl-C
    lets the workers finish the steps at hand and stops the server last.
    """
    app = session.user_app("up")
    home = Path(app.settings.home)
    if flower:
        _need_flower()
    with ExitStack() as stack:
        hold = stack.enter_context(UpFile(home).hold())
        where = _server(app, home, stack)
        hold.write(
            UpState(
                pid=os.getpid(),
                redis_url=os.environ.get("AGENTQ_REDIS_URL") or app.settings.redis_url or "",
                broker_url=os.environ.get("AGENTQ_BROKER_URL") or app.settings.broker_url,
                namespace=app.settings.namespace,
                app=session.app_path,
            )
        )
        return _supervise(
            session, app, where, _children(session, workers, concurrency, port if flower else None)
        )


def _server(app: AgentQ, home: Path, stack: ExitStack) -> str:
    """Make sure that there is a server, and that the workers will find it. Says where it is."""
    if app.settings.redis_url is not None:
        app.ping()
        return "configured"
    from agentq.worker.embedded import EmbeddedServer

    server = EmbeddedServer.start(home)
    stack.callback(server.stop)
    os.environ["AGENTQ_REDIS_URL"] = server.url
    os.environ.setdefault("AGENTQ_BROKER_URL", app.settings.broker_url or server.broker_url)
    return f"embedded, data in {home}"


def _children(
    session: Session, workers: int, concurrency: int | None, flower_port: int | None
) -> list[Child]:
    from agentq.worker.command import flower_argv, worker_argv
    from agentq.worker.supervisor import Child

    children = [
        Child(
            name,
            worker_argv(session.app_path, concurrency=concurrency, name=name, events=flower_port is not None),
        )
        for name in (f"worker-{number}" for number in range(1, workers + 1))
    ]
    if flower_port is not None:
        children.append(Child("flower", flower_argv(session.app_path, port=flower_port)))
    return children


def _supervise(session: Session, app: AgentQ, where: str, children: list[Child]) -> int:
    from agentq.worker.supervisor import supervise

    say = session.console.say
    workers = [child.name for child in children if child.name.startswith("worker")]
    say(f"server    {where}")
    say(f"workers   {', '.join(workers)}, agents: {', '.join(sorted(app.agents)) or 'none'}")
    if len(workers) < len(children):
        say(f"flower    {children[-1].argv[-1]}")
    say("next      in another terminal, same folder: agentq submit FILE --wait, agentq status")
    say("stop      Ctrl-C, which drains first")
    return supervise(children, drain_seconds=app.settings.drain_seconds, say=say)


def _need_flower() -> None:
    from importlib.util import find_spec

    if find_spec("flower") is None:
        raise UsageError("Flower is not installed", hint="pip install 'agentq[flower]'")
