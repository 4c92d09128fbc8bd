"""A word that may be a run's id or a batch's name."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from agentq.core.errors import UsageError

if TYPE_CHECKING:
    from agentq.app import AgentQ, Batch, Run

_RUN = "run_"


def find(app: AgentQ, word: str) -> Run | Batch:
    """The run or the batch of this name.

    Raises:
        UsageError: when there is neither.
    """
    if not word.startswith(_RUN):
        return app.batch(word)
    with suppress(UsageError):
        return app.run(word)
    with suppress(UsageError):
        return app.batch(word)
    raise UsageError(
        f"there is no run {word!r}, nor a batch of that name", hint="it may be older than the retention"
    )
