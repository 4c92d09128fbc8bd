"""One step of a run: claim, check the budget, call the model once, execute its tool calls, commit.

There are two places at which a crash leaves the step half done, and both are commits: a paid reply is
kept before any tool acts (`after_model`), and the results are kept before the next step may be claimed
(`after_tools`). A step that is taken back resumes at the phase it had reached.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from agentq.agent.agent import Agent
from agentq.agent.budgets import Budgets, Rung
from agentq.agent.deadline import complete
from agentq.agent.loop import (
    CallModel,
    Close,
    Compact,
    End,
    Overflow,
    Repair,
    RunTools,
    Wait,
    apply_reply,
    end,
    has_output,
    is_overflow,
    next_action,
)
from agentq.agent.request import RUNGS, call_rungs, capped, expected_input, model_request
from agentq.agent.thread import pending_calls, step_calls
from agentq.core.errors import StoreError, UnavailableError, UsageError
from agentq.core.failpoints import failpoint
from agentq.core.lifecycle import StopReason
from agentq.core.money import NanoUSD, to_usd
from agentq.core.records import (
    Claim,
    Delta,
    Denied,
    Failure,
    Granted,
    Pace,
    Paced,
    Parked,
    Recovering,
    Settlement,
    Size,
)
from agentq.engine.acting import run_tools
from agentq.engine.asking import end_if_refused, wait_for_person
from agentq.engine.bill import settle
from agentq.engine.closing import close
from agentq.engine.compacting import compact, compacts_after, end_overflown
from agentq.engine.effects import decisions_of
from agentq.engine.failure import (
    FAILURES_MAX,
    backoff_ms,
    chain_of,
    described,
    is_unclear,
    next_try,
    spread,
)
from agentq.engine.leases import Hold, LeaseLostError
from agentq.engine.pacing import tell_failure, tell_limits, wait
from agentq.engine.repairing import repair
from agentq.engine.reply import kept_of_reply
from agentq.engine.snapshot import Snapshot, load
from agentq.engine.workbench import Workbench
from agentq.provider.client import named
from agentq.provider.errors import LLMError
from agentq.provider.types import ChatRequest, ChatResult
from agentq.store.watch import GRACE_MS
from agentq.tools import call_signature

log = logging.getLogger("agentq.step")

OTHER_WORKER_DELAY_MS = 5_000
"""How long a run that this worker cannot work on is left to others before it is looked at again."""
RECOVERING_DELAY_MS = 2_000
"""The least that a step waits while the ledger recovers; it waits until that is over."""


def execute_step(run_id: str, step: int | None, *, bench: Workbench) -> None:
    """Do the run's next step, if it has one to do and nobody else is at it; otherwise nothing.

    Args:
        step: the step that the message asks for; another one is left alone. None: whichever is next.
    """
    known, kept = bench.cache.take(run_id)
    sent_at = bench.leases.now()
    with bench.suspects.place() as place:
        claim = bench.store.runs.claim(run_id, step, bench.lease_ms, known=known, may_suspect=place.is_free)
        if claim is None:
            if kept is not None:  # a double: whoever has the run now may be in another process
                bench.cache.put(run_id, known, kept)
            return
        if not claim.is_suspect:
            place.leave()
        _claimed(claim, kept, bench=bench, sent_at=sent_at)


def _claimed(claim: Claim, kept: Snapshot | None, *, bench: Workbench, sent_at: float) -> None:
    run_id = claim.lease.run_id
    failpoint("step.after_claim")
    try:
        agent = bench.agent_of(claim.spec)
    except UsageError as error:
        log.warning("call_refused run=%s agent=%s error=%s", run_id, claim.spec.agent, error)
        _left_to_others(claim, bench, f"waits for a worker that can make its call: {error}")
        return
    if agent is None:
        log.warning("agent_unknown run=%s agent=%s", run_id, claim.spec.agent)
        _left_to_others(claim, bench, f"waits for a worker that knows agent {claim.spec.agent!r}")
        return
    try:
        definition = agent.definition
    except UnavailableError as error:
        log.warning("tools_unavailable run=%s agent=%s error=%s", run_id, agent.name, error)
        _left_to_others(claim, bench, f"waits for its tools: {error}")
        return
    if agent.on_change == "pin" and has_begun(claim) and claim.definition not in ("", definition):
        log.info("definition_pinned run=%s agent=%s run_has=%s", run_id, agent.name, claim.definition)
        _left_to_others(
            claim, bench, f"waits for a worker with agent {agent.name!r} as of {claim.definition}"
        )
        return
    with bench.leases.keep(claim.lease, sent_at=sent_at) as hold:
        at_work = Step(bench, agent, claim, hold, kept)
        try:
            at_work.advance()
        except LeaseLostError as lost:
            log.warning("lease_lost run=%s step=%d why=%s", run_id, claim.lease.step, lost)
            bench.store.runs.release(claim.lease, delay_ms=0, settlement=at_work.unsent)
        except Exception as error:
            log.exception("step_failed run=%s step=%d", run_id, claim.lease.step)
            at_work.broke(error)


def has_begun(claim: Claim) -> bool:
    """Whether a worker has made anything of the run: a reply of it was committed."""
    return claim.lease.step > 0 or claim.phase == "tools"


def _left_to_others(claim: Claim, bench: Workbench, why: str) -> None:
    """Give a step back that this worker cannot do, and have the run say what it waits for.

    It may wait for days, and be given back every few seconds: none of that is its time.
    """
    delay_ms = spread(OTHER_WORKER_DELAY_MS)
    bench.store.runs.release(claim.lease, delay_ms=delay_ms, note=why, spent_ms=claim.spent_ms)


def _budgets(claim: Claim) -> Budgets:
    """What the run may spend: as it was submitted, with the limits that somebody has given it since."""
    budgets = Budgets.from_dict(claim.spec.budgets)
    if claim.limits is None:
        return budgets
    usd, tokens = (None if limit is None else max(1, limit) for limit in claim.limits)
    return replace(budgets, max_usd=None if usd is None else to_usd(usd), max_tokens=tokens)


def _sizes(rungs: Sequence[Rung]) -> list[Size]:
    return [
        Size(r.output_tokens, r.need.usd, r.need.tokens, r.need.escrow_usd, r.need.escrow_tokens)
        for r in rungs
    ]


class Step:
    """A claimed step at work. Every path through it ends in one commit or one release."""

    def __init__(
        self, bench: Workbench, agent: Agent, claim: Claim, hold: Hold, kept: Snapshot | None
    ) -> None:
        self.bench = bench
        self.agent = agent
        self.claim = claim
        self.lease = claim.lease
        self.hold = hold
        self.runs = bench.store.runs
        self.ledger = bench.store.ledger
        self.snapshot = self._snapshot(kept)
        self.thread = self.snapshot.thread
        self.budgets = _budgets(claim)
        self.decisions = decisions_of(claim.decisions, step_calls(self.thread)) if claim.decisions else {}
        """What was decided, by call; also about equal calls, for which it speaks too."""
        calls = pending_calls(self.thread) if self.decisions else []
        self.decided = [(call, self.decisions[call.id]) for call in calls if call.id in self.decisions]
        self.approved = frozenset(call_signature(call.name, call.arguments) for call, _ in self.decided)
        """Calls that a person has decided on, this way or that: nobody is asked again."""
        self.fields: dict[str, str] = {}
        """What the run is to remember with the next commit, beside its thread."""
        self.requests = 0
        self.chain = chain_of(agent.client, bench.patience_seconds)
        self.link = self.chain.links[self.chain.position(claim.failures)]
        """The model that this step asks: the agent's, or a fallback once that has failed."""
        self.unsent: Settlement | None = None  # how to close what is reserved and was not used
        self.kept: Settlement | None = None  # of a reply that was committed under this lease
        self.stop_scope = ""
        self.denied: Denied | None = None
        """Why there was no money for its call."""
        self.reply: ChatResult | None = None
        """The last reply of this step's calls."""

    def _snapshot(self, kept: Snapshot | None) -> Snapshot:
        claim = self.claim
        if claim.parts is not None:
            return load(claim.parts, claim.spec.detector, claim.spent_ms, with_trace=False)
        if kept is None:
            raise StoreError(f"{self.lease.run_id}: the claim sent no thread, and none is kept here")
        kept.thread.spend.seconds = claim.spent_ms / 1000
        return kept

    def advance(self) -> None:
        """Take the one action that the thread calls for."""
        if self.claim.wind is not None and self.thread.closing is None:
            # It has waited for money as long as it may, or a person has said that it shall not wait.
            unit, scope = self.claim.wind
            self.thread.closing = self.stopped_by(scope, unit)
        self.meet_definition()
        if end_if_refused(self):
            return
        match next_action(self.agent, self.thread, self.budgets, self.approved):
            case CallModel():
                self.call_model()
            case Repair(problem):
                repair(self, problem)
            case Compact(start):
                compact(self, start)
            case Overflow(detail):
                end_overflown(self, detail)
            case RunTools(calls):
                run_tools(self, calls)
            case Close(reason):
                close(self, reason)
            case Wait() as wait:
                wait_for_person(self, wait, None)
            case End():
                raise StoreError(f"{self.lease.run_id} was claimed although its thread has ended")

    def meet_definition(self) -> None:
        """The agent may be another one than the run has met before: say so, and do as the agent wants it."""
        definition = self.agent.definition
        if self.claim.definition == definition:
            return
        self.fields["definition"] = definition
        if not has_begun(self.claim) or not self.claim.definition:
            return  # whoever submitted it knew another one, and nothing was made of that
        self.thread.record("definition_changed", f"{self.claim.definition} to {definition}")
        if self.agent.on_change == "finish" and self.thread.closing in (None, StopReason.CANCELLED):
            self.thread.closing = StopReason.CANCELLED
            self.fields["stop_detail"] = "definition_changed"

    # ── the model ────────────────────────────────────────────────────────────────────────────────

    def call_model(self) -> None:
        """Make this step's one model call, if the money for it can be had, and keep the reply."""
        request = model_request(self.agent, self.thread, self.claim.spec.metadata)

        def rungs(most: int) -> tuple[Rung, ...]:
            return call_rungs(self.agent, self.thread, request, self.claim.spec.metadata, most=most)

        made = self.ask(request, rungs)
        if made is None:
            return
        result, cost, settlement = made
        apply_reply(self.agent, self.thread, result, cost=cost, approved=self.approved)
        failpoint("step.after_model")
        match next_action(self.agent, self.thread, self.budgets, self.approved):
            case RunTools(calls):
                delta = self.delta()
                if self.runs.commit_tools(self.lease, delta, settlement) == "OK":
                    self.snapshot.stored(delta)
                    self.kept = settlement
                    failpoint("step.after_model_commit")
                    run_tools(self, calls)
            case Wait() as wait:
                wait_for_person(self, wait, settlement)
            case End():
                self.finish(settlement, detail=self.thread.trace[-1].detail if self.is_failed else "")
            case _:
                self.proceed(settlement)

    def ask(
        self, request: ChatRequest, rungs: Callable[[int], Sequence[Rung]]
    ) -> tuple[ChatResult, NanoUSD | None, Settlement] | None:
        """Make one call, if the money for it can be had; None when the step is over without a reply.

        Args:
            request: the call.
            rungs: its so many largest sizes.
        """
        granted = self.reserve(request, rungs(1), smaller=lambda: rungs(RUNGS)[1:])
        if not isinstance(granted, Granted):
            if isinstance(granted, Denied):
                self.denied = granted
                close(self, self.stopped_by(granted.scope, granted.unit))
            return None
        result = self.complete(capped(request, granted.output_tokens), granted)
        if isinstance(result, Exception):
            if not compacts_after(self, request, result, granted):
                self.failed(result, granted)
            return None
        result, cost, settlement = settle(self.agent, result, granted)
        self.hold.flight = settlement
        self.snapshot.usage += result.usage
        return result, cost, settlement

    def reserve(
        self,
        request: ChatRequest,
        rungs: Sequence[Rung],
        *,
        smaller: Callable[[], Sequence[Rung]] | None = None,
        policy: str = "",
        fields: Mapping[str, str] | None = None,
    ) -> Granted | Denied | None:
        """Money for a request, and for a later closing turn; None when the step is over without it.

        Args:
            request: the call.
            rungs: the sizes to which it may be cut.
            smaller: further ones, asked for when there is no money for these.
            policy: what a dry scope means, in place of what the run was submitted with.
            fields: what the run keeps of this step when it is parked.
        """
        # Named before it is asked for: where the answer is lost, nothing was sent.
        self.unsent = Settlement(self.ledger.reservation(self.lease, self.requests + 1), "release")
        self.hold.flight = self.unsent
        answer = self.ledger.reserve(
            self.lease,
            self.requests + 1,
            _sizes(rungs),
            smaller=None if smaller is None else lambda: _sizes(smaller()),
            policy="deny" if self.claim.wind else policy or self.claim.spec.on_exhausted,
            catalogue=self.agent.catalogue,
            park_ms=self.bench.park_ms,
            fields=fields,
            pace=self.pace(request),
        )
        if isinstance(answer, Denied):
            return answer
        return self.granted(answer)

    def pace(self, request: ChatRequest) -> Pace | None:
        """The rate limit that a call of this model shares; None for a model that has none."""
        try:
            lane: str | None = getattr(self.link, "lane", None)
        except LLMError:
            return None  # without a key there is no account; the call itself says so
        return None if lane is None else Pace(lane, expected_input(self.agent, self.thread, request))

    def granted(self, answer: Granted | Parked | Recovering | Paced | str) -> Granted | None:
        """The reservation, or None when the run waits for money or for the ledger.

        Raises:
            LeaseLostError: when the step is somebody else's by now.
        """
        match answer:
            case Granted():
                self.requests += 1
                failpoint("step.after_reserve")
                return answer
            case Parked(scope, unit, kind):
                self.unsent = None
                log.info("run_parked run=%s scope=%s unit=%s kind=%s", self.lease.run_id, scope, unit, kind)
                # Not with each reserve: nearly all are granted. Until it is there the tick sends the hint.
                hint = self.bench.make_hint(self.lease.run_id, self.lease.step)
                if hint is not None:
                    self.runs.leave_hint(self.lease, hint)
            case Recovering(until_ms):
                delay_ms = max(RECOVERING_DELAY_MS, until_ms - self.now_ms())
                head = self.delta().head if self.thread.closing else None
                self.runs.release(self.lease, delay_ms=spread(delay_ms), head=head, scope=self.stop_scope)
            case Paced():
                wait(self, answer)
            case refusal:
                raise LeaseLostError(f"the ledger answered {refusal}")
        return None

    def wake_hint(self) -> dict[str, str]:
        """What a run leaves behind when it has to wait: the hint for the script that lets it go on."""
        hint = self.bench.make_hint(self.lease.run_id, self.lease.step)
        return {} if hint is None else {"wake_hint": f"{GRACE_MS} {' '.join(hint)}"}

    def stopped_by(self, scope: str, unit: str) -> StopReason:
        """The reason for which this scope stops the run; the scope is kept when it is not the run's own."""
        if scope != f"run:{self.lease.run_id}":
            self.stop_scope = scope
        return StopReason.TOKEN_BUDGET if unit == "tokens" else StopReason.COST_BUDGET

    def complete(
        self, request: ChatRequest, granted: Granted, *, seconds: float | None = None
    ) -> ChatResult | Exception:
        """The one request that this reservation stands for, within so many seconds."""
        unclear = Settlement(granted.reservation, "forfeit", granted.usd, granted.tokens)
        self.hold.begin("its model call", unclear)
        self.unsent = None
        if self.link is not self.chain.links[0]:
            self.thread.record("fallback", f"{named(self.chain.links[0])} to {named(self.link)}", ok=False)
        try:
            result = complete(self.link, request, seconds)
        except Exception as error:  # noqa: BLE001 - whatever a client raises is an outcome of the call
            tell_failure(self.bench.store.governor, granted, error)
            log.warning(
                "call_failed run=%s reservation=%s error=%r", self.lease.run_id, granted.reservation, error
            )
            return error
        tell_limits(self.bench.store.governor, granted, result)
        self.reply = result
        return result

    def failed(self, error: Exception, granted: Granted) -> None:
        """Close the reservation of a failed call, then try again later or end the run."""
        how = "forfeit" if is_unclear(error) else "release"
        settlement = Settlement(granted.reservation, how, granted.usd, granted.tokens)
        if self.retried(error, settlement):
            return
        reason = StopReason.CONTEXT_OVERFLOW if is_overflow(error) else StopReason.MODEL_ERROR
        end(self.thread, reason, described(error), kind=reason.value)
        self.finish(settlement, detail=described(error))

    def retried(self, error: Exception, settlement: Settlement) -> bool:
        """Give the step back with a due time, when the error allows it: no worker sleeps for a provider."""
        unclear = self.claim.unclear + is_unclear(error)
        since_ms, now_ms = self.claim.failing_ms, self.now_ms()
        again = next_try(
            error,
            self.chain,
            failures=self.claim.failures,
            unclear=unclear,
            failing_ms=now_ms - since_ms if since_ms else 0,
        )
        if again is None:
            return False
        self.runs.release(
            self.lease,
            delay_ms=again.delay_ms,
            settlement=settlement,
            failed=Failure(described(error), unclear, again.counts),
            head=self.delta().head if self.thread.closing else None,
            scope=self.stop_scope,
        )
        if not again.delay_ms:  # another model is asked, and nobody need wait for that
            self.bench.dispatch(self.lease.run_id, self.lease.step)
        return True

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    def broke(self, error: Exception) -> None:
        """Something that is no outcome of a call went wrong: try again later, and not for ever.

        A client's `bound`, say, or a full Redis that refuses to reserve. What was sent is charged in full.
        """
        failures = self.claim.failures + 1
        if failures < FAILURES_MAX:
            failed = Failure(described(error), self.claim.unclear)
            delay_ms = backoff_ms(error, failures)
            self.runs.release(self.lease, delay_ms=delay_ms, settlement=self.unsent, failed=failed)
            return
        end(self.thread, StopReason.MODEL_ERROR, described(error), kind="step_failed")
        # Of a step that went wrong only the reason is kept: its messages may be half of a turn.
        last = self.snapshot.last_event(self.now_ms())
        self.finish(self.unsent, detail=described(error), delta=last)

    @property
    def is_failed(self) -> bool:
        """Whether its thread has ended as a failure."""
        reason = self.thread.stop_reason
        return reason is not None and StopReason(reason).is_failure

    def finish(self, settlement: Settlement | None, *, detail: str = "", delta: Delta | None = None) -> None:
        """End the run with what its thread says, and commit all of the thread, or this delta."""
        reason = StopReason(self.thread.stop_reason or StopReason.FINISHED)
        if has_output(self.agent, self.thread):
            self.fields["output"] = "1"
        if self.reply is not None and (self.thread.answer or reason.is_success):
            self.fields |= kept_of_reply(self.claim.spec, self.reply)
        answer = self.runs.commit_end(
            self.lease,
            delta or self.delta(),
            settlement,
            reason,
            answer=self.thread.answer,
            scope=self.stop_scope,
            detail=detail,
        )
        log.info(
            "run_ended run=%s agent=%s model=%s batch=%s reason=%s steps=%d usd=%s committed=%s",
            self.lease.run_id,
            self.agent.name,
            self.agent.client.model,
            self.claim.spec.batch or "-",
            reason.value,
            self.thread.step,
            self.thread.spend.usd,
            answer,
        )

    def proceed(self, settlement: Settlement | None) -> None:
        """Commit the step and ask for the next one. Lost in between? The tick sends it again."""
        run_id, following = self.lease.run_id, self.lease.step + 1
        delta, hint = self.delta(), self.bench.make_hint(run_id, following)
        kept = self.kept is not None
        answer = self.runs.commit_continue(self.lease, delta, settlement or self.kept, hint, kept=kept)
        failpoint("step.after_commit")
        if answer != "OK":
            if kept and answer == "STALE":  # a server that has lost the reply may still know the lease
                self.runs.release(self.lease, delay_ms=0)
            return
        self.snapshot.stored(delta)
        self.bench.cache.put(run_id, self.runs.commit_id(self.lease), self.snapshot)
        if hint is None:
            self.bench.dispatch(run_id, following)

    def delta(self) -> Delta:
        """What the thread has gained since the last commit, and what the run is to remember."""
        return replace(self.snapshot.delta(self.now_ms()), fields=dict(self.fields))

    def now_ms(self) -> int:
        """The server's clock: its time at the claim, and what the monotonic clock has run since."""
        return self.claim.now_ms + round((self.bench.leases.now() - self.hold.taken_at) * 1000)
