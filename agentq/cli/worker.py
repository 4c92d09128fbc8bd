"""`agentq worker`: one worker process with the settings that agentq needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from agentq.cli.childlog import child_log, worker_env
from agentq.cli.globals import verb
from agentq.core.failpoints import check_failpoints

if TYPE_CHECKING:
    from agentq.cli.session import Session


@verb("worker")
@click.option(
    "-c", "--concurrency", type=click.IntRange(min=1), metavar="N", help="Steps at once.  [default: 16]"
)
@click.option(
    "--name", metavar="NAME", default="worker", show_default=True, help="Tells this worker from others."
)
@click.option(
    "--pool", type=click.Choice(["threads"]), default="threads", help="The pool that steps are made for."
)
def command(session: Session, concurrency: int | None, name: str, pool: str) -> int:
    """Run one worker process. Ctrl-C lets it finish the steps at hand, a second one has them given back."""
    from agentq.worker.command import worker_argv
    from agentq.worker.drain import LEAVE_SECONDS
    from agentq.worker.supervisor import Child, supervise

    check_failpoints()
    session.user_app("worker")
    app = session.server_app()
    app.ping_broker()
    argv = worker_argv(session.app_path, concurrency=concurrency, name=name, pool=pool)
    session.console.say(f"worker {name} of {app.settings.namespace}; Ctrl-C drains and stops it")
    return supervise(
        [Child(name, argv, env=worker_env(), restart=False)],
        drain_seconds=app.settings.drain_seconds + LEAVE_SECONDS,
        say=child_log(session.console),
    )
