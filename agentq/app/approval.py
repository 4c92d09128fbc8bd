"""The handle of one call that waits for a person."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from agentq.agent.agent import Agent
from agentq.agent.thread import Thread
from agentq.app.run import Run
from agentq.core.errors import UsageError
from agentq.engine.decide import Answer, Question, decide
from agentq.store.connect import Store
from agentq.tools.gates import misfit


@dataclass(frozen=True, slots=True)
class Approval:
    """A call as it was when it was looked for; somebody may have decided since."""

    id: str
    """The run's id, a colon, and the call's."""
    run_id: str
    tool: str
    arguments: dict[str, Any]
    asked_at: datetime
    deadline: datetime
    agent: str
    tenant: str
    batch: str | None
    custom_id: str | None
    kind: str
    """`approval`: it is asked for before it is made. `unknown`: it was made and nobody knows whether it has
    acted; approving it makes it again, with the same idempotency key."""
    default: str
    """What happens at the deadline: `stop` (the run ends as `approval_expired`) or `tell` (the model)."""
    _call: str = field(repr=False)
    _store: Store = field(repr=False, compare=False)
    _agents: Mapping[str, Agent] = field(repr=False, compare=False)

    def approve(
        self, *, by: str, arguments: Mapping[str, Any] | None = None, reason: str | None = None
    ) -> int:
        """Let the call be made; answers how many calls of its run are still open. At none the run goes on.

        Args:
            by: who decides.
            arguments: all of the call's arguments, in place of those that the model wrote. They are checked
                where the agent is known here; elsewhere the model hears of what does not fit.
            reason: kept with the decision.

        Raises:
            ConflictError: when somebody was first: who, what and when.
            UsageError: when its time is over, it does not wait any more, or the arguments cannot be.
        """
        text = ""
        if arguments is not None:
            if self.kind == "unknown":
                raise UsageError(
                    f"{self.id} may have acted already: it is made again as it was, or not at all",
                    hint="leave the arguments out",
                )
            text = self.checked(arguments)
        return self._decide(Answer("approve", by, reason or "", text))

    def deny(self, *, by: str, reason: str | None = None) -> int:
        """Do not let the call be made; answers how many calls of its run are still open.

        Args:
            by: who decides.
            reason: the model reads it.

        Raises:
            ConflictError: when somebody was first: who, what and when.
            UsageError: when its time is over, or it does not wait any more.
        """
        return self._decide(Answer("deny", by, reason or ""))

    def thread(self) -> Thread:
        """The conversation that has led to it."""
        return Run(self._store, self.run_id).thread()

    def checked(self, arguments: Mapping[str, Any]) -> str:
        """Arguments for this call as JSON.

        Raises:
            UsageError: when they are no JSON, or do not fit the tool, where it is known.
        """
        try:
            text = json.dumps(dict(arguments), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise UsageError(f"the arguments for {self.tool} are no JSON: {error}") from None
        agent = self._agents.get(self.agent)
        spec = None if agent is None else agent.executor.registry.known(self.tool)
        wrong = None if spec is None else misfit(spec, json.loads(text))
        if wrong:
            raise UsageError(f"the arguments do not fit {self.tool}: {wrong}")
        return text

    def _decide(self, answer: Answer) -> int:
        return decide(self._store, self.run_id, self._call, answer)


def approval_of(question: Question, store: Store, agents: Mapping[str, Agent]) -> Approval:
    """The handle of a call that waits."""
    run, call = question.run, question.call
    return Approval(
        id=question.id,
        run_id=run.id,
        tool=call.tool,
        arguments=json.loads(call.arguments) if call.arguments.strip() else {},
        asked_at=_time(call.asked_at_ms),
        deadline=_time(call.deadline_ms),
        agent=run.spec.agent,
        tenant=run.spec.tenant,
        batch=run.spec.batch,
        custom_id=run.spec.custom_id,
        kind=call.kind,
        default=call.default,
        _call=call.id,
        _store=store,
        _agents=agents,
    )


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
