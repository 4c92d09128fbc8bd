"""What a load may come to: rows, tokens that are read first, and the most that it can cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentq.agent.agent import Agent
from agentq.agent.budgets import Budgets
from agentq.core.money import to_nano

_CHARS_PER_TOKEN = 4
"""Of English text, in the tokenizers of today."""


@dataclass(slots=True)
class Estimate:
    """The rows of a load added up."""

    rows: int = 0
    chars: int = 0
    worst_nano: int = 0
    """The most that the rows can cost whose runs have a limit, in nano-USD."""
    unbounded: int = 0
    """Rows whose runs have none: what they can cost is not known."""

    @property
    def tokens(self) -> int:
        """About how many tokens the first calls read together."""
        return self.chars // _CHARS_PER_TOKEN

    def add(self, system: int, texts: Sequence[str], worst: int | None) -> None:
        """Count a row: characters of its agent's system prompt, its texts, and the most that it can cost."""
        self.rows += 1
        self.chars += system + sum(map(len, texts))
        if worst is None:
            self.unbounded += 1
        else:
            self.worst_nano += worst


def worst_nano(agent: Agent, limits: Budgets) -> int | None:
    """The most that a run can cost within its limits, in nano-USD; None where none of them says so.

    A run without a limit in USD costs at most all its tokens at the dearest price of a model that may answer.
    """
    prices = [agent.price(model) for model in agent.models]
    known = [price for price in prices if price is not None]
    candidates = [] if limits.max_usd is None else [to_nano(limits.max_usd)]
    if limits.max_tokens is not None and len(known) == len(prices):
        tokens = limits.max_tokens
        candidates.append(max(to_nano(max(price.cost(tokens, 0), price.cost(0, tokens))) for price in known))
    return min(candidates, default=None)
