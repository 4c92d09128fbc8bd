"""What agentq knows about a tool."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

OnUnknown = Literal["tell", "ask"]
Isolation = Literal["thread", "process"]
DEFAULT_TIMEOUT_S = 20.0
DEFAULT_RESULT_CHARS = 8_000


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A function with its schema and its promises.

    A tool without `side_effect` only reads: it may run in parallel and again. One with it runs alone, in
    the declared order, and once per run for the same arguments, unless `repeatable` says that doing it
    again is meant. `idempotent` promises that a repetition with the same `ctx.idempotency_key` does not
    act twice. `context_params` are filled by the server and not in the schema. Arguments are checked by
    `args_model`, a pydantic model whose aliases are the parameters' names, or else by `check`.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    fn: Callable[..., Any]
    args_model: type[BaseModel] | None = None
    side_effect: bool = False
    requires_approval: bool = False
    idempotent: bool = False
    repeatable: bool = False
    timeout_s: float = DEFAULT_TIMEOUT_S
    max_result_chars: int = DEFAULT_RESULT_CHARS
    context_params: tuple[str, ...] = ()
    on_unknown: OnUnknown | None = None
    """Nobody knows whether a call has acted: `tell` the model, or `ask` a person. None: as its agent says."""
    isolation: Isolation = "thread"
    """Where `fn` runs. In a process, it is killed at its timeout."""
    check: Callable[[Mapping[str, Any]], Sequence[str]] | None = None
    """Without an `args_model`: what is wrong with arguments, each problem in a few words."""
    spill: bool = False
    """A result that is longer than `max_result_chars` is kept whole, for `read_result`."""

    @property
    def is_read_only(self) -> bool:
        """Whether the tool changes nothing."""
        return not self.side_effect

    @property
    def acts_once(self) -> bool:
        """Whether the same call again in one run gets the stored result."""
        return self.side_effect and not self.repeatable
