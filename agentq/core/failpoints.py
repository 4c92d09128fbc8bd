"""Named crash points, inert unless `AGENTQ_FAILPOINTS` is set: `step.after_model=kill,tick.before=raise`.

Actions: `kill` (the process dies as by `kill -9`), `raise` (FailpointError). `kill:0.2` acts on a
fifth of the passes.
"""

from __future__ import annotations

import os
import random
import signal
from functools import cache


class FailpointError(BaseException):
    """Raised by a failpoint whose action is `raise`. Not an Exception: like a crash, nothing handles it."""


@cache
def _armed(spec: str) -> dict[str, tuple[str, float]]:
    armed: dict[str, tuple[str, float]] = {}
    for part in filter(None, (p.strip() for p in spec.split(","))):
        name, _, action = part.partition("=")
        verb, _, chance = (action or "raise").partition(":")
        armed[name] = (verb, float(chance or 1))
    return armed


def failpoint(name: str) -> None:
    """Die or raise here when the point is armed; otherwise nothing.

    Raises:
        FailpointError: when its action is `raise`.
    """
    spec = os.environ.get("AGENTQ_FAILPOINTS")
    if not spec:
        return
    action = _armed(spec).get(name)
    if action is None or random.random() >= action[1]:  # noqa: S311 - chance, not security
        return
    if action[0] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise FailpointError(name)
