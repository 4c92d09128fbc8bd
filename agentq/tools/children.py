"""What a tool may do with runs that its own run starts: the seam between tools and whoever keeps runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

from agentq.core.lifecycle import StopReason


@dataclass(frozen=True, slots=True)
class ChildResult:
    """How a child stands: its end, or, when a gather's time was over first, the state that it was in.

    `state` is `gone` when the child ended so long ago that it is kept no longer. `usd` is all that it has
    spent up to now, with its own children.
    """

    run_id: str
    state: str
    stop_reason: StopReason | None = None
    answer: str = ""
    usd: Decimal = Decimal(0)
    steps: int = 0
    custom_id: str | None = None

    @property
    def ok(self) -> bool:
        """Whether it has finished its work."""
        return self.stop_reason is not None and self.stop_reason.is_success


class Suspended(BaseException):
    """The call ends here and is made again, from its start, when what it waits for has come.

    Not an Exception, so that a tool's own handlers leave it alone. One that catches it all the same changes
    nothing: the call counts as suspended once it has asked to wait.
    """


class Children(Protocol):
    """The children of one run, as one of its calls sees them."""

    @property
    def suspended(self) -> bool:
        """Whether the call has asked to wait for children."""
        ...

    def of(self, call: str) -> Children:
        """The same for the call of this signature."""
        ...

    def spawn(
        self,
        agent: str,
        input: Any,
        *,
        budgets: Any,
        custom_id: str | None,
        metadata: Mapping[str, Any] | None,
        context: Mapping[str, Any] | None,
    ) -> str:
        """See `CallContext.spawn`."""
        ...

    def gather(self, ids: Sequence[str], *, timeout: float | None) -> list[ChildResult]:
        """See `CallContext.gather`."""
        ...
