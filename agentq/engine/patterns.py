"""Rows as they are written: what many of them have in common is written once, as their pattern."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from agentq.agent.agent import Agent
from agentq.agent.budgets import Budgets
from agentq.agent.thread import Thread
from agentq.core.errors import UsageError
from agentq.core.money import to_nano
from agentq.core.records import RunSpec
from agentq.engine.estimate import Estimate, worst_nano
from agentq.engine.rows import Row
from agentq.engine.snapshot import encode_head, encode_message
from agentq.engine.submit import least_need, refuse_too_little, refuse_unpriced
from agentq.provider.families import Family, families_of
from agentq.provider.types import Message, Role, Usage

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_text = json.encoder.encode_basestring  # what it does with a text, without the rest
_OF_ROWS = ("custom_id", "metadata", "context", "content_hash", "priority", "call")
"""What a run's spec has from its row; the rest is its pattern's."""
_SIZES_KEPT = 1_000

AgentOf = Callable[[str, Mapping[str, Any] | None], Agent]
"""The agent of this name, or of this call.

Raises:
    UsageError: when there is none.
"""


@dataclass(frozen=True, slots=True)
class Terms:
    """What is said once for all rows of a load."""

    batch: str
    tenant: str
    budgets: Budgets | None = None
    """Each run's, in place of its agent's; a row's own cap goes before both."""
    batch_usd: int | None = None
    """The limit of the batch in nano-USD; likewise `batch_tokens`."""
    batch_tokens: int | None = None
    capped: bool = False
    """Another scope around the runs has a limit in USD."""
    on_unpriced: str = "refuse"
    on_exhausted: str = "park"


@dataclass(frozen=True, slots=True)
class _Pattern:
    name: str
    agent: Agent
    spec: RunSpec
    limits: Budgets
    families: tuple[Family, ...]
    own_budgets: bool
    """Whether each of its rows has budgets of its own."""


