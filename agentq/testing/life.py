"""One process of a case, from its fork to its end: it submits the rows, or works as a Celery worker."""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentq.app import AgentQ
from agentq.core.failpoints import VARIABLE, passes
from agentq.testing.delivery import FaultyDispatch
from agentq.testing.files import append
from agentq.testing.stage import BATCH, PASSES, ROWS, Ground, Scene, staged

THREADS = 4
_LINE = "%(asctime)s %(levelname)s %(name)s %(message)s"


@dataclass(frozen=True, slots=True)
class Life:
    """What one process is to do. `arm` is its `AGENTQ_FAILPOINTS`; `log` takes all that it says."""

    kind: Literal["submit", "work"]
    scene: Scene
    log: str
    arm: str = ""


def live(user: AgentQ, ground: Ground, life: Life) -> int:
    """Be this process; answers its exit code, if it lives so long."""
    log = os.open(life.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format=_LINE, force=True)
    logging.getLogger("kombu").setLevel(logging.WARNING)
    # What tools leave in temporary files when they are killed goes with the case.
    os.environ["TMPDIR"] = tempfile.tempdir = life.scene.folder
    random.seed()  # a fork has its parent's: the jitter of all processes would be the same
    os.environ[VARIABLE] = life.arm
    app = staged(user, ground, life.scene)
    code = _submit(app, ground) if life.kind == "submit" else _work(app)
    append(Path(life.scene.folder) / PASSES, passes())
    return code


def _submit(app: AgentQ, ground: Ground) -> int:
    rows = json.loads((Path(ground.folder) / ROWS).read_text(encoding="utf-8"))
    app.submit_many(None, rows, batch=BATCH)
    if isinstance(app.dispatch, FaultyDispatch):
        app.dispatch.drain()
    return 0


def _work(app: AgentQ) -> int:
    app.celery.conf.worker_enable_remote_control = False
    worker = app.celery.Worker(
        pool="threads",
        concurrency=THREADS,
        hostname=f"chaos-{os.getpid()}@localhost",
        loglevel="WARNING",
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )
    worker.start()
    return int(worker.exitcode or 0)
