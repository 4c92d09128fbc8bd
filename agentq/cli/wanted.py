"""What `agentq submit` was asked for: the rows, and how their batch is to be run."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentq.cli.loading import rows_of
from agentq.core.errors import UsageError
from agentq.core.ids import check_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentq.app import AgentQ
    from agentq.app.schedule import Terms
    from agentq.engine.rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What was asked for on the command line."""

    file: str
    agent: str | None
    batch: str
    tenant: str | None
    max_usd: Decimal | None
    max_tokens: int | None
    per_run_usd: Decimal | None
    form: str | None
    maps: tuple[str, ...]
    limit: int | None
    options: dict[str, Any]
    """Of the batch, as `AgentQ.submit_many` names them."""
    at: str | None
    tz: str | None
    notify: str | None
    pilot: str | None
    on_exhausted: str | None

    def rows(self, app: AgentQ) -> Iterator[tuple[str, Row | str]]:
        """The rows of the file as the app takes them: see `rows_of`."""
        return rows_of(
            app,
            self.file,
            agent=self.agent,
            max_usd=self.per_run_usd,
            form=self.form,
            maps=self.maps,
            limit=self.limit,
        )

    def terms(self) -> Terms:
        """What holds for each batch of a schedule."""
        return {
            "tenant": self.tenant,
            "max_usd": self.max_usd,
            "max_tokens": self.max_tokens,
            "on_exhausted": self.on_exhausted,
            "notify": self.notify,
            "max_in_flight": self.options["max_in_flight"],
            "max_open": self.options["max_open"],
            "priority": self.options["priority"],
        }


def batch_name(file: str, batch: str | None) -> str:
    """The batch's name as it was given, else that of the file without its ending.

    Raises:
        UsageError: when the batch cannot be called so.
    """
    if batch is not None:
        return check_name("batch", batch)
    if file == "-":
        raise UsageError("rows from standard input need a name for their batch", hint="add --batch NAME")
    name = Path(file).name
    if name.lower().endswith(".gz"):
        name = Path(name).stem
    try:
        return check_name("batch", Path(name).stem)
    except UsageError as error:
        raise UsageError(str(error), hint="add --batch NAME") from None