class Patterns:
    """Makes the payloads of one load, and the patterns that they name.

    A payload is a JSON array of texts: the pattern's name, custom_id, content hash, the row's part of the
    spec without braces, its own limit in nano-USD or nothing, and its messages.
    """

    def __init__(self, terms: Terms, agent_of: AgentOf) -> None:
        self._terms = terms
        self._agent_of = agent_of
        self._nonce = secrets.token_hex(4)  # two loads of a batch may have other agents of the same name
        self._patterns: dict[tuple[str, bool, str], _Pattern] = {}
        self._fits: dict[tuple[str, Budgets], tuple[int, int | None]] = {}
        self.estimate = Estimate()

    @property
    def agents(self) -> dict[str, Agent]:
        """The agents of the rows so far, by name."""
        return {pattern.spec.agent: pattern.agent for pattern in self._patterns.values()}

    def payload(self, row: Row) -> str:
        """A row as it is written, once all about it is checked.

        Raises:
            UsageError: when not even its last call would fit into its budgets, a price is missing, or there
                is no such agent.
        """
        pattern = self._pattern(row)
        limits = _limits(pattern, row)
        self._check(pattern, row, limits)
        own = f'"custom_id":{_text(row.custom_id)},"content_hash":"{row.content_hash}"'
        if row.metadata:
            own += f',"metadata":{_encode(row.metadata)}'
        if row.context:
            own += f',"context":{_encode(row.context)}'
        if row.priority:
            own += f',"priority":{row.priority}'
        if row.call is not None:
            own += f',"call":{_encode(row.call)}'
        usd = ""
        if row.max_usd is not None:
            own += f',"budgets":{_encode(limits.as_dict())}'
            usd = str(to_nano(row.max_usd))
        parts = [pattern.name, row.custom_id, row.content_hash, own, usd, *_messages(row)]
        return f"[{','.join(map(_text, parts))}]"

    def written(self, created_ms: int, scopes_of: Callable[[str, Agent], tuple[str, ...]]) -> dict[str, str]:
        """Each pattern by its name, as JSON: an array of texts.

        tenant, scopes without the run's own, created, definition, head, spec without its last brace, and
        the limits in nano-USD and tokens of runs that have none of their own.
        """
        head = encode_head(Thread(), Usage())
        written = {}
        for pattern in self._patterns.values():
            spec = replace(pattern.spec, scopes=scopes_of(pattern.spec.agent, pattern.agent))
            fields = {name: value for name, value in asdict(spec).items() if name not in _OF_ROWS}
            usd, tokens = fields["budgets"].get("max_usd"), fields["budgets"].get("max_tokens")
            if pattern.own_budgets:
                del fields["budgets"]
            written[pattern.name] = _encode(
                [
                    spec.tenant,
                    " ".join(spec.scopes_of("")[:-1]),
                    str(created_ms),
                    pattern.agent.known_definition,
                    head,
                    _encode(fields)[:-1],
                    "" if usd is None else str(to_nano(usd)),
                    "" if tokens is None else str(tokens),
                ]
            )
        return written

    def _pattern(self, row: Row) -> _Pattern:
        # Calls of one model that differ in their options have agents of their own, and one pattern.
        key = (row.agent, row.max_usd is not None, "" if row.own_call is None else "call")
        pattern = self._patterns.get(key)
        if pattern is None or row.own_call is not None:
            agent = self._agent_of(row.agent, row.own_call)
            if pattern is not None:
                return replace(pattern, agent=agent)
            terms = self._terms
            limits = terms.budgets or agent.budgets
            if terms.on_unpriced == "refuse" and (
                terms.capped or terms.batch_usd is not None or limits.max_usd is not None or key[1]
            ):
                refuse_unpriced(row.agent, agent)
            pattern = self._patterns[key] = _Pattern(
                name=f"{self._nonce}-{len(self._patterns)}",
                agent=agent,
                spec=RunSpec(
                    agent=row.agent,
                    tenant=terms.tenant,
                    batch=terms.batch,
                    budgets=limits.as_dict(),
                    detector=None if agent.loop_detector is None else agent.loop_detector.fresh().as_dict(),
                    on_exhausted=agent.on_exhausted or terms.on_exhausted,
                ),
                limits=limits,
                families=families_of(agent.client),
                own_budgets=key[1],
            )
        return pattern

    def _check(self, pattern: _Pattern, row: Row, limits: Budgets) -> None:
        """Return when the run could answer at all.

        What a call may need grows with the tokens of its text: once a long one is known to fit, no shorter
        one has to be looked at. Only the client's own bound may say otherwise.
        """
        agent, terms = pattern.agent, self._terms
        texts = [row.input] if isinstance(row.input, str) else [m["content"] for m in row.messages()]
        size = max(sum(map(family.tokens, texts)) for family in pattern.families)
        # Each further message has a frame around it.
        size += 1_000 * (len(texts) - 1)
        known = self._fits.get((pattern.name, limits))
        plain = getattr(agent.client, "bound", None) is None and agent.token_bounds != "tight"  # noqa: S105
        if plain and row.own_call is None and known is not None and size <= known[0]:
            self.estimate.add(len(agent.system), texts, known[1])
            return
        thread = Thread()
        for message in row.messages():
            thread.add(Role(message["role"]), message["content"])
        need = least_need(row.agent, agent, thread)
        refuse_too_little(
            row.agent, need, None if limits.max_usd is None else to_nano(limits.max_usd), limits.max_tokens
        )
        refuse_too_little(row.agent, need, terms.batch_usd, terms.batch_tokens, "the batch's ")
        worst = need.usd if row.own_call is not None else worst_nano(agent, limits)
        self.estimate.add(len(agent.system), texts, worst)
        if len(self._fits) < _SIZES_KEPT or known is not None:
            self._fits[pattern.name, limits] = (size, worst)


def _messages(row: Row) -> list[str]:
    """As `encode_message` writes them; nearly all rows have one, of the user."""
    if isinstance(row.input, str):
        return [f'{{"role":"user","content":{_text(row.input)}}}']
    return [encode_message(Message(Role(m["role"]), m["content"])) for m in row.messages()]


def _limits(pattern: _Pattern, row: Row) -> Budgets:
    if row.max_usd is None:
        return pattern.limits
    try:
        return replace(pattern.limits, max_usd=row.max_usd)
    except ValueError as error:
        raise UsageError(str(error)) from None
