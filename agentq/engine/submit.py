"""Submitting single runs: each is queued and watched before its first message is sent. Batches: `load.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agentq.agent.agent import Agent
from agentq.agent.budgets import Budgets, Need
from agentq.agent.loop import begin
from agentq.agent.request import closing_rungs, least_request
from agentq.agent.thread import Thread
from agentq.core.errors import UsageError
from agentq.core.failpoints import failpoint
from agentq.core.ids import new_run_id
from agentq.core.money import format_usd, to_nano, to_usd
from agentq.core.records import RunSpec
from agentq.engine.bill import unpriced
from agentq.engine.failure import described
from agentq.engine.rows import Row
from agentq.engine.snapshot import encode_head, encode_message
from agentq.engine.workbench import Dispatch, MakeHint, no_hint
from agentq.provider.catalogue import missing_price_hint
from agentq.provider.types import Role, Usage
from agentq.store.connect import Store


@dataclass(frozen=True, slots=True)
class Draft:
    """A run that may be submitted: everything about it was checked."""

    run_id: str
    spec: RunSpec
    messages: tuple[str, ...]
    head: str
    definition: str = ""
    """The hash of its agent."""
    kept: Mapping[str, str] = field(default_factory=dict)
    """Long results of the conversation that it continues."""


def draft_run(
    name: str,
    agent: Agent,
    row: Row,
    *,
    tenant: str,
    batch: str | None = None,
    budgets: Budgets | None = None,
    thread: Thread | None = None,
    batch_usd: int | None = None,
    batch_tokens: int | None = None,
    capped: bool = False,
    on_unpriced: str = "refuse",
    on_exhausted: str = "park",
) -> Draft:
    """Make a run of a row.

    Args:
        budgets: the run's, in place of the agent's; `row.max_usd` goes before both.
        thread: a conversation that the row continues, on a copy.
        batch_usd: the limit of its batch in nano-USD; likewise batch_tokens.
        capped: another scope around the run has a limit in USD.
        on_unpriced: `refuse` a limit in USD that could never fire for want of a price, or `allow` it.
        on_exhausted: what it does when a scope around it is dry, unless its agent says otherwise.

    Raises:
        UsageError: when not even the closing turn would fit into its budgets, or the price is missing.
    """
    limits = budgets or agent.budgets
    if row.max_usd is not None:
        try:
            limits = replace(limits, max_usd=row.max_usd)
        except ValueError as error:
            raise UsageError(str(error)) from None
    if on_unpriced == "refuse" and (capped or batch_usd is not None or limits.max_usd is not None):
        refuse_unpriced(name, agent)
    started = _start(agent, row, thread)
    need = least_need(name, agent, started)
    refuse_too_little(
        name, need, None if limits.max_usd is None else to_nano(limits.max_usd), limits.max_tokens
    )
    refuse_too_little(name, need, batch_usd, batch_tokens, "the batch's ")
    return Draft(
        run_id=new_run_id(),
        spec=RunSpec(
            agent=name,
            tenant=tenant,
            batch=batch,
            custom_id=row.custom_id or None,
            budgets=limits.as_dict(),
            metadata=row.metadata,
            context=row.context,
            detector=None if agent.loop_detector is None else agent.loop_detector.fresh().as_dict(),
            content_hash=row.content_hash,
            on_exhausted=agent.on_exhausted or on_exhausted,
        ),
        messages=tuple(encode_message(message) for message in started.messages),
        head=encode_head(started, Usage()),
        definition=agent.known_definition,
        kept={} if thread is None else dict(thread.kept),
    )


def refuse_unpriced(name: str, agent: Agent) -> None:
    """Return when each model that may answer for the agent has a price.

    Raises:
        UsageError: when one has none: a limit in USD would never fire.
    """
    free = unpriced(agent)
    if free:
        raise UsageError(
            f"agent {name!r} has a limit in USD, but its model {free[0]!r} has no price: it would never fire",
            hint=missing_price_hint(agent.pricing or {}, free[0]),
        )


def optional_scopes(store: Store, name: str, agent: Agent, kinds: Iterable[str]) -> tuple[str, ...]:
    """The scopes of an agent's runs that are not always there: of these kinds (agent, model), or limited."""
    possible = {"agent": f"agent:{name}", "model": f"model:{agent.client.model}"}
    wanted = [possible[kind] for kind in kinds]
    wanted += store.ledger.limited([scope for scope in possible.values() if scope not in wanted])
    if agent.key is not None:
        wanted.append(f"key:{agent.key}")
    return tuple(sorted(set(wanted)))  # a scope that is there twice would be booked twice


def _start(agent: Agent, row: Row, thread: Thread | None) -> Thread:
    started = Thread()
    if thread is not None:
        started = Thread(messages=list(thread.messages), summaries=list(thread.summaries))
    for message in row.messages():
        if message["role"] == Role.USER.value:
            begin(agent, started, message["content"])
        else:
            started.add(Role(message["role"]), message["content"])
    return started


def least_need(name: str, agent: Agent, thread: Thread) -> Need:
    """The least that a run needs in order to answer at all."""
    try:
        return closing_rungs(agent, thread, least_request(agent, thread))[-1].need
    except Exception as error:
        raise UsageError(
            f"agent {name!r}: what a call can cost at most is not known: {described(error)}"
        ) from error


def refuse_too_little(name: str, need: Need, usd: int | None, tokens: int | None, whose: str = "") -> None:
    """Return when a run can answer once within these limits (nano-USD, tokens).

    Raises:
        UsageError: when it cannot, with the least that would do.
    """
    if tokens is not None and need.tokens > tokens:
        raise UsageError(
            f"agent {name!r}: a run could not even answer once within {whose}{tokens} tokens",
            hint=f"the least that would do here is max_tokens={need.tokens}",
        )
    if usd is not None and need.usd > usd:
        raise UsageError(
            f"agent {name!r}: a run could not even answer once within {whose}{to_usd(usd).normalize():f} USD",
            hint=f"the least that would do here is {format_usd(need.usd)} USD",
        )


def submit_drafts(
    drafts: Sequence[Draft],
    *,
    store: Store,
    dispatch: Dispatch,
    retention_ms: int,
    make_hint: MakeHint = no_hint,
) -> list[tuple[str, str]]:
    """Write runs and send their first messages; CREATED or EXISTS and the run id of each.

    Raises:
        ConflictError: when a custom_id exists with other content.
    """
    hints = [make_hint(draft.run_id, 0) for draft in drafts]
    answers = store.runs.submit(
        [(draft.run_id, draft.spec, draft.messages) for draft in drafts],
        heads=[draft.head for draft in drafts],
        retention_ms=retention_ms,
        hints=hints,
        definitions=[draft.definition for draft in drafts],
        kept=[draft.kept for draft in drafts],
    )
    failpoint("submit.after_write")
    for hint, (word, run_id) in zip(hints, answers, strict=True):
        if hint is None and word == "CREATED":
            dispatch(run_id, 0)
    return answers
