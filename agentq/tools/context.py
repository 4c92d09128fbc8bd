"""What the server knows about a call and the model does not say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentq.core.errors import UsageError
from agentq.tools.children import Children, ChildResult
from agentq.tools.shelf import Shelf


@dataclass(frozen=True, slots=True)
class CallContext:
    """For whom a tool acts, and the runs that it may start.

    `approved_calls` are the signatures that a person has approved. `idempotency_key` is what a tool hands
    to a service that acts once per key: the same for each repetition of one call in one run (equal calls of
    a `repeatable` tool have keys of their own), empty when the run has no id. `extra` is the caller's own.
    `children` is there where runs are kept, in a worker. `shelf` has the run's kept results.
    """

    user_id: str = ""
    tenant_id: str = ""
    approved_calls: frozenset[str] = frozenset()
    extra: Mapping[str, Any] = field(default_factory=dict)
    run_id: str = ""
    idempotency_key: str = ""
    children: Children | None = field(default=None, repr=False, compare=False)
    shelf: Shelf | None = field(default=None, repr=False, compare=False)

    def spawn(
        self,
        agent: str,
        input: Any,
        *,
        budgets: Any = None,
        custom_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        context: Mapping[str, Any] | None = None,
    ) -> str:
        """Start a run as a child of this one, and answer its id. It spends inside this run's limits.

        When the call is made again, the n-th spawn answers the run that it started the first time, so it must
        ask for the same: give each a `custom_id` where their order may change.

        Args:
            agent: an agent of the same app.
            input: text, a list of messages, or an object that is sent as JSON.
            budgets: `agentq.Budgets` of its own, in place of its agent's.
            custom_id: unique among this run's children.
            metadata: a label.
            context: reaches its tools; None: as this run's.

        Raises:
            UsageError: when there is no such agent, when this run may start no more, or in one process.
            ConflictError: when the same spawn asked for something else before.
        """
        return self._family("spawn").spawn(
            agent, input, budgets=budgets, custom_id=custom_id, metadata=metadata, context=context
        )

    def gather(self, ids: Iterable[str], *, timeout: float | None = None) -> list[ChildResult]:
        """How these children have ended, in the order of `ids`. Waits for them without holding a worker.

        As long as one of them is live, the call ends here and is made again from its start when the last has
        ended, or the time is over: what stands before `gather` runs twice.

        Args:
            ids: runs that this run has started.
            timeout: seconds after which children that are live are reported as they stand; 0 never waits;
                None: as long as an approval may take.

        Raises:
            UsageError: for a run that is none of this run's children, or in one process.
        """
        return self._family("gather").gather(list(ids), timeout=timeout)

    def _family(self, verb: str) -> Children:
        if self.children is None:
            raise UsageError(
                f"ctx.{verb} needs a worker: a run in one process has no children",
                hint="submit the run with app.submit(…)",
            )
        return self.children
