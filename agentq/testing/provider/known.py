"""One entry of the catalogue of faults: what it does, to which dialects, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentq.testing.provider.refusal import Refusal
from agentq.testing.provider.reply import Reply
from agentq.testing.provider.request import DIALECTS, Dialect, Request
from agentq.testing.provider.script import Turn

if TYPE_CHECKING:
    from agentq.testing.provider.fault import Fault

Refuses = Callable[[Request, "Fault"], Refusal]
Demands = Callable[[Request, "Fault"], None]
Turns = Callable[[Turn, Request, "Fault"], Turn]
Twists = Callable[[Reply, Request, "Fault"], None]
Rewrites = Callable[[dict[str, Any], Request, "Fault"], Any]

CHAT: tuple[Dialect, ...] = ("chat",)
OPENAI: tuple[Dialect, ...] = ("chat", "responses")
MESSAGES: tuple[Dialect, ...] = ("messages",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A fault that exists. Each of its parts works at a moment of its own, in this order.

    `demands` looks at a request that the service itself would take, and may refuse it; `refuses` refuses any;
    `turns` changes what the script says, `twists` the reply, and `rewrites` the JSON of the answer; `wire` is
    what happens to the bytes.
    """

    says: str
    dialects: tuple[Dialect, ...] = DIALECTS
    demands: Demands | None = None
    refuses: Refuses | None = None
    turns: Turns | None = None
    twists: Twists | None = None
    rewrites: Rewrites | None = None
    wire: str = ""
    misbehaves: bool = False
    """The model calls tools although it must not."""
